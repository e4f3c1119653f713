"""Rows that replace their predecessors by key, in every SQL database."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from eo_pipeline.errors import ConfigError, RefusedError
from eo_pipeline.sinks.sql.config import SqlSink
from tests.sinks.sql.sql_world import SqlWorld, staged
from tests.sinks.sql.sql_worlds import world

__all__ = ["world"]


class TestUpsert:
    @pytest.fixture
    def by_time(self, world: SqlWorld) -> SqlSink:
        return world.sink(mode="upsert", key=["id"], sequence_by=["at"])

    def test_the_newest_of_one_checkpoint_wins_whatever_its_place(
        self, world: SqlWorld, by_time: SqlSink
    ) -> None:
        world.publish(by_time, staged(id=[1, 1, 1], at=[2, 3, 1], v=["b", "c", "a"]))
        assert [row["v"] for row in world.rows()] == ["c"]

    def test_an_older_row_that_comes_late_changes_nothing(
        self, world: SqlWorld, by_time: SqlSink
    ) -> None:
        world.publish(by_time, staged(id=[1], at=[5], v=["new"]))
        world.publish(by_time, staged(id=[1, 2], at=[4, 4], v=["old", "other"]))
        assert sorted(row["v"] for row in world.rows()) == ["new", "other"]

    def test_rows_of_one_age_give_way_to_the_next_checkpoint(
        self, world: SqlWorld, by_time: SqlSink
    ) -> None:
        world.publish(by_time, staged(id=[1], at=[5], v=["first"]))
        world.publish(by_time, staged(id=[1], at=[5], v=["second"]))
        assert [row["v"] for row in world.rows()] == ["second"]

    def test_a_row_from_elsewhere_without_an_age_gives_way_as_a_whole(
        self, world: SqlWorld
    ) -> None:
        """MySQL's update sees columns it has just overwritten: the age must be decided before."""
        world.run("CREATE TABLE t (id bigint PRIMARY KEY, day bigint, n bigint, v text)")
        world.run("INSERT INTO t VALUES (1, 5, NULL, 'theirs')")
        sink = world.sink(mode="upsert", key=["id"], sequence_by=["day", "n"])
        world.publish(sink, staged(id=[1], day=[4], n=[1], v=["ours"]))
        assert world.rows() == [{"id": 1, "day": 4, "n": 1, "v": "ours"}]

    def test_several_columns_tell_the_age_one_after_the_other(self, world: SqlWorld) -> None:
        sink = world.sink(mode="upsert", key=["id"], sequence_by=["day", "n"])
        world.publish(sink, staged(id=[1, 1], day=[1, 2], n=[9, 1], v=["a", "b"]))
        world.publish(sink, staged(id=[1], day=[1], n=[99], v=["c"]))
        assert world.rows() == [{"id": 1, "day": 2, "n": 1, "v": "b"}]

    def test_the_kafka_offset_tells_the_age_where_nothing_else_does(self, world: SqlWorld) -> None:
        sink = world.sink(mode="upsert", key=["id"])
        world.publish(sink, staged(id=[1, 1], _eo_offset=[8, 7], v=["later", "earlier"]))
        assert [row["v"] for row in world.rows()] == ["later"]

    def test_a_table_of_keys_alone_keeps_one_row_a_key(self, world: SqlWorld) -> None:
        sink = world.sink(mode="upsert", key=["a", "b"], sequence_by=["b"])
        world.publish(sink, staged(a=[1, 1], b=[1, 1]), staged(a=[1], b=[1]))
        assert world.rows() == [{"a": 1, "b": 1}]

    @pytest.mark.parametrize(
        ("rows", "field"),
        [({"at": [1]}, "sink.key.* id"), ({"id": [1]}, "sink.sequence_by.* at")],
    )
    def test_a_result_without_the_columns_is_refused_by_field(
        self, world: SqlWorld, by_time: SqlSink, rows: Mapping[str, Any], field: str
    ) -> None:
        with pytest.raises(ConfigError, match=field):
            world.publish(by_time, staged(**rows))
        assert world.tables() == {"eo_ledger"}

    def test_nothing_that_tells_the_age_is_refused(self, world: SqlWorld) -> None:
        sink = world.sink(mode="upsert", key=["id"])
        with pytest.raises(ConfigError, match=r"sink\.sequence_by.*lineage"):
            world.publish(sink, staged(id=[1], v=["a"]))

    def test_a_missing_age_is_refused(self, world: SqlWorld, by_time: SqlSink) -> None:
        with pytest.raises(RefusedError, match=r"'at'.*null in 1 row"):
            world.publish(by_time, staged(id=[1, 2], at=[1, None]))

    @pytest.mark.parametrize(
        ("world", "constraint"),
        [
            ("postgres", ""),
            ("postgres", ", UNIQUE (id, at)"),
            ("postgres", ", UNIQUE (id) DEFERRABLE"),
            ("postgres", ", EXCLUDE (id WITH =)"),
            ("mysql", ""),
            ("mysql", ", UNIQUE (id, at)"),
            ("mysql", ", KEY (id)"),
        ],
        indirect=["world"],
    )
    def test_a_table_whose_key_is_not_unique_is_refused_before_copying(
        self, world: SqlWorld, by_time: SqlSink, constraint: str
    ) -> None:
        world.run(f"CREATE TABLE t (id bigint, at bigint{constraint})")
        with pytest.raises(ConfigError, match=r"sink\.key.*ADD UNIQUE"):
            world.publish(by_time, staged(id=[1], at=[1]))
        assert world.rows() == []
