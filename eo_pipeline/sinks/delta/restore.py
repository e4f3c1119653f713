"""Upserted rows as they were at an earlier checkpoint: Delta's own time travel, as one commit.

A merge keeps nothing of what it overwrites in the table, but the files it took out stay until a
vacuum, and the log says which they were. A rewind of an upserted table is therefore a restore of
the version of the table that the checkpoint left, if that is exactly what a rewind means: nobody
else may have changed rows since.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from urllib.parse import unquote

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from eo_pipeline.arrow import pa
from eo_pipeline.ledger.entry import LedgerEntry, Operation
from eo_pipeline.places import sizes_of
from eo_pipeline.sinks.delta.commit import MAINTENANCE, Arguments, commit_files
from eo_pipeline.sinks.delta.set_back import commits_of, restored_to
from eo_pipeline.sinks.delta.store import FLOOR, Snapshot
from eo_pipeline.sinks.lake.ledger import FIRST, LedgerFile, LedgerFiles, Pointer
from eo_pipeline.sinks.protocol import OvertakenError
from eo_pipeline.sinks.removal import target_of

#: Commits of others that change no row.
_HARMLESS = frozenset({"OPTIMIZE", "VACUUM START", "VACUUM END"})


def _is_harmless(commit: dict[str, Any]) -> bool:
    return commit.get("operation") in _HARMLESS or MAINTENANCE in commit


class NotRestorableError(Exception):
    """The earlier state cannot be had back; its text says why. Raised only within the sink."""


@dataclass(frozen=True)
class Restore:
    """Finds the version of a Delta table that a ledger entry's target left."""

    table: Snapshot
    ledger: LedgerFiles
    head: LedgerFile
    options: dict[str, str]

    def version(self, entry: LedgerEntry) -> int | None:
        """The table's version, ``None`` if there was no table yet.

        Raises:
            NotRestorableError: rows would be lost that are not the pipeline's, or are lost already.
        """
        if entry.operation is Operation.REPLAY:
            raise NotRestorableError(
                "an upsert overwrote rows of other checkpoints too; rewind to "
                f"{target_of(entry) - 1} and run, which reads that checkpoint and all after it "
                "again"
            )
        target = target_of(entry)
        self._refuse_replayed(target)
        found = self._version_left_by(target)
        if found is not None:
            self._refuse_below_floor(found)
            self.check_files(found)
        return found

    def _refuse_below_floor(self, version: int) -> None:
        """What left the table before the floor is being removed, or may be at any moment: by a
        maintenance that does not see a restore of it.
        """
        table = self.table.table
        floor = table.transaction_version(FLOOR)
        if floor is None or version == table.version():
            return
        left = min(
            int(commit["timestamp"])
            for commit in table.history()
            if int(commit.get("version", version)) > version
        )
        if left < floor:
            raise NotRestorableError(
                f"maintenance may have removed what left the table before {_moment(floor)}, as "
                f"files of version {version} did at {_moment(left)}. How long they stay is said by "
                "`maintenance: {keep: ...}`"
            )

    def _refuse_replayed(self, target: int) -> None:
        """A replay since then, from when the table was appended to, is not in the old state."""
        for file in self.ledger.chain(self.head, target + 1):
            entry = file.entry
            if entry.operation is Operation.REPLAY and target_of(entry) <= target:
                raise NotRestorableError(
                    f"checkpoint {entry.target} was replayed by version {entry.version}, which "
                    "the older state does not hold"
                )

    def _version_left_by(self, target: int) -> int | None:
        commits = commits_of(self.table, None)
        expected = self.table.table.version()
        while (commit := commits.get(expected)) is not None:
            mine = commit.get("eo_pipeline") == self.table.pipeline
            if mine and int(commit["eo_version"]) <= target:
                return self._checked(expected, target)
            is_restore = not mine and commit.get("operation") == "RESTORE"
            if is_restore and (before := restored_to(commit, commits)) is not None:
                expected = before
                continue
            if not mine and not _is_harmless(commit):
                return self._foreign(expected, commit, target)
            expected -= 1
        if expected == -1:
            return None  # the table began with the pipeline, after the target
        raise NotRestorableError(
            f"the table's log of that time (version {expected} and before) is cleaned up"
        )

    def _foreign(self, version: int, commit: dict[str, Any], target: int) -> int:
        """A commit that is not the pipeline's: where it began if that is what is looked for."""
        at = self.ledger.at(self.head, target)
        if at is not None and at.at == FIRST and self._pointer(version) is None:
            return version
        raise NotRestorableError(
            f"version {version} of the table, a commit of somebody else "
            f"({commit.get('operation')}), came after it and would be lost"
        )

    def _checked(self, version: int, target: int) -> int:
        file = self.ledger.at(self.head, target)
        if file is None or self._pointer(version) != file.at:
            raise NotRestorableError(f"version {version} of the table is not what checkpoint left")
        return version

    def _pointer(self, version: int) -> Pointer | None:
        return self.at(version).pointer

    def at(self, version: int) -> Snapshot:
        """That version of the table."""
        uri = self.table.table.table_uri
        try:
            old = DeltaTable(uri, version=version, storage_options=self.options)
        except (DeltaError, OSError) as error:
            raise NotRestorableError(
                f"version {version} of the table cannot be read any more: {error}"
            ) from error
        return Snapshot(old, self.table.pipeline, self.table.root)

    def check_files(self, version: int) -> None:
        """Return if every file of ``version`` is there, and whole: at that delta-rs does not look.

        Raises:
            NotRestorableError: one is not.
        """
        root = self.ledger.folder.parent.parent
        actions = pa.table(self.at(version).table.get_add_actions())
        named = actions["path"].to_pylist()
        found = sizes_of(root, [each for name in named for each in (name, unquote(name))])
        for name, size in zip(named, actions["size_bytes"].to_pylist(), strict=True):
            if size not in (found.get(name), found.get(unquote(name))):
                raise NotRestorableError(
                    f"the file {name}, which held rows then, is not there or not whole (vacuumed?)"
                )


def _moment(milliseconds: int) -> str:
    return f"{datetime.fromtimestamp(milliseconds / 1000, UTC):%Y-%m-%d %H:%M}Z"


def restore(table: DeltaTable, version: int | None, arguments: Arguments) -> None:
    """One commit: the files of ``version`` are the table again, and the ledger's head moves.

    Conditional on this handle: refused if anybody committed since.
    """
    before = table.version()
    if version is None:
        table.delete(**arguments)
    elif version < before:
        try:
            table.restore(version, **arguments)
        except DeltaError as error:
            if "missing file" not in str(error):
                raise
            # it was there when it was looked for; looked for again, the reason is told
            raise OvertakenError(str(error)) from error
        return
    if version == before or table.version() == before:
        commit_files(table, [], arguments)
