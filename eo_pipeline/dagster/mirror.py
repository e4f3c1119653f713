"""Ledger entries as materializations: how Dagster's event log mirrors the ledger.

The offset asset's event always comes last, after the table's and the checkpoint's. So an offset
event says that all are there, and whoever repairs the log need only look for that one.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any

import dagster as dg

from eo_pipeline.dagster import mirror
from eo_pipeline.dagster.metadata import (
    LEDGER_ONLY,
    Columns,
    entry_metadata,
    identity_metadata,
    offsets_metadata,
    ranges_metadata,
    report_metadata,
    table,
    table_metadata,
    written_columns,
)
from eo_pipeline.dagster.naming import DagsterPipeline
from eo_pipeline.ledger.entry import CODE_VERSION, EntryId, LedgerEntry, Operation
from eo_pipeline.ledger.history import checkpoints, live_branch
from eo_pipeline.runs.report import CheckpointReport
from eo_pipeline.sinks.session import goes_back

#: Where Dagster keeps the data version of an event that is not a step's output.
DATA_VERSION_TAG = "dagster/data_version"

#: ... and which code it keeps for one that is.
CODE_VERSION_TAG = "dagster/code_version"

#: Identifies the ledger entry an event reports: a version alone comes again after a restored
#: backup.
TRANSACTION_TAG = "eo/transaction_id"


@dataclass(frozen=True)
class EntryEvent:
    """One asset's event for one ledger entry."""

    key: dg.AssetKey
    id: EntryId
    metadata: Mapping[str, Any]
    code_version: str | None = None
    partition: str | None = None
    #: it makes nothing newer, and must not be taken for that by a freshness policy
    observed: bool = False

    def event(self) -> dg.AssetMaterialization | dg.AssetObservation:
        """For every event but a step's last: logged at once, or by a sensor."""
        made = self.materialization()
        if not self.observed:
            return made
        return dg.AssetObservation(self.key, metadata=made.metadata, tags=made.tags)

    def materialization(self) -> dg.AssetMaterialization:
        """As an event of an asset that is newer by it."""
        version = {DATA_VERSION_TAG: str(self.id.version)}
        if self.code_version is not None:
            version[CODE_VERSION_TAG] = self.code_version
        return dg.AssetMaterialization(
            self.key,
            metadata=self.metadata,
            tags=version | self._transaction,
            partition=self.partition,
        )

    def result(self) -> dg.MaterializeResult[None]:
        """For a step's last event: it is the output that assets downstream wait for."""
        return dg.MaterializeResult(
            asset_key=self.key,
            metadata=self.metadata,
            data_version=dg.DataVersion(str(self.id.version)),
            tags=self._transaction,
        )

    @property
    def _transaction(self) -> dict[str, str]:
        return {TRANSACTION_TAG: self.id.transaction_id}


def of_entry(declared: DagsterPipeline, entry: LedgerEntry) -> list[EntryEvent]:
    """The events of an entry of which only the ledger tells: lag and times are not known."""
    return _events(declared, entry, {}, {})


def of_report(declared: DagsterPipeline, report: CheckpointReport) -> list[EntryEvent]:
    """The events of an entry this run committed."""
    known = report_metadata(report)
    return _events(declared, report.entry, known, written_columns(declared, report.columns))


def _events(
    declared: DagsterPipeline, entry: LedgerEntry, run: dict[str, Any], columns: dict[str, Any]
) -> list[EntryEvent]:
    first, last = entry_metadata(entry) | run, identity_metadata(entry)
    offsets = EntryEvent(declared.offsets, entry.id, first | offsets_metadata(entry) | last)
    if entry.operation in LEDGER_ONLY:
        return [offsets]
    code = entry.details.get(CODE_VERSION)
    of_table = first | table_metadata(entry) | last | columns
    is_back = declared.automation.freshness is not None and goes_back(entry)
    table = EntryEvent(declared.table, entry.id, of_table, code, observed=is_back)
    checkpoint = entry_metadata(entry) | ranges_metadata(entry) | run | last
    return [*_checkpoint(declared, entry, checkpoint), table, offsets]


def _checkpoint(
    declared: DagsterPipeline, entry: LedgerEntry, metadata: dict[str, Any]
) -> list[EntryEvent]:
    """The event of the checkpoint whose rows the entry wrote: its own, or the one it replayed."""
    if entry.operation not in (Operation.FORWARD, Operation.REPLAY) or not entry.ranges:
        return []
    code = entry.details.get(CODE_VERSION)
    return [EntryEvent(declared.checkpoints, entry.id, metadata, code, str(entry.checkpoint))]


