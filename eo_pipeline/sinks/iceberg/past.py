"""The table as a ledger entry left it: the snapshots of Iceberg, found by what each says."""

from __future__ import annotations

from collections.abc import Iterator

from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot

from eo_pipeline.errors import RefusedError, TableRolledBackError
from eo_pipeline.ledger.entry import LedgerEntry
from eo_pipeline.sinks.iceberg.types import TYPES
from eo_pipeline.sinks.past import Past


def past_of(table: Table, entry: LedgerEntry) -> Past:
    """The last snapshot that the commit of ``entry`` made.

    Raises:
        RefusedError: it expired, or there was none.
    """
    for snapshot in _ancestors(table):
        if _is_of(snapshot, entry):
            return _past(table, snapshot.snapshot_id)
    raise RefusedError(
        f"the table has no snapshot of version {entry.version} (they expire; the first version has "
        "none)"
    )


def rolled_back(table: Table, head: LedgerEntry) -> TableRolledBackError | None:
    """Told by the newest snapshot below the current one that a commit of the pipeline made: each
    commit makes one, and moves the ledger. If those expired, by the snapshot of the head, if that
    is kept and not below the current one.
    """
    found = (_version_of(snapshot, head.pipeline) for snapshot in _ancestors(table))
    stands = next((version for version in found if version is not None), None)
    newest = next((s for s in table.metadata.snapshots if _is_of(s, head)), None)
    if stands is None and newest is not None and newest not in _ancestors(table):
        stands = 0  # or one whose snapshot expired: going back to 0 is right for each
    if stands is None or stands >= head.version:
        return None
    forward = f"Set it to snapshot {newest.snapshot_id} again" if newest else "Set it forward again"
    return TableRolledBackError(head.pipeline, head.version, stands, forward)


def _version_of(snapshot: Snapshot, pipeline: str) -> int | None:
    said = snapshot.summary.additional_properties if snapshot.summary else {}
    version = said.get("eo.version") if said.get("eo.pipeline") == pipeline else None
    return int(version) if version is not None else None


def _past(table: Table, snapshot_id: int) -> Past:
    scan = table.scan(snapshot_id=snapshot_id)
    return Past(
        f"snapshot {snapshot_id} of the Iceberg table",
        lambda _: TYPES.shown(iter(scan.to_arrow_batch_reader())),
        scan.count,
        {"Spark": f"SELECT * FROM {'.'.join(table.name())} VERSION AS OF {snapshot_id}"},
    )


def _ancestors(table: Table) -> Iterator[Snapshot]:
    """From the newest on, as far as they are kept: what was rolled back is not among them."""
    found = table.current_snapshot()
    if found is None:
        return
    yield found  # nearly always all that is asked for, of many
    held = {each.snapshot_id: each for each in table.metadata.snapshots}
    while (found := held.get(found.parent_snapshot_id or -1)) is not None:
        yield found


def _is_of(snapshot: Snapshot, entry: LedgerEntry) -> bool:
    said = snapshot.summary.additional_properties if snapshot.summary else {}
    mine = (entry.pipeline, str(entry.version), entry.run_id)
    return tuple(said.get(f"eo.{name}") for name in ("pipeline", "version", "run-id")) == mine
