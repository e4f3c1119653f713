"""A pipeline's connection to its database; each dialect implements the abstract methods."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, ClassVar

import tenacity

from eo_pipeline._lazy import pa
from eo_pipeline.errors import ConfigError, EoPipelineError, RefusedError, SinkUnavailableError
from eo_pipeline.sinks.sql.config import LEDGER_TABLE, SqlSink, TableName
from eo_pipeline.sinks.sql.ledger import (
    ADD_COLUMN,
    ADDED_COLUMN,
    LedgerTypes,
    create_ledger,
)

log = logging.getLogger(__name__)

#: A query and its parameters.
Question = tuple[str, tuple[Any, ...]]


@dataclass(frozen=True)
class Diagnosis:
    """Meaning of an error of the driver.

    ``says`` is what the database said, its code included; ``remedy`` what a person can do, if
    there is something. ``is_transient``: it says nothing against the rows or the configuration, so
    that the same may succeed later.
    """

    says: str
    is_transient: bool
    remedy: str = ""


class SqlStore(ABC):
    """One connection, used by one thread, replaced when it has died.

    Made of a configuration and the pipeline's name; connected at once. ``table`` is named in
    errors, and the ledger stands beside it: of several tables on one connection the first.
    """

    #: The database's name in messages.
    product: ClassVar[str]
    #: Base class of what the driver raises.
    driver_error: ClassVar[type[Exception]]
    #: What stands for a parameter in a statement.
    mark: ClassVar[str] = "%s"
    #: False where CREATE and ALTER TABLE commit what is open. Tables are then made and widened
    #: before the transaction, which must leave nothing that a reader would take for a checkpoint.
    has_ddl_in_transactions: ClassVar[bool] = True
    #: What DELETE from the ledger ends in where a foreign key is checked row by row, not at the end
    #: of the statement: no entry may go before its children.
    newest_first: ClassVar[str] = ""
    #: What a query of the ledger adds so that the entry it finds stays until the commit, where
    #: whoever may read may ask for that. Elsewhere the foreign key's own check does it.
    held: ClassVar[str] = ""
    #: Types and options of the ledger's table.
    ledger_types: ClassVar[LedgerTypes]

    @property
    def folds_names(self) -> bool:
        """True if names of tables that differ in case alone are of one table."""
        return False

    @property
    def unreadable(self) -> tuple[type[Exception], ...]:
        """Exceptions for a value that Python or Arrow cannot hold."""
        return (pa.ArrowException,)

    def __init__(self, sink: SqlSink, pipeline: str) -> None:
        self.sink = sink
        self.pipeline = pipeline
        self.table = sink.target
        self.connection = self.connect()
        self._collected: list[Question] | None = None
        self._answers: Mapping[Question, list[tuple[Any, ...]]] = {}

    # Abstract parts, implemented by the dialect.

    @abstractmethod
    def connect(self) -> Any:
        """A connection of the driver, which commits nothing by itself once a transaction is open.

        Raises:
            SinkUnavailableError: the server does not answer.
            ConfigError: it answers, and the configuration cannot work there.
        """

    @property
    @abstractmethod
    def is_open(self) -> bool:
        """False once the driver knows that the connection is lost or closed."""

    @property
    @abstractmethod
    def is_in_transaction(self) -> bool:
        """The transaction's state by the database's last answer."""

    @abstractmethod
    def diagnose(self, error: Any) -> Diagnosis:
        """Return the meaning of ``error``, a :attr:`driver_error`."""

    @abstractmethod
    def is_violation(self, error: Any, constraint: str) -> bool:
        """True if ``error`` tells that a row breaks ``constraint``, a unique key."""

    def located(self, table: TableName) -> TableName:
        """Return ``table`` with the schema it is in, or would be created in, if there are schemas.

        Raises:
            ConfigError: there is no such schema.
        """
        return table

    def make_ledger(self, ledger: TableName) -> None:
        """Create the ledger unless it is there. Safe with any number of runs doing so at once.

        Raises:
            ConfigError: it is there and cannot keep its promise.
        """
        self.execute(create_ledger(ledger.sql, self.ledger_types))

    def complete_ledger(self, ledger: TableName) -> None:
        """Add the column that the ledgers of earlier releases lack. Safe as :meth:`make_ledger`."""
        if self._lacks_column(ledger):
            try:
                self.execute(ADD_COLUMN.format(ledger=ledger.sql, json=self.ledger_types.json))
            except self.driver_error:
                if self._lacks_column(ledger):  # no other run was faster
                    raise

    def _lacks_column(self, ledger: TableName) -> bool:
        cursor = self.execute(f"SELECT * FROM {ledger.sql} WHERE version < 0")
        return ADDED_COLUMN not in [column[0] for column in cursor.description]

    def check_server(self) -> None:  # noqa: B027 - there may be none
        """Look once, after opening, for settings that a person should know of."""

    def parameters(self, values: Sequence[Any]) -> list[Any]:
        """Return the values of a ledger entry, each as the driver takes it: text, number, time or
        ``None``.
        """
        return [*values]

    @abstractmethod
    def begin(self) -> None:
        """Open a transaction, and bound what it can hold up."""

    def send_commit(self) -> None:
        """End it.

        Raises:
            SinkUnavailableError, RefusedError: nothing was committed, and no error says so.
            CommitUnknownError: nobody knows.
            driver_error: nothing was committed if the connection lives on; else nobody knows.
        """
        self.execute("COMMIT")

    def send_rollback(self) -> None:
        """Roll back an open transaction, if there is one."""
        if self.is_in_transaction:
            self.execute("ROLLBACK")

    def alter(self, change: Callable[[], object]) -> None:
        """Run ``change``, which alters a table that others may read, so that they wait as short as
        can be. In an open transaction it is a part of that.
        """
        change()

    def begin_snapshot(self) -> None:  # noqa: B027 - one query may be one snapshot anyway
        """Whatever is read from here on, on this connection, is of one moment."""

    def answers(self, questions: Sequence[Question]) -> list[list[tuple[Any, ...]]]:  # noqa: ARG002
        """Return the answers to ``questions``, by one request; none where that is not possible."""
        return []

    def streaming_cursor(self) -> Any:
        """A cursor that fetches rows as they are asked for."""
        return self.connection.cursor()

    # Common to all dialects.

    @property
    def ledger(self) -> TableName:
        """The ledger's table, beside the one it speaks for."""
        return self.table.sibling(LEDGER_TABLE)

    def close(self) -> None:
        if self.is_open:
            self.connection.close()

    def reconnect(self) -> None:
        """Replace a connection that died."""
        if not self.is_open:
            log.info("%s: connection to %s lost, connecting again", self.pipeline, self.product)
            self.connection = self.connect()

    def execute(self, statement: str, *parameters: Any) -> Any:
        """Run ``statement`` on the connection as it is: a cursor of Python's DB-API (PEP 249)."""
        cursor = self.connection.cursor()
        cursor.execute(statement, *([parameters] if parameters else []))
        return cursor

    def rows(self, statement: str, *parameters: Any) -> list[tuple[Any, ...]]:
        """The answer to a query, on the connection as it is."""
        question = (statement, parameters)
        if self._collected is not None:
            self._collected.append(question)
            return []
        if self._answers and (answer := self._answers.get(question)) is not None:
            return answer
        return list(self.execute(statement, *parameters).fetchall())

    @contextmanager
    def asked_at_once(self, ask: Callable[[], object]) -> Iterator[None]:
        """Ask what ``ask`` asks, as if nothing was found, by one request where that is possible:
        the same questions have their answers within. For blocks that change nothing.
        """
        questions: list[Question] = []
        self._collected = questions
        try:
            ask()
        finally:
            self._collected = None
        with suppress(self.driver_error):  # asked again, one by one, it is explained
            self.reconnect()
            self._answers = dict(zip(questions, self.answers(questions), strict=False))
        try:
            yield
        finally:
            self._answers = {}

    def ask(self, statement: str, *parameters: Any) -> list[tuple[Any, ...]]:
        """The answer to a query outside any transaction.

        A connection shows that it died only when it is used, and a question can be asked twice.

        Raises:
            SinkUnavailableError, ConfigError: see :meth:`while_opening`.
        """
        twice = tenacity.Retrying(
            retry=tenacity.retry_if_exception(self._is_of_a_lost_connection),
            stop=tenacity.stop_after_attempt(2),
            reraise=True,
        )
        try:
            return twice(self._ask_once, statement, *parameters)
        except self.driver_error as error:
            raise self.while_opening(error) from error

    def escaped(self, name: str) -> str:
        """A quoted name in a statement with parameters: a driver that marks them by ``%s`` reads a
        lone % as one more.
        """
        return name.replace("%", "%%") if self.mark == "%s" else name

    def ask_index(self, question: str, *parameters: Any, thorough: bool) -> bool:  # noqa: ARG002
        """The answer to a yes-or-no question outside any transaction that an index answers. It may
        take its time only if it is to be ``thorough``; otherwise no answer in time is a no.
        """
        return bool(self.ask(f"SELECT {question}", *parameters)[0][0])

    def _ask_once(self, statement: str, *parameters: Any) -> list[tuple[Any, ...]]:
        self.reconnect()
        return self.rows(statement, *parameters)

    def _is_of_a_lost_connection(self, error: BaseException) -> bool:
        return isinstance(error, self.driver_error) and not self.is_open

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Begin; at the end roll back whatever was not committed."""
        self.reconnect()
        try:
            self.begin()
            yield
        finally:
            self.roll_back()

    def roll_back(self) -> None:
        """Roll back an open transaction, or else close the connection: the server then ends it."""
        if not self.is_open:
            return
        try:
            self.send_rollback()
        except self.driver_error:
            self.close()

    def check_in_transaction(self) -> None:
        """Nothing that is sent from here on may be committed by itself, statement by statement.

        Raises:
            SinkUnavailableError: the transaction is over.
        """
        if not self.is_in_transaction:
            raise SinkUnavailableError(
                f"{self.table}: the transaction was ended by something else. Nothing was written."
            )

    def while_opening(self, error: Exception) -> EoPipelineError:
        """Return our error for ``error`` of the driver, met before anything was planned."""
        diagnosis = self.diagnose(error)
        if diagnosis.is_transient:
            text = f"{self.table}: {self.product} cannot be used just now: {diagnosis.says}."
            return SinkUnavailableError(f"{text} {diagnosis.remedy}".rstrip())
        text = (
            f"{self.table}: {self.product} does not let this pipeline work there: {diagnosis.says}."
        )
        return ConfigError(f"{text} {diagnosis.remedy}".rstrip())

    def while_publishing(
        self, diagnosis: Diagnosis, table: TableName | None = None
    ) -> EoPipelineError:
        """Return our error for ``diagnosis``, met before COMMIT was sent, of rows for ``table``;
        for the pipeline's own if none is named.
        """
        table = table or self.table
        if diagnosis.is_transient:
            return SinkUnavailableError(
                f"{table}: {self.product} could not take the rows just now: {diagnosis.says}. "
                f"Nothing was written; the next run tries again. {diagnosis.remedy}".rstrip()
            )
        return RefusedError(
            f"{table}: {self.product} refused the rows: {diagnosis.says}. "
            f"Nothing was written. {diagnosis.remedy}".rstrip()
        )
