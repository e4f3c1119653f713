"""Publishing into a SQL database, as ``SinkSession.publish`` asks: tables, rows, entry, COMMIT.

The flow is here alone: a dialect's store and table give the statements and never call back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from typing import Any, NoReturn

from eo_pipeline._lazy import pa
from eo_pipeline.errors import (
    CommitUnknownError,
    ConfigError,
    EoPipelineError,
    RefusedError,
    SchemaChangeError,
)
from eo_pipeline.ledger.entry import CHECKPOINT_COLUMN, START_VERSION, LedgerEntry, Operation
from eo_pipeline.sinks.arrow import whole_digits
from eo_pipeline.sinks.session import Publication, goes_back, target_of
from eo_pipeline.sinks.sql.config import TableName, columns_list, quoted
from eo_pipeline.sinks.sql.ledger import ONE_PIPELINE, comment_for, ledger_in, row_of
from eo_pipeline.sinks.sql.reading import SqlReading
from eo_pipeline.sinks.sql.table import Column, SqlTable, moved, same_key
from eo_pipeline.sinks.upsert import ORIGIN, UpsertRule
from eo_pipeline.staging.rows import StagedOutput, StagedTable

#: A table of any dialect.
AnyTable = SqlTable[Any, Any]

#: The rows that carry a checkpoint's number.
_OF_A_CHECKPOINT = f"{quoted(CHECKPOINT_COLUMN)} IS NOT NULL"

#: Entries of the ledger that one transaction empties.
_EMPTIED_AT_ONCE = 1000


class SqlSession(SqlReading):
    """A session whose rows and ledger live in one database, published by one transaction.

    The ledger's primary key, and an insert that takes its row from the parent entry, are the
    compare-and-swap: the loser of two publishers waits at the key until the winner has committed,
    and is then told that it is taken. A failure rolls everything back; a connection lost in COMMIT
    is the one case in which nobody knows.
    """

    keeps_itself = "the database keeps its tables by itself (autovacuum, purge): nothing to do"

    keeps_ledger = None

    def head(self) -> LedgerEntry | None:
        return self.ledger.head()

    def entry(self, version: int) -> LedgerEntry | None:
        return self.ledger.entry(version)

    def history(self, since: int = 0) -> Iterator[LedgerEntry]:
        return self.ledger.history(since)

    def check_identity(self, head: LedgerEntry) -> None:
        """Check the table, and that no other pipeline has its dead letters in ours."""
        super().check_identity(head)
        self.check_dead_letters(head.ledger_id)

    def check_dead_letters(self, ledger_id: str | None = None) -> bool:
        """Check that the table of dead letters is this pipeline's: a rewind deletes from it by the
        number of the checkpoint alone. Return True if it is not marked as that of ``ledger_id``.

        Raises:
            ConfigError: it holds dead letters of another pipeline.
        """
        table = self.dead_letters
        comment = table.checkpoint_comment(self.store.ask)
        made_for = ledger_in(comment or "")
        if made_for is None:
            return comment in ("", comment_for(""))  # another one is somebody's own
        if made_for == ledger_id:
            return False
        if self.store.ask(f"SELECT 1 FROM {table.name.sql} WHERE {_OF_A_CHECKPOINT} LIMIT 1"):
            self.ledger.refuse_dead_letters_of(made_for, table.name)
        return True

    def begin(self, entry: LedgerEntry, staged: StagedOutput) -> Publication:
        return SqlPublication(self, entry, staged)

    def check_going_back(self, entry: LedgerEntry) -> None:
        rows_taken_back(entry)  # any rows can be deleted; without a target it refuses
        if self.upsert_rule:
            raise RefusedError(
                f"{self.table.name} is upserted: what its rows held at version {entry.target} was "
                "overwritten and is not kept. Nothing was changed. Start a new pipeline into a "
                "new table (fork) instead."
            )
        for table in (self.table, self.dead_letters):
            table.check_deletable()

    def reset(self, *, dry_run: bool) -> tuple[str, ...]:
        """In one transaction. The tables stay, and with them any row that carries no checkpoint."""
        self.check_dead_letters()
        return self.drop((self.table, self.dead_letters), dry_run=dry_run)

    def drop(self, tables: Sequence[SqlTable[Any, Any]], *, dry_run: bool) -> tuple[str, ...]:
        """See :meth:`reset`, of the rows of ``tables``."""
        store, drops = self.store, []
        try:
            for table in tables:
                if not dry_run:
                    let_delete(table)
            with store.transaction():
                for table in tables:
                    if CHECKPOINT_COLUMN in table.columns():
                        drop = count if dry_run else delete
                        drops.append(f"{drop(table, _OF_A_CHECKPOINT):,} rows of {table.name}")
                versions = self._drop_ledger(dry_run=dry_run)
                drops.append(f"{versions:,} versions of the ledger in {store.ledger}")
                store.send_commit()
        except store.driver_error as error:
            raise store.while_opening(error) from error
        return tuple(drops)

    def _drop_ledger(self, *, dry_run: bool) -> int:
        """Delete the entries, and return how many; ``dry_run`` only counts them."""
        store = self.store
        mine = f"FROM {store.ledger.sql} WHERE pipeline = {store.mark}"
        if dry_run:
            return int(store.rows(f"SELECT count(*) {mine}", self.pipeline)[0][0])
        return int(store.execute(f"DELETE {mine}{store.newest_first}", self.pipeline).rowcount)

    def prune(self, *, dry_run: bool) -> int:
        """Entries are emptied, so many in a transaction that none takes long."""
        head, statements = self.head(), self.ledger.statements
        floor = head.floor if head else START_VERSION
        ((count, first),) = self.store.ask(statements.to_prune, self.pipeline, floor)
        if count and not dry_run:
            for start in range(first, floor, _EMPTIED_AT_ONCE):
                below = min(start + _EMPTIED_AT_ONCE, floor)
                self._change(statements.prune, self.pipeline, below, start)
        return int(count)

    def _change(self, statement: str, *parameters: Any) -> None:
        """In a transaction of its own."""
        try:
            with self.store.transaction():
                self.store.execute(statement, *parameters)
                self.store.send_commit()
        except self.store.driver_error as error:
            raise self.store.while_opening(error) from error

    def explain(self, error: Exception) -> EoPipelineError:
        if not isinstance(error, self.store.driver_error):
            return super().explain(error)
        if self.store.is_violation(error, ONE_PIPELINE):
            self.store.roll_back()  # a transaction that has failed answers no question
            self.ledger.refuse_other_pipeline()
        return self.store.while_publishing(self.store.diagnose(error))

    def storable(self, dead_letters: StagedTable) -> StagedTable:
        """Dead letters in a form that the database takes, whatever a record held."""
        return dead_letters


class SqlPublication(Publication):
    """One transaction, begun when there is something to write."""

    session: SqlSession

    def __init__(self, session: SqlSession, entry: LedgerEntry, staged: StagedOutput) -> None:
        super().__init__(session, entry, staged)
        self.store = session.store
        self._open = ExitStack()

    def write(self) -> None:
        """Tables that are there are made fit before the transaction, so that readers wait for that
        alone and not for the rows: a column that is null in every row, or a wider type, harms
        nobody if the rows do not come. Tables that are not there are made in the transaction.
        """
        to_make = self.prepare()
        self._open.enter_context(self.store.transaction())
        self.fill(to_make)

    def prepare(self) -> list[Callable[[], None]]:
        """Make ready the tables that are there, and in a database without DDL in transactions all.
        Returns the functions that create the others, in the transaction.
        """
        self.store.reconnect()
        self.session.dead_letters.made_for = self.entry.ledger_id
        if self.staged.dead_letters is not None or goes_back(self.entry):
            self._mark_dead_letters()
        to_make = self.fit_tables()
        self.prepare_removal()
        if not self.store.has_ddl_in_transactions:
            _run_all(to_make)
            return []
        return to_make

    def fill(self, to_make: Iterable[Callable[[], None]]) -> None:
        """Create tables, take rows back and send rows, in the open transaction."""
        _run_all(to_make)
        self.take_back()
        self.send()

    def fit_tables(self) -> list[Callable[[], None]]:
        """Widen the existing tables for the rows; return the functions that create the others."""
        session, staged, rule = self.session, self.staged, self.session.upsert_rule
        fits: list[tuple[bool, Callable[[], None]]] = []
        if staged.rows is not None:
            table = session.table
            numbered = CHECKPOINT_COLUMN in staged.rows.schema.names
            comment = table.checkpoint_comment(self.store.rows)
            is_there = table.exists()
            if (numbered and comment is None) or not is_there:
                session.ledger.refuse_lost_table(self.entry)
            table.made_for = self.entry.ledger_id
            self._take_over(comment)
            if rule:
                rule.check_columns(staged.rows.schema.names)
            fits.append((is_there, partial(fit, table, staged.rows, rule.key if rule else ())))
        if staged.dead_letters is not None:
            is_there = session.dead_letters.exists()
            fits.append((is_there, partial(fit, session.dead_letters, staged.dead_letters)))
        _run_all(fit for is_there, fit in fits if is_there)
        return [fit for is_there, fit in fits if not is_there]

    def prepare_removal(self) -> None:
        """Make it possible to replace or delete rows of the tables that need it."""
        tables = []
        if goes_back(self.entry):
            tables = [self.session.table, self.session.dead_letters]
        elif self.session.upsert_rule and self.staged.rows is not None:
            tables = [self.session.table]
        for table in tables:
            let_delete(table)

    def _take_over(self, comment: str | None) -> None:
        """The table of another ledger, by the ``comment`` on its checkpoints, gets this one's."""
        made_for = ledger_in(comment or "")
        if made_for in (None, self.entry.ledger_id):
            return
        table = self.session.table
        held = self.store.rows(f"SELECT 1 FROM {table.name.sql} WHERE {_OF_A_CHECKPOINT} LIMIT 1")
        self.session.ledger.refuse_foreign_rows(self.entry, made_for, holds_rows=bool(held))
        self.store.alter(table.mark)

    def _mark_dead_letters(self) -> None:
        """Mark the table of dead letters as this ledger's, where the role may alter it."""
        if self.session.check_dead_letters(self.entry.ledger_id):
            with suppress(self.store.driver_error):
                self.store.alter(self.session.dead_letters.mark)

    def take_back(self) -> None:
        """Remove the rows that a rewind or a replay takes back."""
        if condition := rows_taken_back(self.entry):
            for table in (self.session.table, self.session.dead_letters):
                delete(table, condition)

    def send(self) -> None:
        """Send rows and dead letters into their tables. What the tables do by themselves is looked
        at when both are there.
        """
        session, staged, rule = self.session, self.staged, self.session.upsert_rule
        number = self.entry.checkpoint
        with ExitStack() as counts:
            if staged.rows is not None and rule:
                upsert(session.table, staged.rows, rule, number)
            elif staged.rows is not None:
                acts = counts.enter_context(counted(session.table, staged.rows, number))
                append(session.table, staged.rows, acts)
            if staged.dead_letters is not None:
                acts = counts.enter_context(
                    counted(session.dead_letters, staged.dead_letters, number)
                )
                append(session.dead_letters, session.storable(staged.dead_letters), acts)

    def enter(self) -> None:
        self.store.check_in_transaction()
        entry, statements = self.entry, self.session.ledger.statements
        row = self.store.parameters(row_of(entry, self.session.ledger.target))
        if entry.parent is None:
            inserted = self.store.execute(statements.insert_first, *row)
        else:
            parent = (entry.pipeline, entry.parent.version, entry.parent.transaction_id)
            inserted = self.store.execute(statements.insert_child, *row, *parent)
        if inserted.rowcount != 1:  # settling tells a rival from a ledger that takes nothing
            raise RefusedError(
                f"{self.store.ledger} did not take version {entry.version} on top of "
                f"{entry.parent}: the parent is not there, or a trigger or rule of the table keeps "
                "the entry out. Nothing was written."
            )

    def commit(self) -> None:
        self.store.check_in_transaction()
        try:
            self.store.send_commit()
        except self.store.driver_error as error:
            self.store.roll_back()
            if self.store.is_open:
                # the transaction is over one way or the other, and the ledger tells which
                raise self.session.explain(error) from error
            raise CommitUnknownError(
                f"{self.session.table.name}: the connection was lost after COMMIT of version "
                f"{self.entry.version} was sent; it may have landed. Transaction "
                f"{self.entry.transaction_id} is tried again."
            ) from error

    def close(self, error: BaseException | None) -> None:  # noqa: ARG002
        self._open.close()


