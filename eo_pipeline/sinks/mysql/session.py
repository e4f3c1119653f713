"""One pipeline's session with MySQL or MariaDB: loading rows, and finding those refused."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc
import pymysql
from pyarrow import csv

from eo_pipeline.errors import ConfigError, RefusedError, SchemaChangeError, SinkUnavailableError
from eo_pipeline.ledger.entry import CHECKPOINT_COLUMN
from eo_pipeline.sinks.arrow import (
    Kind,
    bounded_batches,
    check_all_sent,
    has_common_years,
    json_array,
    refusing,
)
from eo_pipeline.sinks.mysql.connection import (
    COLUMN_EXISTS,
    NOT_ALLOWED,
    PACKET_BYTES,
    MySqlStore,
    is_mariadb,
)
from eo_pipeline.sinks.mysql.errors import diagnosis, number_of
from eo_pipeline.sinks.mysql.types import (
    NAMES,
    ColumnType,
    WireType,
    for_people,
    read_as,
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
    newest_first,
    record_of,
    same_key,
)
from eo_pipeline.sinks.upsert import UpsertRule
from eo_pipeline.staging.rows import StagedOutput, StagedTable

MySqlColumn = Column[WireType, ColumnType]

_MICROSECOND_DIGITS = 6

#: Texts in quotes, null as the bare word NULL: so are null, the text NULL and an empty text told
#: apart. Without ``null_string`` a null would be written as nothing, which MySQL reads as a text.
_CSV = csv.WriteOptions(include_header=False, quoting_style="needed", null_string="NULL")
_CSV_IN_SQL = """
CHARACTER SET utf8mb4
FIELDS TERMINATED BY ',' ENCLOSED BY '"' ESCAPED BY '' LINES TERMINATED BY '\\n'
"""

#: An INSERT is sent when it has grown to this many characters; every server takes four times that.
_INSERT_LENGTH = 256 * 1024


def load(
    store: MySqlStore,
    target: TableName,
    columns: Sequence[MySqlColumn],
    staged: StagedTable,
    *,
    by_insert: bool = False,
) -> int:
    """Add the rows to ``target`` in the open transaction, each exactly or none. Gives how many the
    server says that it took. ``by_insert`` and not by LOAD DATA.

    Raises:
        RefusedError: the rows do not fit, or could not be read from staging.
        SinkUnavailableError: the server could not take them just now.
    """
    if not staged.rows:
        return 0
    return _Load(store, target, columns, staged, may_load=store.may_load and not by_insert).run()


@dataclass
class _Load:
    """One load; ``sent`` counts its rows, ``taken`` those that the server says it took."""

    store: MySqlStore
    target: TableName
    columns: Sequence[MySqlColumn]
    staged: StagedTable
    may_load: bool = True
    sent: int = 0
    taken: int = 0

    def run(self) -> int:
        if not (self.may_load and self._load_data()):
            self._insert()
        check_all_sent(self.target, self.sent, self.staged)
        if self.taken != self.sent:
            raise RefusedError(
                f"{self.target}: MySQL took {self.taken} of {self.sent} rows and does not say why. "
                "Nothing was written."
            )
        return self.taken

    def _load_data(self) -> bool:
        """False if the server does not allow it. Then nothing was sent."""
        try:
            self.taken = self.store.connection.load(
                _statement(self.target, self.columns), self._csv()
            )
        except pymysql.MySQLError as error:
            if number_of(error) in NOT_ALLOWED:
                self.store.may_load = False
                return False
            raise
        # LOCAL turns errors into warnings: what does not fit is bent, or the row left out
        self._refuse_warnings()
        return True

    def _refuse_warnings(self) -> None:
        """Raise what the warnings mean: the first, unless one of them only asks for patience.

        Raises:
            RefusedError: a value did not fit.
            SinkUnavailableError: nothing is said against the rows.
        """
        count = self.store.connection.warnings
        shown = self.store.rows("SHOW WARNINGS LIMIT 5") if count else []
        warnings = [diagnosis(int(number), str(text)) for _, number, text in shown]
        transient = [warning for warning in warnings if warning.is_transient]
        if warnings:
            raise self.store.while_publishing((transient or warnings)[0], self.target)
        if count:
            raise RefusedError(
                f"{self.target}: MySQL warns of {count} values that do not fit, and does not say "
                "of which: max_error_count is 0. Nothing was written. SET GLOBAL max_error_count "
                "= 64 shows them."
            )

    def _csv(self) -> Iterator[memoryview]:
        """The rows in packets. The next batch is written while the server digests this one."""
        texts = map(_as_csv, self._batches())
        with ThreadPoolExecutor(1) as writer:
            coming = writer.submit(next, texts, None)
            while (text := coming.result()) is not None:
                coming = writer.submit(next, texts, None)
                for start in range(0, len(text), PACKET_BYTES):
                    yield text[start : start + PACKET_BYTES]

    def _insert(self) -> None:
        names = columns_list(column.name for column in self.columns)
        for batch in self._batches():
            for rows in self._values(batch):
                insert = f"INSERT INTO {self.target.sql} ({names}) VALUES {rows}"
                self.taken += self.store.execute(insert).rowcount
                # strict mode makes errors of what does not fit, but not of all that is rounded
                self._refuse_warnings()

    def _values(self, batch: pa.RecordBatch) -> Iterator[str]:
        """Rows as literals, as many at a time as one statement takes."""
        escape = self.store.connection.escape
        rows: list[str] = []
        length = 0
        for row in zip(*map(_python_values, batch.schema.names, batch.columns), strict=True):
            rows.append(f"({','.join(_literal(value, escape) for value in row)})")
            length += len(rows[-1])
            if length > _INSERT_LENGTH:
                yield ",".join(rows)
                rows, length = [], 0
        if rows:
            yield ",".join(rows)

    def _batches(self) -> Iterator[pa.RecordBatch]:
        for batch in bounded_batches(self.staged):
            self.sent += batch.num_rows
            yield _readable_batch(batch, self.columns)


def _statement(target: TableName, columns: Sequence[MySqlColumn]) -> str:
    """LOAD DATA for rows of :data:`_CSV`. The file's name means nothing: see ``Connection``."""
    variables = {c.name: f"@eo{n}" for n, c in enumerate(columns) if c.wire.kind is Kind.BINARY}
    fields = ", ".join(variables.get(c.name) or quoted(c.name) for c in columns)
    unhex = ", ".join(f"{quoted(name)} = UNHEX({variable})" for name, variable in variables.items())
    set_clause = f" SET {unhex}" if unhex else ""
    return (
        f"LOAD DATA LOCAL INFILE 'eo-pipeline' INTO TABLE {target.sql} {_CSV_IN_SQL} "
        f"({fields}){set_clause}"
    )


