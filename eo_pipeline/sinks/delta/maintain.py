"""A Delta table kept in order: small files put together, what left it removed, the log short.

delta-rs's own compaction is not used: two at once, of any program, both land, and every row is
there twice (1.6.6; ``tests/sinks/delta/test_delta_maintain.py`` shows it). Here the old files give
way to the new one in a commit that is refused if anybody committed since the table was looked at,
as the ledger's are. Then it is looked at again, and the same is tried, if the old files are still
the table's; so it goes on beside runs, and a rewind or a replay of them comes first.

Each maintenance that changes something takes a **turn**, a number in the table's log: from then on
no older one commits, a process that was asleep for days for example, whose files may go. With the
turn comes the **floor**, a moment: what left the table before it may be removed. A restore (the
rewind of an upserted table) compares on its own handle, so that it never brings back what is being
removed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import tenacity
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError

from eo_pipeline.crashpoints import CrashPoint, reach
from eo_pipeline.errors import SinkUnavailableError
from eo_pipeline.places import Place, files_below, remove_all
from eo_pipeline.sinks.delta.commit import commit_files, maintenance_commit
from eo_pipeline.sinks.delta.compaction import Compacted, data_files, write_together
from eo_pipeline.sinks.delta.config import ROWS_FOLDER
from eo_pipeline.sinks.delta.log import LOG_FOLDER
from eo_pipeline.sinks.delta.store import FLOOR, TURN, Snapshot
from eo_pipeline.sinks.delta.unused import COMPACTED_FOLDER, UnusedFiles
from eo_pipeline.sinks.lake.bins import DataFile, bins
from eo_pipeline.sinks.maintenance import Maintenance, Upkeep
from eo_pipeline.sinks.protocol import OvertakenError

#: Files put together between two commits: a killed maintenance has done what it committed.
_FILES_PER_COMMIT = 16

#: How often a commit is tried when others commit meanwhile, and the longest wait between, seconds.
_TRIES, _WAIT_MAX = 30, 1.0

#: A file leaves the table when its commit is written, and was told so a while before.
_MARGIN_S = 3600


@dataclass(frozen=True)
class DeltaMaintenance:
    """One maintenance of the table in ``root`` by the session of ``pipeline``.

    ``open_table`` looks anew at every call.
    """

    root: Place
    pipeline: str
    options: dict[str, str]
    rules: Maintenance
    open_table: Callable[[], Snapshot | None]
    turn: int = 0

    def work(self, *, dry_run: bool) -> Iterator[Upkeep]:
        """See ``Maintained.maintain``."""
        table = self.open_table()
        if table is None:
            yield Upkeep("none", "there is no table yet")
            return
        wanted, reason = self._wanted(table)
        unused = self._unused(table, (table.table.transaction_version(TURN) or 0) + 1)
        if dry_run:
            yield _compacted(table, wanted, reason)
            yield _removed(unused, "would be removed")
            return
        if not wanted and not unused:
            yield _compacted(table, [], reason)
            yield _removed([], "")
            return
        mine = replace(self, turn=self._take_turn())
        reach(CrashPoint.PLANNED)
        # first, by the floor of a moment ago
        yield mine._remove()
        yield mine._compact(wanted, reason)
        yield mine._shorten_log()

    def _wanted(self, table: Snapshot) -> tuple[list[list[DataFile]], str | None]:
        """What is to be put together; or why nothing is."""
        reason = table.reason_not_to_remove()
        return ([] if reason else bins(data_files(table), self.rules.target_bytes)), reason

    def _unused(self, table: Snapshot, turn: int) -> list[tuple[str, int]]:
        return UnusedFiles(self.root, self.rules, turn).of(table)

    def _take_turn(self) -> int:
        """The next one, and the floor, in a commit of its own."""
        seconds = time.time() - self.rules.kept_for.total_seconds() + _MARGIN_S

        def take(table: Snapshot) -> int:
            turn = (table.table.transaction_version(TURN) or 0) + 1
            floor = max(int(seconds * 1000), table.table.transaction_version(FLOOR) or 0)
            commit_files(table.table, [], maintenance_commit({TURN: turn, FLOOR: floor}))
            return turn

        return self._tried(take)

    def _tried(self, commit: Callable[[Snapshot], int]) -> int:
        """``commit`` on a handle of the newest version, again and again while others are faster."""
        again = tenacity.Retrying(
            retry=tenacity.retry_if_exception_type(OvertakenError),
            stop=tenacity.stop_after_attempt(_TRIES),
            wait=tenacity.wait_random_exponential(0.01, _WAIT_MAX),
            reraise=True,
        )
        try:
            return again(self._try, commit)
        except OvertakenError as error:
            raise SinkUnavailableError(
                f"{self.root}: other writers were faster {_TRIES} times: {error}. What maintenance "
                "did before stays; the next one goes on."
            ) from error

    def _try(self, commit: Callable[[Snapshot], int]) -> int:
        try:
            return commit(self._table())
        except CommitFailedError as error:
            raise OvertakenError(str(error)) from error

    def _table(self) -> Snapshot:
        """The table as it is now, if this maintenance is still the newest.

        Raises:
            SinkUnavailableError: it is not, or the table is gone.
        """
        table = self.open_table()
        if table is None:
            raise SinkUnavailableError(f"{self.root}: the table is gone")
        if self.turn and table.table.transaction_version(TURN) != self.turn:
            raise SinkUnavailableError(
                f"{self.root}: another maintenance of the table has begun, and this one stops. "
                "What it did stays."
            )
        return table

    def _compact(self, wanted: Sequence[list[DataFile]], reason: str | None) -> Upkeep:
        begun, table = time.monotonic(), self._table()
        before, done = _figures(table), 0
        for start in range(0, len(wanted), _FILES_PER_COMMIT):
            made = [
                write_together(table, group, self._folder)
                for group in wanted[start : start + _FILES_PER_COMMIT]
            ]
            reach(CrashPoint.ROWS_SENT)
            done += self._tried(lambda now, made=made: _put_in_place(now, made))  # type: ignore[misc]
            reach(CrashPoint.COMMITTED)
        after = _figures(self._table())
        left = len(wanted) - done
        said = f"put files together into {done}" if done else _nothing(reason)
        said += f"; {left} left to the next time, since runs changed them" if left else ""
        return Upkeep("compact", said, *_changed(before, after), time.monotonic() - begun)

    @property
    def _folder(self) -> Place:
        below = self.root / ROWS_FOLDER / self.pipeline / COMPACTED_FOLDER
        return below / f"{self.turn:06d}"

    def _remove(self) -> Upkeep:
        begun, table = time.monotonic(), self._table()
        unused = self._unused(table, self.turn)
        reach(CrashPoint.STAGED)
        remove_all(self.root / path for path, _ in unused)
        return replace(_removed(unused, "removed"), seconds=time.monotonic() - begun)

    def _shorten_log(self) -> Upkeep:
        """A checkpoint, so that nobody reads the removals one by one; and what is older goes."""
        begun, log = time.monotonic(), self.root / LOG_FOLDER
        before = _log_size(log)
        table = DeltaTable(str(self.root), storage_options=self.options)
        table.create_checkpoint()
        if table.metadata().configuration.get("delta.enableExpiredLogCleanup", "true") == "true":
            table.cleanup_metadata()
        said = "a checkpoint of the log was made"
        return Upkeep("log", said, *_changed(before, _log_size(log)), time.monotonic() - begun)


def _put_in_place(table: Snapshot, made: Sequence[Compacted]) -> int:
    """In one commit on this handle, as far as the old files are all still the table's. How many."""
    held = {each.path for each in data_files(table)}
    landed = [each for each in made if each.add.path in held]
    fit = [each for each in made if held.issuperset(old.path for old in each.removes)]
    if fit:
        gone = [action for each in fit for action in each.removes]
        commit_files(table.table, [*gone, *(each.add for each in fit)], maintenance_commit({}))
    return len(landed) + len(fit)


def _figures(table: Snapshot) -> tuple[int, int]:
    files = data_files(table)
    return len(files), sum(each.size for each in files)


def _log_size(log: Place) -> tuple[int, int]:
    found = files_below(log)
    return len(found), sum(each.size for each in found)


def _changed(before: tuple[int, int], after: tuple[int, int]) -> tuple[int, int, int, int]:
    return before[0], after[0], before[1], after[1]


def _nothing(reason: str | None) -> str:
    return f"nothing is put together: {reason}" if reason else "no small files to put together"


def _compacted(table: Snapshot, wanted: Sequence[list[DataFile]], reason: str | None) -> Upkeep:
    """What would be done; how small the files become is not known."""
    files, size = _figures(table)
    less = sum(len(group) - 1 for group in wanted)
    said = f"would put {less + len(wanted)} files together" if wanted else _nothing(reason)
    return Upkeep("compact", said, files, files - less, size, size)


def _removed(unused: Sequence[tuple[str, int]], said: str) -> Upkeep:
    size = sum(size for _, size in unused)
    return Upkeep("remove", said if unused else "no file is to go", len(unused), 0, size, 0)
