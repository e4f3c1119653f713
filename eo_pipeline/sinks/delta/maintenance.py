"""A Delta table kept in order; see :mod:`eo_pipeline.sinks.lake.maintenance`.

delta-rs's own compaction is not used: two at once, of any program, both land, and every row is
there twice (1.6.6; ``tests/sinks/delta/test_delta_maintain.py`` shows it).

With the turn comes the **floor**, a moment: what left the table before it may be removed. A restore
(the rewind of an upserted table) compares on its own handle, so that it never brings back what is
being removed.
"""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from urllib.parse import unquote

from deltalake.exceptions import CommitFailedError
from deltalake.transaction import AddAction, RemoveAction

from eo_pipeline._lazy import pa
from eo_pipeline.sinks.capabilities import Maintenance, Upkeep
from eo_pipeline.sinks.delta.commit import commit_files, maintenance_commit
from eo_pipeline.sinks.delta.compaction import Compacted, Writing, data_files, is_laid_out
from eo_pipeline.sinks.delta.config import ROWS_FOLDER
from eo_pipeline.sinks.delta.log import APP_PREFIX, LOG_FOLDER, file_name
from eo_pipeline.sinks.delta.table import FLOOR, TURN, Snapshot
from eo_pipeline.sinks.lake.maintenance import COMPACTED_FOLDER, DataFile, LakeMaintenance, changed
from eo_pipeline.storage.paths import Place, files_below, sizes_of

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
    """Files that delta-rs's vacuum would remove, without removing them: it knows no manifests, and
    takes files for abandoned that a run staged long ago and commits now. So these are left out.
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
        """Files that left the table before ``keep``."""
        return self._unused(table, self.rules.kept_for, full=False)

    def _orphans(self, table: Snapshot) -> set[str]:
        """Files of no version, and those that the log has forgotten."""
        unused = self._unused(table, None, full=True)
        longer = unused and self.rules.kept_for > _ORPHANS_KEPT
        return unused & self._unused(table, self.rules.kept_for, full=True) if longer else unused

    def _unused(self, table: Snapshot, kept: timedelta | None, *, full: bool) -> set[str]:
        hours = kept // timedelta(hours=1) if kept is not None else None
        return set(
            table.table.vacuum(hours, dry_run=True, enforce_retention_duration=False, full=full)
        )

    def _may_land(self, table: Snapshot, name: str) -> bool:
        """Return whether a run, or another maintenance, may still commit the file."""
        if match := _OF_ATTEMPT.match(name):
            head = table.table.transaction_version(APP_PREFIX + match[1])
            return head is None or int(match[2]) > head
        if match := _OF_TURN.match(name):
            return int(match[1]) >= self.turn
        return False


def remembered_for(table: Snapshot) -> timedelta:
    """For how long the table's log tells what left it; at least."""
    setting = table.described.configuration.get(_REMEMBERED)
    if setting is None:
        return _ORPHANS_KEPT
    interval = _INTERVAL.fullmatch(setting.strip())
    return timedelta(**{f"{interval[2].lower()}s": int(interval[1])}) if interval else timedelta()


def _paths(table: Snapshot) -> Iterator[str]:
    yield from pa.table(table.table.get_add_actions())["path"].to_pylist()


#: A file leaves the table when its commit is written, and was told so a while before.
_MARGIN_S = 3600


class DeltaUpkeep(LakeMaintenance[Snapshot, Compacted]):
    """Turn and floor are application transactions, which outlive the log's clean-up."""

    rows_folder = ROWS_FOLDER
    overtaken = CommitFailedError

    def after(self) -> Iterator[Upkeep]:
        """A checkpoint, so that nobody reads the removals one by one; and what is older goes."""
        begun, log = time.monotonic(), self.root / LOG_FOLDER
        before, table = _size(log), self.table().table
        table.create_checkpoint()
        if table.metadata().configuration.get("delta.enableExpiredLogCleanup", "true") == "true":
            table.cleanup_metadata()
        figures = changed(before, _size(log))
        yield Upkeep("log", "a checkpoint of the log", *figures, time.monotonic() - begun)

    def groups(self, files: Sequence[DataFile]) -> list[list[DataFile]]:
        """With those that lie where Polars does not find what they are laid out by, if asked."""
        groups = super().groups(files)
        if self.rules.rewrite_layout:
            together = {file.path for group in groups for file in group}
            odd = (file for file in files if file.movable and not is_laid_out(file))
            groups += [[file] for file in odd if file.path not in together]
        return groups

    def reason_not_to(self, table: Snapshot) -> str | None:
        return table.reason_not_to_remove()

    def files(self, table: Snapshot) -> list[DataFile]:
        return data_files(table)

    def turn_of(self, table: Snapshot) -> int:
        return table.table.transaction_version(TURN) or 0

    def take_turn(self, table: Snapshot, turn: int) -> None:
        kept = min(self.rules.kept_for, remembered_for(table))
        seconds = time.time() - kept.total_seconds() + _MARGIN_S
        floor = max(int(seconds * 1000), table.table.transaction_version(FLOOR) or 0)
        commit_files(table.table, [], maintenance_commit({TURN: turn, FLOOR: floor}))

    def unused(self, table: Snapshot, turn: int) -> list[tuple[str, int]]:
        return UnusedFiles(self.root, self.rules, turn).of(table)

    def write_together(
        self, table: Snapshot, groups: Sequence[Sequence[DataFile]], folder: Place
    ) -> list[Compacted]:
        writing = Writing(table)
        results = []
        for files in groups:
            below = folder / files[0].folder
            below.mkdir(parents=True, exist_ok=True)
            results.append(writing.together(below / f"{uuid.uuid4().hex}.parquet", files))
        return results

    def put_in_place(self, table: Snapshot, results: Sequence[Compacted]) -> int:
        held = {file.path for file in data_files(table)}
        landed = [compacted for compacted in results if compacted.add.path in held]
        fit = [
            compacted
            for compacted in results
            if held.issuperset(old.path for old in compacted.removes)
        ]
        if fit:
            actions: list[AddAction | RemoveAction] = [compacted.add for compacted in fit]
            actions += [action for compacted in fit for action in compacted.removes]
            commit_files(table.table, actions, maintenance_commit({}))
        return len(landed) + len(fit)


def _size(log: Place) -> tuple[int, int]:
    log_files = files_below(log)
    return len(log_files), sum(file.size for file in log_files)
