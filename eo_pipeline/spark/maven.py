"""Downloads of Maven artefacts with their dependencies, each once.

The resolver is the Ivy jar of pyspark: nothing but Java needs to be installed.
"""

from __future__ import annotations

import contextlib
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from eo_pipeline._process import hold
from eo_pipeline.errors import SetupError
from eo_pipeline.spark.java import find_java, trust_options
from eo_pipeline.spark.jvm import pyspark_home

#: Ivy file for an artefact with a classifier, which Ivy's command line does not support.
_CLASSIFIED = """\
<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/maven">
  <info organisation="eo-pipeline" module="embedded"/>
  <dependencies>
    <dependency org="{0.organisation}" name="{0.name}" rev="{0.version}" transitive="false">
      <artifact name="{0.name}" type="{0.kind}" ext="{0.kind}" m:classifier="{0.classifier}"/>
    </dependency>
  </dependencies>
</ivy-module>
"""

#: Disk space for Ivy's cache and the jars of one artefact, with a margin.
_FREE_BYTES_MIN = 300 * 1024**2
_RESOLVE_TIMEOUT_S = 600


class Artefact(NamedTuple):
    """One Maven artefact, resolved with its dependencies; or, with a ``classifier``, a single file
    of it: a jar, or an archive (see ``kind``), which is unpacked.
    """

    organisation: str
    name: str
    version: str
    classifier: str = ""
    #: without its dependencies
    alone: bool = False
    kind: str = "jar"

    def __str__(self) -> str:
        return f"{self.organisation}:{self.name}:{self.version}"

    @property
    def jar(self) -> str:
        """The name of its own jar, without the extension."""
        suffix = {"tar.gz": "-runner"}.get(
            self.kind, f"-{self.classifier}" if self.classifier else ""
        )
        return f"{self.name}-{self.version}{suffix}"


def artefact_of(coordinates: str) -> Artefact:
    """Return the artefact of ``organisation:name:version``."""
    organisation, name, version = coordinates.split(":")
    return Artefact(organisation, name, version)


def pyspark_jars() -> Path:
    """Return the folder of the jars that pyspark brings along."""
    return pyspark_home() / "jars"


def beside_pyspark(artefacts: Sequence[Artefact], state: Path) -> tuple[Path, ...]:
    """Return the jars of ``artefacts``, see :func:`resolved`, without those that pyspark has.

    Raises:
        SetupError: Java is missing, the download failed, or the disk is full.
    """
    in_spark = {_artefact_name(jar) for jar in pyspark_jars().glob("*.jar")}
    jars = {jar.name: jar for artefact in artefacts for jar in resolved(artefact, state)}
    return tuple(jar for jar in jars.values() if _artefact_name(jar) not in in_spark)


def is_resolved(artefact: Artefact, state: Path) -> bool:
    """Return whether the artefact was downloaded to ``state``."""
    return _folder(artefact, state).is_dir()


def _folder(artefact: Artefact, state: Path) -> Path:
    return state / "jars" / artefact.jar.removesuffix("-runner")


def resolved(artefact: Artefact, state: Path) -> tuple[Path, ...]:
    """Return the artefact's jars in ``state``, downloaded the first time. A folder gets its final
    name once it is complete.

    Raises:
        SetupError: Java is missing, the download failed, or the disk is full.
    """
    folder = _folder(artefact, state)
    if not folder.is_dir():
        with _download_lock(folder.parent):
            if not folder.is_dir():
                _resolve(artefact, folder)
    return tuple(sorted(folder.glob("*.jar")))


@contextlib.contextmanager
def _download_lock(jars: Path) -> Iterator[None]:
    """Let one process download at a time; the others wait for its result."""
    try:
        jars.mkdir(parents=True, exist_ok=True)
        with hold(jars / ".lock", wait_s=_RESOLVE_TIMEOUT_S):
            for partial in jars.glob(".partial-*"):  # left by a killed process
                shutil.rmtree(partial)
            yield
    except OSError as error:
        raise SetupError(f"Cannot keep jars below {jars}: {error}") from error


def _resolve(artefact: Artefact, folder: Path) -> None:
    """Download into a folder beside ``folder``, then rename."""
    find_java()  # checked first: the most frequent cause of a failure
    free = shutil.disk_usage(folder.parent).free
    if free < _FREE_BYTES_MIN:
        raise SetupError(
            f"{artefact} needs {_FREE_BYTES_MIN // 1024**2} MB of disk below {folder.parent}, "
            f"where {free // 1024**2} MB are free: make room and run again."
        )
    partial = Path(tempfile.mkdtemp(prefix=".partial-", dir=folder.parent))
    cache = folder.parent / ".ivy-cache"
    log = folder.parent / f"{folder.name}.log"
    code = _run_ivy(artefact, partial, cache, log)
    if code == 0:
        _unpack(partial)
    if code != 0 or not (partial / f"{artefact.jar}.jar").is_file():
        shutil.rmtree(partial)  # the cache remains for the next attempt
        full = "No space left" in log.read_text(errors="replace")
        raise SetupError(
            f"The jars of {artefact} could not be downloaded from the public Maven repository. "
            + ("The disk is full: make room" if full else "Check the network")
            + f" and run again; the resolver's report is in {log}"
        )
    partial.chmod(0o755)  # mkdtemp creates private folders
    partial.rename(folder)
    shutil.rmtree(cache)


def _unpack(folder: Path) -> None:
    for archive in folder.glob("*.tar.gz"):
        shutil.unpack_archive(archive, folder, filter="data")
        archive.unlink()


def _run_ivy(artefact: Artefact, folder: Path, cache: Path, log: Path) -> int:
    """Run Ivy; return its exit code. Output goes to ``log``, nothing to the home folder."""
    [ivy] = pyspark_jars().glob("ivy-*.jar")
    retrieve = folder / "[artifact]-[revision](-[classifier]).[ext]"
    java = find_java()
    truststore = trust_options(java, log.with_suffix(".p12"))
    command = [*java.start, *truststore, "-jar", str(ivy), "-cache", str(cache)]
    if artefact.classifier:
        ivy_file = folder / "ivy.xml"
        ivy_file.write_text(_CLASSIFIED.format(artefact))
        command += ["-ivy", str(ivy_file), "-retrieve", str(retrieve)]
    else:
        command += ["-dependency", *artefact[:3], "-confs", "default"]
        command += ["-notransitive"] if artefact.alone else []
        # "bundle": Maven's type of OSGi jars, such as scala-logging
        command += ["-retrieve", str(retrieve), "-types", "jar", "bundle"]
    with log.open("wb") as output:
        try:
            run = subprocess.run(
                command, stdout=output, stderr=output, check=False, timeout=_RESOLVE_TIMEOUT_S
            )
        except subprocess.TimeoutExpired:
            return -1
    return run.returncode


def _artefact_name(jar: Path) -> str:
    """Return ``kafka-clients`` for ``kafka-clients-3.9.0.jar``: up to the last hyphen and digit."""
    return re.sub(r"-\d[^-]*(-[A-Za-z]\w*)?$", "", jar.stem)
