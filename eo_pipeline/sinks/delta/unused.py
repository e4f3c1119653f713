"""Files in a table's folder that its newest version has no use for, and nobody may still commit."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from urllib.parse import unquote

from eo_pipeline.arrow import pa
from eo_pipeline.places import Place, sizes_of
from eo_pipeline.sinks.delta.config import ROWS_FOLDER
from eo_pipeline.sinks.delta.log import file_name
from eo_pipeline.sinks.delta.own import APP_PREFIX
from eo_pipeline.sinks.delta.store import Snapshot
from eo_pipeline.sinks.lake.upkeep import COMPACTED_FOLDER
from eo_pipeline.sinks.maintenance import Maintenance

#: What nobody ever committed is as old as this: delta-rs's default, or the table's own setting
#: (delta.deletedFileRetentionDuration).
_ORPHANS_KEPT = timedelta(days=7)

#: By which the log forgets what left the table; then it is an orphan, as old as it was written.
_REMEMBERED = "delta.deletedFileRetentionDuration"
_INTERVAL = re.compile(r"interval\s+(\d+)\s+(second|minute|hour|day|week)s?", re.IGNORECASE)

#: A file of deletion vectors (Delta protocol, "Deletion Vectors").
_VECTORS = ".bin"

_OF_ATTEMPT = re.compile(rf"{ROWS_FOLDER}/([^/]+)/(?:published/\d+/(?:[^/=]+=[^/]*/)*)?(\d+)-")
_OF_TURN = re.compile(rf"{ROWS_FOLDER}/[^/]+/{COMPACTED_FOLDER}/(\d+)/")


@dataclass(frozen=True)
class UnusedFiles:
    """What delta-rs's vacuum would remove, without removing it: it knows no promises, and takes
    files for abandoned that a run has staged long ago and commits now. So these are left out.
    """

    root: Place
    rules: Maintenance
    #: of this maintenance; an older one commits no more
    turn: int

    def of(self, table: Snapshot) -> list[tuple[str, int]]:
        """Names below the folder, and their bytes."""
        if table.has_deleted_rows:
            return []  # they lie in files of their own, which a vacuum of delta-rs knows not of
        names = sorted(self._left(table) | self._orphans(table))
        used = {file_name(path) for path in _paths(table)}
        free = [
            name
            for name in names
            if used.isdisjoint({name, unquote(name)}) and not self._may_land(table, name)
        ]
        if "deletionVectors" in table.described.features:  # older versions may have some
            free = [name for name in free if not name.endswith(_VECTORS)]
        sizes = sizes_of(self.root, free) if free else {}
        return [(name, sizes[name]) for name in free if name in sizes]

    def _left(self, table: Snapshot) -> set[str]:
        """What left the table before ``keep``."""
        return self._unused(table, self.rules.kept_for, full=False)

    def _orphans(self, table: Snapshot) -> set[str]:
        """What no version has, and what the log has forgotten."""
        found = self._unused(table, None, full=True)
        longer = found and self.rules.kept_for > _ORPHANS_KEPT
        return found & self._unused(table, self.rules.kept_for, full=True) if longer else found

    def _unused(self, table: Snapshot, kept: timedelta | None, *, full: bool) -> set[str]:
        hours = kept // timedelta(hours=1) if kept is not None else None
        return set(
            table.table.vacuum(hours, dry_run=True, enforce_retention_duration=False, full=full)
        )

    def _may_land(self, table: Snapshot, name: str) -> bool:
        """Whether a run, or another maintenance, may still make it the table's."""
        if found := _OF_ATTEMPT.match(name):
            head = table.table.transaction_version(APP_PREFIX + found[1])
            return head is None or int(found[2]) > head
        if found := _OF_TURN.match(name):
            return int(found[1]) >= self.turn
        return False


def remembered_for(table: Snapshot) -> timedelta:
    """For how long the table's log tells what left it; at least."""
    said = table.described.configuration.get(_REMEMBERED)
    if said is None:
        return _ORPHANS_KEPT
    found = _INTERVAL.fullmatch(said.strip())
    return timedelta(**{f"{found[2].lower()}s": int(found[1])}) if found else timedelta()


def _paths(table: Snapshot) -> Iterator[str]:
    yield from pa.table(table.table.get_add_actions())["path"].to_pylist()
