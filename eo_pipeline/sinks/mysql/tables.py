"""The target table: what it is, made when absent, widened when columns are new.

MySQL commits whatever is open when it creates or alters a table. So :meth:`Table.prepare` runs
before the transaction, and does only what harms nobody if the transaction then fails: it makes an
empty table, or adds a column that is null in every row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import pyarrow as pa
import pymysql

from eo_pipeline.errors import ConfigError, RefusedError, SchemaChangeError
from eo_pipeline.ledger.entry import CHECKPOINT_COLUMN
from eo_pipeline.sinks.mysql.connect import Connection, is_mariadb
from eo_pipeline.sinks.mysql.errors import COLUMN_EXISTS
from eo_pipeline.sinks.mysql.names import check_columns, columns_list, for_people
from eo_pipeline.sinks.mysql.types import ColumnType, WireType, takes, wire_type
from eo_pipeline.sinks.sql.names import TableName, quoted

_KIND = """
SELECT table_type, engine FROM information_schema.tables
WHERE table_schema = %s AND table_name = %s
"""

_COLUMNS = """
SELECT column_name, lower(data_type), lower(column_type),
       coalesce(numeric_scale, datetime_precision), collation_name, is_nullable = 'YES',
       extra LIKE '%% GENERATED%%',
       extra LIKE '%%auto_increment%%'
FROM information_schema.columns
WHERE table_schema = %s AND table_name = %s
ORDER BY ordinal_position
"""

_UNIQUE_KEYS = """
SELECT index_name, column_name, sub_part FROM information_schema.statistics
WHERE table_schema = %s AND table_name = %s AND non_unique = 0
ORDER BY index_name, seq_in_index
"""

#: Two texts are the same only if all their bytes are, blanks at the end included.
_COLLATIONS = {True: "utf8mb4_nopad_bin", False: "utf8mb4_0900_bin"}


@dataclass(frozen=True)
class Column:
    """A staged column and the table's column that takes it."""

    name: str
    wire: WireType
    type: ColumnType


