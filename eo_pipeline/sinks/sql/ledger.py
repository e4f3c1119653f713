"""The ledger as a table: its columns, its statements, and entries as rows.

A dialect adds what it must decide itself: the types of the columns, and the constraints that make
the insert a compare-and-swap.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from eo_pipeline.ledger.entry import LedgerEntry

#: The ledger's table, in the schema of the table it speaks for.
LEDGER_TABLE = "eo_ledger"

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
)
SELECTED = (*INSERTED, "committed_at")

#: Kept as JSON: by drivers that know the type as dictionaries, by the others as text.
_JSON = frozenset({"offsets", "ranges", "topic_ids", "counts", "details"})

#: Entries of a history fetched at a time, so that a long ledger is never in memory as a whole.
PAGE = 500


@dataclass(frozen=True)
class LedgerStatements:
    """The statements of one ledger table, named by what they answer.

    ``table`` is the quoted table; ``mark`` stands for a parameter (``%s`` or ``?``). Each statement
    is answered by the primary key ``(pipeline, version)`` alone, so that its cost does not depend
    on the ledger's length.
    """

    table: str
    mark: str = "%s"

    @property
    def head(self) -> str:
        """Parameter: pipeline."""
        return f"{self._select} WHERE pipeline = {self.mark} ORDER BY version DESC LIMIT 1"

    @property
    def at(self) -> str:
        """Parameters: pipeline, version."""
        return f"{self._select} WHERE pipeline = {self.mark} AND version = {self.mark}"

    @property
    def page(self) -> str:
        """Parameters: pipeline, first version."""
        where = f"WHERE pipeline = {self.mark} AND version >= {self.mark}"
        return f"{self._select} {where} ORDER BY version LIMIT {PAGE}"

    @property
    def target(self) -> str:
        """Which table a pipeline publishes into. Parameter: pipeline."""
        return (
            f"SELECT target_table FROM {self._escaped} "
            f"WHERE pipeline = {self.mark} ORDER BY version DESC LIMIT 1"
        )

    @property
    def owner(self) -> str:
        """Which pipeline started on a table. Parameter: table."""
        return (
            f"SELECT pipeline FROM {self._escaped} WHERE target_table = {self.mark} AND version = 0"
        )

    @property
    def insert(self) -> str:
        """Parameters: :func:`row_of`."""
        marks = ", ".join([self.mark] * len(INSERTED))
        return f"INSERT INTO {self._escaped} ({', '.join(INSERTED)}) VALUES ({marks})"

    @property
    def _select(self) -> str:
        return f"SELECT {', '.join(SELECTED)} FROM {self._escaped}"

    @property
    def _escaped(self) -> str:
        # a driver that marks parameters by %s reads a lone % in a name as one more
        return self.table.replace("%", "%%") if self.mark == "%s" else self.table


def row_of(entry: LedgerEntry, target_table: str) -> tuple[Any, ...]:
    """``entry`` as parameters of :attr:`LedgerStatements.insert`; JSON values as text."""
    raw = entry.to_json()
    parent_version, parent_transaction_id = raw["parent"] or (None, None)
    raw |= {
        "parent_version": parent_version,
        "parent_transaction_id": parent_transaction_id,
        "target_table": target_table,
        "started_at": entry.started_at,
    }
    return tuple(json.dumps(raw[name]) if name in _JSON else raw[name] for name in INSERTED)


def entry_of(row: Sequence[Any]) -> LedgerEntry:
    """The entry in a row of :data:`SELECTED`, whatever form the driver gives JSON and times."""
    raw = {
        name: _parsed(value) if name in _JSON else _iso(value)
        for name, value in zip(SELECTED, row, strict=True)
    }
    has_parent = raw["parent_version"] is not None
    raw["parent"] = [raw["parent_version"], raw["parent_transaction_id"]] if has_parent else None
    return LedgerEntry.from_json(raw)


def _parsed(value: str | bytes | Mapping[str, Any]) -> Any:
    return json.loads(value) if isinstance(value, str | bytes) else value


def _iso(value: Any) -> Any:
    if not isinstance(value, datetime):
        return value
    # a database without time zones keeps times in UTC
    return (value.astimezone(UTC) if value.tzinfo else value.replace(tzinfo=UTC)).isoformat()
