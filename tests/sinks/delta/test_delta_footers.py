"""What a commit reads of its files is read of many at a time."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from eo_pipeline.sinks.delta import files as rows_module
from eo_pipeline.sinks.delta.config import ROWS_FOLDER
from eo_pipeline.sinks.delta.files import AddActions
from eo_pipeline.sinks.lake.session import PublishedFiles
from eo_pipeline.staging.rows import StagedFile, StagedTable

FILES = 4


def test_footers_are_read_side_by_side(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a bucket each is some round trips. None is answered here until all were asked for."""
    folder, schema = tmp_path / ROWS_FOLDER, pa.schema({"id": pa.int64()})
    folder.mkdir()
    for number in range(FILES):
        rows = pa.table({"id": range(number + 1)}, schema)
        pq.write_table(rows, folder / f"part-{number}.parquet")
    together = threading.Barrier(FILES)

    def asked(place: Path, _: int) -> Path:
        together.wait(60)
        return place

    monkeypatch.setattr(rows_module, "parquet_source", asked)
    files = tuple(StagedFile(f"part-{n}.parquet", 1, n + 1) for n in range(FILES))
    staged = StagedTable(schema, root=folder, files=files)
    nothing_to_write = cast(PublishedFiles, None)
    actions = AddActions(tmp_path, ()).of(staged, nothing_to_write)
    assert [action.path for action in actions] == [f"{ROWS_FOLDER}/{f.path}" for f in files]
    assert [(actions[n].stats or "").strip("{").partition(",")[0] for n in (0, -1)] == [
        '"numRecords":1',
        '"numRecords":4',
    ]
