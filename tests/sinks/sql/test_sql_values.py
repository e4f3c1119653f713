"""Values, names and keys that a database cannot take: a refusal, whatever raised it and where."""

from __future__ import annotations

from datetime import UTC, datetime

import pyarrow as pa
import pytest

from eo_pipeline.errors import RefusedError
from eo_pipeline.sinks.session import CommitOutcome
from eo_pipeline.staging.rows import StagedOutput
from eo_pipeline.testing import child_of, first_entry
from tests.sinks.sql.sql_world import SqlWorld, staged
from tests.sinks.sql.sql_worlds import MYSQLS, world

__all__ = ["world"]

NOT_UTF8 = pa.Array.from_buffers(
    pa.string(), 1, [None, pa.py_buffer(b"\0\0\0\0\2\0\0\0"), pa.py_buffer(b"\xff\xfe")]
)
IN_A_STRUCT = pa.StructArray.from_arrays([NOT_UTF8], ["text"])
MARKED_AS_JSON = pa.StructArray.from_arrays([NOT_UTF8], ["_eo_json"])
YEAR_10000 = 253_402_300_800

#: In every database.
BAD = {
    "text that is not UTF-8": NOT_UTF8,
    "the same in a struct": IN_A_STRUCT,
    "the same in JSON": MARKED_AS_JSON,
    "the same in a list": pa.ListArray.from_arrays([0, 1], NOT_UTF8),
    "a nested year 10000": pa.array([{"at": YEAR_10000}], pa.struct([("at", pa.timestamp("s"))])),
    "a nested date of it": pa.array([{"on": 2_932_897}], pa.struct([("on", pa.date32())])),
}  # fmt: skip

#: PostgreSQL has years up to 294276, MySQL up to 9999; MySQL's text holds U+0000.
BAD_IN_ONE = [
    *[("postgres", value) for value in (
        pa.array(["a\0b"]),
        pa.array([["a\0b"]]),
        pa.array([{"a": "a\0b"}]),
        pa.array([2**31 - 1], pa.date32()),
    )],
    *[(server, value) for server in MYSQLS for value in (
        pa.array([2_932_897], pa.date32()),
        pa.array([YEAR_10000], pa.timestamp("s", "UTC")),
        pa.array([-(2**62)], pa.timestamp("us")),
        pa.array([float("nan")]),
    )],
]  # fmt: skip


def assert_refused(world: SqlWorld, value: pa.Array, **settings: object) -> None:
    """Refused, nothing left, and the session takes the next try."""
    with world.sink(**settings).open("p") as session:
        start = first_entry("p")
        session.publish(start, StagedOutput())
        bad = StagedOutput(staged(id=[1], x=value))
        entry = child_of(start, bad)
        with pytest.raises(RefusedError, match=r"'x'|x\b|value|SQLSTATE|error \d+"):
            session.publish(entry, bad)
        assert world.is_untouched()
        assert session.entry(1) is None
        mended = StagedOutput(staged(id=[1], x=pa.nulls(1, value.type)))
        assert session.publish(entry, mended) is CommitOutcome.COMMITTED


@pytest.mark.parametrize("value", BAD.values(), ids=[*BAD])
def test_a_value_that_no_database_takes_is_refused(world: SqlWorld, value: pa.Array) -> None:
    assert_refused(world, value)


@pytest.mark.parametrize(("world", "value"), BAD_IN_ONE, indirect=["world"], ids=str)
def test_a_value_that_this_database_does_not_take_is_refused(
    world: SqlWorld, value: pa.Array
) -> None:
    assert_refused(world, value)


@pytest.mark.parametrize("world", MYSQLS, indirect=True)
@pytest.mark.parametrize("value", BAD.values(), ids=[*BAD])
def test_also_where_rows_travel_by_statements(world: SqlWorld, value: pa.Array) -> None:
    assert_refused(world, value, load_data=False)


@pytest.mark.parametrize("world", MYSQLS, indirect=True)
@pytest.mark.parametrize(
    "value", [pa.array([2_932_897], pa.date32()), pa.array([YEAR_10000], pa.timestamp("s"))]
)
def test_so_is_a_year_10000_there(world: SqlWorld, value: pa.Array) -> None:
    assert_refused(world, value, load_data=False)


@pytest.mark.parametrize("name", ["a`b", 'a"b', "a%b", "a%sb", "a'b", "a\\b", "ä b"])
def test_an_odd_name_of_a_column_is_a_name(world: SqlWorld, name: str) -> None:
    rule = {"mode": "upsert", "key": [name], "sequence_by": ["at"]}
    world.publish(world.sink(), staged(**{name: [1]}), staged(**{name: [2]}))
    world.publish(world.sink(table="u", **rule), staged(**{name: [3], "at": [1]}), pipeline="q")
    assert [row[name] for row in world.rows("SELECT * FROM u")] == [3]


@pytest.mark.parametrize("world", MYSQLS, indirect=True)
def test_a_key_that_is_no_number_is_refused_where_there_is_none(world: SqlWorld) -> None:
    sink = world.sink(mode="upsert", key=["k"], sequence_by=["at"])
    with pytest.raises(RefusedError, match=r"column 'k'.*NaN"):
        world.publish(sink, staged(k=[float("nan")], at=[1]))


@pytest.mark.parametrize("world", ["postgres"], indirect=True)
def test_a_key_that_is_no_number_is_one_key(world: SqlWorld) -> None:
    sink = world.sink(mode="upsert", key=["k"], sequence_by=["at"])
    for at in (1, 2):
        world.publish(sink, staged(k=[float("nan")] * 2, at=[at, at]))
    assert [row["at"] for row in world.rows()] == [2]


def test_a_null_where_the_table_has_none_is_refused(world: SqlWorld) -> None:
    world.run("CREATE TABLE t (id bigint NOT NULL, x bigint)")
    with pytest.raises(RefusedError, match=r"(?i)null"):
        world.publish(world.sink(), staged(id=[1, None], x=[1, 1]))
    assert world.rows() == []


@pytest.mark.parametrize("year", [1, 9999])
def test_the_first_and_the_last_year_come_back(world: SqlWorld, year: int) -> None:
    at = datetime(year, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)
    world.publish(world.sink(), staged(at=[at]))
    found = world.rows("SELECT at FROM t")[0]["at"]
    assert found.replace(tzinfo=UTC) == at
