"""The target table: what it is, made when absent, widened when columns are new."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import psycopg
import pyarrow as pa

from eo_pipeline.errors import ConfigError, RefusedError, SchemaChangeError
from eo_pipeline.ledger.entry import CHECKPOINT_COLUMN
from eo_pipeline.sinks.postgres.types import ColumnType, WireType, takes, wire_type
from eo_pipeline.sinks.sql.names import TableName, quoted

Connection = psycopg.Connection[tuple[Any, ...]]

#: PostgreSQL cuts longer names without an error (NAMEDATALEN - 1).
NAME_BYTES_MAX = 63

_KIND = "SELECT relkind, relpersistence FROM pg_class WHERE oid = to_regclass(%s)"

_COLUMNS = """
WITH RECURSIVE made_of AS (
    SELECT attnum, attname, atttypid AS type, atttypmod AS modifier,
           attgenerated <> '' OR attidentity = 'a' AS computed
    FROM pg_attribute
    WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped
  UNION ALL
    SELECT attnum, attname, typbasetype, typtypmod, computed
    FROM made_of JOIN pg_type ON pg_type.oid = type
    WHERE typtype = 'd'
)
SELECT attname, format_type(type, NULL), quote_ident(nspname) || '.' || quote_ident(t.typname),
       coalesce(element.typcategory, t.typcategory),
       CASE WHEN modifier >= 4 AND 'numeric'::regtype IN (t.oid, element.oid)
            THEN (((modifier - 4) & 2047) # 1024) - 1024 END,
       computed
FROM made_of
JOIN pg_type t ON t.oid = type
JOIN pg_namespace ON pg_namespace.oid = t.typnamespace
LEFT JOIN pg_type element ON element.oid = t.typelem AND t.typcategory = 'A'
WHERE t.typtype <> 'd'
ORDER BY attnum
"""

#: Indexes that ON CONFLICT can use: unique, valid, checked at once, on plain columns, on all rows.
_UNIQUE_KEYS = """
SELECT array_agg(attname::text)
FROM pg_index
JOIN pg_attribute ON attrelid = indrelid AND attnum = ANY (indkey[0:indnkeyatts - 1])
WHERE indrelid = to_regclass(%s) AND indisunique AND indisvalid AND indimmediate
  AND indpred IS NULL AND indexprs IS NULL
GROUP BY indexrelid
"""


@dataclass(frozen=True)
class Column:
    """A staged column and the table's column that takes it."""

    name: str
    wire: WireType
    type: ColumnType


@dataclass(frozen=True)
class Table:
    """A table of the target database, inside the open transaction of ``connection``."""

    connection: Connection
    name: TableName

    def exists(self) -> bool:
        """True if it is there and can keep a promise.

        Raises:
            ConfigError: it is something whose rows are not as durable as the ledger.
        """
        found = self._select(_KIND, self.name.sql)
        if not found:
            return False
        kind, persistence = found[0]
        if kind not in ("r", "p") or persistence != "p":
            raise ConfigError(
                f"sink.table: {self.name} is not an ordinary table (a view, a foreign or an "
                "unlogged table): its rows could be lost or change without the ledger."
            )
        return True

    def columns(self) -> dict[str, ColumnType]:
        """The types of the columns, in their order; none if the table is absent."""
        return {
            name: ColumnType(spelled, cast, category, scale)
            for name, spelled, cast, category, scale, _ in self._select(_COLUMNS, self.name.sql)
        }

    def prepare(self, schema: pa.Schema, key: Sequence[str] = ()) -> list[Column]:
        """Make the table fit for rows of ``schema``: create it, or add what it lacks.

        New columns can be null and take no default, so that adding them rewrites nothing. Whatever
        the table has besides keeps its defaults and constraints.

        Args:
            schema: of the staged rows.
            key: columns that identify a row; for a table that is upserted into.

        Raises:
            SchemaChangeError: a column's type does not fit the table's.
            RefusedError: a name cannot be a column's, or the database computes that column.
            ConfigError: the table has no unique constraint on ``key``.
        """
        check_names(schema.names)
        wires = {field.name: wire_type(field) for field in schema}
        if self.exists():
            self._check_key(key)
            self._widen(wires)
        else:
            self._create(wires, key)
        types = self.columns()
        return [Column(name, wire, types[name]) for name, wire in wires.items()]

    def delete(self, condition: str) -> None:
        """Remove the rows for which ``condition`` holds."""
        if self.exists():
            self._run(f"DELETE FROM {self.name.sql} WHERE {condition}")

    def _create(self, wires: Mapping[str, WireType], key: Sequence[str]) -> None:
        lines = [f"{quoted(name)} {wire.declared}" for name, wire in wires.items()]
        if key:
            lines.append(f"PRIMARY KEY ({columns_list(key)})")
        self._run(f"CREATE TABLE {self.name.sql} ({', '.join(lines)})")
        if CHECKPOINT_COLUMN in wires and not key:
            # Rows arrive in the order of their checkpoints, which is what BRIN is made for: going
            # back finds them, and the index stays at a few pages. Measured with 1.92M rows: COPY
            # takes 3 % longer with it and 48 kB; with a btree 60 % longer and 12 MB.
            self._run(
                f"CREATE INDEX ON {self.name.sql} USING brin ({quoted(CHECKPOINT_COLUMN)}) "
                "WITH (autosummarize = on)"
            )

    def _widen(self, wires: Mapping[str, WireType]) -> None:
        types = self.columns()
        for name, wire in wires.items():
            if name in types and not takes(types[name], wire):
                self._refuse_type(name, types[name], wire)
        self._refuse_computed(wires)
        added = [
            f"ADD COLUMN {quoted(name)} {wire.declared}"
            for name, wire in wires.items()
            if name not in types
        ]
        if added:
            self._run(f"ALTER TABLE {self.name.sql} {', '.join(added)}")

    def _refuse_type(self, name: str, column: ColumnType, wire: WireType) -> NoReturn:
        scale = "" if column.scale is None else f" with {column.scale} digits after the point"
        raise SchemaChangeError(
            f"column {name!r} of {self.name} is {column.name}{scale}, the result has "
            f"{wire.declared}, which would not fit without loss. Nothing was written. Cast it in "
            f"the transform, write it under another name, or change the table: "
            f"ALTER TABLE {self.name.sql} ALTER COLUMN {quoted(name)} TYPE {wire.declared}"
        )

    def _refuse_computed(self, wires: Mapping[str, WireType]) -> None:
        computed = {row[0] for row in self._select(_COLUMNS, self.name.sql) if row[-1]}
        taken = sorted(computed & wires.keys())
        if taken:
            raise RefusedError(
                f"{self.name} computes {_names(taken)} itself (generated or identity). "
                "Nothing was written. Drop the column in the transform."
            )

    def _check_key(self, key: Sequence[str]) -> None:
        if not key:
            return
        unique = [set(names) for (names,) in self._select(_UNIQUE_KEYS, self.name.sql)]
        if set(key) not in unique:
            raise ConfigError(
                f"sink.key: {self.name} has no unique constraint on exactly ({', '.join(key)}), "
                "which an upsert needs (not deferrable, not partial). Nothing was written. "
                f"ALTER TABLE {self.name.sql} ADD UNIQUE ({columns_list(key)})"
            )

    def _select(self, query: str, *parameters: Any) -> list[tuple[Any, ...]]:
        return self.connection.execute(query.encode(), parameters).fetchall()

    def _run(self, statement: str) -> None:
        self.connection.execute(statement.encode())


def columns_list(names: Sequence[str]) -> str:
    """``"a", "b"``."""
    return ", ".join(map(quoted, names))


def check_names(names: Sequence[str]) -> None:
    """Refuse what PostgreSQL would cut short or could not tell apart.

    Raises:
        RefusedError: names the columns.
    """
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise RefusedError(f"the result has {_names(twice)} more than once; rename one.")
    long = [name for name in names if not 0 < len(name.encode()) <= NAME_BYTES_MAX]
    if long:
        raise RefusedError(
            f"column names must have 1 to {NAME_BYTES_MAX} bytes in PostgreSQL: {_names(long)}. "
            "Rename them in the transform."
        )


def _names(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names))
