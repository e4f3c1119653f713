"""Jar of this package's Java classes for Spark, compiled from source once; detection in a Spark.

Spark includes a compiler (Janino) for generated code, so no JDK is needed, and the package ships no
class files. The jar's name is a hash of the sources and of Spark's jars: another Spark or another
release of this package compiles its own.

A Spark started by this package has the jar. To another Spark Connect server it is sent, for the
session alone.
"""

from __future__ import annotations

import hashlib
import logging
import os
import subprocess
import tempfile
from collections.abc import Callable
from functools import lru_cache
from importlib import resources
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from eo_pipeline.errors import SetupError
from eo_pipeline.spark.class_archive import folder, is_ours
from eo_pipeline.spark.clients import is_connect
from eo_pipeline.spark.java import find_java
from eo_pipeline.spark.jvm import spark_home
from eo_pipeline.storage.paths import zipped

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

#: Spark catalog of the jar's functions.
FUNCTION_CATALOG = "eo_pipeline"

#: Setting that registers the jar's functions in a Spark that has the jar.
CATALOG_SETTING = f"spark.sql.catalog.{FUNCTION_CATALOG}"
CATALOG_CLASS = "eo.pipeline.OrdinaryFunctions"

_SOURCES = (
    "AvroPlan.java",
    "Conditions.java",
    "Connector.java",
    "DeadLetters.java",
    "DecodedRanges.java",
    "DecodedRow.java",
    "Decoding.java",
    "FieldTexts.java",
    "Hashes.java",
    "HeaderTexts.java",
    "HeldFile.java",
    "HeldRows.java",
    "Judge.java",
    "KafkaRanges.java",
    "KafkaReaders.java",
    "LaterExtensions.java",
    "MetSchemas.java",
    "OptionsTable.java",
    "Ordinary.java",
    "OrdinaryFunctions.java",
    "OrdinaryJson.java",
    "OrdinaryKey.java",
    "OrdinaryScanner.java",
    "OrdinaryWritten.java",
    "ParquetWithIds.java",
    "Plain.java",
    "PlainBuffer.java",
    "PlainValues.java",
    "Plan.java",
    "ProtobufPlan.java",
    "RangeStager.java",
    "RecordDecoder.java",
    "RowCounting.java",
    "RowDocument.java",
    "RowFile.java",
    "Split.java",
    "SplitRanges.java",
    "SplitRdd.java",
    "SplitTables.java",
    "Splitter.java",
    "StagedColumn.java",
    "StagedFile.java",
    "StagedRanges.java",
    "StagedRows.java",
    "Staging.java",
    "StreamFile.java",
    "TextCheck.java",
    "Totals.java",
)
_PACKAGE = Path("eo", "pipeline")
_COMPILER = "org.codehaus.commons.compiler.samples.CompilerDemo"
_COMPILER_TIMEOUT_S = 120

log = logging.getLogger(__name__)

#: Detection results by the name of a function, source or format.
_results: WeakKeyDictionary[SparkSession, dict[str, bool]] = WeakKeyDictionary()
_lock = Lock()


@lru_cache(maxsize=1)
def compiled_jar() -> Path | None:
    """Return the jar for the Spark of this process, compiled in about a second if missing; None if
    it cannot be compiled: Spark then uses its own functions.
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
        with tempfile.TemporaryDirectory(prefix=".compiling-", dir=folder()) as build:
            new_jar = Path(build) / path.name
            _pack(_compiled(jars, Path(build)), new_jar)
            new_jar.replace(path)
    return path


def _name(jars: Path) -> str:
    digest = hashlib.sha256()
    for source in _SOURCES:
        digest.update(_source(source).encode())
    for jar in [*jars.glob("spark-catalyst_*.jar"), *jars.glob("jackson-core-2*.jar")]:
        digest.update(f"{jar.name} {jar.stat().st_size}".encode())
    return digest.hexdigest()[:24]


def _source(name: str) -> str:
    return (resources.files("eo_pipeline.spark") / "native" / name).read_text()


def _compiled(jars: Path, folder: Path) -> Path:
    """Compile the sources; return the folder of the classes, below ``folder``.

    Raises:
        SetupError: no Java, or the compiler rejects the sources.
    """
    # the compiler finds sources that reference each other only in their package's folders
    classes, sources = folder / "classes", [folder / _PACKAGE / name for name in _SOURCES]
    (folder / _PACKAGE).mkdir(parents=True)
    for source in sources:
        source.write_text(_source(source.name))
    command = [*find_java().start, "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]
    compiler = [*jars.glob("janino-*.jar"), *jars.glob("commons-compiler-*.jar")]
    command += ["-cp", os.pathsep.join(map(str, compiler)), _COMPILER]
    command += ["-d", str(classes), "-encoding", "UTF-8", "-sourcepath", str(folder)]
    command += ["-classpath", os.pathsep.join(map(str, sorted(jars.glob("*.jar"))))]
    command += map(str, sources)
    run = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=_COMPILER_TIMEOUT_S
    )
    # the compiler's exit code is always 0, and it keeps the classes finished before an error
    if not all((classes / _PACKAGE / name).with_suffix(".class").exists() for name in _SOURCES):
        raise SetupError(f"Spark's compiler says {run.stdout.strip()} {run.stderr.strip()}")
    return classes


def _pack(classes: Path, jar: Path) -> None:
    files = {p.relative_to(classes).as_posix(): p for p in sorted(classes.rglob("*.class"))}
    jar.write_bytes(zipped({name: path.read_bytes() for name, path in files.items()}))
    jar.chmod(0o644)


def has_function(spark: SparkSession, name: str, trial: Callable[[], Column]) -> bool:
    """Return whether ``spark`` can analyse ``trial``, a call of the function ``name``; cached.

    The setting alone is no proof: an existing session may have the setting without the jar.
    """
    return _has(spark, name, lambda: spark.range(1).select(trial()))


def has_source(spark: SparkSession, name: str) -> bool:
    """Return whether ``spark`` has our data source ``name``; cached."""
    return _has(spark, name, spark.read.format(name).load)


def has_format(spark: SparkSession, name: str) -> bool:
    """Return whether ``spark`` has our file format ``name``; cached."""
    return _has(spark, name, spark.read.format(name).schema("x INT").load)


def _has(spark: SparkSession, name: str, probe: Callable[[], DataFrame]) -> bool:
    with _lock:
        results = _results.setdefault(spark, {})
        if name not in results:
            results[name] = _analyses(spark, probe)
        return results[name]


def _analyses(spark: SparkSession, probe: Callable[[], DataFrame]) -> bool:
    # here: a command that starts no Spark does without them
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        if spark.conf.get(CATALOG_SETTING, None) is None and not _was_sent(spark):
            return False
        return bool(probe().schema)
    # the server refuses jars; or Spark is lost, which the job reports
    except (PySparkException, Py4JError):
        return False


def _was_sent(spark: SparkSession) -> bool:
    jar = compiled_jar() if is_connect(spark) else None
    if jar is not None:
        spark.addArtifacts(str(jar))
        spark.conf.set(CATALOG_SETTING, CATALOG_CLASS)
    return jar is not None
