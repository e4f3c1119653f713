"""The ledger as a table: its columns, its statements, and entries as rows."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from typing import Any, NamedTuple

from eo_pipeline.errors import ConfigError, TableReplacedError
from eo_pipeline.ledger.entry import LedgerEntry
from eo_pipeline.sinks.sql.config import TableName

#: Two entries at one version: the second is fenced.
PRIMARY_KEY = "eo_ledger_pkey"
LEDGER_KEY = ("pipeline", "version")

#: Two pipelines that start on one table.
ONE_PIPELINE = "eo_ledger_one_pipeline_per_table"

#: What an insert names, in this order. ``committed_at`` is left to the database's clock.
INSERTED = (
    "pipeline",
    "ledger_id",
    "version",
    "transaction_id",
    "parent_version",
    "parent_transaction_id",
    "operation",
    "target",
    "target_table",
    "offsets",
    "ranges",
    "topic_ids",
    "counts",
    "run_id",
    "started_at",
    "details",
    "identity",
)
SELECTED = (*INSERTED, "committed_at")

#: Kept as JSON: by drivers that know the type as dictionaries, by the others as text.
_JSON = frozenset({"offsets", "ranges", "topic_ids", "counts", "details", "identity"})

#: The comment on a table's column of checkpoints, which goes where the table goes.
_COMMENT = "eo-pipeline: the checkpoint that published the row; ledger "

#: Entries of a history fetched at a time, so that a long ledger is never in memory as a whole.
PAGE = 500


#: The operation of an entry below the floor that was emptied. The row stays: the next one's foreign
#: key refers to it, and two rows at one version stay impossible.
PRUNED = "pruned"

_EMPTIED = (
    f"operation = '{PRUNED}', run_id = '', offsets = '{{}}', ranges = '[]', topic_ids = '{{}}', "
    "counts = '{}', details = '{}', identity = NULL"
)

#: Pipelines whose heads one statement asks for.
HEADS = 100


class LedgerTypes(NamedTuple):
    """A database's names for the types of the ledger's columns, and additions to the statement.

    ``text`` is given the most characters there can be; ``now`` is its clock, as a default;
    ``more`` are columns and constraints before the shared constraints, each with a comma behind
    it; ``options`` what follows the parenthesis.
    """

    text: Callable[[int], str]
    json: str
    time: str
    now: str
    more: str = ""
    options: str = ""


#: The first entries, one a table; for databases whose indexes may be partial.
ONE_PIPELINE_INDEX = (
    f"CREATE UNIQUE INDEX IF NOT EXISTS {ONE_PIPELINE} "
    "ON {ledger} (target_table) WHERE version = 0"
)


def create_ledger(ledger: str, types: LedgerTypes) -> str:
    """The statement that makes the table, whose quoted name is ``ledger``, unless it is there.

    Its constraints make inserting a compare-and-swap: the stored version must be exactly one
    smaller, and its transaction the parent. (:attr:`LedgerStatements.insert_child` asks for the
    parent itself: MySQL 9 does not check it.) The primary key lets one transaction take a version,
    the foreign key lets it do so only on top of its parent. A foreign key with a null column is not
    checked (MATCH SIMPLE), so the check leaves no way for an entry after the first to have a parent
    of null; and "IS NOT NULL" because a check whose value is unknown passes.
    """
    text, json_, time = types.text, types.json, types.time
    return f"""CREATE TABLE IF NOT EXISTS {ledger} (
    pipeline {text(128)} NOT NULL,
    ledger_id {text(64)} NOT NULL,
    version bigint NOT NULL,
    transaction_id {text(64)} NOT NULL,
    parent_version bigint,
    parent_transaction_id {text(64)},
    operation {text(32)} NOT NULL,
    target bigint,
    target_table {text(255)} NOT NULL,
    offsets {json_} NOT NULL,
    ranges {json_} NOT NULL,
    topic_ids {json_} NOT NULL,
    counts {json_} NOT NULL,
    run_id text NOT NULL,
    started_at {time} NOT NULL,
    committed_at {time} NOT NULL DEFAULT {types.now},
    details {json_} NOT NULL,
    identity {json_},
    {types.more}
    CONSTRAINT {PRIMARY_KEY} PRIMARY KEY ({", ".join(LEDGER_KEY)}),
    CONSTRAINT eo_ledger_id UNIQUE (pipeline, version, transaction_id),
    CONSTRAINT eo_ledger_parent
        FOREIGN KEY (pipeline, parent_version, parent_transaction_id)
        REFERENCES {ledger} (pipeline, version, transaction_id),
    CONSTRAINT eo_ledger_step CHECK (
        (version = 0 AND parent_version IS NULL AND parent_transaction_id IS NULL)
        OR (version > 0 AND parent_version IS NOT NULL AND parent_transaction_id IS NOT NULL
            AND version = parent_version + 1))
) {types.options}"""


#: What ledgers of earlier releases lack, and what adds it.
ADDED_COLUMN = "identity"
ADD_COLUMN = "ALTER TABLE {ledger} ADD COLUMN identity {json}"


def comment_for(ledger_id: str) -> str:
    """Return the comment on a column of checkpoints that is made for a ledger, or for none yet."""
    return f"{_COMMENT}{ledger_id}" if ledger_id else _COMMENT.partition(";")[0]


def ledger_in(comment: str) -> str | None:
    """Return the ledger that a column of checkpoints was made for, by its comment."""
    before, mark, ledger_id = comment.partition(_COMMENT)
    return ledger_id if mark and not before else None


@dataclass(frozen=True)
class LedgerStatements:
    """The statements of one ledger table, named by what they answer.

    ``table`` is the quoted table; ``mark`` stands for a parameter (``%s`` or ``?``). Each statement
    is answered by the primary key ``(pipeline, version)`` alone, so that its cost does not depend
    on the ledger's length.
    """

    table: str
    mark: str = "%s"
    #: What a query adds to keep the entry it found from going, where a reader may ask for that.
    held: str = ""

    @property
    def head(self) -> str:
        """Parameter: pipeline."""
        return f"{self._select} WHERE pipeline = {self.mark} ORDER BY version DESC LIMIT 1"

    def heads(self, pipelines: int) -> str:
        """Of so many at once: each found by the primary key, as :attr:`head` finds one. Parameters:
        the pipelines.
        """
        return " UNION ALL ".join(f"SELECT * FROM ({self.head}) AS h{n}" for n in range(pipelines))

    @property
    def at(self) -> str:
        """Parameters: pipeline, version."""
        where = f"pipeline = {self.mark} AND version = {self.mark}"
        return f"{self._select} WHERE {where} AND operation <> '{PRUNED}'"

    @property
    def page(self) -> str:
        """Parameters: pipeline, first version."""
        where = f"WHERE pipeline = {self.mark} AND version >= {self.mark}"
        kept = f"AND operation <> '{PRUNED}'"
        return f"{self._select} {where} {kept} ORDER BY version LIMIT {PAGE}"

    @property
    def to_prune(self) -> str:
        """Count the entries below a version that are not emptied yet, and find the first.
        Parameters: pipeline, version.
        """
        return f"SELECT count(*), min(version) FROM {self._escaped} {self._whole_below}"

    @property
    def prune(self) -> str:
        """Empties entries. Parameters: pipeline, version that they are below, the first of them."""
        return (
            f"UPDATE {self._escaped} SET {_EMPTIED} {self._whole_below} AND version >= {self.mark}"
        )

    @property
    def _whole_below(self) -> str:
        below = f"pipeline = {self.mark} AND version < {self.mark}"
        return f"WHERE {below} AND operation <> '{PRUNED}'"

    @property
    def newest(self) -> str:
        """The number of the head, -1 if there is none. Parameter: pipeline."""
        return (
            f"SELECT coalesce(max(version), -1) FROM {self._escaped} WHERE pipeline = {self.mark}"
        )

    @property
    def table_of(self) -> str:
        """Select the table that a pipeline publishes into. Parameter: pipeline."""
        return (
            f"SELECT target_table FROM {self._escaped} "
            f"WHERE pipeline = {self.mark} ORDER BY version DESC LIMIT 1"
        )

    @property
    def pipeline_of(self) -> str:
        """Select the pipeline that started on a table. Parameter: table."""
        return (
            f"SELECT pipeline FROM {self._escaped} WHERE target_table = {self.mark} AND version = 0"
        )

    @property
    def pipeline_with(self) -> str:
        """Select the pipeline of a ledger. Parameter: the ledger's id. Reads the whole table."""
        return f"SELECT pipeline FROM {self._escaped} WHERE ledger_id = {self.mark} LIMIT 1"

    @property
    def insert_first(self) -> str:
        """Parameters: :func:`row_of`."""
        return f"{self._insert} VALUES ({self._marks})"

    @property
    def insert_child(self) -> str:
        """Inserts nothing unless the parent is there: its foreign key may be one that the database
        does not check. Parameters: :func:`row_of`; pipeline, version and transaction id of the
        parent.
        """
        where = f"pipeline = {self.mark} AND version = {self.mark} AND transaction_id = {self.mark}"
        return f"{self._insert} SELECT {self._marks} FROM {self._escaped} WHERE {where} {self.held}"

    @property
    def _insert(self) -> str:
        return f"INSERT INTO {self._escaped} ({', '.join(INSERTED)})"

    @property
    def _marks(self) -> str:
        return ", ".join([self.mark] * len(INSERTED))

    @property
    def _select(self) -> str:
        return f"SELECT {', '.join(SELECTED)} FROM {self._escaped}"

    @property
    def _escaped(self) -> str:
        # a driver that marks parameters by %s reads a lone % in a name as one more
        return self.table.replace("%", "%%") if self.mark == "%s" else self.table


