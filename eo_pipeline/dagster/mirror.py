"""Ledger entries as materializations: how Dagster's event log mirrors the ledger.

The event of the offset asset always comes last, after the table's and the checkpoint's. An offset
event thus proves that all are there, and a repair of the log only compares offset events.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC
from itertools import takewhile
from typing import Any

import dagster as dg
from dagster._core.definitions.data_version import (
    DEFAULT_DATA_VERSION,
    NULL_EVENT_POINTER,
    get_input_data_version_tag,
    get_input_event_pointer_tag,
)

from eo_pipeline.dagster import mirror
from eo_pipeline.dagster.metadata import (
    LEDGER_ONLY,
    Columns,
    entry_metadata,
    identity_metadata,
    member_metadata,
    offsets_metadata,
    ranges_metadata,
    report_metadata,
    table,
    table_metadata,
    written_columns,
)
from eo_pipeline.dagster.naming import DagsterPipeline
from eo_pipeline.ledger.entry import (
    CODE_VERSION,
    START_VERSION,
    Counts,
    EntryId,
    LedgerEntry,
    Operation,
)
from eo_pipeline.ledger.history import checkpoints, live_branch
from eo_pipeline.runs.report import CheckpointReport
from eo_pipeline.sinks.session import goes_back

#: Tag of the data version of an event that is not a step's output.
DATA_VERSION_TAG = "dagster/data_version"

#: Tag of the code version of an event that is not a step's output.
CODE_VERSION_TAG = "dagster/code_version"

#: Tag that identifies the reported ledger entry: a version number is used again after a backup
#: was restored.
TRANSACTION_TAG = "eo/transaction_id"


@dataclass(frozen=True)
class EntryEvent:
    """One asset's event for one ledger entry."""

    key: dg.AssetKey
    id: EntryId
    metadata: Mapping[str, Any]
    code_version: str | None = None
    partition: str | None = None
    #: The upstream topics.
    inputs: tuple[dg.AssetKey, ...] = ()
    #: Reported as an observation: the asset gets no newer, which a freshness policy must respect.
    observed: bool = False

    def event(self) -> dg.AssetMaterialization | dg.AssetObservation:
        """Return the event that a step logs at once, or that a sensor reports."""
        materialization = self.materialization()
        if not self.observed:
            return materialization
        return dg.AssetObservation(
            self.key, metadata=materialization.metadata, tags=materialization.tags
        )

    def materialization(self) -> dg.AssetMaterialization:
        """Return the event as a materialization."""
        version = {DATA_VERSION_TAG: str(self.id.version)}
        if self.code_version is not None:
            version[CODE_VERSION_TAG] = self.code_version
            version |= _input_tags(self.inputs)
        return dg.AssetMaterialization(
            self.key,
            metadata=self.metadata,
            tags=version | self._transaction,
            partition=self.partition,
        )

    def result(self) -> dg.MaterializeResult[None]:
        """Return a step's last event: the output that assets downstream wait for."""
        return dg.MaterializeResult(
            asset_key=self.key,
            metadata=self.metadata,
            data_version=dg.DataVersion(str(self.id.version)),
            tags=self._transaction,
        )

    @property
    def _transaction(self) -> dict[str, str]:
        return {TRANSACTION_TAG: self.id.transaction_id}


def _input_tags(topics: Iterable[dg.AssetKey]) -> dict[str, str]:
    """Return the data versions of ``topics``, as a step's output has them. Without them Dagster
    shows an event with a code version as unsynced: "has a new dependency".
    """
    versions = {get_input_data_version_tag(key): DEFAULT_DATA_VERSION.value for key in topics}
    return versions | {get_input_event_pointer_tag(key): NULL_EVENT_POINTER for key in topics}


def of_entry(declared: DagsterPipeline, entry: LedgerEntry) -> list[EntryEvent]:
    """Return the events of an entry read from the ledger, which stores neither lag nor times."""
    return _events(declared, entry, {}, {})


