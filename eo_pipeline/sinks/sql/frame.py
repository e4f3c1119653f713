"""What every SQL sink does in the steps of the commit protocol; a dialect fills in the rest."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack
from typing import Any, ClassVar

from eo_pipeline.errors import EoPipelineError
from eo_pipeline.ledger.entry import LedgerEntry
from eo_pipeline.sinks.protocol import Publication, SinkSession
from eo_pipeline.sinks.sql.ledger import LedgerStatements, entry_of
from eo_pipeline.staging.rows import StagedOutput


class SqlSession(SinkSession):
    """A session whose rows and ledger live in one database, published by one transaction.

    The steps are those of :meth:`SinkSession.publish`: tables are made or widened, rows taken back
    where the operation says so, and the staged rows written (4); the ledger entry is inserted (5).
    The ledger's primary key and its foreign key to the parent entry are the compare-and-swap. A
    failure rolls everything back; a connection lost in COMMIT is the one case in which nobody
    knows.
    """

    #: Base class of what the driver raises.
    driver_error: ClassVar[type[Exception]]

    def head(self) -> LedgerEntry | None:
        return self._one(self._ledger.head, self.pipeline)

    def entry(self, version: int) -> LedgerEntry | None:
        return self._one(self._ledger.at, self.pipeline, version)

    def history(self, since: int = 0) -> Iterator[LedgerEntry]:
        while rows := self._rows(self._ledger.page, self.pipeline, since):
            entries = [entry_of(row) for row in rows]
            yield from entries
            since = entries[-1].version + 1

    def begin(self, entry: LedgerEntry, staged: StagedOutput) -> Publication:
        return SqlPublication(self, entry, staged)

    def explain(self, error: Exception) -> EoPipelineError:
        if isinstance(error, self.driver_error):
            return self._explained(error)
        return super().explain(error)

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

    def _prepare(self, entry: LedgerEntry, staged: StagedOutput) -> None:
        """Before step 4, outside any transaction: what a database cannot do in one. Must
        leave nothing that a reader would take for a checkpoint.
        """

    @abstractmethod
    def _transaction(self) -> AbstractContextManager[None]:
        """Begin; at the end roll back whatever was not committed. Must never commit."""

    @abstractmethod
    def _write(self, entry: LedgerEntry, staged: StagedOutput) -> None:
        """Step 4, in the open transaction."""

    @abstractmethod
    def _insert(self, entry: LedgerEntry) -> None:
        """Step 5. Must fail unless the ledger's head is the entry's parent."""

    @abstractmethod
    def _commit(self, entry: LedgerEntry) -> None:
        """Step 6.

        Raises:
            CommitUnknownError: the connection died before the answer came.
            driver_error: the database says that nothing was committed.
        """

    @abstractmethod
    def _explained(self, error: Any) -> EoPipelineError:
        """What the driver's ``error``, met before COMMIT was sent, means for the checkpoint."""


class SqlPublication(Publication):
    """One transaction, begun when there is something to write."""

    session: SqlSession

    def __init__(self, session: SqlSession, entry: LedgerEntry, staged: StagedOutput) -> None:
        super().__init__(session, entry, staged)
        self._open = ExitStack()

    def write(self) -> None:
        self.session._prepare(self.entry, self.staged)
        self._open.enter_context(self.session._transaction())
        self.session._write(self.entry, self.staged)

    def enter(self) -> None:
        self.session._insert(self.entry)

    def commit(self) -> None:
        try:
            self.session._commit(self.entry)
        except self.session.driver_error as error:
            raise self.session.explain(error) from error

    def close(self, error: BaseException | None) -> None:  # noqa: ARG002
        self._open.close()