def _run_all(functions: Iterable[Callable[[], None]]) -> None:
    for function in functions:
        function()


# Before the transaction: tables made, columns added and widened.


def fit(table: AnyTable, staged: StagedTable, key: Sequence[str] = ()) -> None:
    """Make ``table`` fit for the rows: create it, add what it lacks, and widen types that are too
    narrow.

    Args:
        table: the table.
        staged: the rows; numbers with many digits are looked at.
        key: columns that identify a row; for a table that is upserted into.

    Raises:
        SchemaChangeError: a column's type does not fit the table's.
        RefusedError: a name cannot be a column's, or the database computes that column.
        ConfigError: the table cannot be upserted by ``key``.
    """
    table.names.check_columns(staged.schema.names)
    wires = {field.name: table.wire_type(field) for field in staged.schema}
    if not table.exists():
        table.create(wires, key)
    if key:
        check_key(table, key, wires)
    present = _types(table, wires)
    _refuse_computed(
        table, [name for name, type_ in present.items() if type_ and type_.is_computed]
    )
    narrow = {
        name: wire for name, wire in wires.items() if _is_narrow(name, present[name], wire, staged)
    }
    if types := _wider_types(table, narrow, present):
        with _explaining_how_to_widen(table, types):
            table.store.alter(partial(_retype, table, narrow))
    if absent := {name: wire for name, wire in wires.items() if present[name] is None}:
        table.store.alter(partial(table.add, absent))
        if CHECKPOINT_COLUMN in absent:
            table.store.alter(partial(table.index_checkpoints, key))


