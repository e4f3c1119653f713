"""Rows that replace their predecessors by key in PostgreSQL."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from eo_pipeline.errors import ConfigError, RefusedError
from eo_pipeline.sinks.postgres import PostgresSink
from tests.contract.postgres_world import World, staged, world

__all__ = ["world"]


class TestUpsert:
    @pytest.fixture
    def by_time(self, world: World) -> PostgresSink:
        return world.sink(mode="upsert", key=["id"], sequence_by=["at"])

    def test_a_later_row_replaces_an_earlier_one(self, world: World, by_time: PostgresSink) -> None:
        world.publish(by_time, staged(id=[1, 2], at=[1, 1], v=["a", "b"]))
        world.publish(by_time, staged(id=[2, 3], at=[2, 2], v=["B", "c"]))
        found = sorted((row["id"], row["v"]) for row in world.rows())
        assert found == [(1, "a"), (2, "B"), (3, "c")]

    def test_the_newest_of_one_checkpoint_wins_whatever_its_place(
        self, world: World, by_time: PostgresSink
    ) -> None:
        world.publish(by_time, staged(id=[1, 1, 1], at=[2, 3, 1], v=["b", "c", "a"]))
        assert [row["v"] for row in world.rows()] == ["c"]

    def test_an_older_row_that_comes_late_changes_nothing(
        self, world: World, by_time: PostgresSink
    ) -> None:
        world.publish(by_time, staged(id=[1], at=[5], v=["new"]))
        world.publish(by_time, staged(id=[1], at=[4], v=["old"]))
        assert [row["v"] for row in world.rows()] == ["new"]

    def test_rows_of_one_age_give_way_to_the_next_checkpoint(
        self, world: World, by_time: PostgresSink
    ) -> None:
        world.publish(by_time, staged(id=[1], at=[5], v=["first"]))
        world.publish(by_time, staged(id=[1], at=[5], v=["second"]))
        assert [row["v"] for row in world.rows()] == ["second"]

    def test_a_row_from_elsewhere_without_an_age_gives_way(
        self, world: World, by_time: PostgresSink
    ) -> None:
        world.run("CREATE TABLE t (id bigint PRIMARY KEY, at bigint, v text)")
        world.run("INSERT INTO t VALUES (1, NULL, 'theirs')")
        world.publish(by_time, staged(id=[1], at=[1], v=["ours"]))
        assert [row["v"] for row in world.rows()] == ["ours"]

    def test_several_columns_tell_the_age_one_after_the_other(self, world: World) -> None:
        sink = world.sink(mode="upsert", key=["id"], sequence_by=["day", "n"])
        world.publish(sink, staged(id=[1, 1], day=[1, 2], n=[9, 1], v=["a", "b"]))
        world.publish(sink, staged(id=[1], day=[1], n=[99], v=["c"]))
        assert [row["v"] for row in world.rows()] == ["b"]

    def test_the_kafka_offset_tells_the_age_where_nothing_else_does(self, world: World) -> None:
        sink = world.sink(mode="upsert", key=["id"])
        world.publish(sink, staged(id=[1, 1], _eo_offset=[8, 7], v=["later", "earlier"]))
        assert [row["v"] for row in world.rows()] == ["later"]

    def test_a_table_of_keys_alone_keeps_one_row_a_key(self, world: World) -> None:
        sink = world.sink(mode="upsert", key=["a", "b"], sequence_by=["b"])
        world.publish(sink, staged(a=[1, 1], b=[1, 1]), staged(a=[1], b=[1]))
        assert world.rows() == [{"a": 1, "b": 1}]

    @pytest.mark.parametrize(
        ("rows", "field"),
        [({"at": [1]}, "sink.key.* id"), ({"id": [1]}, "sink.sequence_by.* at")],
    )
    def test_a_result_without_the_columns_is_refused_by_field(
        self, world: World, by_time: PostgresSink, rows: Mapping[str, Any], field: str
    ) -> None:
        with pytest.raises(ConfigError, match=field):
            world.publish(by_time, staged(**rows))

    def test_nothing_that_tells_the_age_is_refused(self, world: World) -> None:
        sink = world.sink(mode="upsert", key=["id"])
        with pytest.raises(ConfigError, match=r"sink\.sequence_by.*lineage"):
            world.publish(sink, staged(id=[1], v=["a"]))

    def test_a_null_key_is_refused(self, world: World, by_time: PostgresSink) -> None:
        with pytest.raises(RefusedError, match=r"'id'.*null in 1 row"):
            world.publish(by_time, staged(id=[1, None], at=[1, 1]))

    @pytest.mark.parametrize(
        "constraint",
        [
            "",
            "UNIQUE (id, v)",
            "UNIQUE (id) DEFERRABLE",
            "EXCLUDE (id WITH =)",
        ],
    )
    def test_a_table_whose_key_is_not_unique_is_refused_before_copying(
        self, world: World, by_time: PostgresSink, constraint: str
    ) -> None:
        world.run(
            f"CREATE TABLE t (id bigint, at bigint, v text{', ' * bool(constraint)}{constraint})"
        )
        with pytest.raises(ConfigError, match=r"sink\.key.*ADD UNIQUE"):
            world.publish(by_time, staged(id=[1], at=[1], v=["a"]))

    def test_a_unique_index_in_another_order_will_do(self, world: World) -> None:
        world.run("CREATE TABLE t (a bigint, b bigint, at bigint)")
        world.run("CREATE UNIQUE INDEX ON t (b, a) INCLUDE (at)")
        sink = world.sink(mode="upsert", key=["a", "b"], sequence_by=["at"])
        world.publish(sink, staged(a=[1], b=[2], at=[1]), staged(a=[1], b=[2], at=[2]))
        assert world.rows() == [{"a": 1, "b": 2, "at": 2}]
