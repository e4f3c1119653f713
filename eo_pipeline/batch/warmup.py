"""A Spark that does a little of all that a checkpoint's does, and writes its classes down.

    python -m eo_pipeline.batch.warmup <<< '{"arguments": [...], "archive": FILE, "seconds": N}'

``arguments`` are those of ``spark-submit``; after ``seconds`` it is given up.
:mod:`eo_pipeline.spark.server.archive_maker` runs it in a process of its own. What a run does is
done by the code that a run does it with: a class that is not needed here is one that a cold run
reads from its jar.
"""

from __future__ import annotations

import json
import signal
import sys
from contextlib import suppress
from pathlib import Path

from pyspark.core.context import SparkContext
from pyspark.sql import DataFrame, SparkSession

from eo_pipeline.batch.counting import RowCounter, SourceCounter
from eo_pipeline.batch.decode import decode
from eo_pipeline.batch.read import read_ranges
from eo_pipeline.kafka.source import KafkaSource
from eo_pipeline.ledger.offsets import OffsetRange
from eo_pipeline.spark import SPARK_ERRORS, SparkSettings, staging_settings
from eo_pipeline.spark.driver import start_driver

#: Records of the shape in which Spark's connector gives them.
_RECORDS = """
select cast(string(id) as binary) as key,
       cast(concat('{"id":', string(id), ',"name":"n","at":"2026-01-31T12:00:00Z","m":1.5}',
            if(id % 7 = 0, ' ', '')) as binary) as value,
       't' as topic, cast(id % 4 as int) as partition, id as offset,
       timestamp_millis(id) as timestamp, 0 as timestampType,
       array(named_struct('key', 'k', 'value', cast('v' as binary))) as headers
from range(0, 1000, 1, 4)
"""
_SCHEMA = "id BIGINT NOT NULL, name STRING, at TIMESTAMP, m DECIMAL(20,2)"

#: Nobody listens there, and Kafka's client says so soon.
_NOBODY = "127.0.0.1:1"
_AT_ONCE = {
    "kafka.default.api.timeout.ms": "500",
    "kafka.request.timeout.ms": "400",
    "fetchOffset.numRetries": "1",
}


def main() -> None:
    """See above; returns when the JVM has ended, which writes the archive."""
    order = json.load(sys.stdin)
    signal.alarm(order["seconds"])  # whoever waits for this may be gone
    start_driver(order["arguments"], archive=Path(order["archive"]))
    process = SparkContext._gateway.proc  # type: ignore[union-attr]
    spark = SparkSettings(warm=False).session()
    source = KafkaSource(
        bootstrap_servers=_NOBODY, topics=("t",), value_schema=_SCHEMA, spark_options=_AT_ONCE
    )
    with staging_settings(spark):
        _checkpoint(spark, source)
        with suppress(*SPARK_ERRORS):  # nobody is there
            ranges = [OffsetRange("t", 0, 0, 1)]
            read_ranges(spark, source, ranges, pipeline="p", topic_ids={}).collect()
    process.stdin.close()  # it ends by itself, and writes
    if code := process.wait():  # it was killed, or the disk is full: what there is may be a part
        sys.exit(f"The JVM ended with {code}.")


def _checkpoint(spark: SparkSession, source: KafkaSource) -> None:
    """Staged in files and in memory."""
    frames: list[DataFrame] = []
    for _ in range(2):
        decoded = decode(spark.sql(_RECORDS), source, native=True)
        reading = SourceCounter(decoded, [], transformed=True)
        frames.append(RowCounter(reading.good, lambda rows: rows.drop("_kafka")).frame)
    frames[0].write.parquet(str(Path.cwd() / "rows"))
    frames[1].toArrow()


if __name__ == "__main__":
    main()
