"""Rows that leave the table again (rewind) or are replaced (replay), in one commit each.

A file whose rows all go leaves as it is. One that holds rows of others too, as OPTIMIZE and
maintenance make them, is written anew without those that go, before the commit, by ourselves:
delta-rs's own delete and overwrite cast all rows to the table's columns, which some lack.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from deltalake.transaction import AddAction, RemoveAction

from eo_pipeline.arrow import pc
from eo_pipeline.ledger.entry import CHECKPOINT_COLUMN
from eo_pipeline.sinks.delta.compaction import Writing, data_file, is_among, removal_of
from eo_pipeline.sinks.delta.store import Snapshot
from eo_pipeline.sinks.lake.bins import DataFile
from eo_pipeline.sinks.lake.rows import PublishedFiles
from eo_pipeline.sinks.lake.session import NO_CHECKPOINT

_LOW, _HIGH = f"min.{CHECKPOINT_COLUMN}", f"max.{CHECKPOINT_COLUMN}"
_NULLS = f"null_count.{CHECKPOINT_COLUMN}"


def without(
    table: Snapshot, first: int, last: int | None, files: PublishedFiles
) -> list[AddAction | RemoveAction]:
    """What takes the rows of checkpoints ``first`` to ``last`` (``None``: to the end) out of the
    table; some of its files are written anew as ``files``. Rows of no checkpoint stay.
    """
    return [*_without(table, first, NO_CHECKPOINT if last is None else last, files)]


def _without(
    table: Snapshot, first: int, last: int, files: PublishedFiles
) -> Iterator[AddAction | RemoveAction]:
    writing: Writing | None = None
    for action in table.add_actions():
        holds = _holds(action, first, last)
        file = data_file(action, table.described.partition_by)
        if holds is None:
            writing = writing or Writing(table)
            holds = _looked_into(writing, file, first, last)
            if holds is None:
                place = files.new(file.folder if file.movable else "")
                yield writing.without(place, file, first, last)
        if holds is not False:
            yield removal_of(file, data_change=True)


def _holds(action: dict[str, Any], first: int, last: int) -> bool | None:
    """Whether all rows of a file are of these checkpoints, or none is, by the log. ``None``: some
    may be.
    """
    low, high, nulls = action.get(_LOW), action.get(_HIGH), action.get(_NULLS)
    if low is None or high is None:
        # without bounds, unless all rows are somebody else's: one must look into the file
        return None if nulls is None or nulls < (action["num_records"] or 0) else False
    if high < first or low > last:
        return False
    return True if low >= first and high <= last and nulls == 0 else None


def _looked_into(writing: Writing, file: DataFile, first: int, last: int) -> bool | None:
    """The same, by its rows."""
    among = is_among(writing.checkpoints(file), first, last)
    found = pc.sum(among).as_py() or 0
    return None if 0 < found < len(among) else found > 0
