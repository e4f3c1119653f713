"""What a Spark of ours is started with, in this process or as a server."""

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
from eo_pipeline.spark.jvm import KAFKA_SETTINGS
from eo_pipeline.spark.native_jar import CATALOG_CLASS, CATALOG_SETTING, ordinary_jar

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: What a time or a date becomes, and what is heard of it, must not depend on who stages it.
STAGING_SETTINGS: Mapping[str, str] = {
    # a time without a zone, and what the transform makes of times
    "spark.sql.session.timeZone": "UTC",
    # what TIMESTAMP in a schema means
    "spark.sql.timestampType": "TIMESTAMP_LTZ",
    # Spark writes INT96 by default, which other readers of Parquet refuse or misread
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    # readers of Parquet know one calendar; LEGACY moves days before 1582
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
    # a Connect server keeps plans that it was asked the schema of, a transform's `df.columns` is
    # enough, and of a plan it has kept it never tells what was observed
    "spark.connect.session.planCache.enabled": "false",
    # Spark's default but for "kafka": each record goes from the connector into a row at once. By
    # the older interface it takes a way through Java's own objects, nearly twice as long to read
    "spark.sql.sources.useV1SourceList": "avro,csv,json,orc,parquet,text",
    # bytes: Java compiles no longer method, and Spark takes eight times as long a one for whole
    "spark.sql.codegen.hugeMethodLimit": "8000",
}


#: Spark's own defaults that decoding, judging and writing rest on. A caller's session may have
#: other values, carried along from older jobs.
SPARKS_DEFAULTS: Mapping[str, str] = {
    # LEGACY takes 2026-02-30, EXCEPTION ends the job at it
    "spark.sql.legacy.timeParserPolicy": "CORRECTED",
    # which texts and numbers a JSON field takes, and what becomes of the others beside a wrong one
    "spark.sql.legacy.json.allowEmptyString.enabled": "false",
    "spark.sql.json.enablePartialResults": "true",
    "spark.sql.json.enableExactStringParsing": "true",
    # what a schema's text means
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
    # JSON that is written, kept fields and a bad record's words among it
    "spark.sql.jsonGenerator.ignoreNullFields": "true",
    # Parquet as it is written, and as an audit or a preview reads it
    "spark.sql.parquet.writeLegacyFormat": "false",
    "spark.sql.parquet.binaryAsString": "false",
    "spark.sql.parquet.inferTimestampNTZ.enabled": "true",
    "spark.sql.parquet.fieldId.read.enabled": "false",
    "spark.sql.parquet.fieldId.write.enabled": "true",
    "spark.sql.files.ignoreCorruptFiles": "false",
    "spark.sql.files.ignoreMissingFiles": "false",
    # a batch that is staged once more takes the place of all that was staged before
    "spark.sql.sources.partitionOverwriteMode": "STATIC",
    # Arrow's types are those of the sinks
    "spark.sql.execution.arrow.useLargeVarTypes": "false",
}

_ALL = {**STAGING_SETTINGS, **SPARKS_DEFAULTS}

#: Bytes of a column's distinct values, beyond which Parquet writes them as they come.
_DICTIONARY_SETTING = "parquet.dictionary.page.size"
_DICTIONARY_BYTES = 128 * 1024


class _Loan(NamedTuple):
    borrowers: int
    before: Mapping[str, str | None]


_loans: WeakKeyDictionary[SparkSession, _Loan] = WeakKeyDictionary()
_lock = Lock()

#: Asked once: over Spark Connect each question is a request.
_parquet: WeakKeyDictionary[SparkSession, Mapping[str, str]] = WeakKeyDictionary()