def check_key(table: AnyTable, key: Sequence[str], wires: Mapping[str, Any]) -> None:
    """Raise ConfigError unless the table says itself that ``key`` identifies a row."""
    if set(map(table.names.fold, key)) not in (table.unique_keys() or []):
        raise ConfigError(
            f"sink.key: {table.name} has no unique constraint on exactly ({', '.join(key)}), "
            f"which an upsert needs ({table.key_excludes}). Nothing was written. ALTER TABLE "
            f"{table.as_shown(table.name)} ADD UNIQUE ({', '.join(map(table.as_shown, key))})"
        )
    table.check_other_keys(key, wires)


def bind(table: AnyTable, schema: pa.Schema) -> list[Column[Any, Any]]:
    """The columns of ``table`` that take those of ``schema``.

    Raises:
        SchemaChangeError: somebody changed the table since it was made fit.
    """
    types = table.columns()
    columns = []
    for field in schema:
        wire, type_ = table.wire_type(field), types.get(table.names.fold(field.name))
        if type_ is None or not type_.takes(wire):
            _refuse_type(table, field.name, type_, wire)
        columns.append(Column(field.name, wire, type_))
    return columns


def _retype(table: AnyTable, narrow: Mapping[str, Any]) -> None:
    with table.alone():
        # somebody else may have widened it meanwhile, and further
        table.retype(_wider_types(table, narrow, _types(table, narrow)))


