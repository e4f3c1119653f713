"""The part of Spark's plans that is ours in Java: ``sources``, compiled here, once.

Spark brings a compiler along (Janino), for the code that it generates: no JDK is needed, and no
class files are handed around. The jar is named by what it is made of and for, so that another Spark
or another release of this package makes one of its own.
"""

from __future__ import annotations

import hashlib
import logging
import os
import subprocess
import tempfile
from collections.abc import Iterator
from functools import lru_cache
from importlib import resources
from pathlib import Path

from eo_pipeline.config.settings import FUNCTION_CATALOG
from eo_pipeline.errors import SetupError
from eo_pipeline.spark.class_archive import folder, is_ours
from eo_pipeline.spark.java import find_java
from eo_pipeline.spark.jvm import spark_home
from eo_pipeline.storage.paths import zipped

#: The setting that makes the jar's functions known to a Spark that was started with it.
CATALOG_SETTING = f"spark.sql.catalog.{FUNCTION_CATALOG}"
CATALOG_CLASS = "eo.pipeline.OrdinaryFunctions"

_SOURCES = (
    "CopyRow.java",
    "HeldFile.java",
    "LaterExtensions.java",
    "OrdinaryFunctions.java",
    "OrdinaryJson.java",
    "OrdinaryScanner.java",
    "ParquetWithIds.java",
    "Plain.java",
    "PlainBuffer.java",
    "PlainValues.java",
    "RangeStager.java",
    "RowDocument.java",
    "StagedColumn.java",
    "StagedFile.java",
    "StagedRanges.java",
    "Staging.java",
)
_PACKAGE = Path("eo", "pipeline")
_COMPILER = "org.codehaus.commons.compiler.samples.CompilerDemo"
_COMPILER_TIMEOUT_S = 120

log = logging.getLogger(__name__)


@lru_cache(maxsize=1)
def ordinary_jar() -> Path | None:
    """The jar for the Spark that is started here, made now if it is not there, in about a second;
    None: it cannot be made, and Spark does without.
    """
    try:
        return _jar()
    except (SetupError, OSError, subprocess.SubprocessError) as error:
        log.info("Spark decodes all records by its own functions: %s", error)
        return None


def _jar() -> Path:
    jars = spark_home() / "jars"
    path = folder() / f"ordinary-{_name(jars)}.jar"
    if not is_ours(path):
        folder().mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".compiling-", dir=folder()) as place:
            aside = Path(place) / path.name
            _pack(_compiled(jars, Path(place)), aside)
            aside.replace(path)
    return path


def _name(jars: Path) -> str:
    told = hashlib.sha256()
    for source in _SOURCES:
        told.update(_source(source).encode())
    for jar in [*jars.glob("spark-catalyst_*.jar"), *jars.glob("jackson-core-2*.jar")]:
        told.update(f"{jar.name} {jar.stat().st_size}".encode())
    return told.hexdigest()[:24]


def _source(name: str) -> str:
    return (resources.files("eo_pipeline.spark") / "native" / name).read_text()


def _compiled(jars: Path, place: Path) -> Path:
    """The folder of the classes, below ``place``.

    Raises:
        SetupError: no Java, or the compiler does not take the sources.
    """
    # of sources that name each other it finds one by the folders of its package alone
    classes, sources = place / "classes", [place / _PACKAGE / name for name in _SOURCES]
    (place / _PACKAGE).mkdir(parents=True)
    for source in sources:
        source.write_text(_source(source.name))
    command = [*find_java().start, "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]
    compiler = [*jars.glob("janino-*.jar"), *jars.glob("commons-compiler-*.jar")]
    command += ["-cp", os.pathsep.join(map(str, compiler)), _COMPILER]
    command += ["-d", str(classes), "-encoding", "UTF-8", "-sourcepath", str(place)]
    command += ["-classpath", os.pathsep.join(map(str, sorted(jars.glob("*.jar"))))]
    command += map(str, sources)
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=_COMPILER_TIMEOUT_S
    )
    # it says nothing by its exit code, and leaves the classes that it was done with
    if not all((classes / _PACKAGE / name).with_suffix(".class").exists() for name in _SOURCES):
        raise SetupError(f"Spark's compiler says {done.stdout.strip()} {done.stderr.strip()}")
    return classes


def _classes(folder_: Path) -> Iterator[Path]:
    yield from sorted(folder_.rglob("*.class"))


def _pack(classes: Path, jar: Path) -> None:
    named = {each.relative_to(classes).as_posix(): each for each in _classes(classes)}
    jar.write_bytes(zipped({name: each.read_bytes() for name, each in named.items()}))
    jar.chmod(0o644)
