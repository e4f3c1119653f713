"""Rows that leave the table again (rewind) or are replaced (replay), in one commit each."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from deltalake.transaction import AddAction, RemoveAction

from eo_pipeline.ledger.entry import CHECKPOINT_COLUMN
from eo_pipeline.sinks.delta.commit import commit_files, ledger_commit, outcome_told
from eo_pipeline.sinks.delta.rows import partition_value
from eo_pipeline.sinks.delta.table import Snapshot
from eo_pipeline.sinks.delta.types import stored_schema, stored_table
from eo_pipeline.sinks.lake.frame import Publication
from eo_pipeline.sinks.removal import target_of
from eo_pipeline.staging.rows import StagedTable

_LOW, _HIGH = f"min.{CHECKPOINT_COLUMN}", f"max.{CHECKPOINT_COLUMN}"
_NULLS = f"null_count.{CHECKPOINT_COLUMN}"
_PARTITION = "partition."


def rewind(table: DeltaTable, publication: Publication[Snapshot], uri: str) -> None:
    """Rows of checkpoints after the target leave; rows of no checkpoint stay."""
    first = target_of(publication.entry) + 1
    found = _files(table, first, None)
    with outcome_told(uri):
        if found.mixed:
            _delete(table, f"{CHECKPOINT_COLUMN} >= {first}", publication)
        else:
            commit_files(table, found.inside, publication.record)


def replay(
    table: DeltaTable, actions: list[AddAction], publication: Publication[Snapshot], uri: str
) -> None:
    """Rows of the target's checkpoint give way to the staged ones, which carry its number.

    Nothing is copied, unless a file holds rows of other checkpoints too (after OPTIMIZE).
    """
    target = target_of(publication.entry)
    found = _files(table, target, target)
    with outcome_told(uri):
        if found.mixed:
            _overwrite(table, f"{CHECKPOINT_COLUMN} = {target}", publication)
        else:
            commit_files(table, [*found.inside, *actions], publication.record)


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


def _delete(table: DeltaTable, predicate: str, publication: Publication[Snapshot]) -> None:
    before = table.version()
    table.delete(predicate, **ledger_commit(publication.record))
    if table.version() == before:
        # a delete that matches nothing makes no commit, and says nothing
        commit_files(table, [], publication.record)


def _overwrite(table: DeltaTable, predicate: str, publication: Publication[Snapshot]) -> None:
    rows = publication.staged.rows
    before = table.version()
    if rows is None or not rows.rows:
        _delete(table, predicate, publication)
        return
    write_deltalake(
        table,
        _reader(rows),
        mode="overwrite",
        predicate=predicate,
        **ledger_commit(publication.record),
    )
    if table.version() == before:
        commit_files(table, [], publication.record)


def _reader(rows: StagedTable) -> pa.RecordBatchReader:
    schema = stored_schema(rows.schema)
    batches = (
        batch
        for piece in rows.batches()
        for batch in stored_table(pa.Table.from_batches([piece])).to_batches()
    )
    return pa.RecordBatchReader.from_batches(schema, batches)
