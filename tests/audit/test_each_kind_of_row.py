"""What one record and its rows amount to: every kind in one Spark job, without Kafka or a table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from eo_pipeline.audit.compare import Comparison, RowKind
from eo_pipeline.audit.ranges import RangePiece, write_ranges
from eo_pipeline.batch.decode import Decoded, decode
from eo_pipeline.batch.stage import Stager
from eo_pipeline.embedded.spark import EmbeddedSpark
from eo_pipeline.kafka.source import KafkaSource
from eo_pipeline.ledger.offsets import OffsetRange
from eo_pipeline.sinks.capabilities import whole_lineage
from eo_pipeline.sinks.console import ConsoleSink
from eo_pipeline.spark import SparkSettings
from tests.batch.frames import kafka_frame

SOURCE = KafkaSource.model_validate(
    {
        "bootstrap_servers": "h:1",
        "topics": ["t"],
        "value_schema": "id BIGINT",
        "on_bad_record": "dead_letter",
        "tombstones": "skip",
    }
)

GOOD = b'{"id": 1}'
#: The records at offsets 0, 1, ..., which checkpoint 1 read; it read up to offset 10.
RECORDS = [GOOD, GOOD, GOOD, b"not JSON", None]

#: Checkpoint and offset of each row, and what it is.
ROWS: list[tuple[int | None, int | None, RowKind]] = [
    (1, 0, RowKind.FINE),
    # offset 1 has no row
    (1, 2, RowKind.DUPLICATED),
    (1, 2, RowKind.DUPLICATED),
    (1, 3, RowKind.BAD),
    (1, 4, RowKind.TOMBSTONE),
    (1, 9, RowKind.NO_RECORD),
    (1, 50, RowKind.OUTSIDE),
    (1, None, RowKind.UNTRACED),
    (None, 0, RowKind.NO_CHECKPOINT),
    (None, None, RowKind.NOT_OURS),
]


class Reading(Stager):
    """Reads :data:`RECORDS`."""

    def read(self, spark: SparkSession, *_: Any, **__: Any) -> Decoded:
        return decode(kafka_frame(spark, RECORDS), SOURCE)


@pytest.mark.core
def test_each_kind_of_row_is_told_by_its_record(
    spark_server: EmbeddedSpark, tmp_path: Path
) -> None:
    columns = [
        [version for version, _, _ in ROWS],
        ["t" if offset is not None else None for _, offset, _ in ROWS],
        [0 if offset is not None else None for _, offset, _ in ROWS],
        [offset for _, offset, _ in ROWS],
    ]
    names = ["_eo_checkpoint", "_eo_topic", "_eo_partition", "_eo_offset"]
    table = pa.table(dict(zip(names, columns, strict=True)), whole_lineage())
    pq.write_table(table, tmp_path / "rows.parquet")
    span = OffsetRange("t", 0, 0, 10)
    write_ranges([RangePiece(1, span)], tmp_path / "ranges.parquet", 10, set())
    compare = Comparison(
        spark=SparkSettings(remote=spark_server.remote).session(),
        stager=Reading(SOURCE, ConsoleSink(), None, True),
        pipeline="p",
        topic_ids={},
        rows=tmp_path / "rows.parquet",
        ranges=tmp_path / "ranges.parquet",
        block=10,
        head=1,
        newest=1,
        expected=True,
    )

    tallies = compare.everything([span])

    found = {kind: tally.found for kinds in tallies.values() for kind, tally in kinds.items()}
    assert found == {RowKind.MISSING: 0} | {
        kind: sum(each is kind for _, _, each in ROWS) for _, _, kind in ROWS
    }
    (missing,) = tallies[1][RowKind.MISSING].examples
    assert (missing.topic, missing.partition, missing.offset, missing.expected) == ("t", 0, 1, 1)
    assert tallies[1][RowKind.DUPLICATED].expected == 1