def _types(table: AnyTable, wires: Mapping[str, Any]) -> dict[str, Any]:
    types = table.columns()
    return {name: types.get(table.names.fold(name)) for name in wires}


@contextmanager
def _explaining_how_to_widen(table: AnyTable, types: Mapping[str, str]) -> Iterator[None]:
    """Add the statements to the error of a role that may not alter the table."""
    try:
        yield
    except table.store.driver_error as error:
        diagnosis = table.store.diagnose(error)
        if diagnosis.is_transient:
            raise
        statements = "; ".join(table.retyping(name, type_) for name, type_ in types.items())
        raise SchemaChangeError(
            f"{_listed([*types])} of {table.name} must be widened for the new rows, and "
            f"{table.store.product} does not let this pipeline do it: {diagnosis.says}. Nothing "
            f"was written. Run as a privileged user: {statements}"
        ) from error


def _is_narrow(name: str, column: Any, wire: Any, staged: StagedTable) -> bool:
    """A column may be shorter than what is sent to it, as long as no value is too long."""
    if column is None:
        return False
    room = column.room(wire)
    too_short = room is not None and whole_digits(staged, name) > room
    return too_short or not column.takes(wire)


def _wider_types(
    table: AnyTable, wires: Mapping[str, Any], present: Mapping[str, Any]
) -> dict[str, str]:
    """The types that the columns of ``wires``, which are too narrow, need.

    Raises:
        SchemaChangeError: a column can be given none.
    """
    types = {}
    for name, wire in wires.items():
        column = present[name]
        wider = column and column.wider(wire)
        if not wider:
            _refuse_type(table, name, column, wire)
        types[name] = wider
    return types


