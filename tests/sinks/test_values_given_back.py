"""What an audit is shown of a table is what was staged, value by value. No Spark."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from eo_pipeline.sinks.config import Sink
from eo_pipeline.sinks.delta import DeltaSink
from eo_pipeline.sinks.iceberg import IcebergSink
from eo_pipeline.sinks.parquet import ParquetSink
from eo_pipeline.staging.rows import StagedOutput, StagedTable
from eo_pipeline.testing import child_of, dead_letters, first_entry
from eo_pipeline.testing.all_types import ALL_TYPES

SINKS: list[Callable[[Path], Sink]] = [
    lambda folder: DeltaSink(path=str(folder)),
    lambda folder: IcebergSink(table="ops.events", warehouse=folder),
    lambda folder: ParquetSink(path=str(folder)),
]


@pytest.mark.parametrize("make", SINKS, ids=["delta", "iceberg", "parquet"])
def test_values_of_every_type_and_dead_letters_are_given_back_as_they_were_staged(
    make: Callable[[Path], Sink], tmp_path: Path
) -> None:
    letters = dead_letters(1, [b"not json", b"nor this"])
    staged = StagedOutput(StagedTable.in_memory(ALL_TYPES), letters)
    with make(tmp_path / "lake").open("p") as session:
        head = first_entry("p")
        session.publish(head, StagedOutput())
        session.publish(child_of(head, staged), staged)
        shown = pa.Table.from_batches(session.values())
        assert set(shown.column_names) == set(ALL_TYPES.column_names)
        assert of(shown) == of(ALL_TYPES)
        assert letters.table is not None
        assert of(pa.Table.from_batches(session.dead_letter_values())) == of(letters.table)
        assert list(session.values(since=2)) == []


def of(table: pa.Table) -> str:
    """Its values, in which NaN is NaN."""
    return repr([{name: row[name] for name in sorted(row)} for row in table.to_pylist()])
