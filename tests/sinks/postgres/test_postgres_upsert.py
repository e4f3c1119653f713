"""What PostgreSQL's upserts have of their own; see test_sql_upsert.py for the rest."""

from __future__ import annotations

from tests.sinks.postgres.postgres_world import World, staged, world

__all__ = ["world"]


def test_a_unique_index_in_another_order_will_do(world: World) -> None:
    world.run("CREATE TABLE t (a bigint, b bigint, at bigint)")
    world.run("CREATE UNIQUE INDEX ON t (b, a) INCLUDE (at)")
    sink = world.sink(mode="upsert", key=["a", "b"], sequence_by=["at"])
    world.publish(sink, staged(a=[1], b=[2], at=[1]), staged(a=[1], b=[2], at=[2]))
    assert world.rows() == [{"a": 1, "b": 2, "at": 2}]