def of_report(declared: DagsterPipeline, report: CheckpointReport) -> list[EntryEvent]:
    """Return the events of an entry that this run committed."""
    run_metadata = report_metadata(report)
    return _events(declared, report.entry, run_metadata, written_columns(declared, report.columns))


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
    topics = declared.topics
    table = EntryEvent(declared.table, entry.id, of_table, code, inputs=topics, observed=is_back)
    checkpoint = entry_metadata(entry) | ranges_metadata(entry) | run | last
    members = _members(declared, entry, last, observed=is_back)
    return [*_checkpoint(declared, entry, checkpoint), *members, table, offsets]


def _members(
    declared: DagsterPipeline, entry: LedgerEntry, last: dict[str, Any], *, observed: bool
) -> list[EntryEvent]:
    """Return the events of those of several tables whose rows, or dead letters, the entry changed;
    of one that goes back, of all: the ledger does not tell in which of them rows left.
    """
    code, events = entry.details.get(CODE_VERSION), []
    appeared = {name: declared.member(name) for name in entry.values}
    for name, key in {**declared.members, **appeared}.items():
        counts = entry.counts.tables.get(name, Counts())
        if counts.rows or counts.dead_letters or goes_back(entry):
            metadata = member_metadata(entry, counts) | last
            inputs = declared.topics_of(name)
            event = EntryEvent(key, entry.id, metadata, code, inputs=inputs, observed=observed)
            events.append(event)
    return events


def _checkpoint(
    declared: DagsterPipeline, entry: LedgerEntry, metadata: dict[str, Any]
) -> list[EntryEvent]:
    """Return the event of the checkpoint whose rows the entry wrote: its own or the replayed."""
    if entry.operation not in (Operation.FORWARD, Operation.REPLAY) or not entry.ranges:
        return []
    code = entry.details.get(CODE_VERSION)
    key, partition = declared.checkpoints, str(entry.checkpoint)
    return [EntryEvent(key, entry.id, metadata, code, partition, declared.topics)]


def reported_id(event: dg.AssetMaterialization) -> EntryId | None:
    """Return the ledger entry that an event reports; None for an event from elsewhere."""
    tags = event.tags or {}
    version, transaction = tags.get(DATA_VERSION_TAG, ""), tags.get(TRANSACTION_TAG)
    if transaction is None or not version.isdigit():
        return None
    return EntryId(int(version), transaction)


KeyRequest = dg.AddDynamicPartitionsRequest | dg.DeleteDynamicPartitionsRequest


def checkpoint_partitions(declared: DagsterPipeline) -> dg.DynamicPartitionsDefinition:
    """Return the partitions: one per live checkpoint, keyed by version."""
    return dg.DynamicPartitionsDefinition(name=declared.partitions)


def is_checkpoint(entry: LedgerEntry) -> bool:
    """Return whether rows carry this entry's version, so that it can be replayed."""
    return entry.operation is Operation.FORWARD and bool(entry.ranges)


def update_keys(
    declared: DagsterPipeline, instance: dg.DagsterInstance, entry: LedgerEntry
) -> None:
    """Apply the effect of ``entry`` on the checkpoints to the partition keys.

    The cost of a checkpoint does not depend on the number of keys; that of a rewind or a floor
    does.
    """
    if is_checkpoint(entry):
        instance.add_dynamic_partitions(declared.partitions, [str(entry.version)])
    elif entry.operation in (Operation.REWIND, Operation.PRUNE):
        existing = _versions(instance.get_dynamic_partitions(declared.partitions))
        for version in sorted(existing - live_after(existing, [entry])):
            instance.delete_dynamic_partition(declared.partitions, str(version))


def live_after(existing: Collection[int], entries: Iterable[LedgerEntry]) -> set[int]:
    """Return the live checkpoints after ``entries``, applied in order to ``existing``."""
    live = set(existing)
    for entry in entries:
        if is_checkpoint(entry):
            live.add(entry.version)
        elif entry.operation is Operation.REWIND and entry.target is not None:
            live -= {v for v in live if entry.target < v < entry.version}
        elif entry.operation is Operation.PRUNE:
            live -= {v for v in live if v < entry.floor}  # can no longer be replayed
    return live