def _as_csv(batch: pa.RecordBatch) -> memoryview:
    text = pa.BufferOutputStream()
    csv.write_csv(_in_hex(batch), text, _CSV)
    return memoryview(text.getvalue())


def _in_hex(batch: pa.RecordBatch) -> pa.RecordBatch:
    """``batch`` with bytes as hexadecimal digits: a character set has no say in those."""
    arrays = [
        pa.array([None if value is None else value.hex() for value in column.to_pylist()])
        if pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type)
        else column
        for column in batch.columns
    ]
    return pa.RecordBatch.from_arrays(arrays, names=batch.schema.names)


def _readable_batch(batch: pa.RecordBatch, columns: Sequence[MySqlColumn]) -> pa.RecordBatch:
    """``batch`` with booleans as numbers, times in UTC without saying so, nested values as JSON.

    Raises:
        RefusedError: a value that MySQL would bend: NaN, infinity, a part of a second that the
            column does not keep, a null where the column has none.
    """
    arrays = [_readable(batch.column(column.name), column) for column in columns]
    return pa.RecordBatch.from_arrays(arrays, names=[column.name for column in columns])


def _readable(values: pa.Array, column: MySqlColumn) -> pa.Array:
    if not column.type.nullable and values.null_count:
        # LOAD DATA would put in zero, the present time or the next number
        raise _refused(column, f"{values.null_count} null(s), and the column is NOT NULL")
    with refusing(column.name, "MySQL"):
        return _converted(values, column)