@dataclass(frozen=True)
class SqlLedger:
    """One pipeline's entries in the table of ``statements``, and a table they speak for.

    ``ask`` answers a statement with its rows. ``target`` is what the entries name: the table, or a
    name for several tables.
    """

    pipeline: str
    table: TableName
    statements: LedgerStatements
    ask: Callable[..., list[Any]]
    target: str

    def head(self) -> LedgerEntry | None:
        """See :meth:`SinkSession.head`."""
        return self._one(self.statements.head, self.pipeline)

    def entry(self, version: int) -> LedgerEntry | None:
        """See :meth:`SinkSession.entry`."""
        return self._one(self.statements.at, self.pipeline, version)

    def history(self, since: int) -> Iterator[LedgerEntry]:
        """See :meth:`SinkSession.history`."""
        while rows := self.ask(self.statements.page, self.pipeline, since):
            entries = [entry_of(row) for row in rows]
            yield from entries
            since = entries[-1].version + 1

    def _one(self, statement: str, *parameters: Any) -> LedgerEntry | None:
        rows = self.ask(statement, *parameters)
        return entry_of(rows[0]) if rows else None

    def check_table(self) -> None:
        """Refuse a table that this ledger does not speak for: one ledger speaks for one table, and
        one table belongs to one pipeline.

        Raises:
            ConfigError: the ledger names another table, or another pipeline has this one.
        """
        rows = self.ask(self.statements.table_of, self.pipeline)
        if not rows or self.target != str(self.table):
            self.refuse_other_pipeline()
        if rows and rows[0][0] != self.target:
            renamed = (
                f"; if the table was renamed, set target_table in {self.statements.table} likewise"
                if self.target == str(self.table)
                else ", and new tables: one that has filled a single table gets no others"
            )
            raise ConfigError(
                f"sink.table: pipeline {self.pipeline!r} publishes into {rows[0][0]}, by its "
                f"ledger, not into {self.target}. Give the pipeline for {self.target} a name of "
                f"its own{renamed}."
            )

    def refuse_other_pipeline(self) -> None:
        """Raise :class:`ConfigError` if another pipeline started on the table."""
        rows = self.ask(self.statements.pipeline_of, str(self.table))
        if rows and rows[0][0] != self.pipeline:
            raise ConfigError(
                f"sink.table: {self.table} belongs to pipeline {rows[0][0]!r}; pipeline "
                f"{self.pipeline!r} needs a table of its own. One ledger speaks for one table."
            )

    def refuse_dead_letters_of(self, made_for: str, table: TableName) -> None:
        """Refuse a ``table`` with dead letters of the ledger ``made_for``.

        Raises:
            ConfigError: the ledger is another pipeline's.
        """
        rows = self.ask(self.statements.pipeline_with, made_for)
        if rows and rows[0][0] == self.pipeline:
            return
        other = f"pipeline {rows[0][0]!r}" if rows else f"another pipeline (ledger {made_for})"
        raise ConfigError(
            f"sink.dead_letter_table: {table} holds the dead letters of {other}. Nothing was read "
            f"or written: a rewind or replay of either would delete those of both. Give pipeline "
            f"{self.pipeline!r} a dead_letter_table of its own; dead letters of it that are in "
            f"{table} stay there."
        )

    def refuse_foreign_rows(self, entry: LedgerEntry, made_for: str, *, holds_rows: bool) -> None:
        """A table that was made for the ledger ``made_for`` is taken over for ``entry`` only if no
        row of either is there: as after a reset.

        Raises:
            TableReplacedError: there is one.
        """
        written = entry.counts.rows_total - entry.counts.rows
        if written > 0 or holds_rows:
            reason = f"{self.table} was made for another ledger, {made_for}, and holds rows"
            raise TableReplacedError(self.pipeline, written, reason)

    def refuse_lost_table(self, entry: LedgerEntry) -> None:
        """A table made anew for ``entry`` would lack what the ledger says was written.

        Raises:
            TableReplacedError: the table, or its checkpoint column, was dropped or renamed.
        """
        written = entry.counts.rows_total - entry.counts.rows
        if written > 0:
            reason = f"{self.table}, or its checkpoint column, does not exist any more"
            raise TableReplacedError(self.pipeline, written, reason)


