"""PostgreSQL's statements about a table, and COPY. The order in which they are run is in
:mod:`eo_pipeline.sinks.sql.session`, the COMMIT in :mod:`eo_pipeline.sinks.postgres.connection`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

import pgpq
import psycopg
from pgpq.encoders import StringEncoderBuilder
from pgpq.schema import Jsonb
from psycopg.sql import Literal

from eo_pipeline._lazy import pa
from eo_pipeline.errors import ConfigError, RefusedError
from eo_pipeline.ledger.entry import CHECKPOINT_COLUMN
from eo_pipeline.sinks.arrow import bounded_batches, check_all_sent, json_array, refusing
from eo_pipeline.sinks.postgres.connection import PostgresStore
from eo_pipeline.sinks.postgres.types import (
    NAMES,
    ColumnType,
    WireType,
    conversion,
    is_direct,
    shown_as,
    wire_type,
)
from eo_pipeline.sinks.sql.config import NameRules, TableName, columns_list, quoted
from eo_pipeline.sinks.sql.session import SqlSession, bind
from eo_pipeline.sinks.sql.table import (
    COORDINATES,
    Column,
    ReadColumn,
    SqlTable,
    gives_way,
    moved,
    newest_first,
    record_of,
    same_key,
)
from eo_pipeline.sinks.upsert import ORIGIN, UpsertRule
from eo_pipeline.staging.rows import StagedOutput, StagedTable

log = logging.getLogger(__name__)

#: A table with its partitions and the tables that inherit from it.
TREE = """
WITH RECURSIVE tree AS (
    SELECT to_regclass(%s)::oid AS id
  UNION
    SELECT inhrelid FROM pg_inherits JOIN tree ON inhparent = tree.id
)
"""

#: Each of them: what it is, how durable, and whether this role sees all of its rows.
PARTS = f"""{TREE}
SELECT oid::regclass::text, relkind, relpersistence, row_security_active(oid)
FROM tree JOIN pg_class ON oid = id
ORDER BY oid <> to_regclass(%s)::oid, oid
"""

#: What they may do with rows that are written or deleted. A foreign key's triggers are internal.
ACTORS = f"""{TREE}
SELECT 'the trigger ' || quote_ident(tgname) || ' on ' || tgrelid::regclass
FROM tree JOIN pg_trigger ON tgrelid = id
WHERE NOT tgisinternal AND tgenabled <> 'D'
UNION
SELECT 'the rule ' || quote_ident(rulename) || ' on ' || ev_class::regclass
FROM tree JOIN pg_rewrite ON ev_class = id
WHERE ev_type <> '1' AND ev_enabled <> 'D'
UNION
SELECT 'the row-level security of ' || oid::regclass
FROM tree JOIN pg_class ON oid = id
WHERE relrowsecurity
ORDER BY 1
LIMIT 5
"""

#: What a table or a part of it may be, and what else there is.
KINDS = {"r": "", "p": "", "v": "a view", "m": "a materialized view", "f": "a foreign table"}
UNLOGGED = {"u": "an unlogged table", "t": "a temporary table"}

#: Parts from which a publication would have to tell of a deleted row, and nothing tells which row
#: that is; and whether this role may change that.
UNIDENTIFIED = f"""{TREE}
SELECT c.oid::regclass::text, pg_has_role(relowner, 'USAGE')
FROM tree JOIN pg_class c ON c.oid = id
WHERE relkind = 'r'
  AND (relreplident = 'n' OR relreplident = 'd' AND NOT EXISTS (
    SELECT FROM pg_index WHERE indrelid = c.oid AND indisprimary))
  AND EXISTS (
    SELECT FROM pg_publication_tables JOIN pg_publication USING (pubname)
    WHERE (pubdelete OR pubupdate) AND (schemaname, tablename) IN (
      SELECT nspname, relname FROM tree JOIN pg_class ON oid = id
      JOIN pg_namespace n ON n.oid = relnamespace))
