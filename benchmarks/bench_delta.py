"""Delta sink against Spark's own writers: ``python benchmarks/bench_delta.py``.

Two ratios, on the same records and in one warm Spark session, writers taking turns:

1. bulk: Spark writes Parquet where the sink stages it, manifest and Delta commit included, against
   Spark writing the same Parquet and nothing else. At most 1.05.
2. a checkpoint of 8,000 records: to the driver as Arrow and committed by the sink, against
   delta-spark's writer appending the same DataFrame. At most 0.2.

Needs Java and, the first time, the jars of delta-spark from Maven.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from eo_pipeline.ledger.entry import CHECKPOINT_COLUMN, LedgerEntry
from eo_pipeline.sinks.delta import DeltaSink
from eo_pipeline.sinks.session import CommitOutcome
from eo_pipeline.spark.maven import Artefact, resolved
from eo_pipeline.staging.attempt import StagingArea
from eo_pipeline.staging.manifest import Manifest
from eo_pipeline.staging.rows import StagedOutput, StagedTable
from eo_pipeline.testing import child_of, first_entry

DELTA = Artefact("io.delta", "delta-spark_2.13", "4.0.0")
STATE = Path(__file__).parents[1] / ".eo"

SMALL = 8_000
BULK_RATIO_MAX = 1.05
SMALL_RATIO_MAX = 0.2


def session(scratch: Path) -> SparkSession:
    """Spark on this machine, with delta-spark and its extension."""
    settings = {
        "spark.jars": ",".join(map(str, resolved(DELTA, STATE))),
        "spark.driver.memory": "2g",
        "spark.driver.extraJavaOptions": "-XX:+UseParallelGC",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        # delta-spark's default of 50 is meant for large logs and slows small commits down
        "spark.databricks.delta.snapshotPartitions": "1",
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    }
    builder = SparkSession.Builder().master("local[*]").appName("bench_delta")
    for key, value in settings.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def records(spark: SparkSession, count: int) -> DataFrame:
    """Rows like those of a flight feed, made anew by every writer."""
    n = F.col("id")
    return spark.range(count).select(
        n,
        F.concat(F.lit("N"), (n % 4000).cast("string")).alias("tailnum"),
        F.md5(n.cast("string")).alias("note"),
        (n % 997).cast("decimal(12,2)").alias("amount"),
        F.timestamp_micros(n * 1_000_000 + 1_356_998_400_000_000).alias("at"),
        F.lit(1).cast("bigint").alias(CHECKPOINT_COLUMN),
        F.lit("flights").alias("_eo_topic"),
        (n % 4).cast("int").alias("_eo_partition"),
        n.alias("_eo_offset"),
    )


class Table:
    """A Delta table that the sink writes, one checkpoint a call."""

    def __init__(self, root: Path) -> None:
        self.sink = DeltaSink(path=str(root))
        self.session = self.sink.open("bench")
        self.head: LedgerEntry = first_entry("bench")
        self.session.publish(self.head, StagedOutput())
        folders = self.sink.staging_folders()
        assert folders.manifests is not None
        self.staging = StagingArea(folders.manifests, "bench", folders.rows)

    def bulk(self, frame: DataFrame) -> None:
        entry = child_of(self.head)
        attempt = self.staging.begin(entry)
        target = attempt.rows_folder()
        frame.write.mode("error").parquet(target.as_uri())
        output = StagedOutput(rows=attempt.collect(target))
        attempt.write_manifest(Manifest(entry, output))
        self._publish(entry, output)

    def small(self, frame: DataFrame) -> None:
        rows = StagedTable.in_memory(frame.toArrow())
        self._publish(child_of(self.head, rows.rows), StagedOutput(rows=rows))

    def _publish(self, entry: LedgerEntry, output: StagedOutput) -> None:
        assert self.session.publish(entry, output) is CommitOutcome.COMMITTED
        self.head = entry


def seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def turns(ours: Callable[[], object], theirs: Callable[[], object], rounds: int) -> list[float]:
    """Median seconds of both, after one round that counts for nothing."""
    times = [(seconds(ours), seconds(theirs)) for _ in range(rounds + 1)][1:]
    return [statistics.median(column) for column in zip(*times, strict=True)]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--records", type=int, default=2_000_000)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        return measure(Path(scratch), options.records, options.rounds)


def measure(scratch: Path, count: int, rounds: int) -> int:
    spark = session(scratch)
    many, few = records(spark, count), records(spark, SMALL)
    table, other = Table(scratch / "bulk"), iter(range(rounds + 1))
    bulk = turns(
        lambda: table.bulk(many),
        lambda: many.write.parquet((scratch / f"parquet-{next(other)}").as_uri()),
        rounds,
    )
    table, delta = Table(scratch / "small"), (scratch / "delta-spark").as_uri()
    small = turns(
        lambda: table.small(few),
        lambda: few.write.format("delta").mode("append").save(delta),
        2 * rounds,
    )
    spark.stop()
    passed = report(f"bulk, {count:,} records, to Spark's Parquet", bulk, BULK_RATIO_MAX)
    passed &= report(f"{SMALL:,} records, to delta-spark's writer", small, SMALL_RATIO_MAX)
    return 0 if passed else 1


def report(what: str, medians: list[float], most: float) -> bool:
    ours, theirs = medians
    ratio = ours / theirs
    verdict = "ok" if ratio <= most else "MISSED"
    sys.stdout.write(
        f"{what}: {ours:.3f} s to {theirs:.3f} s = {ratio:.3f} (at most {most}) {verdict}\n"
    )
    return ratio <= most


if __name__ == "__main__":
    sys.exit(main())
