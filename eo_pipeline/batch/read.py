"""Kafka ranges to a Spark frame: Spark's own connector, in batch mode, by ``assign``."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, cast
from weakref import WeakSet

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from eo_pipeline.kafka.planner import Tasks
from eo_pipeline.kafka.source import KafkaSource, spark_settings
from eo_pipeline.ledger.offsets import OffsetRange
from eo_pipeline.spark.clients import is_connect

_SETTING = "spark.sql.redaction.string.regex"

#: The value of an option that may hold a secret, as Protobuf's text format writes it. It begins
#: with letters, by which Java passes over a plan with megabytes of rows several times as fast; and
#: is possessive, since Java's regular expressions recurse.
HIDDEN = (
    r'key: "[^"]{0,99}(?:jaas|password|secret|token|(?:keystore|access)\.key|credential)[^"]{0,99}"'
    r'\s+value: "[^"\\]*+(?:\\.[^"\\]*+)*+"'
)

_warned: WeakSet[SparkSession] = WeakSet()


def hide_secrets(spark: SparkSession) -> None:
    """Have ``spark`` leave out secrets of plans it writes down; what it hides already, it goes on
    to hide.
    """
    if spark in _warned:
        return
    before = spark.conf.get(_SETTING, "") or ""
    if HIDDEN not in before:
        spark.conf.set(_SETTING, f"{HIDDEN}|{before}" if before else HIDDEN)
    _warned.add(spark)


#: Settings of Spark's consumers, each of one partition; ``source.spark_options`` go before them.
_TUNING = {
    # milliseconds a broker holds back a fetch it has nothing for: a consumer that reaches the end
    # of a log has one under way, and every range would wait for it (500 by default)
    "kafka.fetch.max.wait.ms": "1",
    # after its range a consumer is kept with two fetches that it made ahead: half a gigabyte of the
    # 128 that a Spark of ours keeps. Eight times as much was not faster, and filled a heap of 2 GB
    "kafka.max.partition.fetch.bytes": str(2 * 1024 * 1024),
    # metrics of a consumer, which lives for one range or some: over 200 partitions they take 4 %
    "kafka.auto.include.jmx.reporter": "false",
    "kafka.enable.metrics.push": "false",
}

#: Records that a consumer hands out at once; of 2,000 a read takes a fifth longer.
_MAX_POLL_RECORDS = 8_000

#: Bytes of them, without compression: of a consumer at most and at least, and of all consumers of a
#: pipeline. They are in the heap, for some seconds after their range as well.
_POLL_BYTES, _POLL_BYTES_MIN, _POLL_BYTES_OF_ALL = 32 << 20, 256 << 10, 512 << 20

#: Bytes that a record is taken for which was never measured.
_UNMEASURED_BYTES = 1024

#: Options of Spark's by which a user says how ranges are split.
_SPLITTING = frozenset({"minpartitions", "maxrecordsperpartition"})

_AS_SPARK_DOES = Tasks()


def read_ranges(
    spark: SparkSession,
    source: KafkaSource,
    ranges: Sequence[OffsetRange],
    *,
    pipeline: str,
    topic_ids: Mapping[str, str],
    partition_count: int = 0,
    tasks: Tasks = _AS_SPARK_DOES,
    record_bytes: float | None = None,
) -> DataFrame:
    """Exactly the records of ``ranges``, lazily, in Spark's Kafka columns, read by ``tasks``.

    Columns: key, value, topic, partition, offset, timestamp, timestampType, headers. The job fails
    if a record of a range is gone (``failOnDataLoss``). No consumer group protocol takes part
    (``assign``); ``kafka.group.id`` only names Spark's consumer cache. That should be the same for
    every batch: ``partition_count`` are all partitions there are, also those without a range.
    ``record_bytes``: the mean size of a record, if it was measured.
    """
    tasks = tasks_for(source, tasks)
    options = range_options(
        source,
        ranges,
        pipeline=pipeline,
        topic_ids=topic_ids,
        partition_count=partition_count,
        tasks=tasks,
        record_bytes=record_bytes,
    )
    hide_secrets(spark)
    records = spark.read.format("kafka").options(**options, includeHeaders="true").load()
    return records if tasks.shared_by is None else records.coalesce(tasks.shared_by)


def condition_columns() -> dict[str, Column]:
    """Return the columns that a table's ``where`` has in place of Kafka's: ``key`` and ``value`` as
    texts, and ``headers`` as a map of texts, the last one of a name.
    """

    def last(name: Column) -> Column:
        named = F.filter("headers", lambda header: header["key"] == name)
        return F.element_at(named, -1)["value"].cast("string")

    names = F.array_distinct(F.transform("headers", lambda header: header["key"]))
    pairs = F.transform(names, lambda name: F.struct(name, last(name)))
    return {
        "key": F.col("key").cast("string"),
        "value": F.col("value").cast("string"),
        "headers": F.map_from_entries(pairs),
    }


def matching(records: DataFrame, where: str) -> DataFrame:
    """Return the ``records``, in Kafka's columns, for which the SQL expression ``where`` is true;
    see :func:`condition_columns`.
    """
    columns = condition_columns()
    kept = {name: f"_eo_{name}" for name in columns}
    seen = records.withColumns({kept[name]: F.col(name) for name in columns} | columns)
    taken = seen.where(F.expr(where)).drop(*columns)
    return taken.withColumnsRenamed({name: of for of, name in kept.items()}).select(
        *records.columns
    )


def tasks_for(source: KafkaSource, tasks: Tasks) -> Tasks:
    """``tasks``, unless the user says how ranges are split."""
    option_names = {name.lower() for name in source.spark_options}
    return _AS_SPARK_DOES if option_names & _SPLITTING else tasks


def range_options(
    source: KafkaSource,
    ranges: Sequence[OffsetRange],
    *,
    pipeline: str,
    topic_ids: Mapping[str, str],
    partition_count: int,
    tasks: Tasks,
    record_bytes: float | None,
) -> dict[str, str]:
    """Options of Spark's connector; see :func:`read_ranges`. ``tasks``: see :func:`tasks_for`."""
    max_poll_records = _max_poll_records(max(partition_count, len(ranges)), record_bytes)
    tuning = {**_TUNING, "kafka.max.poll.records": str(max_poll_records)}
    settings = {**tuning, **spark_settings(source)}
    options = {
        **settings,
        "kafka.group.id": source.consumer_group(pipeline, topic_ids, settings),
        "assign": _assignment(ranges),
        "startingOffsets": _boundary(ranges, "start"),
        "endingOffsets": _boundary(ranges, "end"),
        "failOnDataLoss": "true",
    }
    if tasks.span_max is not None:
        options["maxRecordsPerPartition"] = str(tasks.span_max)
    return options


