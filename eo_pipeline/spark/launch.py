"""Settings of a Spark that this package starts, in this process or as a server."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, NamedTuple
from weakref import WeakKeyDictionary

from eo_pipeline.errors import SetupError
from eo_pipeline.spark.clients import is_connect
from eo_pipeline.spark.connector import (
    AVRO,
    CONNECTOR,
    JARS_VARIABLE,
    downloaded_connector,
    has_users_configuration,
    is_left_to_spark,
)
from eo_pipeline.spark.jvm import KAFKA_SETTINGS
from eo_pipeline.spark.native_jar import CATALOG_CLASS, CATALOG_SETTING, compiled_jar

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Settings that decide the staged values of times and dates, and the metrics of a job: the same for
#: every session that stages.
STAGING_SETTINGS: Mapping[str, str] = {
    # times without a zone, and the transform's time functions
    "spark.sql.session.timeZone": "UTC",
    # the meaning of TIMESTAMP in a schema
    "spark.sql.timestampType": "TIMESTAMP_LTZ",
    # Spark's default INT96 is refused or misread by other readers of Parquet
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    # Parquet has one calendar; LEGACY moves days before 1582
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
    # a Connect server caches plans whose schema was requested (`df.columns` in a transform), and
    # never reports observed metrics of a cached plan
    "spark.connect.session.planCache.enabled": "false",
    # Spark's default without "kafka": by the V2 interface the connector fills rows directly; V1
    # converts Java objects, and reads nearly half as fast
    "spark.sql.sources.useV1SourceList": "avro,csv,json,orc,parquet,text",
    # bytes of a generated method: Java compiles no longer one; Spark's limit is eight times that
    "spark.sql.codegen.hugeMethodLimit": "8000",
}


#: Spark's defaults on which decoding, validation and writing depend. A caller's session may have
#: other values, from older jobs.
SPARKS_DEFAULTS: Mapping[str, str] = {
    # LEGACY takes 2026-02-30, EXCEPTION ends the job at it
    "spark.sql.legacy.timeParserPolicy": "CORRECTED",
    # the texts and numbers that a JSON field accepts, and the fields beside an invalid one
    "spark.sql.legacy.json.allowEmptyString.enabled": "false",
    "spark.sql.json.enablePartialResults": "true",
    "spark.sql.json.enableExactStringParsing": "true",
    # the meaning of a schema's text
    "spark.sql.legacy.allowNegativeScaleOfDecimal": "false",
    "spark.sql.legacy.charVarcharAsString": "false",
    "spark.sql.ansi.enforceReservedKeywords": "false",
    "spark.sql.ansi.doubleQuotedIdentifiers": "false",
    "spark.sql.parser.escapedStringLiterals": "false",
    # a name between backquotes is a name
    "spark.sql.parser.quotedRegexColumnNames": "false",
    # bytes in front of bytes are bytes: the header of a record in a registry's format
    "spark.sql.function.concatBinaryAsString": "false",
    # days before 1582 in Avro
    "spark.sql.avro.datetimeRebaseModeInRead": "CORRECTED",
    "spark.sql.avro.datetimeRebaseModeInWrite": "CORRECTED",
    # written JSON, also of kept fields and bad records
    "spark.sql.jsonGenerator.ignoreNullFields": "true",
    # Parquet as written, and as read by an audit or a preview
    "spark.sql.parquet.writeLegacyFormat": "false",
    "spark.sql.parquet.binaryAsString": "false",
    "spark.sql.parquet.inferTimestampNTZ.enabled": "true",
    "spark.sql.parquet.fieldId.read.enabled": "false",
    "spark.sql.parquet.fieldId.write.enabled": "true",
    "spark.sql.files.ignoreCorruptFiles": "false",
    "spark.sql.files.ignoreMissingFiles": "false",
    # a batch staged again replaces all files of the first attempt
    "spark.sql.sources.partitionOverwriteMode": "STATIC",
    # the Arrow types that sinks expect
    "spark.sql.execution.arrow.useLargeVarTypes": "false",
}

_ALL = {**STAGING_SETTINGS, **SPARKS_DEFAULTS}

#: Bytes of a column's dictionary, beyond which Parquet writes plain values.
_DICTIONARY_SETTING = "parquet.dictionary.page.size"
_DICTIONARY_BYTES = 128 * 1024


class _Loan(NamedTuple):
    borrowers: int
    before: Mapping[str, str | None]


_loans: WeakKeyDictionary[SparkSession, _Loan] = WeakKeyDictionary()
_lock = Lock()

#: Cached: over Spark Connect each lookup is a request.
_parquet: WeakKeyDictionary[SparkSession, Mapping[str, str]] = WeakKeyDictionary()


@contextmanager
def staging_settings(spark: SparkSession) -> Iterator[None]:
    """Apply :data:`STAGING_SETTINGS` and :data:`SPARKS_DEFAULTS` to ``spark`` within the block.

    Several threads may stage in one session: the last one restores the caller's values.
    """
    with _lock:
        loan = _loans.get(spark)
        before = loan.before if loan else _set(spark, _ALL)
        _loans[spark] = _Loan(loan.borrowers + 1 if loan else 1, before)
    try:
        yield
    finally:
        with _lock:
            loan = _loans.pop(spark)
            if loan.borrowers > 1:
                _loans[spark] = loan._replace(borrowers=loan.borrowers - 1)
            else:
                from eo_pipeline.spark.errors import SPARK_ERRORS

                # a lost session needs no restoring
                with suppress(*SPARK_ERRORS):
                    _apply(spark, loan.before)


def keep_staging_settings(spark: SparkSession) -> None:
    """Set again, within :func:`staging_settings`, settings that a transform has changed: its plan
    is lazy, and Spark reads the settings at execution.
    """
    _set(spark, _ALL)


def _set(spark: SparkSession, settings: Mapping[str, str]) -> dict[str, str | None]:
    """Set those that differ; return their former values."""
    before = _values_that_differ(spark, settings)
    _apply(spark, {key: settings[key] for key in before})
    return before


def _values_that_differ(spark: SparkSession, settings: Mapping[str, str]) -> dict[str, str | None]:
    """Return the current values of ``settings`` that differ; None: not set."""
    if is_connect(spark):
        from eo_pipeline.spark.connect import settings_of

        values = settings_of(spark, settings)
        return {key: values[key] for key, value in settings.items() if values[key] != value}
    # one call, whose result has no defaults
    current = f", {spark.conf._jconf.getAllAsJava().toString()[1:-1]}, "
    maybe_different = {
        key: value
        for key, value in settings.items()
        if f", {key}={value}, " not in current
        and (key not in SPARKS_DEFAULTS or f", {key}=" in current)
    }
    values = {key: spark.conf.get(key, None) for key in maybe_different}
    return {key: values[key] for key, value in maybe_different.items() if values[key] != value}


def _apply(spark: SparkSession, settings: Mapping[str, str | None]) -> None:
    """Set ``settings``; None: unset."""
    if not settings:
        return
    if is_connect(spark):
        from eo_pipeline.spark.connect import apply_settings

        apply_settings(spark, settings)
        return
    for key, value in settings.items():
        if value is None:
            spark.conf.unset(key)
        else:
            spark.conf.set(key, value)


def parquet_options(spark: SparkSession) -> Mapping[str, str]:
    """Return write options of staged files; a user's ``spark.hadoop`` settings win.

    Parquet abandons a column's dictionary at one megabyte by default. For distinct values (ids,
    offsets, times, texts) each file's first twenty thousand rows were then encoded twice.
    """
    if spark not in _parquet:
        users_size = spark.conf.get(f"spark.hadoop.{_DICTIONARY_SETTING}", None)
        _parquet[spark] = {} if users_size else {_DICTIONARY_SETTING: str(_DICTIONARY_BYTES)}
    return _parquet[spark]


NAME = "eo-pipeline"

JAVA_OPTIONS = "spark.driver.extraJavaOptions"

#: Settings that join our files and a user's, and their separators.
_CLASS_PATH = "spark.driver.extraClassPath"
_JARS = "spark.jars"
_LISTS = {_CLASS_PATH: os.pathsep, _JARS: ","}
_CORES = "spark.cores.max"

_DEFAULTS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    **KAFKA_SETTINGS,
    **STAGING_SETTINGS,
}

#: The throughput collector: 5.2 s -> 3.2 s session start and a third off a cold bulk run.
_COLLECTOR = "-XX:+UseParallelGC"

#: Failures are raised as our own errors, and Spark's log would only bury them. By this file, not by
#: ``spark.log.level``: that is read after a dozen lines of Spark's start.
_LOGGING = f"-Dlog4j2.configurationFile={Path(__file__).with_name('log4j2.properties').as_uri()}"

#: A driver without executors elsewhere needs no other address.
_ON_THIS_MACHINE_ONLY = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
}


def launch_settings(master: str, driver_memory: str, config: Mapping[str, str]) -> dict[str, str]:
    """Return all start-up settings of a Spark but its master; ``config`` wins.

    Raises:
        SetupError: EO_SPARK_JARS names a folder without jars, or the connector could not be
            downloaded.
    """
    settings = _DEFAULTS | _jvm_options(config) | {"spark.driver.memory": driver_memory}
    settings |= _connector(master, config)
    if is_local(master):
        settings |= _ON_THIS_MACHINE_ONLY
    elif _CORES in config:
        # until the executors have registered, Spark assumes two cores
        settings["spark.default.parallelism"] = config[_CORES]
    lists = {
        key: f"{config[key]}{separator}{settings[key]}"
        for key, separator in _LISTS.items()
        if key in config and key in settings
    }
    return settings | dict(config) | lists


def submit_arguments(master: str, settings: Mapping[str, str]) -> list[str]:
    """Return arguments of ``spark-submit`` for a Spark that PySpark connects to."""
    with_master = {"spark.master": master, "spark.app.name": NAME, **settings}
    return [
        *(word for key, value in with_master.items() for word in ("--conf", f"{key}={value}")),
        "pyspark-shell",
    ]


def is_local(master: str) -> bool:
    """Return whether ``master`` runs on this machine, without executors elsewhere."""
    return master.startswith("local")


def _jvm_options(config: Mapping[str, str]) -> dict[str, str]:
    """Return the options of the JVM with :data:`_LOGGING`; the level alone if ``config`` has other
    options, or Spark a configuration.
    """
    if JAVA_OPTIONS in config or has_users_configuration():
        return {JAVA_OPTIONS: _COLLECTOR, "spark.log.level": "ERROR"}
    return {JAVA_OPTIONS: f"{_COLLECTOR} {_LOGGING}"}


def _connector(master: str, config: Mapping[str, str]) -> dict[str, str]:
    folder = os.environ.get(JARS_VARIABLE)
    if not folder:
        if is_left_to_spark(config):
            return {"spark.jars.packages": f"{CONNECTOR},{AVRO}", **jars_settings(master, ())}
        return jars_settings(master, downloaded_connector())
    jars = sorted(Path(folder).glob("*.jar"))
    if not jars:
        raise SetupError(f"{JARS_VARIABLE} names a folder without jars; run `make setup`.")
    return jars_settings(master, jars)


def jars_settings(master: str, jars: Sequence[Path]) -> dict[str, str]:
    """Return :func:`class_path` with our own jar, and the setting of its catalog."""
    ours = compiled_jar()
    if ours is None:
        return class_path(master, jars) if jars else {}
    return {CATALOG_SETTING: CATALOG_CLASS, **class_path(master, [*jars, ours])}


def class_path(master: str, jars: Sequence[Path]) -> dict[str, str]:
    """Return the setting that gives the driver, and executors elsewhere, local ``jars``."""
    paths = [str(jar.absolute()) for jar in jars]
    if is_local(master):
        # spark.jars would be copied at each start, and a class-data archive could not contain them
        return {_CLASS_PATH: os.pathsep.join(paths)}
    return {"spark.jars": ",".join(paths)}