"""

COMMENT_ON = """
SELECT col_description(attrelid, attnum) FROM pg_attribute
WHERE attrelid = to_regclass(%s) AND attname = %s AND NOT attisdropped
"""

#: An index on all rows that begins with the column, for a role that may read it.
FINDS = """
SELECT 1 FROM pg_index JOIN pg_attribute ON attrelid = indrelid AND attnum = indkey[0]
WHERE indrelid = to_regclass(%s) AND attname = %s AND indisvalid AND indpred IS NULL
  AND has_column_privilege(attrelid, attnum, 'SELECT')
"""

COLUMNS = """
WITH RECURSIVE made_of AS (
    SELECT attnum, attname, atttypid AS type, atttypmod AS modifier,
           attgenerated <> '' OR attidentity = 'a' AS computed, false AS in_domain
    FROM pg_attribute
    WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped
  UNION ALL
    SELECT attnum, attname, typbasetype, typtypmod, computed, true
    FROM made_of JOIN pg_type ON pg_type.oid = type
    WHERE typtype = 'd'
)
SELECT attname, format_type(type, NULL), quote_ident(nspname) || '.' || quote_ident(t.typname),
       coalesce(element.typcategory, t.typcategory),
       CASE WHEN modifier >= 4 AND 'numeric'::regtype IN (t.oid, element.oid)
            THEN (((modifier - 4) & 2047) # 1024) - 1024 END,
       computed,
       CASE WHEN modifier >= 4 AND 'numeric'::regtype IN (t.oid, element.oid)
            THEN ((modifier - 4) >> 16) & 65535 END,
       in_domain
FROM made_of
JOIN pg_type t ON t.oid = type
JOIN pg_namespace ON pg_namespace.oid = t.typnamespace
LEFT JOIN pg_type element ON element.oid = t.typelem AND t.typcategory = 'A'
WHERE t.typtype <> 'd'
ORDER BY attnum
"""

#: Columns that take values as they come: a domain may check, and no precision of a time rounds.
SHOWN = """
SELECT attname, format_type(atttypid, NULL),
       CASE WHEN atttypid = 'numeric'::regtype AND atttypmod >= 4
            THEN (((atttypmod - 4) & 2047) # 1024) - 1024 END
FROM pg_attribute
WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped AND attgenerated = ''
  AND (atttypmod < 0 OR atttypid IN ('numeric'::regtype, 'character varying'::regtype))
ORDER BY attnum
"""

#: Columns of types that cut blanks, which would be too many, or round times.
BOUNDS = """
SELECT attname, atttypid IN ('varchar'::regtype, 'bpchar'::regtype),
       CASE WHEN atttypid IN ('varchar'::regtype, 'bpchar'::regtype)
            THEN atttypmod - 4 ELSE atttypmod END
FROM pg_attribute
WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped AND attgenerated = ''
  AND (atttypid IN ('varchar'::regtype, 'bpchar'::regtype) AND atttypmod >= 4
       OR atttypid IN ('timestamp'::regtype, 'timestamptz'::regtype)
          AND atttypmod BETWEEN 0 AND 5)
"""

#: Unless a trigger (before, insert: 2 and 4) may fill them in.
NEVER_NULL = """
SELECT attname FROM pg_attribute JOIN pg_type ON pg_type.oid = atttypid
WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped
  AND (attnotnull OR typnotnull) AND attgenerated = '' AND attidentity <> 'a'
  AND NOT EXISTS (
    SELECT FROM pg_trigger WHERE tgrelid = attrelid AND NOT tgisinternal AND tgtype & 6 = 6
  )
"""

#: Indexes that ON CONFLICT can use: unique, valid, checked at once, on plain columns, on all rows.
UNIQUE_KEYS = """
SELECT array_agg(attname::text)
FROM pg_index
JOIN pg_attribute ON attrelid = indrelid AND attnum = ANY (indkey[0:indnkeyatts - 1])
WHERE indrelid = to_regclass(%s) AND indisunique AND indisvalid AND indimmediate
  AND indpred IS NULL AND indexprs IS NULL
GROUP BY indexrelid
"""

PostgresColumn = Column[WireType, ColumnType]

#: Pages of a table in which a run looks for later rows, if staging confirms the ledger's head.
_NEWEST_PAGES = 64

#: The temporary table, of which every session has its own.
_STAGE = TableName("pg_temp", "_eo_stage")


class PostgresTable(SqlTable[WireType, ColumnType]):
    """A table. Upserts are ``MERGE``, or ``INSERT ... ON CONFLICT`` where that is not enough."""

    names: ClassVar[NameRules] = NAMES
    never_null: ClassVar[str | None] = NEVER_NULL
    bounds: ClassVar[str | None] = BOUNDS
    wire_type = staticmethod(wire_type)
    key_excludes = "not deferrable, not partial"
    store: PostgresStore

    def exists(self) -> bool:
        parts = self.store.rows(PARTS, self.name.sql, self.name.sql)
        for part, kind, persistence, hides_rows in parts:
            if wrong := KINDS.get(kind, "no table") or UNLOGGED.get(persistence):
                of = "" if part == parts[0][0] else f" has a part, {part}, that"
                raise ConfigError(
                    f"sink.table: {self.name}{of} is not an ordinary table but {wrong}: its rows "
                    "could be lost or change without the ledger."
                )
            if hides_rows:
                raise ConfigError(
                    f"sink.table: the row-level security of {part} applies to this role, which may "
                    "then see a part of the rows and take it for all. ALTER ROLE ... BYPASSRLS, or "
                    f"let the role own the table, or ALTER TABLE {part} DISABLE ROW LEVEL SECURITY."
                )
        return bool(parts)

    def shown(self) -> pa.Schema:
        if acts := self.acts_by_itself():
            raise RefusedError(f"{self.name} has {acts}, which may change what is written")
        fields = [
            pa.field(name, arrow)
            for name, kind, scale in self.store.rows(SHOWN, self.name.sql)
            if (arrow := shown_as(kind, scale)) is not None
        ]
        has_number = CHECKPOINT_COLUMN in [field.name for field in fields]
        return pa.schema(fields if has_number else [])

    def readable(self) -> list[ReadColumn]:
        columns = self.columns() if self.exists() else {}
        return [_read_column(name, kind) for name, kind in columns.items()]

    def acts_by_itself(self) -> str:
        return ", ".join(what for (what,) in self.store.rows(ACTORS, self.name.sql))

    def settle(self) -> None:
        self.store.execute("SET CONSTRAINTS ALL IMMEDIATE")

    def columns(self) -> dict[str, ColumnType]:
        rows = self.store.rows(COLUMNS, self.name.sql)
        return {name: ColumnType(*described) for name, *described in rows}

    def create(self, wires: Mapping[str, WireType], key: Sequence[str]) -> None:
        lines = [f"{quoted(name)} {wire.declared}" for name, wire in wires.items()]
        if key:
            lines.append(f"PRIMARY KEY ({columns_list(key)})")
        self.store.execute(f"CREATE TABLE {self.name.sql} ({', '.join(lines)})")
        if not key:  # for a publication, should there come one
            self.store.execute(_identified(self.name.sql))
        if CHECKPOINT_COLUMN in wires:
            self.index_checkpoints(key)
            self.mark()

    def index_checkpoints(self, key: Sequence[str]) -> None:  # noqa: ARG002
        """Rows arrive in the order of their checkpoints, which is what BRIN is made for: going back
        finds them, and the index stays at a few pages. Measured with 1.92M rows: COPY takes 3 %
        longer with it and 48 kB; with a btree 60 % longer and 12 MB. That no row is of a later
        checkpoint it tells of an upserted table too.
        """
        self.store.execute(
            f"CREATE INDEX ON {self.name.sql} USING brin ({quoted(CHECKPOINT_COLUMN)}) "
            "WITH (autosummarize = on)"
        )

    def add(self, wires: Mapping[str, WireType]) -> None:
        # another run may have added it just now: then bind() looks whether it fits
        added = [
            f"ADD COLUMN IF NOT EXISTS {quoted(name)} {wire.declared}"
            for name, wire in wires.items()
        ]
        self.store.execute(f"ALTER TABLE {self.name.sql} {', '.join(added)}")
        if CHECKPOINT_COLUMN in wires:
            self.mark()

    def retype(self, types: Mapping[str, str]) -> None:
        changes = [f"ALTER COLUMN {quoted(name)} TYPE {type_}" for name, type_ in types.items()]
        self.store.execute(f"ALTER TABLE {self.name.sql} {', '.join(changes)}")

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Until the transaction ends, which keeps readers away too, as changing a type does."""
        self.store.execute(f"LOCK TABLE {self.name.sql} IN ACCESS EXCLUSIVE MODE")
        yield

    def check_deletable(self) -> list[str]:
        """A table that is published by logical replication takes no DELETE and no UPDATE unless
        something tells its subscribers which row is meant: a primary key, or the whole old row.
        """
        parts = self.store.ask(UNIDENTIFIED, self.name.sql)
        if not_mine := [part for part, is_mine in parts if not is_mine]:
            raise RefusedError(
                f"{self.name} is in a publication, but has no replica identity (or primary key), "
                "so that PostgreSQL refuses DELETE and UPDATE. Nothing was changed. "
                f"Its owner must run: {'; '.join(map(_identified, not_mine))}"
            )
        return [_identified(part) for part, _ in parts]

    def checkpoint_comment(self, ask: Callable[..., list[Any]]) -> str | None:
        rows = ask(COMMENT_ON, self.name.sql, CHECKPOINT_COLUMN)
        return str(rows[0][0] or "") if rows else None

    def finds_checkpoints(self, ask: Callable[..., list[Any]]) -> bool:
        return bool(ask(FINDS, self.name.sql, CHECKPOINT_COLUMN))

    def has_later(self, version: str, *, thorough: bool) -> str:
        """Until autovacuum has summarized new pages, BRIN has them all read: 17 ms after 350,000
        new rows. A partitioned table has no pages of its own and is not read unless ``thorough``.
        """
        table, number = self.store.escaped(self.name.sql), quoted(CHECKPOINT_COLUMN)
        if thorough or not self.store.reads_page_ranges:
            return super().has_later(version, thorough=thorough)
        oid = f"to_regclass({Literal(table).as_string()})"
        pages = f"pg_relation_size({oid}) / current_setting('block_size')::int"
        # pg_relation_size is volatile: only as a subquery it bounds a scan
        first = f"(SELECT ('(' || greatest({pages} - {_NEWEST_PAGES}, 0) || ',0)')::tid)"
        return (
            f"EXISTS (SELECT 1 FROM {table} WHERE {number} > {version} AND ctid >= {first} "
            f"AND (SELECT relkind = 'r' FROM pg_class WHERE oid = {oid}))"
        )

    def mark(self) -> None:
        column = f"{self.name.sql}.{quoted(CHECKPOINT_COLUMN)}"
        self.store.execute(f"COMMENT ON COLUMN {column} IS '{self.comment}'")

    def unique_keys(self) -> list[set[str]]:
        return [set(names) for (names,) in self.store.rows(UNIQUE_KEYS, self.name.sql)]

    def insert(self, columns: Sequence[PostgresColumn], staged: StagedTable) -> int:
        if all(is_direct(column.type, column.wire) for column in columns):
            return self._copy(self.name, columns, staged)
        with self.staged_rows(columns, staged) as stage:
            inserted = self.store.execute(
                f"INSERT INTO {self.name.sql} ({_names(columns)}) "
                f"SELECT {self._all_sent(columns)} FROM {stage.sql}"
            )
            return int(inserted.rowcount)

    @contextmanager
    def staged_rows(
        self, columns: Sequence[PostgresColumn], staged: StagedTable
    ) -> Iterator[TableName]:
        """With the types the rows are sent in. Dropped here, so that the next table of the same
        transaction has the name; or else at the transaction's end.
        """
        types = ", ".join(f"{quoted(column.name)} {column.wire.sent}" for column in columns)
        self.store.execute(f"CREATE TEMP TABLE {_STAGE.sql} ({types}) ON COMMIT DROP")
        self._copy(_STAGE, columns, staged)
        yield _STAGE
        self.store.execute(f"DROP TABLE {_STAGE.sql}")

    def sent(self, column: PostgresColumn) -> str:
        return conversion(column.type, column.wire, quoted(column.name))

    def _all_sent(self, columns: Sequence[PostgresColumn]) -> str:
        return ", ".join(map(self.sent, columns))

    def merge_in_order(
        self, stage: TableName, columns: Sequence[PostgresColumn], rule: UpsertRule
    ) -> bool:
        """By ``MERGE``, which fails where a key comes twice: there is one staged row of each key
        and partition, and a row from another partition is not the same. With the checks that it
        saves, it takes half the time of ``INSERT ... ON CONFLICT`` for a million rows, most of them
        new. No table with rules takes it, and it fails where somebody else inserts a key meanwhile.
        """
        if not self.store.has_merge or self.acts_by_itself():
            return False
        rest = [quoted(column.name) for column in columns if column.name not in rule.key]
        updates = ", ".join(f"{name} = fresh.{name}" for name in rest)
        values = ", ".join(f"fresh.{quoted(column.name)}" for column in columns)
        same, unless_older = same_key(rule, "old", "fresh"), ""
        if rule.sequence_by:
            unless_older = f"AND ({gives_way(rule, 'old', 'fresh')})"
        else:
            same = f"{same} AND ({moved('old', 'fresh')}) IS NOT TRUE"
        newest = self._newest(stage, columns, rule, () if rule.sequence_by else ORIGIN)
        update = f"WHEN MATCHED {unless_older} THEN UPDATE SET {updates} " if rest else ""
        try:
            with self.store.connection.transaction():  # a savepoint
                self.store.execute(
                    f"MERGE INTO {self.name.sql} AS old USING ({newest}) AS fresh ON {same} "
                    f"{update}WHEN NOT MATCHED THEN INSERT ({_names(columns)}) VALUES ({values})"
                )
        except (psycopg.errors.UniqueViolation, psycopg.errors.CardinalityViolation) as error:
            log.info("%s: not by MERGE, because of %s", self.name, error)
            return False
        return True

    def merge(self, stage: TableName, columns: Sequence[PostgresColumn], rule: UpsertRule) -> str:
        return (
            f"INSERT INTO {self.name.sql} AS old ({_names(columns)}) "
            f"{self._newest(stage, columns, rule)} ON CONFLICT ({columns_list(rule.key)}) "
            f"{_on_conflict(columns, rule)}"
        )

    def _newest(
        self,
        stage: TableName,
        columns: Sequence[PostgresColumn],
        rule: UpsertRule,
        origin: Sequence[str] = (),
    ) -> str:
        """Return the query of the newest staged row of each key, and ``origin``."""
        alike = columns_list((*rule.key, *origin))
        newest = newest_first(rule, [column.name for column in columns])
        sent = ", ".join(f"{self.sent(column)} AS {quoted(column.name)}" for column in columns)
        return f"SELECT DISTINCT ON ({alike}) {sent} FROM {stage.sql} ORDER BY {alike}, {newest}"

    def _copy(
        self, target: TableName, columns: Sequence[PostgresColumn], staged: StagedTable
    ) -> int:
        """One binary COPY of all rows; how many were taken. The target's types must be exactly what
        is sent.
        """
        statement = f"COPY {target.sql} ({_names(columns)}) FROM STDIN WITH (FORMAT binary)"
        rows = 0
        with self.store.connection.cursor() as cursor:
            with cursor.copy(statement.encode()) as stream:
                for some, encoded in _encoded(columns, staged):
                    rows += some
                    stream.write(encoded)
                check_all_sent(target, rows, staged)
            return cursor.rowcount


#: The form of rows that an earlier release staged in PostgreSQL's binary COPY format.
FORM = "postgres-copy-1"

#: Around the rows (PostgreSQL's manual, "COPY", "File Header" and "File Trailer"): no flags.
HEADER = b"PGCOPY\n\xff\r\n\0" + bytes(8)
TRAILER = b"\xff\xff"


def bytes_of(rows: pa.BinaryArray) -> memoryview:
    """All of ``rows`` one behind the other; none of them is null."""
    _, offsets, values = rows.buffers()
    if not len(rows) or values is None:
        return memoryview(b"")
    places = memoryview(offsets).cast("i")[rows.offset : rows.offset + len(rows) + 1]
    return memoryview(values)[places[0] : places[-1]]


def _encoded(
    columns: Sequence[PostgresColumn], staged: StagedTable
) -> Iterator[tuple[int, bytes | memoryview]]:
    """Yield the pieces of a binary COPY, each with the number of rows that end in it."""
    if staged.form is not None:
        yield 0, HEADER
        yield from ((len(rows), bytes_of(rows)) for rows in staged.packed(FORM))
        yield 0, TRAILER
        return
    encoder = _Encoder.of(columns)
    yield 0, encoder.pgpq.write_header()
    for batch in bounded_batches(staged):
        yield batch.num_rows, encoder.pgpq.write_batch(encoder.encodable(batch))
    yield 0, encoder.pgpq.finish()


def _identified(table: str) -> str:
    return f"ALTER TABLE {table} REPLICA IDENTITY FULL"


def _read_column(name: str, kind: ColumnType) -> ReadColumn:
    """Arrays are read as lists; what Arrow has no type for as PostgreSQL writes it in text."""
    element = kind.name.removesuffix("[]")
    arrow = shown_as(element, kind.scale)
    if arrow is None or kind.is_domain:
        return ReadColumn.own_form(name, f"{quoted(name)}::text AS {quoted(name)}")
    return ReadColumn.exact(name, pa.list_(arrow) if kind.is_array else arrow)


@dataclass(frozen=True)
class _Encoder:
    """A :mod:`pgpq` encoder and the Arrow columns it was made for."""

    pgpq: pgpq.ArrowToPostgresBinaryEncoder
    columns: Sequence[PostgresColumn]
    schema: pa.Schema

    @classmethod
    def of(cls, columns: Sequence[PostgresColumn]) -> _Encoder:
        schema = pa.schema([pa.field(column.name, column.wire.arrow) for column in columns])
        builders = {
            field.name: StringEncoderBuilder.new_with_output(field, Jsonb())
            if column.wire.sent == "jsonb"
            else pgpq.ArrowToPostgresBinaryEncoder.infer_encoder(field)
            for field, column in zip(schema, columns, strict=True)
        }
        encoder = pgpq.ArrowToPostgresBinaryEncoder.new_with_encoders(schema, builders)
        return cls(encoder, columns, schema)

    def encodable(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        arrays = [_encodable(batch.column(c.name), c) for c in self.columns]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)


def _encodable(values: pa.Array, column: PostgresColumn) -> pa.Array:
    with refusing(column.name, "PostgreSQL"):
        sendable = json_array(values) if column.wire.sent == "jsonb" else values
        return sendable.cast(column.wire.arrow)


def _names(columns: Sequence[PostgresColumn]) -> str:
    return columns_list(column.name for column in columns)


def _on_conflict(columns: Sequence[PostgresColumn], rule: UpsertRule) -> str:
    rest = [quoted(column.name) for column in columns if column.name not in rule.key]
    if not rest:
        return "DO NOTHING"
    updates = ", ".join(f"{name} = excluded.{name}" for name in rest)
    unless_older = f" WHERE {gives_way(rule, 'old', 'excluded')}" if rule.sequence_by else ""
    return f"DO UPDATE SET {updates}{unless_older}"


_HEADERS = "headers"
_NUL, _REPLACEMENT = "\0", "\N{REPLACEMENT CHARACTER}"


class DeadLetters(StagedTable):
    """Staged dead letters whose headers can be stored as JSON.

    Keys and values of records are binary and stored as they are. A header's name is text that any
    producer may choose; the NUL character in it, which databases do not store, is replaced.
    """

    @classmethod
    def of(cls, staged: StagedTable) -> DeadLetters:
        return cls(**vars(staged))

    def batches(self) -> Iterator[pa.RecordBatch]:
        for batch in super().batches():
            place = batch.schema.get_field_index(_HEADERS)
            field = batch.schema.field(place)
            headers = [_storable(headers) for headers in batch.column(place).to_pylist()]
            yield batch.set_column(place, field, pa.array(headers, field.type))


def _storable(headers: list[dict[str, str | bytes]] | None) -> list[dict[str, str | bytes]] | None:
    if headers is None:
        return None
    return [
        {name: v.replace(_NUL, _REPLACEMENT) if isinstance(v, str) else v for name, v in h.items()}
        for h in headers
    ]


#: Data exceptions, and what is checked of a row by itself: not null, and CHECK.
_OF_A_ROW = ("22", "23502", "23514")

_ROWS = TableName("pg_temp", "_eo_numbered")
_COPY = TableName("pg_temp", "_eo_copy")
_NUMBER = quoted("_eo_row")


def is_of_a_row(error: BaseException | None) -> bool:
    """True if a row by itself was refused, not how it stands to others."""
    return isinstance(error, psycopg.Error) and (error.sqlstate or "").startswith(_OF_A_ROW)


def refused_records(table: PostgresTable, staged: StagedTable, most: int) -> list[dict[str, Any]]:
    """The records, at most so many, of which a row is refused: with ``topic``, ``partition``,
    ``offset`` and ``error``. None of rows that do not say where they came from, or for a table with
    triggers, which may make of a row what the copy would refuse.
    """
    if not {*COORDINATES} <= {*staged.schema.names} or table.acts_by_itself():
        return []
    records: dict[tuple[Any, ...], dict[str, Any]] = {}
    with table.store.transaction():
        columns = bind(table, staged.schema)
        with table.staged_rows(columns, staged) as stage:
            numbered = f"SELECT row_number() OVER () AS {_NUMBER}, * FROM {stage.sql}"
            for statement in (
                f"CREATE TEMP TABLE {_ROWS.sql} ON COMMIT DROP AS {numbered}",
                f"CREATE INDEX ON {_ROWS.sql} ({_NUMBER})",
                f"CREATE TEMP TABLE {_COPY.sql} (LIKE {table.name.sql} INCLUDING CONSTRAINTS "
                "INCLUDING GENERATED INCLUDING DEFAULTS) ON COMMIT DROP",
            ):
                table.store.execute(statement)
            insert = (
                f"INSERT INTO {_COPY.sql} ({columns_list(column.name for column in columns)}) "
                f"SELECT {', '.join(map(table.sent, columns))} FROM {_ROWS.sql}"
            )
            for number, error in _refused(table, insert, staged.rows):
                record = _coordinates(table, number)
                records.setdefault((*record.values(),), {**record, "error": _in_words(error)})
                if len(records) >= most:
                    break
    return [*records.values()]


def _refused(table: PostgresTable, insert: str, rows: int) -> Iterator[tuple[int, psycopg.Error]]:
    """The numbers of the rows that are refused, and why."""
    halves = [(1, rows)] if rows else []
    while halves:
        first, last = halves.pop()
        table.store.execute("SAVEPOINT half")
        try:
            table.store.execute(f"{insert} WHERE {_NUMBER} BETWEEN {first} AND {last}")
        except psycopg.Error as error:
            if not is_of_a_row(error):
                raise
            table.store.execute("ROLLBACK TO half")
            if first == last:
                yield first, error
            else:
                middle = (first + last) // 2
                halves += [(middle + 1, last), (first, middle)]
        else:
            table.store.execute("ROLLBACK TO half")


def _coordinates(table: PostgresTable, number: int) -> Mapping[str, Any]:
    names = columns_list(COORDINATES)
    row = table.store.rows(f"SELECT {names} FROM {_ROWS.sql} WHERE {_NUMBER} = {number}")[0]
    return record_of(dict(zip(COORDINATES, row, strict=True)))


def _in_words(error: psycopg.Error) -> str:
    """Without the row, which it may show whole."""
    return f"PostgreSQL refuses the row: {error.diag.message_primary} (SQLSTATE {error.sqlstate})"


class PostgresSession(SqlSession):
    """See :class:`~eo_pipeline.sinks.sql.session.SqlSession`. The loser of two publishers is told
    of a unique violation; where the parent is not in the ledger, nothing is inserted.
    """

    store_class = PostgresStore
    table_class = PostgresTable
    table: PostgresTable

    def refused_records(
        self, error: RefusedError, staged: StagedOutput, most: int
    ) -> list[dict[str, Any]]:
        if staged.rows is None or not is_of_a_row(error.__cause__):
            return []
        try:
            return refused_records(self.table, staged.rows, most)
        except self.store.driver_error as failed:
            raise self.store.while_publishing(self.store.diagnose(failed)) from failed

    def storable(self, dead_letters: StagedTable) -> StagedTable:
        return DeadLetters.of(dead_letters)