def reported_id(event: dg.AssetMaterialization) -> EntryId | None:
    """Which ledger entry an event reports; None for an event somebody else wrote."""
    tags = event.tags or {}
    version, transaction = tags.get(DATA_VERSION_TAG, ""), tags.get(TRANSACTION_TAG)
    if transaction is None or not version.isdigit():
        return None
    return EntryId(int(version), transaction)


KeyRequest = dg.AddDynamicPartitionsRequest | dg.DeleteDynamicPartitionsRequest


def checkpoint_partitions(declared: DagsterPipeline) -> dg.DynamicPartitionsDefinition:
    """One partition for each live checkpoint; the key is its version."""
    return dg.DynamicPartitionsDefinition(name=declared.partitions)


def is_checkpoint(entry: LedgerEntry) -> bool:
    """Whether rows carry this entry's number, so that there is something to replay."""
    return entry.operation is Operation.FORWARD and bool(entry.ranges)


def update_keys(
    declared: DagsterPipeline, instance: dg.DagsterInstance, entry: LedgerEntry
) -> None:
    """Do to the keys what ``entry`` did to the checkpoints.

    The cost of a checkpoint does not depend on how many keys there are; that of a rewind or a floor
    does.
    """
    if is_checkpoint(entry):
        instance.add_dynamic_partitions(declared.partitions, [str(entry.version)])
    elif entry.operation in (Operation.REWIND, Operation.PRUNE):
        known = _versions(instance.get_dynamic_partitions(declared.partitions))
        for version in sorted(known - live_after(known, [entry])):
            instance.delete_dynamic_partition(declared.partitions, str(version))


def live_after(known: Collection[int], entries: Iterable[LedgerEntry]) -> set[int]:
    """The live checkpoints of ``known`` and of ``entries``, once these have happened, in order."""
    live = set(known)
    for entry in entries:
        if is_checkpoint(entry):
            live.add(entry.version)
        elif entry.operation is Operation.REWIND and entry.target is not None:
            live -= {v for v in live if entry.target < v < entry.version}
        elif entry.operation is Operation.PRUNE:
            live -= {v for v in live if v < entry.floor}  # nobody replays them any more
    return live


def key_requests(
    declared: DagsterPipeline,
    keys: Sequence[str],
    entries: Iterable[LedgerEntry],
    *,
    anew: bool = False,
) -> list[KeyRequest]:
    """What makes ``keys`` those of the newest live checkpoints, in ascending order.

    Args:
        keys: as Dagster holds them, in its order.
        entries: ledger entries whose effect may be missing there, oldest first.
        anew: ``keys`` are those of a ledger that was replaced.
    """
    live = live_after(set() if anew else _versions(keys), entries)
    wanted = [str(v) for v in sorted(live)[-declared.automation.checkpoint_partitions :]]
    removed, added = rearranged(keys, wanted)
    name = declared.partitions
    deletion: list[KeyRequest] = (
        [dg.DeleteDynamicPartitionsRequest(name, removed)] if removed else []
    )
    addition: list[KeyRequest] = [dg.AddDynamicPartitionsRequest(name, added)] if added else []
    return deletion + addition


def rearranged(keys: Sequence[str], wanted: Sequence[str]) -> tuple[list[str], list[str]]:
    """What to take from ``keys`` and then to add at their end, so that they read ``wanted``.

    Dagster keeps keys in the order in which they came, and a range of them goes by that order. So
    a key that comes late makes those after it come once more.
    """
    chosen = set(wanted)
    held = [key for key in keys if key in chosen]
    same = takewhile(lambda pair: pair[0] == pair[1], zip(held, wanted, strict=False))
    kept = len(list(same))
    staying = set(held[:kept])
    return [key for key in keys if key not in staying], list(wanted[kept:])


def _versions(keys: Iterable[str]) -> set[int]:
    """Keys somebody else added by hand are left out, and so go with the next clean-up."""
    return {int(key) for key in keys if key.isdigit()}


#: Versions the table shows, and ledger entries that are read for it.
STANDING_SHOWN = 100
ENTRIES_LOOKED_AT = 300

_COLUMNS: Columns = {
    "version": "int",
    "committed_at": "string",
    "operation": "string",
    "of": "int",
    "records": "int",
    "rows": "int",
    "rows_total": "int",
    "reason": "string",
    "code_version": "string",
}