def _converted(values: pa.Array, column: MySqlColumn) -> pa.Array:
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    kind = column.wire.kind
    if kind is Kind.NESTED:
        return json_array(values)
    if kind is Kind.BOOLEAN:
        return values.cast(pa.int8())
    if kind in (Kind.FLOAT, Kind.DOUBLE):
        return _finite(values, column)
    if kind is Kind.TEXT:
        values.validate(full=True)  # an INSERT is made of texts that Python can read
    if kind in (Kind.TIMESTAMP, Kind.TIMESTAMP_NTZ):
        values = _in_utc(values, column)
    if not has_common_years(values):
        raise _refused(column, "a year before 1 or after 9999")
    return values


def _finite(values: pa.Array, column: MySqlColumn) -> pa.Array:
    if not pc.all(pc.is_finite(values), min_count=0).as_py():
        raise _refused(column, "NaN or infinity, which MySQL has not")
    # a float's shortest text names another double than the float is
    return values.cast(pa.float64()) if column.type.data_type == "double" else values


def _in_utc(values: pa.Array, column: MySqlColumn) -> pa.Array:
    instants = values.cast(pa.timestamp("us", values.type.tz)).cast(pa.timestamp("us"))
    digits = column.type.digits or 0
    if digits < _MICROSECOND_DIGITS:
        step = 10 ** (_MICROSECOND_DIGITS - digits)
        ticks = instants.cast(pa.int64())
        if pc.any(pc.not_equal(pc.multiply(pc.divide(ticks, step), step), ticks)).as_py():
            raise _refused(
                column, f"parts of a second that {column.type.spelled} does not keep; "
                "round them in the transform, or make the column datetime(6)",
            )  # fmt: skip
    return instants


def _refused(column: MySqlColumn, what: str) -> RefusedError:
    return RefusedError(
        f"column {column.name!r} holds values that MySQL cannot take: {what}. "
        "Nothing was written; correct them in the transform."
    )


def _python_values(name: str, column: pa.Array) -> list[Any]:
    with refusing(name, "MySQL"):
        values: list[Any] = column.to_pylist()
    return values


def _literal(value: Any, quote: Any) -> str:
    """``value`` of a :func:`_readable_batch` column in a statement; ``quote`` encloses a text."""
    if value is None:
        return "NULL"
    if isinstance(value, bytes):
        return f"X'{value.hex()}'"
    if isinstance(value, int | float):
        return repr(value)
    return str(quote(str(value)))


_KIND = """
SELECT table_type, engine FROM information_schema.tables
WHERE table_schema = %s AND table_name = %s
"""

_COLUMNS = """
SELECT column_name, lower(data_type), lower(column_type),
       coalesce(numeric_scale, datetime_precision), collation_name, is_nullable = 'YES',
       extra LIKE '%% GENERATED%%',
       extra LIKE '%%auto_increment%%',
       column_default IS NOT NULL OR extra LIKE '%%DEFAULT_GENERATED%%',
       numeric_precision, column_comment,
       extra <> '' OR column_default <> 'NULL', extra
FROM information_schema.columns
WHERE table_schema = %s AND table_name = %s
ORDER BY ordinal_position
"""

#: Of MariaDB: a new declaration of the column would drop its own.
_CHECKS = """
SELECT constraint_name FROM information_schema.check_constraints
WHERE constraint_schema = %s AND table_name = %s AND level = 'Column'
"""

_COMMENT_ON = """
SELECT column_comment FROM information_schema.columns
WHERE table_schema = %s AND table_name = %s AND column_name = %s
"""

_NEVER_NULL = """
SELECT column_name FROM information_schema.columns
WHERE table_schema = %s AND table_name = %s AND is_nullable = 'NO'
  AND extra NOT LIKE '%% GENERATED%%'
"""

#: Times are rounded; too many blanks are told by a warning.
_BOUNDS = """
SELECT column_name, 0, datetime_precision FROM information_schema.columns
WHERE table_schema = %s AND table_name = %s AND data_type IN ('datetime', 'timestamp')
  AND datetime_precision < 6
"""

