"""The publish protocol of every SQL sink. A dialect fills in the steps, never their order."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any, ClassVar

from eo_pipeline.crashpoints import CrashPoint, Reach, keep_going
from eo_pipeline.errors import CommitUnknownError, EoPipelineError, FencedError
from eo_pipeline.ledger.entry import LedgerEntry
from eo_pipeline.sinks.going_back import goes_back
from eo_pipeline.sinks.protocol import CommitOutcome, SinkSession
from eo_pipeline.sinks.sql.ledger import LedgerStatements, entry_of
from eo_pipeline.staging.rows import StagedOutput


class SqlSession(SinkSession):
    """A session whose rows and ledger live in one database, published by one transaction.

    1. **look**: the entry's own id at its version is ``ALREADY_COMMITTED``; another id there, or
       another parent, is ``FencedError``. Cheap and before anything is copied; not what makes
       the commit safe.
    2. **verify**: every staged file is there with its size; rows can be taken back here, if the
       entry is about that.
    3. **rows**: in one transaction, tables are made or widened, rows taken back where the
       operation says so, and the staged rows written.
    4. **entry**: the ledger entry is inserted last. The ledger's primary key and its foreign key
       to the parent entry are the compare-and-swap. Last, because a run that waits for a rival's
       uncommitted key should not do so with its rows still to send.
    5. **commit**, and read what the database answered.

    A failure in 3 or 4 rolls everything back, and the ledger is looked at again before it is
    reported: what made the statement fail may be that somebody else committed meanwhile. A
    connection lost in 5 is the one case in which nobody knows.
    """

    #: Base class of what the driver raises.
    driver_error: ClassVar[type[Exception]]

    def __init__(self, pipeline: str) -> None:
        self.pipeline = pipeline

    def head(self) -> LedgerEntry | None:
        return self._one(self._ledger.head, self.pipeline)

    def entry(self, version: int) -> LedgerEntry | None:
        return self._one(self._ledger.at, self.pipeline, version)

    def history(self, since: int = 0) -> Iterator[LedgerEntry]:
        while rows := self._rows(self._ledger.page, self.pipeline, since):
            entries = [entry_of(row) for row in rows]
            yield from entries
            since = entries[-1].version + 1

    def publish(
        self, entry: LedgerEntry, staged: StagedOutput, reach: Reach = keep_going
    ) -> CommitOutcome:
        if entry.pipeline != self.pipeline:
            raise ValueError(f"an entry of {entry.pipeline!r} in a session of {self.pipeline!r}")
        if self._has_landed(entry):  # step 1
            return CommitOutcome.ALREADY_COMMITTED
        try:  # step 2; inside, because another run may have kept our promise
            if goes_back(entry):
                self.check_going_back(entry)
            staged.verify()
            self._prepare(entry, staged)
            with self._transaction():
                self._write(entry, staged)  # step 3
                reach(CrashPoint.ROWS_SENT)
                self._insert(entry)  # step 4
                reach(CrashPoint.ENTRY_SENT)
                self._commit(entry)  # step 5
        except EoPipelineError as failure:
            return self._settle(entry, failure)
        except self.driver_error as error:
            return self._settle(entry, self._explained(error), error)
        return CommitOutcome.COMMITTED

    def _has_landed(self, entry: LedgerEntry) -> bool:
        """True if the ledger holds ``entry`` itself.

        Raises:
            FencedError: its version is taken, or its parent is not what the ledger holds.
        """
        held = self.entry(entry.version)
        if held is not None:
            if held.id == entry.id:
                return True
            raise FencedError(self.pipeline, entry.version, winner=held.transaction_id)
        before = self.entry(entry.parent.version) if entry.parent else None
        if not entry.is_child_of(before):
            raise FencedError(self.pipeline, entry.version, winner=None)
        return False

    def _settle(
        self, entry: LedgerEntry, failure: EoPipelineError, cause: Exception | None = None
    ) -> CommitOutcome:
        """What a failed transaction amounts to, seen from the ledger.

        Not asked after an unknown commit: an entry that is not there may still land. Not asked
        without a connection either: nothing was committed, and the next run looks.
        """
        cannot_tell = isinstance(failure, CommitUnknownError)
        if not cannot_tell and self._connected() and self._has_landed(entry):
            return CommitOutcome.ALREADY_COMMITTED
        raise failure from cause or failure.__cause__

    def _one(self, statement: str, *parameters: Any) -> LedgerEntry | None:
        rows = self._rows(statement, *parameters)
        return entry_of(rows[0]) if rows else None

    # What a dialect fills in.

    @property
    @abstractmethod
    def _ledger(self) -> LedgerStatements:
        """The statements of this session's ledger table."""

    @abstractmethod
    def _rows(self, statement: str, *parameters: Any) -> list[Any]:
        """Answer a query outside any transaction, on a new connection if the old one died."""

    @abstractmethod
    def _connected(self) -> bool:
        """True if the connection was alive when it was last used."""

    def _prepare(self, entry: LedgerEntry, staged: StagedOutput) -> None:
        """Between steps 2 and 3, outside any transaction: what a database cannot do in one. Must
        leave nothing that a reader would take for a checkpoint.
        """

    @abstractmethod
    def _transaction(self) -> AbstractContextManager[None]:
        """Begin; at the end roll back whatever was not committed. Must never commit."""

    @abstractmethod
    def _write(self, entry: LedgerEntry, staged: StagedOutput) -> None:
        """Step 3, in the open transaction."""

    @abstractmethod
    def _insert(self, entry: LedgerEntry) -> None:
        """Step 4. Must fail unless the ledger's head is the entry's parent."""

    @abstractmethod
    def _commit(self, entry: LedgerEntry) -> None:
        """Step 5.

        Raises:
            CommitUnknownError: the connection died before the answer came.
        """

    @abstractmethod
    def _explained(self, error: Any) -> EoPipelineError:
        """What the driver's ``error``, met before COMMIT was sent, means for the checkpoint."""
