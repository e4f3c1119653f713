"""A SQL database with a pipeline in it, and somebody else who looks at it, whatever the dialect."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, ClassVar, Protocol

import pyarrow as pa

from eo_pipeline.crashpoints import CrashPoint, Reach
from eo_pipeline.ledger.entry import LedgerEntry
from eo_pipeline.sinks.session import CommitOutcome, SinkSession
from eo_pipeline.sinks.sql.config import SqlSink
from eo_pipeline.staging.rows import StagedOutput, StagedTable
from eo_pipeline.testing import child_of, first_entry


class Server(Protocol):
    """What a test does to a server."""

    def start(self) -> object: ...

    def kill(self) -> object: ...


class SqlWorld(ABC):
    """A database with one pipeline in it, and an observer that is not the pipeline."""

    #: The least ``lock_timeout`` that the server can tell from none, in seconds.
    SHORTEST_TIMEOUT: ClassVar[float]
    #: How the server says that it waited too long for a lock.
    LOCK_CODE: ClassVar[str]
    #: What a client sends to commit.
    COMMIT: ClassVar[bytes]

    @property
    def checks_parents(self) -> bool:
        """True if the database itself takes no entry whose parent is not there."""
        return True

    @property
    @abstractmethod
    def server(self) -> Server:
        """Who answers."""

    @property
    @abstractmethod
    def schema(self) -> str:
        """Where a table is that is named without one."""

    @property
    @abstractmethod
    def address(self) -> tuple[str, int]:
        """Host and port of the server."""

    @abstractmethod
    def sink(self, **settings: Any) -> SqlSink:
        """A sink into the table ``t``."""

    @abstractmethod
    def sink_by(self, port: int) -> SqlSink:
        """A sink that gets to the server by another port of this machine."""

    @abstractmethod
    def sink_of(self, user: str, /, **login: str) -> SqlSink:
        """A sink of ``user``, one of :meth:`make_user`, or with another ``login``."""

    @abstractmethod
    def run(self, statement: str) -> None:
        """As the observer."""

    @abstractmethod
    def rows(self, query: str = "SELECT * FROM t") -> list[dict[str, Any]]:
        """As the observer."""

    @abstractmethod
    def tables(self) -> set[str]:
        """All that are there."""

    @abstractmethod
    def count(self) -> int:
        """Rows in ``t``, seen by somebody who has just come."""

    @abstractmethod
    def in_transaction(self, statement: str) -> AbstractContextManager[None]:
        """Somebody else, whose transaction has run ``statement``; rolled back at the end."""

    @abstractmethod
    def make_user(self) -> str:
        """Who may connect, and has no other right."""

    @abstractmethod
    def drop_user(self, user: str) -> None:
        """Undo :meth:`make_user`."""

    @abstractmethod
    def grant(self, user: str, what: str, *tables: str) -> None:
        """Let ``user`` do ``what``."""

    @abstractmethod
    def refuse_inserts(self, code: str) -> None:
        """From now on an insert into ``t`` fails with ``code`` and the words "as asked"."""

    @abstractmethod
    def end_other_connections(self) -> None:
        """As an administrator does."""

    def is_untouched(self) -> bool:
        """True if a checkpoint that failed has left nothing of ``t``."""
        return "t" not in self.tables()

    def publish(self, sink: SqlSink, *batches: StagedTable, pipeline: str = "p") -> LedgerEntry:
        """Publish each batch as one more checkpoint; the start entry where there is none."""
        with sink.open(pipeline) as session:
            head = session.head()
            if head is None:
                head = first_entry(pipeline)
                session.publish(head, StagedOutput())
            for batch in batches:
                entry = child_of(head, batch.rows)
                outcome = session.publish(entry, StagedOutput(rows=batch))
                assert outcome is CommitOutcome.COMMITTED
                head = entry
            return head


def staged(**columns: Any) -> StagedTable:
    """Rows in memory; plain lists get the Arrow type of their values."""
    return StagedTable.in_memory(pa.table(columns))


def at(point: CrashPoint, act: Callable[[], object]) -> Reach:
    """Do something at ``point``."""

    def reach(reached: CrashPoint) -> None:
        if reached == point:
            act()

    return reach


def started(session: SinkSession) -> LedgerEntry:
    """The first checkpoint with rows, not yet published."""
    start = first_entry("p")
    session.publish(start, StagedOutput())
    return child_of(start, 3)