def heads_of(
    statements: LedgerStatements, ask: Callable[..., list[Any]], pipelines: Collection[str]
) -> dict[str, LedgerEntry | None]:
    """The newest entry of each of ``pipelines`` in one ledger; ``ask`` as in :class:`SqlLedger`."""
    heads: dict[str, LedgerEntry | None] = dict.fromkeys(pipelines)
    names = iter(pipelines)
    while page := list(islice(names, HEADS)):
        for row in ask(statements.heads(len(page)), *page):
            entry = entry_of(row)
            heads[entry.pipeline] = entry
    return heads


def row_of(entry: LedgerEntry, target_table: str) -> tuple[Any, ...]:
    """``entry`` as parameters of :attr:`LedgerStatements.insert_first`; JSON values as text."""
    raw = entry.to_json()
    parent_version, parent_transaction_id = raw["parent"] or (None, None)
    raw |= {
        "parent_version": parent_version,
        "parent_transaction_id": parent_transaction_id,
        "target_table": target_table,
        "started_at": entry.started_at,
    }
    texts = {name: json.dumps(raw[name]) for name in _JSON & raw.keys()}
    return tuple((raw | texts).get(name) for name in INSERTED)


def entry_of(row: Sequence[Any]) -> LedgerEntry:
    """The entry in a row of :data:`SELECTED`, whatever form the driver gives JSON and times."""
    raw = {
        name: _parsed(value) if name in _JSON else _iso(value)
        for name, value in zip(SELECTED, row, strict=True)
    }
    has_parent = raw["parent_version"] is not None
    raw["parent"] = [raw["parent_version"], raw["parent_transaction_id"]] if has_parent else None
    if raw["identity"] is None:
        del raw["identity"]
    return LedgerEntry.from_json(raw)


def _parsed(value: str | bytes | Mapping[str, Any] | None) -> Any:
    return json.loads(value) if isinstance(value, str | bytes) else value


def _iso(value: Any) -> Any:
    if not isinstance(value, datetime):
        return value
    # a database without time zones keeps times in UTC
    return (value.astimezone(UTC) if value.tzinfo else value.replace(tzinfo=UTC)).isoformat()
