"""What services set on the servers that they rent out: none of it changes what a pipeline does.

Each setting is tried with a life of a pipeline: rows appended and a column added, rows upserted,
dead letters, a rewind, rows counted from outside.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pymysql
import pytest

from eo_pipeline.errors import EoPipelineError
from eo_pipeline.ledger.entry import CHECKPOINT_COLUMN, Operation
from eo_pipeline.sinks.mysql import connection as mysql_store
from eo_pipeline.sinks.session import SinkSession
from eo_pipeline.sinks.sql.config import SqlSink
from eo_pipeline.staging.rows import StagedOutput, StagedTable
from eo_pipeline.testing import child_of, dead_letters, first_entry
from tests.sinks.mysql import mysql_world
from tests.sinks.postgres import postgres_world
from tests.sinks.sql.sql_world import SqlWorld, staged
from tests.sinks.sql.sql_worlds import MYSQLS, world
from tests.support.server_settings import MYSQL, NOT_THERE, POSTGRES, in_database

__all__ = ["world"]

#: Rows that a limit on what is selected would cut.
_ROWS = 250


def life(world: SqlWorld, table: str) -> None:
    """Of a pipeline, from the first row to one taken back."""
    appends = world.sink(table=table)
    with appends.open(table) as session:
        publish_all(session, appends)
    upserts = world.sink(table=f"{table}_u", mode="upsert", key=["id"], sequence_by=["at"])
    with upserts.open(f"{table}_u") as session:
        head = session.identified(first_entry(f"{table}_u"))
        session.publish(head, StagedOutput())
        for number in (1, 2):
            rows = StagedOutput(checkpoint(number))
            head = session.identified(child_of(head, rows))
            session.publish(head, rows)
        assert len(world.rows(f"SELECT id FROM {table}_u")) == _ROWS


def publish_all(session: SinkSession, sink: SqlSink) -> None:
    assert session.verified(session.recover()) is None
    head = session.identified(first_entry(session.pipeline))
    session.publish(head, StagedOutput())
    for number in (1, 2):
        more = {} if number == 1 else {"tail": ["N\\1 'x' \"y\""] * _ROWS}
        output = StagedOutput(checkpoint(number, **more), dead_letters(number, [b"\0\\"]))
        head = session.identified(child_of(head, output))
        session.publish(head, output)
    assert session.verified(session.recover()) == session.head()
    session.refuse_later_rows(session.head(), thorough=True)
    lineage = pa.Table.from_batches(session.lineage())
    assert lineage[CHECKPOINT_COLUMN].to_pylist().count(2) == _ROWS
    assert lineage.num_rows == 2 * _ROWS
    back = child_of(head, operation=Operation.REWIND, target=1)
    session.publish(session.identified(back), StagedOutput())
    with sink.open(session.pipeline) as other:
        assert sum(batch.num_rows for batch in other.lineage()) == _ROWS
        assert [entry.version for entry in other.history()] == [0, 1, 2, 3]


def checkpoint(number: int, **more: Any) -> StagedTable:
    at = datetime(2013, 1, 1, 5, 15, 0, 123456, tzinfo=UTC)
    return staged(
        id=[*range(_ROWS)],
        name=["größe 'x' \\ \"y\" \n", *[f"flight {n}" for n in range(1, _ROWS)]],
        amount=pa.array([Decimal("0.10")] * _ROWS, pa.decimal128(12, 2)),
        ratio=[0.1 + number] * _ROWS,
        at=pa.array([at] * _ROWS, pa.timestamp("us", "UTC")),
        doc=[[{"a": 1}]] * _ROWS,
        **{CHECKPOINT_COLUMN: [number] * _ROWS},
        **more,
    )


@contextmanager
def set_for_all(world: SqlWorld, name: str, value: str) -> Iterator[bool]:
    """For every connection that comes; False if the server has no such setting."""
    if isinstance(world, postgres_world.World):
        (database,) = (row["name"] for row in world.rows("SELECT current_database() AS name"))
        world.run(in_database(database, name, value))
        yield True
        world.run(f'ALTER DATABASE "{database}" RESET {name}')
        return
    before = world.rows(f"SHOW GLOBAL VARIABLES LIKE '{name}'")
    try:
        world.run(f"SET GLOBAL {name} = {value}")
    except pymysql.MySQLError as error:
        if error.args[0] not in NOT_THERE:
            raise
        yield False
        return
    yield True
    ((_, was),) = (row.values() for row in before)
    numeric = str(was).replace(".", "").lstrip("-").isdigit()
    # an empty name of an engine, say, is shown and not taken
    value = "DEFAULT" if was == "" else was if numeric else repr(was)
    world.run(f"SET GLOBAL {name} = {value}")


@pytest.mark.slow
def test_no_setting_of_a_server_changes_what_is_there(world: SqlWorld) -> None:
    """Found before: sql_select_limit, sql_require_primary_key."""
    settings = POSTGRES if isinstance(world, postgres_world.World) else MYSQL
    failed, tried = {}, 0
    for number, (name, value) in enumerate(settings):
        with set_for_all(world, name, value) as known:
            try:
                if known:
                    tried += 1
                    life(world, f"t{number}")
            except (EoPipelineError, AssertionError) as error:
                failed[f"{name} = {value}"] = error
    assert failed == {}
    assert tried >= 35


@pytest.mark.parametrize("world", MYSQLS, indirect=True)
def test_a_limit_on_what_is_selected_and_a_key_for_every_table(world: SqlWorld) -> None:
    """The two that were found, of the long table; the rows are seen as they always were."""
    with (
        set_for_all(world, "sql_select_limit", "100"),
        set_for_all(world, "sql_require_primary_key", "ON"),
        set_for_all(world, "innodb_force_primary_key", "ON"),
    ):
        life(world, "t")
        names = ["id", "name", "amount", "ratio", "at", "doc", CHECKPOINT_COLUMN, "tail"]
        assert [*world.rows("SELECT * FROM t LIMIT 1")[0]] == names


@pytest.mark.parametrize("world", MYSQLS, indirect=True)
def test_a_node_of_galera_is_refused_by_name(
    world: mysql_world.World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mysql_store, "_GALERA", "SELECT 'wsrep_on', 'ON'")
    with pytest.raises(EoPipelineError, match=r"Galera cluster \(wsrep_on\).*exactly once"):
        world.sink().open("p")
