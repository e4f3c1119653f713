"""The peers' jars, by name and version: resolved once, with the Ivy that pyspark brings along."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks.suite.errors import PeerMissingError
from eo_pipeline.errors import SetupError
from eo_pipeline.spark.java import find_java, trust_options
from eo_pipeline.spark.jvm import pyspark_home

_RESOLVE_S = 540.0


class Jar(NamedTuple):
    """A Maven artefact; ``alone`` leaves out what it depends on."""

    organisation: str
    name: str
    version: str
    alone: bool = True


def spark_jars(*names: str) -> list[Path]:
    """Those that pyspark holds, by the start of their names."""
    return [
        jar for name in names for jar in sorted((pyspark_home() / "jars").glob(f"{name}-*.jar"))
    ]


def resolved(jars: Sequence[Jar], room: Path, seconds: float = _RESOLVE_S) -> list[Path]:
    """The jars in a folder of ``room``, which has its name only once it is complete.

    ``seconds``: the most that downloading them may take.

    Raises:
        PeerMissingError: they could not be downloaded, or there is no Java to do it with.
    """
    known = hashlib.sha256(repr(jars).encode()).hexdigest()[:8]
    folder = room / f"{jars[0].name}-{jars[0].version}-{known}"
    if not folder.is_dir():
        _resolve(jars, folder, seconds)
    return sorted(folder.glob("*.jar"))


def _resolve(jars: Sequence[Jar], folder: Path, seconds: float) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    log = folder.with_suffix(".log")
    with tempfile.TemporaryDirectory(prefix=".partial-", dir=folder.parent) as scratch:
        partial = Path(scratch) / "jars"
        _run_ivy(jars, partial, Path(scratch), log, seconds)
        missing = [jar for jar in jars if not (partial / f"{jar.name}-{jar.version}.jar").is_file()]
        if missing:
            raise PeerMissingError(
                f"its jars could not be downloaded, beginning with {missing[0].name} "
                f"{missing[0].version}; the resolver's report is in {log.name}"
            )
        shutil.move(partial, folder)


def _run_ivy(jars: Sequence[Jar], into: Path, scratch: Path, log: Path, seconds: float) -> None:
    """Ivy's own words go into ``log``; whether it worked is seen by the files."""
    wanted = "".join(
        f'<dependency org="{jar.organisation}" name="{jar.name}" rev="{jar.version}" '
        f'conf="default" transitive="{str(not jar.alone).lower()}"/>'
        for jar in jars
    )
    module = scratch / "ivy.xml"
    module.write_text(
        '<ivy-module version="2.0"><info organisation="bench" module="peer"/>'
        f"<dependencies>{wanted}</dependencies></ivy-module>"
    )
    try:
        java = find_java()
    except SetupError as error:
        raise PeerMissingError(str(error)) from error
    [ivy] = spark_jars("ivy")
    command = [str(java.command), *trust_options(java, scratch / "trust.p12"), "-jar", str(ivy)]
    command += ["-cache", str(scratch / "cache"), "-ivy", str(module), "-types", "jar", "bundle"]
    command += ["-retrieve", str(into / "[artifact]-[revision](-[classifier]).[ext]")]
    with log.open("wb") as output:
        try:
            subprocess.run(command, stdout=output, stderr=output, check=False, timeout=seconds)
        except subprocess.TimeoutExpired as error:
            raise PeerMissingError("its jars took too long to download") from error
