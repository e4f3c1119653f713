"""The settings under which batches are staged, whoever's session it is; lent, and given back."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from threading import Lock
from typing import TYPE_CHECKING, NamedTuple
from weakref import WeakKeyDictionary

from eo_pipeline.spark.clients import is_connect

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
    """:data:`STAGING_SETTINGS` on ``spark`` for a while, and then what its caller had.

    Several threads may stage in one session: the last one gives back what the first one found.
    """
    with _lock:
        loan = _loans.get(spark)
        before = loan.before if loan else _set(spark, STAGING_SETTINGS)
        _loans[spark] = _Loan(loan.borrowers + 1 if loan else 1, before)
    try:
        yield
    finally:
        with _lock:
            loan = _loans.pop(spark)
            if loan.borrowers > 1:
                _loans[spark] = loan._replace(borrowers=loan.borrowers - 1)
            else:
                from eo_pipeline.spark.failures import SPARK_ERRORS

                # a session that is lost has nothing to be given back
                with suppress(*SPARK_ERRORS):
                    _set(spark, loan.before)


def _set(spark: SparkSession, wanted: Mapping[str, str | None]) -> dict[str, str | None]:
    """Set what differs. Returns what these settings were."""
    if not wanted:
        return {}
    now = _now(spark, wanted)
    before = {key: now[key] for key, value in wanted.items() if now[key] != value}
    for key in before:
        value = wanted[key]
        if value is None:
            spark.conf.unset(key)
        else:
            spark.conf.set(key, value)
    return before


def _now(spark: SparkSession, keys: Iterable[str]) -> dict[str, str | None]:
    """None: not set. Over Spark Connect each question is a request, and all settings are one."""
    if is_connect(spark):
        told = spark.conf.getAll
        return {key: told.get(key) for key in keys}
    return {key: spark.conf.get(key, None) for key in keys}


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
