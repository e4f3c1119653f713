"""Snapshot of ledger and table, the only input of the judgement."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from eo_pipeline.errors import RefusedError
from eo_pipeline.ledger.entry import LedgerEntry, Operation
from eo_pipeline.ledger.history import (
    Checkpoint,
    checkpoints,
    contiguity_errors,
    damages,
    live_branch,
)
from eo_pipeline.operations.change_plan import look_again
from eo_pipeline.sinks.capabilities import whole_lineage
from eo_pipeline.sinks.session import SinkSession

#: Maximum number of reads of the table if the ledger goes back meanwhile.
READS_MAX = 3

#: Rows per row group of the table's lineage; the maximum kept in memory.
_ROWS_A_GROUP = 200_000


@dataclass(frozen=True)
class Snapshot:
    """Ledger up to ``head``, and the lineage of the table's rows.

    ``checkpoints`` are the live ones to audit, oldest first, from version ``since`` on; ``holes``
    are the losses accepted among these, ``contiguity_errors`` their inconsistencies.
    ``is_damaged``: entries are missing or were changed, so that no repair can be derived from them.
    ``newest`` is the newest version after the table was read: rows of versions between ``head`` and
    ``newest`` belong to concurrent runs. ``settled`` is False if the ledger went back on every
    attempt. ``rows`` is the number of rows read, None if the sink ``refused`` to read them.
    """

    head: LedgerEntry
    since: int
    checkpoints: tuple[Checkpoint, ...]
    holes: tuple[LedgerEntry, ...]
    contiguity_errors: tuple[str, ...]
    newest: int
    is_damaged: bool = False
    settled: bool = True
    rows: int | None = None
    refused: str | None = None


def take_snapshot(
    session: SinkSession,
    head: Callable[[], LedgerEntry],
    last: int | None,
    rows: Path,
    progress: Callable[[str], None],
) -> Snapshot:
    """Read the ledger, write the table's lineage into the Parquet file ``rows``, and read the
    ledger again.

    Repeat after a rewind or replay in between, since rows and ledger would not match.
    """
    for _ in range(READS_MAX):
        snapshot = _ledger(session, head(), last)
        progress(f"reading where the table's rows came from, version {snapshot.since} and later")
        count, refused = _read_rows(session, snapshot.since, rows)
        newest, went_back = look_again(session, snapshot.head)
        snapshot = replace(
            snapshot, newest=newest, settled=not went_back, rows=count, refused=refused
        )
        if snapshot.settled:
            break
    return snapshot


def _ledger(session: SinkSession, head: LedgerEntry, last: int | None) -> Snapshot:
    stretch = head.version + 1 if last is None else last
    while True:
        since = max(head.floor, head.version + 1 - stretch)
        entries = [e for e in session.history(since) if e.version <= head.version]
        live = checkpoints(entries)
        if since == head.floor or (last is not None and len(live) >= last):
            break
        stretch *= 2
    live = live if last is None else live[-last:]
    if last is not None and live:
        since = live[0].version
        entries = [e for e in entries if e.version >= since]
    return Snapshot(
        head=head,
        since=since,
        checkpoints=tuple(live),
        holes=tuple(e for e in live_branch(entries) if e.operation is Operation.ACCEPT_LOSS),
        contiguity_errors=tuple(_contiguity_errors(entries, since, head)),
        is_damaged=any(damages(entries, since)),
        newest=head.version,
    )


def _contiguity_errors(entries: list[LedgerEntry], since: int, head: LedgerEntry) -> Iterator[str]:
    yield from contiguity_errors(entries, since)
    if not entries or entries[-1].id != head.id:
        yield f"version {head.version} is the head, and the history does not end with it"


def _read_rows(session: SinkSession, since: int, path: Path) -> tuple[int | None, str | None]:
    try:
        return _write(session.lineage(since), path), None
    except RefusedError as error:
        _write((), path)
        return None, str(error)


def _write(batches: Iterable[pa.RecordBatch], path: Path) -> int:
    """Write ``batches`` as one Parquet file, gathered into row groups. Return the number of
    rows.
    """
    rows, waiting, waiting_rows = 0, [], 0
    with pq.ParquetWriter(path, whole_lineage()) as writer:
        for batch in batches:
            waiting.append(_with_all_columns(batch))
            waiting_rows += batch.num_rows
            if waiting_rows >= _ROWS_A_GROUP:
                writer.write_table(pa.Table.from_batches(waiting))
                rows, waiting, waiting_rows = rows + waiting_rows, [], 0
        writer.write_table(pa.Table.from_batches(waiting, whole_lineage()))
    return rows + waiting_rows


def _with_all_columns(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return ``batch`` with all columns of lineage; missing ones are null."""
    absent = {f.name: pa.nulls(batch.num_rows, f.type) for f in whole_lineage()}
    present = {name: batch.column(name) for name in batch.schema.names if name in absent}
    arrays = [(absent | present)[f.name].cast(f.type) for f in whole_lineage()]
    return pa.RecordBatch.from_arrays(arrays, schema=whole_lineage())
