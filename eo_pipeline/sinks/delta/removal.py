"""Rows that leave the table again (rewind) or are replaced (replay), in one commit each."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

from deltalake import DeltaTable, write_deltalake
from deltalake.transaction import AddAction, RemoveAction

from eo_pipeline.arrow import pa
from eo_pipeline.ledger.entry import CHECKPOINT_COLUMN
from eo_pipeline.sinks.delta.commit import Arguments, commit_files
from eo_pipeline.sinks.delta.rows import batches_of, partition_value
from eo_pipeline.sinks.lake.publication import Commit
from eo_pipeline.staging.rows import StagedTable

_LOW, _HIGH = f"min.{CHECKPOINT_COLUMN}", f"max.{CHECKPOINT_COLUMN}"
_NULLS = f"null_count.{CHECKPOINT_COLUMN}"
_PARTITION = "partition."


def rewind(table: DeltaTable, target: int, arguments: Arguments) -> Commit:
    """Rows of checkpoints after ``target`` leave; rows of no checkpoint stay."""
    first = target + 1
    found = _files(table, first, None)
    if found.mixed:
        return lambda: _delete(table, f"{CHECKPOINT_COLUMN} >= {first}", arguments)
    return lambda: commit_files(table, found.inside, arguments)


def replay(
    table: DeltaTable,
    target: int,
    rows: StagedTable | None,
    actions: list[AddAction],
    arguments: Arguments,
) -> Commit:
    """Rows of the checkpoint ``target`` give way to the staged ``rows``, which carry its number;
    ``actions`` add their files.

    Nothing is copied, unless a file holds rows of other checkpoints too (after OPTIMIZE).
    """
    found = _files(table, target, target)
    if found.mixed:
        return lambda: _overwrite(table, f"{CHECKPOINT_COLUMN} = {target}", rows, arguments)
    return lambda: commit_files(table, [*found.inside, *actions], arguments)


@dataclass
class _Found:
    """Files with rows of certain checkpoints: whose rows all are, and whose some may be."""

    inside: list[RemoveAction] = field(default_factory=list)
    mixed: bool = False


def _files(table: DeltaTable, first: int, last: int | None) -> _Found:
    """The table's files with rows of checkpoints ``first`` to ``last`` (``None``: to the end)."""
    found = _Found()
    for action in pa.table(table.get_add_actions(flatten=True)).to_pylist():
        low, high, nulls = action.get(_LOW), action.get(_HIGH), action.get(_NULLS)
        if low is None or high is None:
            # without bounds, unless all rows are somebody else's: one must look into the file
            found.mixed |= nulls is None or nulls < (action["num_records"] or 0)
        elif high < first or (last is not None and low > last):
            continue
        elif low >= first and (last is None or high <= last) and nulls == 0:
            found.inside.append(_remove(action))
        else:
            found.mixed = True
    return found


def _remove(action: dict[str, Any]) -> RemoveAction:
    parts = {
        name.removeprefix(_PARTITION): value
        for name, value in action.items()
        if name.startswith(_PARTITION)
    }
    values = {name: partition_value(name, value) for name, value in parts.items()}
    now = int(time.time() * 1000)
    return RemoveAction(action["path"], True, now, action["size_bytes"], values)


def _delete(table: DeltaTable, predicate: str, arguments: Arguments) -> None:
    before = table.version()
    table.delete(predicate, **arguments)
    if table.version() == before:
        # a delete that matches nothing makes no commit, and says nothing
        commit_files(table, [], arguments)


def _overwrite(
    table: DeltaTable, predicate: str, rows: StagedTable | None, arguments: Arguments
) -> None:
    before = table.version()
    if rows is None or not rows.rows:
        _delete(table, predicate, arguments)
        return
    write_deltalake(table, batches_of(rows), mode="overwrite", predicate=predicate, **arguments)
    if table.version() == before:
        commit_files(table, [], arguments)