_UNIQUE_KEYS = """
SELECT index_name, column_name, sub_part FROM information_schema.statistics
WHERE table_schema = %s AND table_name = %s AND non_unique = 0
ORDER BY index_name, seq_in_index
"""

#: An index that begins with the column.
_FINDS = """
SELECT 1 FROM information_schema.statistics
WHERE table_schema = %s AND table_name = %s AND column_name = %s AND seq_in_index = 1
"""

_TRIGGERS = """
SELECT trigger_name FROM information_schema.triggers
WHERE event_object_schema = %s AND event_object_table = %s
ORDER BY 1
"""

#: Triggers are shown only to those who may make them. A right that comes by a role is not found:
#: then it is counted for nothing, which costs time and no row.
_SEES_TRIGGERS = """
SELECT count(*) FROM (
    SELECT grantee FROM information_schema.user_privileges WHERE privilege_type = 'TRIGGER'
  UNION ALL
    SELECT grantee FROM information_schema.schema_privileges
    WHERE privilege_type = 'TRIGGER' AND %s LIKE table_schema
  UNION ALL
    SELECT grantee FROM information_schema.table_privileges
    WHERE privilege_type = 'TRIGGER' AND table_schema = %s AND table_name = %s
) AS granted
WHERE grantee = concat('''', substring_index(current_user(), '@', 1), '''@''',
                       substring_index(current_user(), '@', -1), '''')
"""

#: Two texts are the same only if all their bytes are, blanks at the end included.
_COLLATIONS = {True: "utf8mb4_nopad_bin", False: "utf8mb4_0900_bin"}

#: The temporary table, of which every session has its own; and the rank of a row in it.
_STAGE = TableName(None, "_eo_stage")
_RANK = quoted("_eo_rank")

#: Counts the rows of a table that has no key of its own; nobody sees it who does not name it.
_COUNT = quoted("_eo_row")