def _refuse_type(table: AnyTable, name: str, column: Any, wire: Any) -> NoReturn:
    raise SchemaChangeError(
        f"column {name!r} of {table.name} is {column or 'absent'}, the result has {wire}, which "
        "would not fit without loss. Nothing was written. Cast it in the transform, write it "
        f"under another name, or change the table: {table.retyping(name, wire.declared)}"
    )


def _refuse_computed(table: AnyTable, computed: Sequence[str]) -> None:
    if computed:
        raise RefusedError(
            f"{table.name} computes {_listed(sorted(computed))} itself (generated or identity). "
            "Nothing was written. Drop the column in the transform."
        )


def _listed(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names))


# In the transaction: rows appended and counted.


def append(table: AnyTable, staged: StagedTable, acts: str = "") -> None:
    """Add the rows; ``acts``: what the table does by itself with them, see :func:`counted`.

    Raises:
        RefusedError: the database took another number of rows.
    """
    inserted = table.insert(bind(table, staged.schema), staged)
    # a trigger may send rows to where they belong, and they are not counted then
    if inserted != staged.rows and not acts:
        _refuse_count(table, staged.rows, inserted, acts)


@contextmanager
def counted(table: AnyTable, staged: StagedTable, checkpoint: int) -> Iterator[str]:
    """Append ``staged`` within: at the end as many rows more are of ``checkpoint``, or of the
    table if rows do not say. Only what the database says of a table that does nothing by
    itself is believed without a look. Yields what the table does by itself.

    Raises:
        RefusedError: it is another number.
    """
    acts = table.acts_by_itself()
    if not acts:
        yield acts
        return
    says = CHECKPOINT_COLUMN in staged.schema.names
    mine = f"{quoted(CHECKPOINT_COLUMN)} = {checkpoint}" if says else ""
    before = count(table, mine)
    yield acts
    table.settle()
    if (added := count(table, mine) - before) != staged.rows:
        _refuse_count(table, staged.rows, added, acts)


def count(table: AnyTable, condition: str = "") -> int:
    """Return the number of rows for which ``condition`` holds."""
    where = f" WHERE {condition}" if condition else ""
    return int(table.store.rows(f"SELECT count(*) FROM {table.name.sql}{where}")[0][0])


def _refuse_count(table: AnyTable, staged: int, present: int, acts: str) -> NoReturn:
    why = f"Look at {acts or 'what the table does by itself'}"
    raise RefusedError(
        f"Row count mismatch in {table.name}: sent {staged} rows, found {present} as they were "
        f"sent. Nothing was written. {why}: every row that is staged must become visible "
        "with its checkpoint, or the ledger would not tell the truth. Filter rows in the "
        "transform instead."
    )


# In the transaction: rows upserted by key.


def upsert(table: AnyTable, staged: StagedTable, rule: UpsertRule, checkpoint: int) -> None:
    """Insert the rows, or update those that are there: an index says which rows are the same, and
    one statement inserts the newest staged row of each key, or updates the one that is there.

    Raises:
        RefusedError: a row has no key, or nothing to be sequenced by; or rows do not fit, or
            the table made something else of them.
        SchemaChangeError: somebody changed the table since it was made fit.
    """
    store, columns = table.store, bind(table, staged.schema)
    with table.staged_rows(columns, staged) as stage:
        nulls = ", ".join(f"count(*) - count({quoted(name)})" for name in rule.never_null)
        rule.check_nulls(store.rows(f"SELECT {nulls} FROM {stage.sql}")[0])
        fresh = _fresh(table, stage, columns)
        if not table.merge_in_order(stage, columns, rule):
            if not rule.sequence_by:
                _check_order(table, fresh, rule)
            store.execute(table.merge(stage, columns, rule))
        if acts := table.acts_by_itself():
            table.settle()
            names = [column.name for column in columns]
            _check_all_there(table, fresh, _arrived(rule, names, checkpoint), rule, acts)


