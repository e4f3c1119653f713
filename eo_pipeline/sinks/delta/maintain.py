"""A Delta table kept in order; see :mod:`eo_pipeline.sinks.lake.upkeep`.

delta-rs's own compaction is not used: two at once, of any program, both land, and every row is
there twice (1.6.6; ``tests/sinks/delta/test_delta_maintain.py`` shows it).

With the turn comes the **floor**, a moment: what left the table before it may be removed. A restore
(the rewind of an upserted table) compares on its own handle, so that it never brings back what is
being removed.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Sequence

from deltalake.exceptions import CommitFailedError
from deltalake.transaction import AddAction, RemoveAction

from eo_pipeline.places import Place, files_below
from eo_pipeline.sinks.delta.commit import commit_files, maintenance_commit
from eo_pipeline.sinks.delta.compaction import Compacted, Writing, data_files, is_laid_out
from eo_pipeline.sinks.delta.config import ROWS_FOLDER
from eo_pipeline.sinks.delta.log import LOG_FOLDER
from eo_pipeline.sinks.delta.store import FLOOR, TURN, Snapshot
from eo_pipeline.sinks.delta.unused import UnusedFiles, remembered_for
from eo_pipeline.sinks.lake.bins import DataFile
from eo_pipeline.sinks.lake.upkeep import LakeUpkeep, changed
from eo_pipeline.sinks.maintenance import Upkeep

#: A file leaves the table when its commit is written, and was told so a while before.
_MARGIN_S = 3600


class DeltaUpkeep(LakeUpkeep[Snapshot, Compacted]):
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
        found = super().groups(files)
        if self.rules.rewrite_layout:
            together = {each.path for group in found for each in group}
            odd = (each for each in files if each.movable and not is_laid_out(each))
            found += [[each] for each in odd if each.path not in together]
        return found

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
        made = []
        for files in groups:
            below = folder / files[0].folder
            below.mkdir(parents=True, exist_ok=True)
            made.append(writing.together(below / f"{uuid.uuid4().hex}.parquet", files))
        return made

    def put_in_place(self, table: Snapshot, made: Sequence[Compacted]) -> int:
        held = {each.path for each in data_files(table)}
        landed = [each for each in made if each.add.path in held]
        fit = [each for each in made if held.issuperset(old.path for old in each.removes)]
        if fit:
            actions: list[AddAction | RemoveAction] = [each.add for each in fit]
            actions += [action for each in fit for action in each.removes]
            commit_files(table.table, actions, maintenance_commit({}))
        return len(landed) + len(fit)


def _size(log: Place) -> tuple[int, int]:
    found = files_below(log)
    return len(found), sum(each.size for each in found)