@dataclass(frozen=True)
class Table:
    """A table of the target database."""

    connection: Connection
    name: TableName

    def exists(self) -> bool:
        """True if it is there and can keep a promise.

        Raises:
            ConfigError: it is not a table, or of a storage engine without transactions.
        """
        found = self._select(_KIND, self.name.schema, self.name.name)
        if not found:
            return False
        kind, engine = found[0]
        if "VIEW" in kind or engine is None:
            raise ConfigError(f"sink.table: {self.name} is not an ordinary table but a {kind}")
        if engine != "InnoDB":
            raise ConfigError(
                f"sink.table: {self.name} is kept by {engine}, which has no transactions: its rows "
                "could not become visible together with the ledger. "
                f"ALTER TABLE {for_people(self.name)} ENGINE = InnoDB"
            )
        return True

    def columns(self) -> dict[str, ColumnType]:
        """The types of the columns, in their order; none if the table is absent."""
        rows = self._select(_COLUMNS, self.name.schema, self.name.name)
        return {name: ColumnType(*rest[:4], *map(bool, rest[4:])) for name, *rest in rows}

    def prepare(self, schema: pa.Schema, key: Sequence[str] = ()) -> None:
        """Make the table fit for rows of ``schema``: create it, or add what it lacks.

        Outside any transaction, and safe with any number of runs doing so at once.

        Args:
            schema: of the staged rows.
            key: columns that identify a row; for a table that is upserted into.

        Raises:
            SchemaChangeError: a column's type does not fit the table's.
            RefusedError: a name cannot be a column's, or the database computes that column.
            ConfigError: the table has no unique constraint on ``key``, or another one besides.
        """
        check_columns(schema.names)
        wires = {field.name: wire_type(field) for field in schema}
        if not self.exists():
            self._create(wires, key)
        self._check_key(key, wires)
        self._widen(wires)

    def bind(self, schema: pa.Schema) -> list[Column]:
        """The table's columns that take those of ``schema``.

        Raises:
            SchemaChangeError: somebody changed the table since it was prepared.
        """
        types = _by_lower(self.columns())
        columns = []
        for field in schema:
            wire, found = wire_type(field), types.get(field.name.lower())
            if found is None or not takes(found, wire):
                self._refuse_type(field.name, found, wire)
            columns.append(Column(field.name, wire, found))
        return columns

    def delete(self, condition: str) -> None:
        """Remove the rows for which ``condition`` holds."""
        if self.exists():
            self.run(f"DELETE FROM {self.name.sql} WHERE {condition}")

    def run(self, statement: str) -> int:
        """Execute ``statement``; how many rows it changed."""
        with self.connection.cursor() as cursor:
            return cursor.execute(statement)

    def select_one(self, query: str) -> Sequence[Any]:
        """The one row that answers ``query``."""
        return self._select(query)[0]

    def _create(self, wires: Mapping[str, WireType], key: Sequence[str]) -> None:
        lines = [
            f"{quoted(name)} " + (f"{wire.as_key} NOT NULL" if name in key else wire.nullable)
            for name, wire in wires.items()
        ]
        if key:
            lines.append(f"PRIMARY KEY ({columns_list(key)})")
        elif CHECKPOINT_COLUMN in wires:
            lines.append(f"KEY ({quoted(CHECKPOINT_COLUMN)})")
        self.run(
            f"CREATE TABLE IF NOT EXISTS {self.name.sql} ({', '.join(lines)}) ENGINE = InnoDB "
            f"DEFAULT CHARACTER SET utf8mb4 COLLATE {_COLLATIONS[is_mariadb(self.connection)]}"
        )

    def _widen(self, wires: Mapping[str, WireType]) -> None:
        types = _by_lower(self.columns())
        for name, wire in wires.items():
            found = types.get(name.lower())
            if found and not takes(found, wire):
                self._refuse_type(name, found, wire)
        self._refuse_computed(wires, types)
        for name, wire in wires.items():
            if name.lower() not in types:
                self._add(name, wire)

    def _add(self, name: str, wire: WireType) -> None:
        try:
            self.run(f"ALTER TABLE {self.name.sql} ADD COLUMN {quoted(name)} {wire.nullable}")
        except pymysql.OperationalError as error:
            if error.args[0] != COLUMN_EXISTS:
                raise
            # another run added it just now; bind() looks whether it fits

    def _refuse_type(self, name: str, column: ColumnType | None, wire: WireType) -> NoReturn:
        found = column.spelled if column else "absent"
        raise SchemaChangeError(
            f"column {name!r} of {self.name} is {found}, the result has {wire.declared} "
            f"({wire.kind}), which would not fit without loss. Nothing was written. Cast it in "
            f"the transform, write it under another name, or change the table: "
            f"ALTER TABLE {for_people(self.name)} MODIFY {for_people(name)} {wire.declared}"
        )

    def _refuse_computed(
        self, wires: Mapping[str, WireType], types: Mapping[str, ColumnType]
    ) -> None:
        taken = sorted(n for n in wires if n.lower() in types and types[n.lower()].computed)
        if taken:
            raise RefusedError(
                f"{self.name} computes {', '.join(map(repr, taken))} itself (a generated column). "
                "Nothing was written. Drop the column in the transform."
            )

    def _check_key(self, key: Sequence[str], wires: Mapping[str, WireType]) -> None:
        if not key:
            return
        wanted, unique = {name.lower() for name in key}, self._unique_keys()
        if wanted not in unique:
            raise ConfigError(
                f"sink.key: {self.name} has no unique constraint on exactly ({', '.join(key)}), "
                "which an upsert needs (not on prefixes). Nothing was written. ALTER TABLE "
                f"{for_people(self.name)} ADD UNIQUE ({', '.join(map(for_people, key))})"
            )
        self._refuse_other_keys([names for names in unique if names != wanted], wires)

    def _refuse_other_keys(self, others: Sequence[set[str]], wires: Mapping[str, WireType]) -> None:
        """A row that met another unique key would replace a row that is not its own."""
        sent = {name.lower() for name in wires}
        counted = {name for name, found in _by_lower(self.columns()).items() if found.counts}
        for names in others:
            if not names & (counted - sent):
                raise ConfigError(
                    f"sink.key: {self.name} has another unique constraint, on "
                    f"({', '.join(sorted(names))}). MySQL's ON DUPLICATE KEY UPDATE would let a "
                    "row replace one with another key. Nothing was written. Drop that constraint, "
                    "or make it the key."
                )

    def _unique_keys(self) -> list[set[str]]:
        """The columns of each unique index; prefixes and expressions match no column."""
        indexes: dict[str, set[str]] = {}
        rows = self._select(_UNIQUE_KEYS, self.name.schema, self.name.name)
        for index, column, prefix in rows:
            whole = column is not None and prefix is None
            indexes.setdefault(index, set()).add(column.lower() if whole else f"{column}({prefix})")
        return list(indexes.values())

    def _select(self, query: str, *parameters: Any) -> list[tuple[Any, ...]]:
        with self.connection.cursor() as cursor:
            cursor.execute(query, parameters or None)
            return list(cursor.fetchall())


def _by_lower(types: Mapping[str, ColumnType]) -> dict[str, ColumnType]:
    return {name.lower(): found for name, found in types.items()}