class MySqlTable(SqlTable[WireType, ColumnType]):
    """A table of InnoDB. Upserts are ``INSERT ... ON DUPLICATE KEY UPDATE``."""

    names: ClassVar[NameRules] = NAMES
    never_null: ClassVar[str | None] = _NEVER_NULL
    bounds: ClassVar[str | None] = _BOUNDS
    wire_type = staticmethod(wire_type)
    key_excludes = "not on prefixes"
    store: MySqlStore

    @property
    def parameters(self) -> tuple[str | None, ...]:
        return (self.name.schema, self.name.name)

    def exists(self) -> bool:
        rows = self.store.rows(_KIND, self.name.schema, self.name.name)
        if not rows:
            return False
        kind, engine = rows[0]
        if "VIEW" in kind or engine is None:
            raise ConfigError(f"sink.table: {self.name} is not an ordinary table but a {kind}")
        if engine != "InnoDB":
            raise ConfigError(
                f"sink.table: {self.name} is kept by {engine}, which has no transactions: its rows "
                "could not become visible together with the ledger. "
                f"ALTER TABLE {for_people(self.name)} ENGINE = InnoDB"
            )
        return True

    def acts_by_itself(self) -> str:
        """MySQL's triggers cannot drop a row, but give it to another checkpoint."""
        if triggers := self.store.rows(_TRIGGERS, *self.parameters):
            return ", ".join(f"the trigger {name}" for (name,) in triggers)
        if self.store.rows(_SEES_TRIGGERS, self.name.schema, *self.parameters)[0][0]:
            return ""
        return "triggers of the table, if it has any: this user may not see them (GRANT TRIGGER)"

    def columns(self) -> dict[str, ColumnType]:
        rows = self.store.rows(_COLUMNS, self.name.schema, self.name.name)
        return {self.names.fold(name): _column_type(described) for name, *described in rows}

    def readable(self) -> list[ReadColumn]:
        rows = self.store.rows(_COLUMNS, self.name.schema, self.name.name)
        seen = (row for row in rows if "INVISIBLE" not in row[-1])
        return [read_as(name, _column_type(described)) for name, *described in seen]

    def create(self, wires: Mapping[str, WireType], key: Sequence[str]) -> None:
        lines = [
            f"{quoted(name)} "
            + (f"{wire.as_key} NOT NULL" if name in key else wire.nullable)
            + self._commented(name)
            for name, wire in wires.items()
        ]
        if key:
            lines.append(f"PRIMARY KEY ({columns_list(key)})")
        else:
            lines += self._counted("INVISIBLE")
            if CHECKPOINT_COLUMN in wires:
                lines.append(f"KEY ({quoted(CHECKPOINT_COLUMN)})")
        collation = _COLLATIONS[is_mariadb(self.store.connection)]
        self.store.execute(
            f"CREATE TABLE IF NOT EXISTS {self.name.sql} ({', '.join(lines)}) ENGINE = InnoDB "
            f"DEFAULT CHARACTER SET utf8mb4 COLLATE {collation}"
        )

    def add(self, wires: Mapping[str, WireType]) -> None:
        alter = f"ALTER TABLE {self.name.sql}"
        for name, wire in wires.items():
            try:
                self.store.execute(
                    f"{alter} ADD COLUMN {quoted(name)} {wire.nullable}" + self._commented(name)
                )
            except pymysql.OperationalError as error:
                if number_of(error) != COLUMN_EXISTS:
                    raise
                # another run added it just now; bind() looks whether it fits

    def index_checkpoints(self, key: Sequence[str]) -> None:
        """Not of an upserted table: rows that are replaced would each move in it, and no row is
        doubled there.
        """
        if key or self.finds_checkpoints(self.store.rows):
            return
        index = f"ADD KEY ({quoted(CHECKPOINT_COLUMN)})"
        self.store.execute(f"ALTER TABLE {self.name.sql} {index}")

    def retype(self, types: Mapping[str, str]) -> None:
        columns = self.columns()
        self._refuse_checks(types)
        changes = [
            f"MODIFY COLUMN {quoted(name)} {type_}"
            f" COMMENT {self.store.literal(columns[self.names.fold(name)].comment)}"
            for name, type_ in types.items()
        ]
        self.store.execute(f"ALTER TABLE {self.name.sql} {', '.join(changes)}")

    def mark(self) -> None:
        column = self.columns()[CHECKPOINT_COLUMN]
        declared = f"{column.spelled} {'NULL' if column.nullable else 'NOT NULL'}"
        self.store.execute(
            f"ALTER TABLE {self.name.sql} MODIFY COLUMN {quoted(CHECKPOINT_COLUMN)} {declared}"
            f"{self._commented(CHECKPOINT_COLUMN)}"
        )

    def _refuse_checks(self, types: Mapping[str, str]) -> None:
        checked = set()
        if is_mariadb(self.store.connection):
            rows = self.store.rows(_CHECKS, self.name.schema, self.name.name)
            checked = {self.names.fold(name) for (name,) in rows}
        for name, type_ in types.items():
            if self.names.fold(name) in checked:
                raise SchemaChangeError(
                    f"column {name!r} of {self.name} is too narrow, and has a CHECK of its own, "
                    "which must be said again with its type. Nothing was written. ALTER TABLE "
                    f"{for_people(self.name)} MODIFY {for_people(name)} {type_} CHECK (...)"
                )

    @contextmanager
    def alone(self) -> Iterator[None]:
        """By a lock that other runs ask for too: changing a type is no transaction's business."""
        name = f"eo-{hashlib.sha256(self.name.sql.encode()).hexdigest()[:32]}"
        seconds = math.ceil(self.store.sink.lock_timeout)
        if self.store.rows("SELECT GET_LOCK(%s, %s)", name, seconds)[0][0] != 1:
            raise SinkUnavailableError(
                f"{self.name}: another run has been widening a column of the table for {seconds} "
                "s. Nothing was written; the next run tries again."
            )
        try:
            yield
        finally:
            if self.store.is_open:
                self.store.rows("SELECT RELEASE_LOCK(%s)", name)

    def checkpoint_comment(self, ask: Callable[..., list[Any]]) -> str | None:
        rows = ask(_COMMENT_ON, self.name.schema, self.name.name, CHECKPOINT_COLUMN)
        return str(rows[0][0] or "") if rows else None

    def finds_checkpoints(self, ask: Callable[..., list[Any]]) -> bool:
        return bool(ask(_FINDS, self.name.schema, self.name.name, CHECKPOINT_COLUMN))

    def has_later(self, version: str, *, thorough: bool) -> str:  # noqa: ARG002
        """The last entry of the index; MySQL would look for EXISTS through the whole table."""
        table, number = self.store.escaped(self.name.sql), quoted(CHECKPOINT_COLUMN)
        return f"coalesce((SELECT max({number}) FROM {table}) > {version}, 0)"

    def _counted(self, more: str = "") -> list[str]:
        """A column that makes a primary key, where the server wants one and no other serves."""
        if not self.store.needs_primary_keys:
            return []
        return [f"{_COUNT} bigint unsigned NOT NULL AUTO_INCREMENT {more} PRIMARY KEY"]

    def _commented(self, name: str) -> str:
        return f" COMMENT '{self.comment}'" if name == CHECKPOINT_COLUMN else ""

    def insert(self, columns: Sequence[MySqlColumn], staged: StagedTable) -> int:
        given = {self.names.fold(column.name) for column in columns}
        absent = {name for name, column in self.columns().items() if column.must_be_given} - given
        # LOAD DATA would put something into these; INSERT asks the table, and its triggers
        return load(self.store, self.name, columns, staged, by_insert=bool(absent))

    def retyping(self, name: str, declared: str) -> str:
        return f"ALTER TABLE {for_people(self.name)} MODIFY {for_people(name)} {declared}"

    def as_shown(self, name: str | TableName) -> str:
        return for_people(name)

    def check_other_keys(self, key: Sequence[str], wires: Mapping[str, WireType]) -> None:
        """Refuse another unique key: a row that met it would replace a row not its own."""
        wanted, sent = set(map(self.names.fold, key)), set(map(self.names.fold, wires))
        counted = {name for name, column in self.columns().items() if column.is_counted}
        for names in self.unique_keys():
            if names != wanted and not names & (counted - sent):
                raise ConfigError(
                    f"sink.key: {self.name} has another unique constraint, on "
                    f"({', '.join(sorted(names))}). MySQL's ON DUPLICATE KEY UPDATE would let a "
                    "row replace one with another key. Nothing was written. Drop that constraint, "
                    "or make it the key."
                )

    def unique_keys(self) -> list[set[str]]:
        """Prefixes and expressions match no column."""
        indexes: dict[str, set[str]] = {}
        rows = self.store.rows(_UNIQUE_KEYS, self.name.schema, self.name.name)
        for index, column, prefix in rows:
            whole = column is not None and prefix is None
            name = self.names.fold(column) if whole else f"{column}({prefix})"
            indexes.setdefault(index, set()).add(name)
        return list(indexes.values())

    @contextmanager
    def staged_rows(
        self, columns: Sequence[MySqlColumn], staged: StagedTable
    ) -> Iterator[TableName]:
        """Neither making it nor dropping it commits what is open, as it does for other tables."""
        drop = f"DROP TEMPORARY TABLE IF EXISTS {_STAGE.sql}"
        lines = [*(f"{quoted(c.name)} {c.type.declared}" for c in columns), *self._counted()]
        types = ", ".join(lines)
        self.store.execute(drop)
        self.store.execute(f"CREATE TEMPORARY TABLE {_STAGE.sql} ({types}) ENGINE = InnoDB")
        load(self.store, _STAGE, columns, staged)
        yield _STAGE
        self.store.execute(drop)

    def merge(self, stage: TableName, columns: Sequence[MySqlColumn], rule: UpsertRule) -> str:
        names = [column.name for column in columns]
        rest = [quoted(name) for name in names if name not in rule.key]
        # a table of keys alone: a row that is there already is left as it is
        first = quoted(rule.key[0])
        updates = ", ".join(f"{n} = VALUES({n})" for n in rest) or f"{first} = VALUES({first})"
        chosen = ", ".join(f"fresh.{quoted(name)}" for name in names)
        return (
            f"INSERT INTO {self.name.sql} ({columns_list(names)}) "
            f"SELECT {chosen} FROM ({_ranked(stage, names, rule)}) AS fresh"
            f"{self._unless_older(rule)} ON DUPLICATE KEY UPDATE {updates}"
        )

    def _unless_older(self, rule: UpsertRule) -> str:
        """Leave out rows whose predecessor is newer. Not in the update's own expressions: there
        MySQL sees columns that it has just overwritten.
        """
        newest = f"fresh.{_RANK} = 1"
        if not rule.sequence_by:
            return f" WHERE {newest}"
        # where there is no row with this key, all of its columns are null
        return (
            f" LEFT JOIN {self.name.sql} AS old ON {same_key(rule, 'old', 'fresh')} WHERE {newest} "
            f"AND ({gives_way(rule, 'old', 'fresh')})"
        )