@contextmanager
def staging_settings(spark: SparkSession) -> Iterator[None]:
    """:data:`STAGING_SETTINGS` and :data:`SPARKS_DEFAULTS` on ``spark`` for a while, and then what
    its caller had.

    Several threads may stage in one session: the last one gives back what the first one found.
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

                # a session that is lost has nothing to be given back
                with suppress(*SPARK_ERRORS):
                    _apply(spark, loan.before)


def keep_staging_settings(spark: SparkSession) -> None:
    """Set again, within :func:`staging_settings`, what a transform has set otherwise: its plan is
    lazy, and Spark reads the settings when it runs it.
    """
    _set(spark, _ALL)


def _set(spark: SparkSession, wanted: Mapping[str, str]) -> dict[str, str | None]:
    """Set what differs. Returns what these settings were."""
    before = _others(spark, wanted)
    _apply(spark, {key: wanted[key] for key in before})
    return before


def _others(spark: SparkSession, wanted: Mapping[str, str]) -> dict[str, str | None]:
    """Those of the settings ``wanted`` that are others now; None: not set."""
    if is_connect(spark):
        from eo_pipeline.spark.connect import settings_of

        now = settings_of(spark, wanted)
        return {key: now[key] for key, value in wanted.items() if now[key] != value}
    # in one call of Java's, which has no defaults among them
    there = f", {spark.conf._jconf.getAllAsJava().toString()[1:-1]}, "
    doubtful = {
        key: value
        for key, value in wanted.items()
        if f", {key}={value}, " not in there
        and (key not in SPARKS_DEFAULTS or f", {key}=" in there)
    }
    now = {key: spark.conf.get(key, None) for key in doubtful}
    return {key: now[key] for key, value in doubtful.items() if now[key] != value}


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
    """How staged files are written; what a user's ``spark.hadoop`` settings say of it stays.

    By default Parquet gives up a dictionary of a column's values when it has a megabyte of them. Of
    numbers that never come again (an id, an offset, a time), or texts, each file's first twenty
    thousand rows went into one, and then once more into the file without it.
    """
    if spark not in _parquet:
        told = spark.conf.get(f"spark.hadoop.{_DICTIONARY_SETTING}", None)
        _parquet[spark] = {} if told else {_DICTIONARY_SETTING: str(_DICTIONARY_BYTES)}
    return _parquet[spark]


#: Newer connectors than the Spark in use do not load; this one does in TESTED_WITH.
CONNECTOR = "org.apache.spark:spark-sql-kafka-0-10_2.13:4.0.0"

#: What decodes Avro values; of the same release as the connector.
AVRO = "org.apache.spark:spark-avro_2.13:4.0.0"

#: The versions of pyspark that CONNECTOR was tested with, by the whole suite. pyproject.toml admits
#: their patch releases, nothing newer.
TESTED_WITH = ("4.0.0",)

#: A folder of connector jars resolved beforehand; saves Spark asking a repository at each start.
JARS_VARIABLE = "EO_SPARK_JARS"

NAME = "eo-pipeline"

JAVA_OPTIONS = "spark.driver.extraJavaOptions"

#: Lists of files, of ours and a user's; what stands between two of them.
_CLASS_PATH = "spark.driver.extraClassPath"
_JARS = "spark.jars"
_LISTS = {_CLASS_PATH: os.pathsep, _JARS: ","}
_CORES = "spark.cores.max"

_DEFAULTS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # failures come back as our own errors; Spark's warnings about them only bury the sentence
    "spark.log.level": "ERROR",
    **KAFKA_SETTINGS,
    **STAGING_SETTINGS,
    # the throughput collector: 5.2 s -> 3.2 s session start and a third off a cold bulk run
    JAVA_OPTIONS: "-XX:+UseParallelGC",
}

#: A driver without executors elsewhere has nobody to talk to outside.
_ON_THIS_MACHINE_ONLY = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
}


def launch_settings(master: str, driver_memory: str, config: Mapping[str, str]) -> dict[str, str]:
    """All settings a Spark is started with but its master; ``config`` goes before ours.

    Raises:
        SetupError: EO_SPARK_JARS names a folder without jars.
    """
    settings = _DEFAULTS | {"spark.driver.memory": driver_memory} | _connector(master)
    if is_local(master):
        settings |= _ON_THIS_MACHINE_ONLY
    elif _CORES in config:
        # told before the executors have come: until then Spark thinks that it has two
        settings["spark.default.parallelism"] = config[_CORES]
    together = {
        key: f"{config[key]}{mark}{settings[key]}"
        for key, mark in _LISTS.items()
        if key in config and key in settings
    }
    return settings | dict(config) | together


def submit_arguments(master: str, settings: Mapping[str, str]) -> list[str]:
    """What ``spark-submit`` takes to start a Spark that PySpark speaks to."""
    told = {"spark.master": master, "spark.app.name": NAME, **settings}
    return [*(p for k, v in told.items() for p in ("--conf", f"{k}={v}")), "pyspark-shell"]


def is_local(master: str) -> bool:
    """Whether ``master`` is this machine, and Spark has no executors elsewhere."""
    return master.startswith("local")


def _connector(master: str) -> dict[str, str]:
    folder = os.environ.get(JARS_VARIABLE)
    if not folder:
        return {"spark.jars.packages": f"{CONNECTOR},{AVRO}", **jars_settings(master, ())}
    jars = sorted(Path(folder).glob("*.jar"))
    if not jars:
        raise SetupError(f"{JARS_VARIABLE} names a folder without jars; run `make setup`.")
    return jars_settings(master, jars)


def jars_settings(master: str, jars: Sequence[Path]) -> dict[str, str]:
    """:func:`class_path`, with our own jar, and what it is found by."""
    ours = ordinary_jar()
    if ours is None:
        return class_path(master, jars) if jars else {}
    return {CATALOG_SETTING: CATALOG_CLASS, **class_path(master, [*jars, ours])}


def class_path(master: str, jars: Sequence[Path]) -> dict[str, str]:
    """The setting by which the driver, and executors elsewhere, have ``jars`` of this machine."""
    paths = [str(jar.absolute()) for jar in jars]
    if is_local(master):
        # not by spark.jars: those are copied at each start, and no class-data archive holds them
        return {_CLASS_PATH: os.pathsep.join(paths)}
    return {"spark.jars": ",".join(paths)}