def _fresh(table: AnyTable, stage: TableName, columns: Sequence[Column[Any, Any]]) -> str:
    sent = ", ".join(f"{table.sent(column)} AS {quoted(column.name)}" for column in columns)
    return f"(SELECT {sent} FROM {stage.sql}) AS fresh"


def _check_order(table: AnyTable, fresh: str, rule: UpsertRule) -> None:
    """Raise RefusedError if a key came from two Kafka partitions, here or here and before."""
    keys = columns_list(rule.key)
    mixed = " OR ".join(f"min({quoted(n)}) <> max({quoted(n)})" for n in ORIGIN)
    ends = ", ".join(f"{end}({quoted(n)})" for end in ("min", "max") for n in ORIGIN)
    staged = f"SELECT {keys}, {ends} FROM {fresh} GROUP BY {keys} HAVING {mixed} LIMIT 1"
    chosen = [f"fresh.{quoted(n)}" for n in rule.key]
    chosen += [f"{side}.{quoted(n)}" for side in ("old", "fresh") for n in ORIGIN]
    before = (
        f"SELECT {', '.join(chosen)} FROM {fresh} JOIN {table.name.sql} AS old "
        f"ON {same_key(rule, 'old', 'fresh')} WHERE {moved('old', 'fresh')} LIMIT 1"
    )
    for query in (staged, before):
        for row in table.store.rows(query):
            n = len(rule.key)
            raise rule.refuse_order(row[:n], row[n : n + 2], row[n + 2 :])


def _check_all_there(
    table: AnyTable, fresh: str, arrived: str, rule: UpsertRule, acts: str
) -> None:
    missing, staged = table.store.rows(
        f"SELECT count(CASE WHEN {arrived} THEN NULL ELSE 1 END), count(*) FROM {fresh} "
        f"LEFT JOIN {table.name.sql} AS old ON {same_key(rule, 'old', 'fresh')}"
    )[0]
    if missing:
        raise RefusedError(
            f"{missing} of {staged} rows sent to {table.name} are missing, and there is no "
            f"newer row with their key. Nothing was written. Look at {acts}: every row that "
            "is staged must become visible. Filter rows in the transform instead."
        )


def _arrived(rule: UpsertRule, columns: Sequence[str], checkpoint: int) -> str:
    """True for a row ``fresh`` if the one of its key in the table, ``old``, is of this checkpoint,
    or newer.
    """
    mine, theirs = (
        ", ".join(f"{side}.{quoted(name)}" for name in rule.age_columns(columns))
        for side in ("old", "fresh")
    )
    if CHECKPOINT_COLUMN not in columns:
        return f"({mine}) >= ({theirs})"
    of_this = f"old.{quoted(CHECKPOINT_COLUMN)} = {checkpoint}"
    return f"{of_this} OR ({mine}) > ({theirs})" if rule.sequence_by else of_this


# In the transaction: rows taken back.


def rows_taken_back(entry: LedgerEntry) -> str | None:
    """The rows to remove before ``entry`` is published, as a SQL condition; ``None`` for none.

    Raises:
        RefusedError: the entry goes back and does not say where to.
    """
    if not goes_back(entry):
        return None
    operator = ">" if entry.operation is Operation.REWIND else "="
    return f"{quoted(CHECKPOINT_COLUMN)} {operator} {target_of(entry)}"


def let_delete(table: AnyTable) -> None:
    """Make it possible that rows are deleted or replaced; see ``SqlTable.check_deletable``."""
    for statement in table.check_deletable():
        table.store.alter(partial(table.store.execute, statement))


def delete(table: AnyTable, condition: str) -> int:
    """Remove the rows for which ``condition`` holds; gives how many the database says it were.

    Raises:
        RefusedError: some of them are still there.
    """
    if not table.exists():
        return 0
    deleted = table.store.execute(f"DELETE FROM {table.name.sql} WHERE {condition}").rowcount
    if acts := table.acts_by_itself():
        table.settle()
        if left := count(table, condition):
            raise RefusedError(
                f"{table.name}: {left} rows that were deleted are still there. Nothing was "
                f"changed. Look at {acts}: a rewind or replay must be able to take rows back."
            )
    return int(deleted)