def _column_type(described: Sequence[Any]) -> ColumnType:
    flags = slice(4, 8)
    return ColumnType(
        *[*described[:4], *map(bool, described[flags]), *described[8:10], bool(described[10])]
    )


def _ranked(stage: TableName, names: Sequence[str], rule: UpsertRule) -> str:
    """The staged rows, the newest of each key ranked first. What is one key, says the table."""
    window = f"PARTITION BY {columns_list(rule.key)} ORDER BY {newest_first(rule, names)}"
    return f"SELECT {stage.sql}.*, ROW_NUMBER() OVER ({window}) AS {_RANK} FROM {stage.sql}"


_COPY = TableName(None, "_eo_copy")

#: How rows stand to others: a key that is there already.
_DUPLICATES = "error 1062"


def refused_records(table: MySqlTable, staged: StagedTable, most: int) -> list[dict[str, Any]]:
    """The records, at most so many, of which a row is refused: with ``topic``, ``partition``,
    ``offset`` and ``error``. None of rows that do not say where they came from, or for a table with
    triggers, which may make of a row what the copy would refuse.
    """
    if not {*COORDINATES} <= {*staged.schema.names} or table.acts_by_itself():
        return []
    columns = bind(table, staged.schema)
    records: dict[tuple[Any, ...], dict[str, Any]] = {}
    drop = f"DROP TEMPORARY TABLE IF EXISTS {_COPY.sql}"
    table.store.execute(drop)
    table.store.execute(f"CREATE TEMPORARY TABLE {_COPY.sql} LIKE {table.name.sql}")
    try:
        for batch in staged.batches():
            for row, error in _bisect_refused(table, columns, pa.Table.from_batches([batch])):
                record = record_of(row)
                records.setdefault((*record.values(),), {**record, "error": _in_words(error)})
                if len(records) >= most:
                    return [*records.values()]
    finally:
        if table.store.is_open:
            table.store.execute(drop)
    return [*records.values()]


