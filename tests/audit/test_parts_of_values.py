"""Rows wait on the disk a part at a time, on their way into checksums. No Spark."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from eo_pipeline.audit import checksums
from eo_pipeline.audit.checksums import _parts


def batch(*names: str, rows: int = 10) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({name: list(range(rows)) for name in names})


def test_a_part_ends_where_it_is_large_enough_and_where_columns_become_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checksums, "PART_BYTES", 2 * batch("a").nbytes)
    batches = [batch("a"), batch("a"), batch("a"), batch("a", "b"), batch("a")]
    seen = []
    for part in _parts(batches, tmp_path):
        assert list(tmp_path.iterdir()) == [part]
        rows = pq.read_table(part)
        seen.append((rows.column_names, rows.num_rows))
        part.unlink()  # as whoever has read it does, before the next is made
    assert seen == [(["a"], 20), (["a"], 10), (["a", "b"], 10), (["a"], 10)]
    assert list(tmp_path.iterdir()) == []
    assert list(_parts([], tmp_path)) == []
