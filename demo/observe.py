"""A look at table and ledger from outside: plain SQL over a connection of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

import psycopg

from eo_pipeline.errors import SetupError

TABLE = "flights"
PLANES = "planes"
PIPELINE = "flights"

_CHECKPOINTS = """
select version, operation, (counts->>'records')::bigint, (counts->>'rows')::bigint,
       (counts->>'rows_total')::bigint, started_at, committed_at
from eo_ledger where pipeline = %s and version > %s order by version
"""

_OF_ONE_TABLE = "select from eo_ledger where pipeline = %s and target_table like '%%.flights'"

#: The first rows by time of departure; column names are titles for people.
_FIRST_ROWS = f"""
select to_char(date, 'MM-DD ') || scheduled_departure as departs,
       left(coalesce(airline, carrier), 16) as airline, origin || ' → ' || dest as route,
       left(coalesce({{aircraft}}, tailnum), 15) as aircraft,
       {TABLE}._eo_checkpoint as version,
       'p' || {TABLE}._eo_partition || ' @ ' || {TABLE}._eo_offset as record
from {TABLE} {{join}} order by date, scheduled_departure, flight_id limit %s
"""
_WITH_PLANES = {
    "aircraft": "manufacturer || ' ' || model",
    "join": f"left join {PLANES} using (tailnum)",
}
_WITHOUT_PLANES = {"aircraft": "null", "join": ""}

#: On loopback it refuses at once, or is slow.
_CONNECT_TIMEOUT_S = 30


@dataclass(frozen=True)
class Checkpoint:
    """One ledger entry. ``recovered``: staged by a killed run, committed by a later one."""

    version: int
    operation: str
    records: int
    rows: int
    rows_total: int
    started_at: datetime
    committed_at: datetime
    recovered: bool = False

    @property
    def seconds(self) -> float:
        return (self.committed_at - self.started_at).total_seconds()

    @property
    def records_per_second(self) -> float:
        return self.records / self.seconds if self.seconds > 0 else 0.0


class Rows(NamedTuple):
    """Some rows under their titles."""

    titles: Sequence[str]
    values: Sequence[tuple[Any, ...]]


class Observer:
    """Whatever is asked, a new connection asks it: PostgreSQL may have been killed in between."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn

    def query(self, sql: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        with self._connected() as connection:
            return connection.execute(sql.encode(), parameters).fetchall()

    def exists(self, table: str) -> bool:
        [(found,)] = self.query("select to_regclass(%s) is not null", [table])
        return bool(found)

    def refuse_one_table(self) -> None:
        """Return if the ledger is that of two tables, or there is none.

        Raises:
            SetupError: an earlier release of the demo filled the flights alone.
        """
        if self.exists("eo_ledger") and self.query(_OF_ONE_TABLE, [PIPELINE]):
            raise SetupError(
                "The data are those of an earlier release, which filled the flights alone: remove "
                "them with `make clean`, then start again."
            )

    def checkpoints(self, after: int = -1) -> list[Checkpoint]:
        """The pipeline's ledger entries behind version ``after``."""
        if not self.exists("eo_ledger"):
            return []
        return [Checkpoint(*row) for row in self.query(_CHECKPOINTS, [PIPELINE, after])]

    def first_rows(self, count: int) -> Rows:
        """What a person would like to see of the tables."""
        joined = _FIRST_ROWS.format(**(_WITH_PLANES if self.exists(PLANES) else _WITHOUT_PLANES))
        with self._connected() as connection:
            cursor = connection.execute(joined.encode(), [count])
            titles = [column.name for column in cursor.description or ()]
            return Rows(titles, cursor.fetchall())

    def _connected(self) -> psycopg.Connection[tuple[Any, ...]]:
        return psycopg.connect(self._dsn, connect_timeout=_CONNECT_TIMEOUT_S)
