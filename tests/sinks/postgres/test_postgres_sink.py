"""What PostgreSQL does with rows: tables new and old, staged files, dead letters, going back."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pydantic import ValidationError

from eo_pipeline.errors import (
    ConfigError,
    RefusedError,
    SchemaChangeError,
    TableReplacedError,
)
from eo_pipeline.ledger.entry import CHECKPOINT_COLUMN
from eo_pipeline.sinks.postgres import PostgresSink
from eo_pipeline.staging.rows import StagedOutput, StagedTable
from eo_pipeline.testing import child_of, dead_letters, first_entry, to_files
from tests.sinks.postgres.postgres_world import World, staged, world

__all__ = ["world"]


class TestNewTable:
    def test_nested_values_become_jsonb(self, world: World) -> None:
        at = datetime(2013, 1, 1, 12, 0, 0, 1, tzinfo=UTC)
        struct = {"d": Decimal("1.10"), "b": b"\x00", "f": float("nan"), "at": at, "n": None}
        types = pa.array([{**struct, "n": "a word"}]).type
        world.publish(
            world.sink(),
            staged(
                s=pa.array([struct], types),
                m=pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int64())),
                deep=pa.array([[[1], None]]),
                none=pa.array([None], pa.struct([("a", pa.int64())])),
            ),
        )
        assert world.rows("SELECT pg_typeof(s)::text AS s, pg_typeof(deep)::text AS d FROM t") == [
            {"s": "jsonb", "d": "jsonb"}
        ]
        expected = {
            "d": 1.1, "b": "AA==", "f": "NaN", "at": "2013-01-01T12:00:00.000001Z", "n": None
        }  # fmt: skip
        assert world.rows() == [{"s": expected, "m": {"k": 1}, "deep": [[1], None], "none": None}]
        assert world.rows("SELECT s->>'d' AS d FROM t") == [{"d": "1.10"}]

    def test_names_are_taken_as_written(self, world: World) -> None:
        world.run('CREATE SCHEMA "Air.Port"')
        sink = world.sink(table='"Air.Port".Flights 100%')
        odd: dict[str, list[object]] = {
            'a "quoted" %s': [1],
            "Tail": ["N1"],
            "tail": ["n1"],
            "größe": [2],
        }
        world.publish(sink, staged(**odd), staged(**odd))
        assert (
            world.rows('SELECT * FROM "Air.Port"."Flights 100%"')
            == [{name: value[0] for name, value in odd.items()}] * 2
        )
        assert world.rows('SELECT count(*) FROM "Air.Port".eo_ledger') == [{"count": 3}]

    @pytest.mark.parametrize("name", ["", "x" * 64, "ü" * 32])
    def test_a_name_that_would_be_cut_is_refused(self, world: World, name: str) -> None:
        with pytest.raises(RefusedError, match="63 bytes"):
            world.publish(world.sink(), staged(**{name: [1]}))

    def test_a_name_used_twice_is_refused(self, world: World) -> None:
        table = pa.table([[1], [2]], names=["a", "a"])
        with pytest.raises(RefusedError, match="'a' more than once"):
            world.publish(world.sink(), StagedTable.in_memory(table))

    def test_an_index_finds_the_rows_of_a_checkpoint(self, world: World) -> None:
        world.publish(world.sink(), staged(**{CHECKPOINT_COLUMN: [1]}))
        found = world.rows("SELECT indexdef FROM pg_indexes WHERE tablename = 't'")
        assert "USING brin (_eo_checkpoint)" in found[0]["indexdef"]

    @pytest.mark.parametrize("values", [pa.nulls(1), pa.array([1], pa.duration("s"))])
    def test_a_type_that_has_no_counterpart_is_refused_by_name(
        self, world: World, values: pa.Array
    ) -> None:
        with pytest.raises(SchemaChangeError, match="column 'x'"):
            world.publish(world.sink(), staged(x=values))

    def test_nanoseconds_are_taken_where_they_are_whole_microseconds(self, world: World) -> None:
        whole = pa.array([1_000], pa.timestamp("ns", "UTC"))
        world.publish(world.sink(), staged(x=whole))
        assert world.rows() == [{"x": datetime(1970, 1, 1, 0, 0, 0, 1, tzinfo=UTC)}]
        with pytest.raises(RefusedError, match="column 'x'"):
            world.publish(world.sink(), staged(x=pa.array([1], pa.timestamp("ns", "UTC"))))

    @pytest.mark.parametrize("name", ["x" * 45, "ü" * 24])
    def test_two_long_names_that_begin_alike_are_two(self, world: World, name: str) -> None:
        """Rows and dead letters both by way of a temporary table, in one transaction."""
        world.run(f"CREATE TABLE {name} (id numeric(9,1))")
        letters = f"{name}_dead_letters"
        with world.sink(table=name).open("p") as session:
            head = first_entry("p")
            session.publish(head, StagedOutput())
            for checkpoint in (1, 2):
                output = StagedOutput(staged(id=[1]), dead_letters(checkpoint, [b"x"]))
                head = child_of(head, output)
                session.publish(head, output)
                world.run(f"ALTER TABLE {letters} ALTER partition TYPE numeric(9,1)")
        assert world.rows(f"SELECT count(*) FROM {name}, {letters}") == [{"count": 4}]


class TestStagedFiles:
    def test_a_file_that_rotted_is_refused_and_the_session_goes_on(
        self, world: World, tmp_path: Path
    ) -> None:
        """Scenario: the size is right and the bytes are not; found while copying."""
        rows = to_files(staged(id=list(range(1000)), word=["w"] * 1000), tmp_path)
        good = rows.paths()[-1].read_bytes()
        rows.paths()[-1].write_bytes(good[:100] + bytes(200) + good[300:])
        with world.sink().open("p") as session:
            start = first_entry("p")
            session.publish(start, StagedOutput())
            with pytest.raises(RefusedError, match="cannot be read"):
                session.publish(child_of(start, 1000), StagedOutput(rows))
            rows.paths()[-1].write_bytes(good)
            session.publish(child_of(start, 1000), StagedOutput(rows))
        assert world.rows("SELECT count(*) FROM t") == [{"count": 1000}]

    def test_a_wide_row_is_sent_in_pieces(self, world: World) -> None:
        values = [b"x" * 1_000_000] * 20
        world.publish(world.sink(), staged(raw=pa.array(values, pa.binary())))
        assert world.rows("SELECT sum(length(raw)) AS n FROM t") == [{"n": 20_000_000}]


class TestExistingTable:
    def test_columns_that_the_result_lacks_get_their_defaults(self, world: World) -> None:
        world.run(
            "CREATE TABLE t (n bigint GENERATED ALWAYS AS IDENTITY, id bigint,"
            " loaded text DEFAULT 'by us', twice bigint GENERATED ALWAYS AS (id * 2) STORED)"
        )
        world.publish(world.sink(), staged(id=[21]))
        assert world.rows() == [{"n": 1, "id": 21, "loaded": "by us", "twice": 42}]

    @pytest.mark.parametrize(
        "column", ["GENERATED ALWAYS AS IDENTITY", "GENERATED ALWAYS AS (1) STORED"]
    )
    def test_a_column_that_the_database_computes_is_refused(
        self, world: World, column: str
    ) -> None:
        world.run(f"CREATE TABLE t (id bigint, x bigint {column})")
        with pytest.raises(RefusedError, match="computes 'x' itself"):
            world.publish(world.sink(), staged(id=[1], x=[1]))

    @pytest.mark.parametrize(
        ("definition", "message"),
        [
            ("id bigint, must text NOT NULL", r"23502.*must"),
            ("id bigint CHECK (id > 10)", r"23514.*t_id_check"),
            ("id bigint UNIQUE", r"23505.*t_id_key"),
            ("id bigint UNIQUE DEFERRABLE INITIALLY DEFERRED", r"23505.*t_id_key"),
            ("id bigint REFERENCES other", r"23503.*t_id_fkey"),
        ],
    )
    def test_a_constraint_refuses_the_checkpoint_and_the_next_one_is_free(
        self, world: World, definition: str, message: str
    ) -> None:
        """Also one that is checked only at COMMIT: refused, not unknown."""
        world.run("CREATE TABLE other (id bigint PRIMARY KEY)")
        world.run(f"CREATE TABLE t ({definition})")
        with pytest.raises(RefusedError, match=message):
            world.publish(world.sink(), staged(id=[1, 1]))
        assert world.rows() == []
        assert [row["version"] for row in world.rows("SELECT version FROM eo_ledger")] == [0]

    def test_a_trigger_of_the_users_may_refuse(self, world: World) -> None:
        world.run("CREATE TABLE t (id bigint)")
        world.run(
            "CREATE FUNCTION no() RETURNS trigger LANGUAGE plpgsql AS"
            " $$ BEGIN RAISE 'not on a Sunday'; END $$"
        )
        world.run("CREATE TRIGGER no BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION no()")
        with pytest.raises(RefusedError, match="not on a Sunday"):
            world.publish(world.sink(), staged(id=[1]))

    @pytest.mark.parametrize(
        "statement",
        ["CREATE VIEW t AS SELECT 1 AS id", "CREATE UNLOGGED TABLE t (id bigint)"],
    )
    def test_a_table_that_cannot_keep_a_promise_is_refused(
        self, world: World, statement: str
    ) -> None:
        world.run(statement)
        with pytest.raises(ConfigError, match="not an ordinary table"):
            world.publish(world.sink(), staged(id=[1]))

    @pytest.mark.parametrize("statement", ["DROP TABLE t", "ALTER TABLE t RENAME TO t_old"])
    def test_a_table_that_vanished_is_not_made_anew_in_silence(
        self, world: World, statement: str
    ) -> None:
        world.publish(world.sink(), staged(id=[1, 2]))
        world.run(statement)
        with pytest.raises(
            TableReplacedError, match=r" 2 rows.*public\.t, or its .* not exist any"
        ):
            world.publish(world.sink(), staged(id=[3]))

    def test_a_partitioned_table_takes_rows(self, world: World) -> None:
        world.run("CREATE TABLE t (id bigint, day date) PARTITION BY RANGE (day)")
        world.run(
            "CREATE TABLE t13 PARTITION OF t FOR VALUES FROM ('2013-01-01') TO ('2014-01-01')"
        )
        world.publish(world.sink(), staged(id=[1], day=[date(2013, 5, 1)]))
        assert len(world.rows()) == 1
        with pytest.raises(RefusedError, match="no partition"):
            world.publish(world.sink(), staged(id=[1], day=[date(2015, 5, 1)]))


class TestDeadLetters:
    def test_a_record_is_kept_to_the_byte(self, world: World) -> None:
        letters = StagedOutput(staged(id=[1]), dead_letters(1, [b"\x00{", b""]))
        with world.sink().open("p") as session:
            start = first_entry("p")
            session.publish(start, StagedOutput())
            session.publish(child_of(start, letters), letters)
        assert world.rows('SELECT * FROM t_dead_letters ORDER BY "offset"')[0] == {
            CHECKPOINT_COLUMN: 1,
            "topic": "events",
            "partition": 0,
            "offset": 0,
            "timestamp": datetime(2013, 1, 1, 5, 15, tzinfo=UTC),
            "key": None,
            "value": b"\x00{",
            "headers": [{"key": "carrier", "value": "AFVB"}],
            "error": "not JSON",
        }

    def test_a_header_with_a_name_no_database_takes_does_not_stop_the_pipeline(
        self, world: World
    ) -> None:
        letters = dead_letters(1, [b"{"])
        assert letters.table is not None
        odd = pa.array([[{"key": "a\0b", "value": None}]], letters.schema.field("headers").type)
        table = letters.table.set_column(7, "headers", odd)
        output = StagedOutput(staged(id=[1]), StagedTable.in_memory(table))
        with world.sink(dead_letter_table="lost letters").open("p") as session:
            start = first_entry("p")
            session.publish(start, StagedOutput())
            session.publish(child_of(start, output), output)
        assert world.rows('SELECT headers FROM "lost letters"') == [
            {"headers": [{"key": "a\ufffdb", "value": None}]}
        ]


class TestConfiguration:
    @pytest.mark.parametrize(
        ("settings", "field"),
        [
            ({"mode": "upsert"}, "key"),
            ({"key": ["id"]}, "key"),
            ({"mode": "upsert", "key": ["id", "id"]}, "key"),
            ({"sequence_by": ["at"]}, "sequence_by"),
            ({"table": "a.b.c"}, "table"),
            ({"table": 'a"b'}, "table"),
            ({"table": "x" * 64}, "table"),
            ({"table": "x" * 60}, "dead_letter_table"),
            ({"dead_letter_table": "t"}, "dead_letter_table"),
            ({"lock_timeout": 0}, "lock_timeout"),
            ({"mode": "replace"}, "mode"),
            ({"colour": "red"}, "colour"),
        ],
    )
    def test_a_wrong_field_is_named(self, settings: Mapping[str, Any], field: str) -> None:
        with pytest.raises(ValidationError) as error:
            PostgresSink.model_validate({"dsn": "postgresql://h/d", "table": "t", **settings})
        assert [problem["loc"] for problem in error.value.errors()] == [(field,)]

    @pytest.mark.parametrize(
        "dsn",
        [
            "postgresql://me:s3cret@pass@host/db",
            "postgresql://me:s3cret/pass@host/db",
            "postgresql://me:s3cret%zz@host/db",
            "host=h s3cret",
            "password='s3cret",
        ],
    )
    def test_a_malformed_dsn_is_refused_without_showing_any_of_it(self, dsn: str) -> None:
        with pytest.raises(ValidationError) as error:
            PostgresSink.model_validate({"dsn": dsn, "table": "t"})
        assert "s3cret" not in str(error.value)
        assert "percent-encoded" in str(error.value)

    def test_a_description_tells_where_and_no_secret(self) -> None:
        sink = PostgresSink.model_validate(
            {"dsn": "postgresql://me:s3cret@db.example:5433/air", "table": "ops.flights"}
        )
        assert sink.describe() == {
            "kind": "postgres",
            "host": "db.example",
            "port": "5433",
            "dbname": "air",
            "table": "ops.flights",
        }
        assert "s3cret" not in f"{sink!r} {sink} {sink.model_dump()} {sink.model_dump_json()}"
