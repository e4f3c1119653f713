"""A column that is too narrow for what comes now is widened, or the remedy is said."""

from __future__ import annotations

from decimal import Decimal

import pyarrow as pa
import pytest

from eo_pipeline.crashpoints import CrashPoint
from eo_pipeline.errors import SchemaChangeError
from eo_pipeline.ledger.entry import CHECKPOINT_COLUMN, Operation
from eo_pipeline.staging.rows import StagedOutput, StagedTable
from eo_pipeline.testing import child_of
from tests.sinks.sql.sql_world import SqlWorld, staged
from tests.sinks.sql.sql_worlds import world

__all__ = ["world"]

SMALL, WIDE = 300, 2**40


def of(checkpoint: int, values: pa.Array) -> StagedTable:
    return staged(x=values, **{CHECKPOINT_COLUMN: pa.array([checkpoint], pa.int64())})


@pytest.mark.parametrize(
    ("before", "now"),
    [
        (pa.array([SMALL], pa.int16()), pa.array([2**20], pa.int32())),
        (pa.array([SMALL], pa.int32()), pa.array([WIDE], pa.int64())),
        (pa.array([SMALL], pa.int32()), pa.array([0.1], pa.float64())),
        (pa.array([0.5], pa.float32()), pa.array([0.1], pa.float64())),
        (pa.array([SMALL], pa.int64()), pa.array([Decimal("1.25")], pa.decimal128(22, 2))),
        (
            pa.array([Decimal("999.99")], pa.decimal128(5, 2)),
            pa.array([Decimal("12345.67")], pa.decimal128(10, 2)),
        ),
        (
            pa.array([Decimal("99999999.99")], pa.decimal128(10, 2)),
            pa.array([Decimal("1.2345")], pa.decimal128(6, 4)),
        ),
    ],
    ids=lambda values: str(values.type),
)
def test_a_column_follows_a_wider_type_and_every_value_stays(
    world: SqlWorld, before: pa.Array, now: pa.Array
) -> None:
    """Also for a rewind behind it, and a replay of what was read before."""
    world.publish(world.sink(), of(1, before), of(2, now))
    assert [row["x"] for row in world.rows(f"SELECT * FROM t ORDER BY {CHECKPOINT_COLUMN}")] == [
        before[0].as_py(),
        now[0].as_py(),
    ]
    with world.sink().open("p") as session:
        head = session.head()
        assert head is not None
        replayed = child_of(head, 1, operation=Operation.REPLAY, target=1)
        session.publish(replayed, StagedOutput(rows=of(1, before)))
        assert len(world.rows()) == 2
        session.publish(child_of(replayed, operation=Operation.REWIND, target=1), StagedOutput())
    assert [row["x"] for row in world.rows()] == [before[0].as_py()]


def test_a_column_shorter_than_what_is_sent_is_left_alone_until_a_value_needs_more(
    world: SqlWorld,
) -> None:
    world.run("CREATE TABLE t (x numeric(5,2))")
    fits = pa.array([Decimal("123.45")], pa.decimal128(20, 2))
    world.publish(world.sink(), staged(x=fits))
    with pytest.raises(Exception, match=r"(?i)overflow|out of range"):
        world.run("INSERT INTO t VALUES (1234.5)")
    world.publish(world.sink(), staged(x=pa.array([Decimal("1234.5")], pa.decimal128(20, 2))))
    assert sorted(row["x"] for row in world.rows()) == [Decimal("123.45"), Decimal("1234.50")]


def test_a_run_that_dies_between_widening_and_commit_has_published_nothing(
    world: SqlWorld,
) -> None:
    head = world.publish(world.sink(), of(1, pa.array([SMALL], pa.int32())))
    entry = child_of(head, 1)
    wider = StagedOutput(rows=of(2, pa.array([WIDE], pa.int64())))

    def die(point: CrashPoint) -> None:
        if point is CrashPoint.ENTRY_SENT:
            raise KeyboardInterrupt

    with world.sink().open("p") as session:
        with pytest.raises(KeyboardInterrupt):
            session.publish(entry, wider, die)
        assert [row["x"] for row in world.rows()] == [SMALL]
    with world.sink().open("p") as session:
        session.publish(entry, wider)
    assert sorted(row["x"] for row in world.rows()) == [SMALL, WIDE]


def test_a_user_who_may_not_change_the_table_is_told_who_can_do_what(world: SqlWorld) -> None:
    world.publish(world.sink(), of(1, pa.array([SMALL], pa.int32())))
    user = world.make_user()
    world.grant(user, "SELECT, INSERT, UPDATE, DELETE", "t", "eo_ledger")
    login = {"password": ""} if world.schema == "public" else {}
    wider = of(2, pa.array([WIDE], pa.int64()))
    with pytest.raises(SchemaChangeError, match="Run as a privileged user") as raised:
        world.publish(world.sink_of(user, **login), wider)
    world.run(str(raised.value).partition("privileged user: ")[2])
    world.publish(world.sink_of(user, **login), wider)
    assert sorted(row["x"] for row in world.rows()) == [SMALL, WIDE]
    world.drop_user(user)


def test_what_a_column_has_besides_its_type_stays(world: SqlWorld) -> None:
    world.run("CREATE TABLE t (x int NOT NULL, CONSTRAINT up CHECK (x > 0))")
    world.publish(world.sink(), staged(x=pa.array([WIDE], pa.int64())))
    for odd in ("NULL", "-1"):
        with pytest.raises(Exception, match=r"(?i)null|up|violat"):
            world.run(f"INSERT INTO t (x) VALUES ({odd})")
    assert [row["x"] for row in world.rows()] == [WIDE]


def test_a_double_does_not_go_where_whole_numbers_may_be_too_long_for_it(world: SqlWorld) -> None:
    world.run("CREATE TABLE t (x bigint)")
    with pytest.raises(SchemaChangeError, match=r"column 'x' .*ALTER TABLE"):
        world.publish(world.sink(), staged(x=pa.array([0.5])))
    assert world.rows() == []