def live_keys(
    declared: DagsterPipeline,
    keys: Sequence[str],
    entries: Iterable[LedgerEntry],
    *,
    anew: bool = False,
) -> list[str]:
    """Return the keys of the newest live checkpoints, in ascending order.

    Args:
        keys: Dagster's keys, in its order.
        entries: ledger entries whose effect may be missing there, oldest first.
        anew: ``keys`` are those of a ledger that was replaced, or are not complete.
    """
    live = live_after(set() if anew else _versions(keys), entries)
    return [str(v) for v in sorted(live)[-declared.automation.checkpoint_partitions :]]


def key_requests(
    declared: DagsterPipeline, keys: Sequence[str], wanted: Sequence[str]
) -> list[KeyRequest]:
    """Return the requests that turn ``keys``, Dagster's in its order, into ``wanted``."""
    removed, added = rearranged(keys, wanted)
    name = declared.partitions
    deletion: list[KeyRequest] = (
        [dg.DeleteDynamicPartitionsRequest(name, removed)] if removed else []
    )
    addition: list[KeyRequest] = [dg.AddDynamicPartitionsRequest(name, added)] if added else []
    return deletion + addition


def rearranged(keys: Sequence[str], wanted: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the keys to delete from ``keys`` and those to append, so that it equals ``wanted``.

    Dagster keeps keys in the order of insertion, and a range of them follows that order. So a late
    key requires that all keys after it are inserted again.
    """
    chosen = set(wanted)
    held = [key for key in keys if key in chosen]
    same = takewhile(lambda pair: pair[0] == pair[1], zip(held, wanted, strict=False))
    kept = len(list(same))
    staying = set(held[:kept])
    return [key for key in keys if key not in staying], list(wanted[kept:])


def _versions(keys: Iterable[str]) -> set[int]:
    """Return the versions among ``keys``. Keys added by hand are left out, so the next clean-up
    deletes them.
    """
    return {int(key) for key in keys if key.isdigit()}


#: Versions in the table of live checkpoints (an event is kept for ever), and ledger entries read
#: for it.
LIVE_SHOWN = 30
ENTRIES_LOOKED_AT = 300

#: Metadata key of the table.
LIVE = "live_versions"

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


def live_checkpoints_event(
    declared: DagsterPipeline, instance: dg.DagsterInstance
) -> dg.AssetMaterialization | None:
    """Return the newest checkpoint's event again, with the table of the live ones, because
    Dagster's overview shows the last event.

    None without a live checkpoint, and if that event has the table already.
    """
    newest = declared.pipeline.newest(ENTRIES_LOOKED_AT)
    live = checkpoints(newest)
    if not live:
        return None
    event = _latest_event(declared, instance, [str(live[-1].version)])
    rows = _rows_shown(event)
    if rows and rows[0]["version"] == newest[-1].version:
        return None
    table = {LIVE: live_checkpoints_table(live_branch(newest))}
    if event is None:
        [event] = [
            entry_event.materialization()
            for entry_event in mirror.of_entry(declared, live[-1].written)
            if entry_event.key == declared.checkpoints
        ]
    return dg.AssetMaterialization(
        declared.checkpoints,
        partition=event.partition,
        tags=event.tags,
        metadata={**table, **{k: v for k, v in event.metadata.items() if k not in table}},
    )


def live_checkpoints_table(live: Iterable[LedgerEntry]) -> dg.MetadataValue:
    """Return a table with a row per version that a rewind can go back to, the newest first."""
    newest_first = [entry for entry in live if entry.operation is not Operation.START][::-1]
    return table(_COLUMNS, map(_row, newest_first[:LIVE_SHOWN]))


def live_rows(declared: DagsterPipeline, instance: dg.DagsterInstance) -> list[Mapping[str, Any]]:
    """Return the rows of the table of live checkpoints that Dagster's overview shows."""
    return _rows_shown(_latest_event(declared, instance))


def _rows_shown(event: dg.AssetMaterialization | None) -> list[Mapping[str, Any]]:
    table = event.metadata.get(LIVE) if event else None
    return [r.data for r in table.records] if isinstance(table, dg.TableMetadataValue) else []


def with_live_rows(
    event: EntryEvent, before: Sequence[Mapping[str, Any]], entries: Sequence[LedgerEntry]
) -> EntryEvent:
    """Return ``event`` with the table of live checkpoints: the rows shown ``before`` the run, and
    its own ``entries``. So the overview keeps the table without reading the ledger.

    The event stays as it is if the rows do not lead up to the entries; the reconciler then adds
    the table.
    """
    parent = entries[0].version - 1
    is_complete = before[0]["version"] == parent if before else parent <= START_VERSION
    if not is_complete or any(entry.operation is Operation.REWIND for entry in entries):
        return event
    shown = [e for e in entries if e.operation is not Operation.START][::-1]
    known = [{name: row.get(name) for name in _COLUMNS} for row in before]
    rows = [*map(_row, shown), *known][:LIVE_SHOWN]
    return replace(event, metadata={LIVE: table(_COLUMNS, rows), **event.metadata})


def _row(entry: LedgerEntry) -> dict[str, Any]:
    counts, when = entry.counts, entry.committed_at
    return {
        "version": entry.version,
        "committed_at": f"{when.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}" if when else None,
        "operation": entry.operation.value,
        "of": entry.target,
        "records": counts.records,
        "rows": counts.rows,
        "rows_total": counts.rows_total,
        "reason": str(entry.details.get("reason") or ""),
        "code_version": str(entry.details.get(CODE_VERSION) or ""),
    }


def _latest_event(
    declared: DagsterPipeline, instance: dg.DagsterInstance, partitions: list[str] | None = None
) -> dg.AssetMaterialization | None:
    wanted = dg.AssetRecordsFilter(declared.checkpoints, asset_partitions=partitions)
    records = instance.fetch_materializations(wanted, limit=1).records
    return records[0].asset_materialization if records else None


_FORMAT = 1


@dataclass(frozen=True)
class Progress:
    """Progress of the comparison of ledger and event log.

    ``entry``: every ledger entry up to this one is in the event log. ``event``: every event up to
    this storage id was read. ``ahead``: entries above ``entry`` that those events report.
    ``shown``: the head whose table of live checkpoints was reported. ``keys``: the number of
    partition keys that were left.
    """

    entry: EntryId | None = None
    event: int = 0
    ahead: frozenset[EntryId] = field(default_factory=frozenset)
    shown: EntryId | None = None
    keys: int = 0

    def lacks_keys(self, keys: Sequence[str], entries: Iterable[LedgerEntry]) -> bool:
        """Return whether somebody deleted some of the partition keys that were left: neither did
        one of the ``entries`` since then.
        """
        return len(keys) < self.keys and not any(
            entry.operation in (Operation.REWIND, Operation.PRUNE) for entry in entries
        )

    def to_cursor(self) -> str:
        """Return the sensor cursor."""
        entry = list(self.entry) if self.entry else None
        ahead = sorted(list(entry_id) for entry_id in self.ahead)
        shown = list(self.shown) if self.shown else None
        payload = {"format": _FORMAT, "entry": entry, "event": self.event, "ahead": ahead}
        return json.dumps(payload | {"shown": shown, "keys": self.keys})

    @classmethod
    def from_cursor(cls, cursor: str | None) -> Progress:
        """Inverse of :meth:`to_cursor`; the start of the ledger for any other format."""
        raw = json.loads(cursor) if cursor else {}
        if raw.get("format") != _FORMAT:
            return cls()
        entry = EntryId(*raw["entry"]) if raw["entry"] else None
        ahead = frozenset(EntryId(*fields) for fields in raw["ahead"])
        shown = raw.get("shown")
        shown_id = EntryId(*shown) if shown else None
        return cls(entry, raw["event"], ahead, shown_id, raw.get("keys", 0))


def compare(
    progress: Progress,
    entries: Sequence[LedgerEntry],
    reported: Collection[EntryId],
    event: int,
    caught_up: bool,
) -> tuple[list[LedgerEntry], Progress]:
    """Return the entries to report, and the progress after that.

    Args:
        progress: where the last comparison ended.
        entries: the ledger entries that follow ``progress.entry``, oldest first, read *before*
            the events; possibly a page of them.
        reported: entries reported by the events after ``progress.event``; possibly a page of them.
        event: the last of those events.
        caught_up: there is no event after ``event``. Otherwise the event of an entry may still
            follow, so the entry is not reported.
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
    ahead = frozenset(entry_id for entry_id in seen if entry_id.version > settled)
    return missing, replace(progress, entry=entry, event=event, ahead=ahead)
