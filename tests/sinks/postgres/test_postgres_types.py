"""Values on their way into columns that somebody else declared."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from eo_pipeline.errors import RefusedError, SchemaChangeError
from tests.sinks.postgres.postgres_world import World, staged, world

__all__ = ["world"]


class TestTypesOfAnExistingTable:
    @pytest.mark.parametrize(
        ("column", "values", "stored"),
        [
            ("bigint", pa.array([1], pa.int16()), 1),
            ("integer", pa.array([1], pa.int8()), 1),
            ("numeric", pa.array([2**62], pa.int64()), Decimal(2**62)),
            ("numeric(12,2)", pa.array([7], pa.int32()), Decimal("7.00")),
            ("numeric", pa.array([Decimal("1.10")]), Decimal("1.10")),
            ("numeric(12,4)", pa.array([Decimal("1.10")]), Decimal("1.1000")),
            ("double precision", pa.array([0.5], pa.float32()), 0.5),
            ("varchar(3)", pa.array(["abc"]), "abc"),
            ("char(5)", pa.array(["abc"]), "abc  "),
            ("uuid", pa.array(["a" * 32]), uuid.UUID("a" * 32)),
            ("json", pa.array(['{"a": 1}']), {"a": 1}),
            ("jsonb", pa.array(['{"a": 1}']), {"a": 1}),
            ("mood", pa.array(["happy"]), "happy"),
            ("short_text", pa.array(["abc"]), "abc"),
            ("positive", pa.array([3], pa.int16()), 3),
            ("bit(3)", pa.array(["101"]), "101"),
            ("timestamp", pa.array([date(2013, 1, 1)]), datetime(2013, 1, 1)),  # noqa: DTZ001
            ("uuid[]", pa.array([["a" * 32, None]]), [uuid.UUID("a" * 32), None]),
            ("bigint[]", pa.array([[1, None]], pa.list_(pa.int16())), [1, None]),
            ("varchar(3)[]", pa.array([["abc"]]), ["abc"]),
            ("text", pa.array([{"a": 1}]), '{"a": 1}'),
        ],
        ids=lambda value: value if isinstance(value, str) else "",
    )
    def test_a_value_that_fits_goes_in(
        self, world: World, column: str, values: pa.Array, stored: object
    ) -> None:
        world.run("CREATE TYPE mood AS ENUM ('happy', 'sad')")
        world.run("CREATE DOMAIN short_text AS varchar(3)")
        world.run("CREATE DOMAIN positive AS bigint CHECK (value > 0)")
        world.run(f"CREATE TABLE t (x {column})")
        world.publish(world.sink(), staged(x=values))
        assert world.rows() == [{"x": stored}]

    @pytest.mark.parametrize(
        ("column", "values"),
        [
            ("real", pa.array([1], pa.int32())),
            ("double precision", pa.array([1], pa.int64())),
            ("numeric", pa.array([1.5])),
            ("integer", pa.array(["1"])),
            ("date", pa.array(["2013-01-01"])),
            ("bytea", pa.array(["abc"])),
            ("text", pa.array([1])),
            ("text", pa.array([b"abc"])),
            ("boolean", pa.array([1])),
            ("timestamptz", pa.array([datetime(2013, 1, 1)])),  # noqa: DTZ001
            ("timestamp", pa.array([datetime(2013, 1, 1, tzinfo=UTC)])),
            ("timestamptz[]", pa.array([[datetime(2013, 1, 1)]])),  # noqa: DTZ001
            ("timestamp[]", pa.array([[datetime(2013, 1, 1, tzinfo=UTC)]])),
            ("text", pa.array([["a"]])),
            ("text[]", pa.array(["a"])),
            ("jsonb", pa.array([1])),
        ],
        ids=str,
    )
    def test_a_type_that_might_lose_something_is_refused_in_words(
        self, world: World, column: str, values: pa.Array
    ) -> None:
        world.run(f"CREATE TABLE t (x {column})")
        with pytest.raises(SchemaChangeError, match=r"column 'x' of public\.t .*ALTER TABLE"):
            world.publish(world.sink(), staged(x=values))
        assert world.rows() == []

    @pytest.mark.parametrize(
        ("column", "values", "message"),
        [
            ("varchar(2)", ["abc"], r"22001.*column x"),
            ("char(2)", ["abc"], r"22001"),
            ("short_text", ["abcd"], r"22001"),
            ("bit(2)", ["101"], r"22026"),
            ("varchar(2)[]", [["abc"]], r"22001"),
            ("uuid", ["not one"], r"22P02.*uuid|uuid.*22P02"),
            ("mood", ["angry"], r"22P02"),
            ("jsonb", ["{"], r"22P02"),
            ("positive", [-1], r"23514"),
            ("text", ["a\0b"], r"22021.*NUL"),
            ("jsonb", [{"a": "\0"}], r"22P05"),
        ],
        ids=lambda value: value if isinstance(value, str) else "",
    )
    def test_a_value_that_does_not_fit_is_refused_never_cut(
        self, world: World, column: str, values: Sequence[Any], message: str
    ) -> None:
        world.run("CREATE TYPE mood AS ENUM ('happy', 'sad')")
        world.run("CREATE DOMAIN short_text AS varchar(3)")
        world.run("CREATE DOMAIN positive AS bigint CHECK (value > 0)")
        world.run(f"CREATE TABLE t (x {column})")
        with pytest.raises(RefusedError, match=message):
            world.publish(world.sink(), staged(x=pa.array(values)))
        assert world.rows() == []

    def test_times_in_arrays_keep_their_instant_whatever_zones_are_set(self, world: World) -> None:
        noon = datetime(2013, 7, 1, 12, tzinfo=UTC)
        berlin = pa.array([[noon, None]]).cast(pa.list_(pa.timestamp("us", "Europe/Berlin")))
        world.run("SET TimeZone = 'Asia/Tokyo'")
        name = world.dsn.rpartition("/")[2]
        world.run(f"ALTER DATABASE \"{name}\" SET TimeZone = 'America/New_York'")
        world.publish(world.sink(), staged(x=berlin))
        assert world.rows() == [{"x": [noon, None]}]
