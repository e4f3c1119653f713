"""Staged rows as files of a checkpoint's folder."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path

import pyarrow.parquet as pq

from eo_pipeline.sinks.lake.ledger import sync
from eo_pipeline.sinks.parquet.sink import TYPES
from eo_pipeline.staging.rows import StagedTable

#: What ``link`` answers where there are no hard links, or not to there.
_NO_LINKS = frozenset({errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EXDEV, errno.EMLINK})


def put(staged: StagedTable, folder: Path, stem: str = "part") -> None:
    """The rows as files ``<stem>-<number>.parquet``, flushed. Staged files are not copied but given
    a second name, so that they stay whole for whoever else publishes them, and may go afterwards.
    """
    for number, source in enumerate(staged.paths()):
        link(source, folder / f"{stem}-{number:05}.parquet")
    if staged.table is not None and staged.rows:
        path = folder / f"{stem}-00000.parquet"
        pq.write_table(TYPES.table(staged.table), path, compression="snappy")
        sync(path)
    sync(folder)


def link(source: Path, target: Path) -> None:
    """A second name for the file, or a copy where a file system has no such names."""
    try:
        target.hardlink_to(source)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        shutil.copyfile(source, target)
        sync(target)