def _bisect_refused(
    table: MySqlTable, columns: Sequence[MySqlColumn], rows: pa.Table
) -> Iterator[tuple[dict[str, Any], Exception]]:
    """Yield each refused row with its error, found by bisection."""
    halves = [rows]
    while halves:
        some = halves.pop()
        try:
            load(table.store, _COPY, columns, StagedTable.in_memory(some))
        except (RefusedError, pymysql.MySQLError) as error:
            if not table.store.is_open or _DUPLICATES in str(error):
                raise
            if some.num_rows == 1:
                yield some.to_pylist()[0], error
            else:
                middle = some.num_rows // 2
                halves += [some.slice(middle), some.slice(0, middle)]
        table.store.execute(f"DELETE FROM {_COPY.sql}")


def _in_words(error: Exception) -> str:
    message = str(error.args[1]) if isinstance(error, pymysql.MySQLError) else str(error)
    return f"MySQL refuses the row: {message}"


class MySqlSession(SqlSession):
    """See :class:`~eo_pipeline.sinks.sql.session.SqlSession`. The loser of two publishers is told
    of a duplicate; where the parent is not in the ledger, nothing is inserted.
    """

    store_class = MySqlStore
    table_class = MySqlTable
    table: MySqlTable

    def refused_records(
        self, error: RefusedError, staged: StagedOutput, most: int
    ) -> list[dict[str, Any]]:
        if staged.rows is None:
            return []
        try:
            with self.store.transaction():
                return refused_records(self.table, staged.rows, most)
        except (RefusedError, self.store.driver_error):
            raise error from error.__cause__
