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
from eo_pipeline.sinks.mysql import store as mysql_store
from eo_pipeline.sinks.protocol import SinkSession
from eo_pipeline.sinks.sql.config import SqlSink
from eo_pipeline.staging.rows import StagedOutput, StagedTable
from eo_pipeline.testing import child_of, dead_letters, first_entry
from tests.sinks.mysql import mysql_world
from tests.sinks.postgres import postgres_world
from tests.sinks.sql.sql_world import SqlWorld, staged
from tests.sinks.sql.sql_worlds import MYSQLS, world

__all__ = ["world"]

#: Rows that a limit on what is selected would cut.
_ROWS = 250

_POSTGRES = [
    ("DateStyle", "SQL, DMY"),
    ("IntervalStyle", "iso_8601"),
    ("TimeZone", "Asia/Kathmandu"),
    ("timezone_abbreviations", "India"),
    ("extra_float_digits", "-15"),
    ("bytea_output", "escape"),
    ("standard_conforming_strings", "off"),
    ("escape_string_warning", "on"),
    ("backslash_quote", "off"),
    ("client_encoding", "LATIN1"),
    ("client_min_messages", "debug1"),
    ("row_security", "off"),
    ("array_nulls", "off"),
    ("transform_null_equals", "on"),
    ("quote_all_identifiers", "on"),
    ("default_transaction_isolation", "serializable"),
    ("default_transaction_deferrable", "on"),
    ("synchronous_commit", "off"),
    ("lock_timeout", "2s"),
    ("statement_timeout", "30s"),
    ("idle_in_transaction_session_timeout", "5s"),
    ("idle_session_timeout", "30s"),
    ("transaction_timeout", "30s"),
    ("deadlock_timeout", "10ms"),
    ("session_replication_role", "replica"),
    ("check_function_bodies", "off"),
    ("default_toast_compression", "pglz"),
    ("xmloption", "document"),
    ("jit_above_cost", "0"),
    ("debug_parallel_query", "on"),
    ("plan_cache_mode", "force_generic_plan"),
    ("enable_seqscan", "off"),
    ("enable_indexscan", "off"),
    ("enable_bitmapscan", "off"),
    ("enable_hashjoin", "off"),
    ("join_collapse_limit", "1"),
    ("constraint_exclusion", "on"),
    ("work_mem", "64kB"),
    ("maintenance_work_mem", "1MB"),
    ("temp_buffers", "800kB"),
    ("cursor_tuple_fraction", "1.0"),
    ("commit_delay", "1000"),
    ("track_activities", "off"),
    ("log_statement", "all"),
    ("search_path", '"$user", public, pg_catalog'),
]

_MYSQL = [
    ("sql_require_primary_key", "ON"),
    ("innodb_force_primary_key", "ON"),
    ("sql_generate_invisible_primary_key", "ON"),
    ("sql_select_limit", "100"),
    ("sql_big_selects", "OFF"),
    ("max_join_size", "10"),
    ("sql_safe_updates", "ON"),
    ("sql_auto_is_null", "ON"),
    ("sql_mode", "''"),
    ("sql_mode", "'ANSI,TRADITIONAL'"),
    ("sql_mode", "'NO_BACKSLASH_ESCAPES,PIPES_AS_CONCAT,HIGH_NOT_PRECEDENCE'"),
    ("sql_mode", "'NO_UNSIGNED_SUBTRACTION,PAD_CHAR_TO_FULL_LENGTH'"),
    ("time_zone", "'+05:45'"),
    ("autocommit", "OFF"),
    ("completion_type", "'CHAIN'"),
    ("transaction_isolation", "'SERIALIZABLE'"),
    ("tx_isolation", "'SERIALIZABLE'"),
    ("foreign_key_checks", "OFF"),
    ("unique_checks", "OFF"),
    ("character_set_server", "latin1"),
    ("collation_connection", "utf8mb4_bin"),
    ("collation_server", "utf8mb4_general_ci"),
    ("default_storage_engine", "MEMORY"),
    ("default_tmp_storage_engine", "MEMORY"),
    ("innodb_strict_mode", "OFF"),
    ("innodb_lock_wait_timeout", "1"),
    ("lock_wait_timeout", "2"),
    ("max_statement_time", "0.001"),
    ("max_execution_time", "1"),
    ("wait_timeout", "5"),
    ("interactive_timeout", "5"),
    ("net_read_timeout", "5"),
    ("net_write_timeout", "5"),
    ("max_allowed_packet", "4194304"),
    ("max_error_count", "0"),
    ("local_infile", "OFF"),
    ("div_precision_increment", "0"),
    ("low_priority_updates", "ON"),
    ("big_tables", "ON"),
    ("tmp_table_size", "1024"),
    ("max_heap_table_size", "16384"),
    ("sort_buffer_size", "32768"),
    ("group_concat_max_len", "4"),
    ("binlog_format", "'ROW'"),
    ("sql_notes", "OFF"),
    ("sql_warnings", "ON"),
    ("sql_quote_show_create", "OFF"),
    ("explicit_defaults_for_timestamp", "OFF"),
    ("lc_time_names", "'de_DE'"),
    ("old_alter_table", "ON"),
    ("alter_algorithm", "'COPY'"),
    ("optimizer_switch", "'materialization=off,semijoin=off'"),
]

#: A server does not know it, or it is none that can be set.
_NOT_THERE = {1193, 1231, 1238, 1286, 3567}


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
        alter = f'ALTER DATABASE "{database}"'
        quoted = value if value.startswith('"') else f"'{value}'"
        world.run(f"{alter} SET {name} = {quoted}")
        yield True
        world.run(f"{alter} RESET {name}")
        return
    before = world.rows(f"SHOW GLOBAL VARIABLES LIKE '{name}'")
    try:
        world.run(f"SET GLOBAL {name} = {value}")
    except pymysql.MySQLError as error:
        if error.args[0] not in _NOT_THERE:
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
    settings = _POSTGRES if isinstance(world, postgres_world.World) else _MYSQL
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
