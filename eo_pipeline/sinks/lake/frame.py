"""What every lake sink does, in the same order. A format fills in how its table commits."""

from __future__ import annotations

import random
import re
import time
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Generic, TypeVar

import pyarrow as pa

from eo_pipeline.crashpoints import CrashPoint, Reach, keep_going
from eo_pipeline.errors import ConfigError, FencedError, RefusedError, SinkUnavailableError
from eo_pipeline.ledger.entry import LedgerEntry, Operation
from eo_pipeline.sinks.lake.dead_letters import DeadLetterFiles
from eo_pipeline.sinks.lake.ledger import LEDGER_FOLDER, LedgerFiles, Pointer, Record
from eo_pipeline.sinks.protocol import CommitOutcome, SinkSession
from eo_pipeline.sinks.removal import goes_back, target_of
from eo_pipeline.staging.rows import StagedOutput

#: How often a commit is tried that somebody else's (maintenance, another application) overtook,
#: and the seconds before the second try; each further wait doubles, up to the longest.
COMMIT_TRIES = 12
COMMIT_WAIT_SECONDS = 0.01
COMMIT_WAIT_SECONDS_MAX = 1.0

#: Names that are folders of their own, and need no escaping in a table's log.
_PIPELINE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")

#: The format's handle on one version of its table; None where the table does not exist yet.
Handle = TypeVar("Handle")


#: Makes the prepared commit. Raises OvertakenError: it did not land and never will; RefusedError:
#: the table never takes it, and it did not land; CommitUnknownError: it may have landed.
Commit = Callable[[], None]


class OvertakenError(Exception):
    """Somebody else committed first and ours did not land; raised only within a sink's frame."""


@dataclass(frozen=True)
class Publication(Generic[Handle]):
    """One attempt to publish: everything a format needs to make its one commit."""

    #: the table as it was when the head was compared; the commit must be refused if it moved on
    table: Handle | None
    record: Record
    staged: StagedOutput

    @property
    def entry(self) -> LedgerEntry:
        return self.record.entry


