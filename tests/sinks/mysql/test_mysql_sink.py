"""What MySQL does with rows, and what it would do if it were left to itself."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from eo_pipeline.errors import (
    ConfigError,
    RefusedError,
    SchemaChangeError,
    TableReplacedError,
)
from eo_pipeline.ledger.entry import CHECKPOINT_COLUMN
from eo_pipeline.staging.rows import StagedOutput
from eo_pipeline.testing import child_of
from tests.sinks.mysql.mysql_world import BOTH_WAYS, World, staged, world

__all__ = ["world"]


ODD_TEXTS = [
    "",
    "NULL",
    "null",
    "\\N",
    'say "no"',
    "a\nb\r\n",
    "a,b",
    "back\\slash",
    "a\0b",
    "🛩",
    None,
]


@BOTH_WAYS
class TestNothingIsBent:
    """LOAD DATA LOCAL makes warnings of errors, also in strict mode: rows left out, values cut."""

    def test_null_and_every_odd_text_come_back_exactly(self, world: World, load_data: bool) -> None:
        texts = staged(id=list(range(len(ODD_TEXTS))), x=ODD_TEXTS)
        world.publish(world.sink(load_data=load_data), texts)
        assert [row["x"] for row in world.rows("SELECT x FROM t ORDER BY id")] == ODD_TEXTS

    def test_bytes_come_back_exactly(self, world: World, load_data: bool) -> None:
        values = [bytes(range(256)), b"", b"NULL", b'"', None]
        world.publish(world.sink(load_data=load_data), staged(id=list(range(5)), x=values))
        assert [row["x"] for row in world.rows("SELECT x FROM t ORDER BY id")] == values

    def test_floats_come_back_to_the_last_bit(self, world: World, load_data: bool) -> None:
        doubles = [0.1, 1e-300, -1.7976931348623157e308, 123456789.12345679, -0.0]
        singles = pa.array([0.1, 1.2345678, 16777216, 3e38, 1e-38], pa.float32())
        world.publish(
            world.sink(load_data=load_data), staged(id=list(range(5)), d=doubles, s=singles)
        )
        found = world.rows("SELECT d, s FROM t ORDER BY id")
        assert [row["d"] for row in found] == doubles
        assert [row["s"] for row in found] == singles.to_pylist()

    @pytest.mark.parametrize(
        ("column", "values", "message"),
        [
            ("varchar(2)", ["ab", "abc"], r"too long|truncated"),
            ("varchar(2)", ["ab "], r"too long|truncated"),
            ("varchar(9) CHARACTER SET latin1", ["🛩"], r"Incorrect string value.*1366"),
            ("bigint unsigned", [-1], r"Out of range.*1264"),
            ("varbinary(2)", [b"abc"], r"too long|truncated"),
            ("timestamp(6)", [datetime(2200, 1, 1, tzinfo=UTC)], r"Incorrect|Out of range"),
            ("json", ["{"], r"CONSTRAINT|JSON text"),
            ("bigint CHECK (x > 10)", [11, 1], r"(?i)CONSTRAINT.*(4025|3819)"),
            ("bigint UNIQUE", [1, 2, 1], r"Duplicate entry '1'.*1062"),
            ("bigint, ADD must text NOT NULL", [1], r"must.*1364"),
            ("bigint, ADD FOREIGN KEY (x) REFERENCES other (id)", [1], r"foreign key.*1452"),
            ("bigint NOT NULL", [1, None], r"1 null\(s\), and the column is NOT NULL"),
            ("timestamp NOT NULL", [None, datetime(2013, 1, 1, tzinfo=UTC)], r"NOT NULL"),
            ("bigint AUTO_INCREMENT PRIMARY KEY", [None, 7], r"NOT NULL"),
            ("datetime", [datetime(2013, 1, 1, 0, 0, 0, 1, tzinfo=UTC)], r"datetime does not keep"),
            ("datetime(3)", [datetime(1900, 1, 1, 0, 0, 0, 1, tzinfo=UTC)], r"parts of a second"),
        ],
        ids=lambda value: value if isinstance(value, str) else "",
    )
    def test_a_value_that_does_not_fit_refuses_the_checkpoint(
        self, world: World, load_data: bool, column: str, values: list[Any], message: str
    ) -> None:
        world.run("CREATE TABLE other (id bigint PRIMARY KEY)")
        world.run("CREATE TABLE t (a bigint)")
        world.run(f"ALTER TABLE t ADD x {column}")
        with pytest.raises(RefusedError, match=message):
            world.publish(world.sink(load_data=load_data), staged(x=pa.array(values)))
        assert world.rows() == []
        assert [row["version"] for row in world.rows("SELECT version FROM eo_ledger")] == [0]

    @pytest.mark.parametrize("world", ["mariadb"], indirect=True)
    def test_what_is_no_uuid_is_refused(self, world: World, load_data: bool) -> None:
        world.run("CREATE TABLE t (x uuid)")
        for texts in (["123e4567-e89b-12d3-a456-426655440000"], ["not one"]):
            with suppress(RefusedError):
                world.publish(world.sink(load_data=load_data), staged(x=texts))
        assert [row["x"] for row in world.rows()] == ["123e4567-e89b-12d3-a456-426655440000"]

    @pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
    def test_what_is_no_number_is_refused(
        self, world: World, load_data: bool, value: float
    ) -> None:
        with pytest.raises(RefusedError, match=r"column 'x'.*NaN or infinity"):
            world.publish(world.sink(load_data=load_data), staged(x=[1.5, value]))
        assert world.rows() == []

    def test_zero_is_a_value_and_no_request_for_the_next_number(
        self, world: World, load_data: bool
    ) -> None:
        world.run("CREATE TABLE t (x bigint AUTO_INCREMENT PRIMARY KEY, y bigint)")
        world.publish(world.sink(load_data=load_data), staged(x=[0, 7], y=[1, 2]))
        assert world.rows("SELECT x FROM t ORDER BY x") == [{"x": 0}, {"x": 7}]

    def test_columns_that_the_result_lacks_get_their_defaults(
        self, world: World, load_data: bool
    ) -> None:
        world.run(
            "CREATE TABLE t (n bigint AUTO_INCREMENT PRIMARY KEY, id bigint,"
            " loaded varchar(9) DEFAULT 'by us', twice bigint AS (id * 2) STORED)"
        )
        world.publish(world.sink(load_data=load_data), staged(id=[21]))
        assert world.rows() == [{"n": 1, "id": 21, "loaded": "by us", "twice": 42}]

    def test_rows_of_many_packets_and_statements_all_arrive(
        self, world: World, load_data: bool
    ) -> None:
        ids = list(range(120_000 if load_data else 20_000))
        texts = [f"{n}" * 10 for n in ids]
        world.publish(world.sink(load_data=load_data), staged(id=ids, x=texts))
        found = world.rows("SELECT count(*) n, count(DISTINCT id) d, sum(length(x)) l FROM t")
        assert found == [{"n": len(ids), "d": len(ids), "l": sum(map(len, texts))}]

    def test_whatever_the_server_is_set_to(self, world: World, load_data: bool) -> None:
        """Also an account's or server's lax mode, other time zone, safe updates and chaining."""
        before = world.rows("SELECT @@GLOBAL.sql_mode AS m")[0]["m"]
        for setting in ("sql_mode = ''", "time_zone = '+09:00'", "completion_type = 'CHAIN'"):
            world.run(f"SET GLOBAL {setting}")
        try:
            world.run("CREATE TABLE t (x varchar(2), at datetime(6))")
            noon = datetime(2013, 7, 1, 12, tzinfo=UTC)
            sink = world.sink(load_data=load_data)
            head = world.publish(sink, staged(x=["ab"], at=[noon]))
            with pytest.raises(RefusedError):
                world.publish(sink, staged(x=["abc"], at=[noon]))
            assert world.rows() == [{"x": "ab", "at": noon.replace(tzinfo=None)}]
            with sink.open("p") as session:
                held = session.entry(1)
            assert held is not None
            assert held.started_at == head.started_at
            assert abs((held.committed_at or noon) - datetime.now(UTC)).total_seconds() < 60
        finally:
            world.run(f"SET GLOBAL sql_mode = '{before}'")
            world.run("SET GLOBAL time_zone = 'SYSTEM'")
            world.run("SET GLOBAL completion_type = 'NO_CHAIN'")


class TestTypesOfAnExistingTable:
    @pytest.mark.parametrize(
        ("column", "values", "stored"),
        [
            ("bigint", pa.array([1], pa.int16()), 1),
            ("int unsigned", pa.array([2**31 - 1], pa.int32()), 2**31 - 1),
            ("tinyint", pa.array([-1], pa.int8()), -1),
            ("decimal(20,0)", pa.array([2**62], pa.int64()), Decimal(2**62)),
            ("decimal(12,4)", pa.array([Decimal("1.10")]), Decimal("1.1000")),
            ("double", pa.array([0.1], pa.float32()), 0.10000000149011612),
            ("float", pa.array([0.5], pa.float32()), 0.5),
            ("varchar(3)", pa.array(["abc"]), "abc"),
            ("char(5)", pa.array(["abc"]), "abc"),
            ("text CHARACTER SET latin1", pa.array(["naïve"]), "naïve"),
            ("json", pa.array(['{"a": 1}']), '{"a": 1}'),
            ("datetime", pa.array([date(2013, 1, 1)]), datetime(2013, 1, 1)),  # noqa: DTZ001
            ("datetime", pa.array([datetime(2013, 1, 1)]), datetime(2013, 1, 1)),  # noqa: DTZ001
            ("datetime(3)", pa.array([1], pa.timestamp("ms")),
             datetime(1970, 1, 1, 0, 0, 0, 1000)),  # noqa: DTZ001
            ("varchar(20)", pa.array([{"a": 1}]), '{"a":1}'),
            ("varbinary(3)", pa.array([b"\0a"]), b"\0a"),
        ],
        ids=lambda value: value if isinstance(value, str) else "",
    )  # fmt: skip
    def test_a_value_that_fits_goes_in(
        self, world: World, column: str, values: pa.Array, stored: object
    ) -> None:
        world.run(f"CREATE TABLE t (x {column})")
        world.publish(world.sink(), staged(x=values))
        assert world.rows() == [{"x": stored}]

    @pytest.mark.parametrize(
        ("column", "values"),
        [
            ("float", pa.array([1], pa.int32())),
            ("double", pa.array([1], pa.int64())),
            ("decimal(12,2)", pa.array([1.5])),
            ("int", pa.array(["1"])),
            ("date", pa.array(["2013-01-01"])),
            ("blob", pa.array(["abc"])),
            ("text", pa.array([1])),
            ("text", pa.array([b"abc"])),
            ("binary(5)", pa.array([b"abc"])),
            ("tinyint(1)", pa.array([1], pa.int8())),
            ("tinyint", pa.array([True])),
            ("enum('happy','sad')", pa.array(["1"])),
            ("bit(8)", pa.array([1], pa.int8())),
            ("year", pa.array([2013], pa.int16())),
            ("time", pa.array(["12:00"])),
            ("date", pa.array([datetime(2013, 1, 1)])),  # noqa: DTZ001
            ("json", pa.array([1])),
        ],
        ids=str,
    )
    def test_a_type_that_might_lose_something_is_refused_in_words(
        self, world: World, column: str, values: pa.Array
    ) -> None:
        world.run(f"CREATE TABLE t (x {column})")
        with pytest.raises(SchemaChangeError, match=r"column 'x' of db_\w+\.t .*ALTER TABLE"):
            world.publish(world.sink(), staged(x=values))
        assert world.rows() == []


class TestNewTable:
    def test_nested_values_become_json(self, world: World) -> None:
        struct = {"d": Decimal("1.10"), "b": b"\x00", "f": float("nan"), "n": None}
        types = pa.array([{**struct, "n": "a word"}]).type
        world.publish(
            world.sink(),
            staged(
                s=pa.array([struct], types),
                m=pa.array([[("größe", 1)]], pa.map_(pa.string(), pa.int64())),
                a=pa.array([["x", None]]),
                none=pa.array([None], pa.struct([("a", pa.int64())])),
            ),
        )
        assert [{k: v and json.loads(v) for k, v in row.items()} for row in world.rows()] == [
            {
                "s": {"d": 1.1, "b": "AA==", "f": "NaN", "n": None},
                "m": {"größe": 1},
                "a": ["x", None],
                "none": None,
            }
        ]

    @pytest.mark.parametrize("world", ["mariadb"], indirect=True)
    def test_where_json_is_text_it_keeps_every_digit(self, world: World) -> None:
        """MySQL itself keeps JSON in a form of its own, with numbers as doubles."""
        shape = pa.struct([("d", pa.decimal128(3, 2)), ("n", pa.string())])
        world.publish(world.sink(), staged(s=pa.array([{"d": Decimal("1.10"), "n": None}], shape)))
        assert world.rows() == [{"s": '{"d":1.10,"n":null}'}]

    def test_names_are_taken_as_written(self, world: World) -> None:
        odd: dict[str, list[object]] = {
            'a "quoted" `%s`': [1],
            "Tail": ["N1"],
            "größe": [2],
            "select": [3],
        }
        sink = world.sink(table='"Flights 100% . `x`"')
        world.publish(sink, staged(**odd), staged(**odd))
        expected = {name: value[0] for name, value in odd.items()}
        assert world.rows("SELECT * FROM `Flights 100% . ``x```") == [expected] * 2

    def test_tables_whose_names_differ_in_case_are_two(self, world: World) -> None:
        world.run("CREATE TABLE T (x text)")
        world.publish(world.sink(), staged(x=[1]))
        assert world.rows() == [{"x": 1}]

    @pytest.mark.parametrize("name", ["", "x" * 65, "blank ", "🛩"])
    def test_a_name_that_mysql_has_not_is_refused(self, world: World, name: str) -> None:
        with pytest.raises(RefusedError, match="Rename the column"):
            world.publish(world.sink(), staged(**{name: [1]}))

    def test_names_that_mysql_cannot_tell_apart_are_refused(self, world: World) -> None:
        with pytest.raises(RefusedError, match="'Tail', 'tail' more than once"):
            world.publish(world.sink(), staged(Tail=[1], tail=[2]))

    @pytest.mark.parametrize(
        "values",
        [pa.nulls(1), pa.array([1], pa.duration("s")), pa.array([None], pa.decimal128(38, 31))],
    )
    def test_a_type_that_has_no_counterpart_is_refused_by_name(
        self, world: World, values: pa.Array
    ) -> None:
        with pytest.raises(SchemaChangeError, match="column 'x'"):
            world.publish(world.sink(), staged(x=values))
        assert world.tables() == {"eo_ledger"}

    def test_an_index_finds_the_rows_of_a_checkpoint(self, world: World) -> None:
        world.publish(world.sink(), staged(**{CHECKPOINT_COLUMN: [1]}))
        found = world.rows("SHOW INDEX FROM t")
        assert [row["Column_name"] for row in found] == [CHECKPOINT_COLUMN]

    def test_a_table_that_is_not_transactional_is_refused_at_once(self, world: World) -> None:
        world.run("CREATE TABLE t (id bigint) ENGINE = MyISAM")
        with pytest.raises(ConfigError, match=r"MyISAM.*ENGINE = InnoDB"):
            world.sink().open("p")

    def test_a_table_that_became_untransactional_meanwhile_is_refused(self, world: World) -> None:
        with world.sink().open("p") as session:
            head = world.publish(world.sink())
            world.run("CREATE TABLE t (id bigint) ENGINE = MyISAM")
            with pytest.raises(ConfigError, match="MyISAM"):
                session.publish(child_of(head, 1), StagedOutput(staged(id=[1])))

    def test_a_view_is_refused(self, world: World) -> None:
        world.run("CREATE VIEW t AS SELECT 1 AS id")
        with pytest.raises(ConfigError, match="VIEW"):
            world.sink().open("p")

    def test_a_generated_column_is_refused(self, world: World) -> None:
        world.run("CREATE TABLE t (id bigint, x bigint AS (1) STORED)")
        with pytest.raises(RefusedError, match="computes 'x' itself"):
            world.publish(world.sink(), staged(id=[1], x=[1]))

    def test_a_trigger_of_the_users_may_refuse(self, world: World) -> None:
        world.run("CREATE TABLE t (id bigint)")
        world.run(
            "CREATE TRIGGER no BEFORE INSERT ON t FOR EACH ROW"
            " SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'not on a Sunday'"
        )
        with pytest.raises(RefusedError, match="not on a Sunday"):
            world.publish(world.sink(), staged(id=[1]))

    def test_a_table_that_vanished_is_not_made_anew(self, world: World) -> None:
        world.publish(world.sink(), staged(id=[1, 2]))
        world.run("RENAME TABLE t TO elsewhere")
        with pytest.raises(TableReplacedError, match=r" 2 rows.*\.t, or its .* does not exist any"):
            world.publish(world.sink(), staged(id=[3]))


def test_both_ways_of_loading_store_the_same(world: World) -> None:
    """A value that is sent as text must not depend on how the text is sent."""
    values: Sequence[Any] = [0.1, 1e22, 5e-324]
    columns = {
        "id": [1, 2, 3],
        "d": values,
        "m": pa.array([Decimal("1.10"), Decimal(10**20), None], pa.decimal128(38, 10)),
        "t": pa.array([0, -1, 253402300799999999], pa.timestamp("us", "UTC")),
        "n": pa.array([date(1, 1, 1), date(9999, 12, 31), None]),
        "b": [True, False, None],
    }
    for way in (True, False):
        sink = world.sink(table=f"t{way}", load_data=way)
        world.publish(sink, staged(**columns), pipeline=f"p-{way}".lower())
    assert world.rows("SELECT * FROM tTrue ORDER BY id") == world.rows(
        "SELECT * FROM tFalse ORDER BY id"
    )