def _max_poll_records(partitions: int, record_bytes: float | None) -> int:
    """Records to poll, rounded: other settings are another consumer group."""
    share = _POLL_BYTES_OF_ALL >> (partitions - 1).bit_length()
    size = min(_POLL_BYTES, max(share, _POLL_BYTES_MIN))
    fits = max(1, int(size / (record_bytes or _UNMEASURED_BYTES)))
    return _MAX_POLL_RECORDS if fits >= _MAX_POLL_RECORDS else 1 << (fits.bit_length() - 1)


def _assignment(ranges: Sequence[OffsetRange]) -> str:
    partitions: dict[str, list[int]] = {}
    for r in ranges:
        partitions.setdefault(r.topic, []).append(r.partition)
    return json.dumps(partitions)


def _boundary(ranges: Sequence[OffsetRange], side: str) -> str:
    offsets: dict[str, dict[str, int]] = {}
    for r in ranges:
        offsets.setdefault(r.topic, {})[str(r.partition)] = getattr(r, side)
    return json.dumps(offsets)


#: Bytes that go to a Spark Connect server with the plan. More of them pyspark lets the server keep.
_WITH_THE_PLAN_MAX = 32 * 1024 * 1024


def frame_of(spark: SparkSession, rows: pa.Table, tasks: int) -> DataFrame:
    """``rows``, to be looked at by so many ``tasks``; their types are Spark's own, times in UTC.

    Without saying how many, Spark's optimizer would evaluate what is made of them all by itself
    before the job begins.
    """
    return _frame_of(spark, rows).coalesce(tasks)


def _frame_of(spark: SparkSession, rows: pa.Table) -> DataFrame:
    """Over Spark Connect pyspark would ask for nine settings first, and have the server name the
    columns as they are named: a step of the plan more, which is looked through by itself.
    """
    if not is_connect(spark) or rows.nbytes > _WITH_THE_PLAN_MAX:
        return spark.createDataFrame(rows)
    from pyspark.sql.connect.dataframe import DataFrame as ConnectFrame
    from pyspark.sql.connect.plan import LocalRelation

    return cast(DataFrame, ConnectFrame(LocalRelation(rows), cast(Any, spark)))
