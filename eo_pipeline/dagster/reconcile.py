"""Which ledger entries Dagster never heard of: a merge of two ordered lists. Pure, no I/O."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from eo_pipeline.ledger.entry import EntryId, LedgerEntry

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