def standing_event(
    declared: DagsterPipeline, instance: dg.DagsterInstance
) -> dg.AssetMaterialization | None:
    """The newest checkpoint once more, with the table: an overview shows what the last event says.

    None if no checkpoint stands.
    """
    newest = declared.pipeline.newest(ENTRIES_LOOKED_AT)
    found = checkpoints(newest)
    if not found:
        return None
    table = {"standing": standing_table(live_branch(newest))}
    event = _shown(declared, instance, str(found[-1].version))
    if event is None:
        [event] = [
            each.materialization()
            for each in mirror.of_entry(declared, found[-1].written)
            if each.key == declared.checkpoints
        ]
    return dg.AssetMaterialization(
        declared.checkpoints,
        partition=event.partition,
        tags=event.tags,
        metadata={**table, **{k: v for k, v in event.metadata.items() if k not in table}},
    )


def standing_table(live: Iterable[LedgerEntry]) -> dg.MetadataValue:
    """A row for each version that one can go back to, the newest first."""
    newest_first = [each for each in live if each.operation is not Operation.START][::-1]
    return table(_COLUMNS, map(_row, newest_first[:STANDING_SHOWN]))


def _row(entry: LedgerEntry) -> dict[str, Any]:
    counts, when = entry.counts, entry.committed_at
    return {
        "version": entry.version,
        "committed_at": f"{when:%Y-%m-%d %H:%M:%S %Z}" if when else None,
        "operation": entry.operation.value,
        "of": entry.target,
        "records": counts.records,
        "rows": counts.rows,
        "rows_total": counts.rows_total,
        "reason": str(entry.details.get("reason") or ""),
        "code_version": str(entry.details.get(CODE_VERSION) or ""),
    }


def _shown(
    declared: DagsterPipeline, instance: dg.DagsterInstance, partition: str
) -> dg.AssetMaterialization | None:
    wanted = dg.AssetRecordsFilter(declared.checkpoints, asset_partitions=[partition])
    records = instance.fetch_materializations(wanted, limit=1).records
    return records[0].asset_materialization if records else None


_FORMAT = 1


@dataclass(frozen=True)
class Progress:
    """How far ledger and event log were compared.

    ``entry``: every ledger entry up to this one is in the event log. ``event``: every event up to
    this storage id was read. ``ahead``: entries above ``entry`` that those events report.
    ``shown``: the head of which the table of what stands was shown.
    """

    entry: EntryId | None = None
    event: int = 0
    ahead: frozenset[EntryId] = field(default_factory=frozenset)
    shown: EntryId | None = None

    def to_cursor(self) -> str:
        """As a sensor cursor."""
        entry = list(self.entry) if self.entry else None
        ahead = sorted(list(each) for each in self.ahead)
        shown = list(self.shown) if self.shown else None
        known = {"format": _FORMAT, "entry": entry, "event": self.event, "ahead": ahead}
        return json.dumps(known | {"shown": shown})

    @classmethod
    def from_cursor(cls, cursor: str | None) -> Progress:
        """The inverse of :meth:`to_cursor`; the very beginning if there is none of this format."""
        raw = json.loads(cursor) if cursor else {}
        if raw.get("format") != _FORMAT:
            return cls()
        entry = EntryId(*raw["entry"]) if raw["entry"] else None
        ahead = frozenset(EntryId(*each) for each in raw["ahead"])
        shown = raw.get("shown")
        return cls(entry, raw["event"], ahead, EntryId(*shown) if shown else None)


def compare(
    progress: Progress,
    entries: Sequence[LedgerEntry],
    reported: Collection[EntryId],
    event: int,
    caught_up: bool,
) -> tuple[list[LedgerEntry], Progress]:
    """The entries to report, and the progress after that.

    Args:
        progress: where the last comparison ended.
        entries: the ledger entries that follow ``progress.entry``, oldest first, read *before*
            the events; perhaps not all.
        reported: what the events after ``progress.event`` report; perhaps not all.
        event: the last of those events.
        caught_up: there is no event after ``event``. Until then an entry without an event may
            yet find it, and is not reported.
    """
    seen = progress.ahead | set(reported)
    missing: list[LedgerEntry] = []
    entry = progress.entry
    for candidate in entries:
        if candidate.id not in seen:
            if not caught_up:
                break
            missing.append(candidate)
        entry = candidate.id
    settled = entry.version if entry else -1
    ahead = frozenset(each for each in seen if each.version > settled)
    return missing, Progress(entry, event, ahead, progress.shown)
