"""Staged rows as files of a checkpoint's folder."""

from __future__ import annotations

from pathlib import Path

from eo_pipeline.arrow import pq
from eo_pipeline.files import sync
from eo_pipeline.sinks.files import link_or_copy
from eo_pipeline.sinks.parquet.types import TYPES
from eo_pipeline.staging.rows import StagedTable


def write_rows(staged: StagedTable, folder: Path, stem: str = "part") -> None:
    """The rows as files ``<stem>-<number>.parquet``, flushed. Staged files are not copied but given
    a second name, so that they stay whole for whoever else publishes them, and may go afterwards.
    """
    for number, source in enumerate(staged.paths()):
        link_or_copy(source, folder / f"{stem}-{number:05}.parquet")
    if staged.table is not None and staged.rows:
        path = folder / f"{stem}-00000.parquet"
        pq.write_table(TYPES.table(staged.table), path, compression="snappy")
        sync(path)
    sync(folder)