class LakeSession(SinkSession, Generic[Handle]):
    """One pipeline's ledger and rows in a lake table.

    A publication:

    1. **look**: open the table once, read its pointer to the ledger's head, and look the entry up
       at its version. There: already committed. Not a child of the head: fenced.
    2. **prepare**: see that rows can be taken back, if the entry is about that, and that every
       staged file is whole and fits the table; write rows that are in memory, and dead letters,
       as files that nothing refers to yet.
    3. **ledger file**: create the entry's own file, under a token never used before.
    4. **commit** on the handle of 1, with the library's own retries off: files and pointer become
       real together, or the format says that somebody was faster.

    If somebody was faster the table is opened again and everything is looked at anew: our own
    entry there, another one of ours (fenced), or foreign work, after which the same transaction is
    tried with a new token. Whoever dies between 2 and 4 leaves files that :meth:`recover` removes
    once another token holds their version.
    """

    def __init__(self, pipeline: str, root: Path) -> None:
        if not _PIPELINE.fullmatch(pipeline):
            raise ConfigError(f"name: {pipeline!r} cannot be a folder's name below the table's")
        self.pipeline = pipeline
        self.root = root
        self.ledger = LedgerFiles(root, pipeline)
        self.dead_letters = DeadLetterFiles(self.ledger)

    def recover(self) -> LedgerEntry | None:
        """Removes what attempts left that lost their version; never what may still land."""
        head = self._head(self._open())
        if head is None:
            return None
        for path in self.ledger.lost(head, self.dead_letters.folder, *self._side_folders()):
            path.unlink(missing_ok=True)
        return head.entry

    def head(self) -> LedgerEntry | None:
        head = self._head(self._open())
        return head.entry if head else None

    def entry(self, version: int) -> LedgerEntry | None:
        head = self._head(self._open())
        found = self.ledger.at(head, version) if head else None
        return found.entry if found else None

    def history(self, since: int = 0) -> Iterator[LedgerEntry]:
        head = self._head(self._open())
        if head is not None:
            yield from (record.entry for record in self.ledger.chain(head, since))

    def read_dead_letters(self, since: int = 0) -> pa.Table:
        """Every record that could not be read, of the checkpoints from version ``since``; without
        those that a rewind or a replay took back.
        """
        head = self._head(self._open())
        chain = self.ledger.chain(head, since) if head else iter(())
        kept = [record for number, record in _standing(chain).items() if number >= since]
        return self.dead_letters.read(record.at for record in kept if record.dead_letters)

    def check_going_back(self, entry: LedgerEntry) -> None:
        target_of(entry)
        ledgers = sorted(p.name for p in (self.root / LEDGER_FOLDER).glob("*") if p.is_dir())
        if len(ledgers) > 1:
            raise self._cannot_go_back(
                entry, f"the pipelines {', '.join(ledgers)} share it, and number their rows alike"
            )
        self._refuse_going_back(entry, self._open())

    def _cannot_go_back(self, entry: LedgerEntry, reason: str) -> RefusedError:
        return RefusedError(
            f"{self.root}: {entry.operation} is not possible: {reason}. Nothing was changed; start "
            "a new pipeline and table from that checkpoint (fork)."
        )

    def publish(
        self, entry: LedgerEntry, staged: StagedOutput, reach: Reach = keep_going
    ) -> CommitOutcome:
        if entry.pipeline != self.pipeline:
            raise ValueError(f"an entry of {entry.pipeline!r} in a session of {self.pipeline!r}")
        for tried in range(COMMIT_TRIES):
            try:
                return self._try(entry, staged, reach)
            except (RefusedError, SinkUnavailableError):
                # its files may be gone because somebody else published them meanwhile
                if self._has_landed(entry, self._head(self._open())):
                    return CommitOutcome.ALREADY_COMMITTED
                raise
            except OvertakenError as error:
                overtaken = error
                longest = min(COMMIT_WAIT_SECONDS * 2**tried, COMMIT_WAIT_SECONDS_MAX)
                time.sleep(random.uniform(0, longest))
        raise SinkUnavailableError(
            f"{self.root}: other writers were faster {COMMIT_TRIES} times, or the table does not "
            f"take commits: {overtaken}. Nothing was published; the next run tries again."
        )

    def _try(self, entry: LedgerEntry, staged: StagedOutput, reach: Reach) -> CommitOutcome:
        table = self._open()  # step 1
        head = self._head(table)
        if self._has_landed(entry, head):
            return CommitOutcome.ALREADY_COMMITTED
        if goes_back(entry):  # step 2
            self.check_going_back(entry)
        staged.verify()
        entry = replace(entry, committed_at=datetime.now(UTC))
        if head is None:
            return self._start(entry, reach)
        letters = staged.dead_letters
        at = Pointer.new(entry.version)
        has_letters = letters is not None and letters.rows > 0
        record = self.ledger.child(entry, at, head, dead_letters=has_letters)
        publication = Publication(table, record, staged)
        self._publish(publication, reach)
        self._committed(publication)
        return CommitOutcome.COMMITTED

    def _publish(self, publication: Publication[Handle], reach: Reach) -> None:
        record, letters = publication.record, publication.staged.dead_letters
        written: list[Path] = []
        try:
            commit = self._prepare(publication, written)
            if record.dead_letters and letters is not None:
                written.append(self.dead_letters.write(record.at, letters))
            reach(CrashPoint.ROWS_SENT)
            written.append(self.ledger.path(record.at))
            self.ledger.write(record)  # step 3
        except OSError as error:
            raise SinkUnavailableError(
                f"{self.root} cannot be written: {error}. Nothing was published."
            ) from error
        reach(CrashPoint.ENTRY_SENT)
        try:
            commit()  # step 4
        except OvertakenError:
            # this token can never land now, and nobody else knows it
            for path in written:
                path.unlink(missing_ok=True)
            raise

    def _start(self, entry: LedgerEntry, reach: Reach) -> CommitOutcome:
        """The first entry: a name that can be taken once, since there may be no table yet."""
        reach(CrashPoint.ROWS_SENT)
        reach(CrashPoint.ENTRY_SENT)
        try:
            self.ledger.write_first(entry)
        except (FileExistsError, FileNotFoundError) as error:
            # taken, perhaps by somebody who has tidied our file away too
            raise OvertakenError("another run wrote the first entry") from error
        except OSError as error:
            raise SinkUnavailableError(
                f"the ledger cannot be kept in {self.ledger.folder}: {error}"
            ) from error
        return CommitOutcome.COMMITTED

    def _has_landed(self, entry: LedgerEntry, head: Record | None) -> bool:
        """True if the ledger holds ``entry`` itself.

        Raises:
            FencedError: its version is taken, or its parent is not the head.
        """
        held = self.ledger.at(head, entry.version) if head else None
        if held is not None:
            if held.entry.id == entry.id:
                return True
            raise FencedError(self.pipeline, entry.version, winner=held.entry.transaction_id)
        if not entry.is_child_of(head.entry if head else None):
            raise FencedError(self.pipeline, entry.version, winner=None)
        return False

    def _head(self, table: Handle | None) -> Record | None:
        pointer = self._pointer(table) if table is not None else None
        return self.ledger.get(pointer) if pointer else self.ledger.first()

    def close(self) -> None:
        """Nothing is held open."""

    # What a format fills in.

    @abstractmethod
    def _open(self) -> Handle | None:
        """The table as it is now, None where there is none.

        Raises:
            SinkUnavailableError: it cannot be read just now.
        """

    @abstractmethod
    def _pointer(self, table: Handle) -> Pointer | None:
        """What this version of the table says the ledger's head is, None if nothing."""

    @abstractmethod
    def _prepare(self, publication: Publication[Handle], written: list[Path]) -> Commit:
        """Step 2: the one commit, ready to be made. Adds to ``written`` each file it creates,
        before it does.

        Raises:
            RefusedError: the table will never take these rows.
        """

    @abstractmethod
    def _refuse_going_back(self, entry: LedgerEntry, table: Handle | None) -> None:
        """Raise RefusedError where the format cannot take rows back; changes nothing."""

    def _committed(self, publication: Publication[Handle]) -> None:
        """After a commit that landed; must not raise."""

    def _side_folders(self) -> tuple[Path, ...]:
        """Folders of files named by pointer, bucketed as the ledger's are; see ``lost``."""
        return ()


def _standing(records: Iterable[Record]) -> dict[int, Record]:
    """By a checkpoint's number: who wrote what is there of it now, after rewinds and replays."""
    found: dict[int, Record] = {}
    for record in records:
        entry = record.entry
        if entry.operation is Operation.REWIND:
            found = {n: each for n, each in found.items() if n <= target_of(entry)}
        number = target_of(entry) if entry.operation is Operation.REPLAY else entry.version
        found[number] = record
    return found
