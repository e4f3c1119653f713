"""Rows that replace each other in a MySQL table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from eo_pipeline.errors import ConfigError, RefusedError
from eo_pipeline.sinks.mysql import MySqlSink
from tests.contract.mysql_world import World, staged, world

__all__ = ["world"]


class TestUpsert:
    @pytest.fixture
    def by_time(self, world: World) -> MySqlSink:
        return world.sink(mode="upsert", key=["id"], sequence_by=["at"])

    def test_a_later_row_replaces_an_earlier_one(self, world: World, by_time: MySqlSink) -> None:
        world.publish(by_time, staged(id=[1, 2], at=[1, 1], v=["a", "b"]))
        world.publish(by_time, staged(id=[2, 3], at=[2, 2], v=["B", "c"]))
        found = sorted((row["id"], row["v"]) for row in world.rows())
        assert found == [(1, "a"), (2, "B"), (3, "c")]

    def test_the_newest_of_one_checkpoint_wins_whatever_its_place(
        self, world: World, by_time: MySqlSink
    ) -> None:
        world.publish(by_time, staged(id=[1, 1, 1], at=[2, 3, 1], v=["b", "c", "a"]))
        assert [row["v"] for row in world.rows()] == ["c"]

    def test_an_older_row_that_comes_late_changes_nothing(
        self, world: World, by_time: MySqlSink
    ) -> None:
        world.publish(by_time, staged(id=[1], at=[5], v=["new"]))
        world.publish(by_time, staged(id=[1, 2], at=[4, 4], v=["old", "other"]))
        assert sorted(row["v"] for row in world.rows()) == ["new", "other"]

    def test_rows_of_one_age_give_way_to_the_next_checkpoint(
        self, world: World, by_time: MySqlSink
    ) -> None:
        world.publish(by_time, staged(id=[1], at=[5], v=["first"]))
        world.publish(by_time, staged(id=[1], at=[5], v=["second"]))
        assert [row["v"] for row in world.rows()] == ["second"]

    def test_a_row_from_elsewhere_without_an_age_gives_way_as_a_whole(self, world: World) -> None:
        """MySQL's update sees columns it has just overwritten: the age must be decided before."""
        world.run("CREATE TABLE t (id bigint PRIMARY KEY, day bigint, n bigint, v text)")
        world.run("INSERT INTO t VALUES (1, 5, NULL, 'theirs')")
        sink = world.sink(mode="upsert", key=["id"], sequence_by=["day", "n"])
        world.publish(sink, staged(id=[1], day=[4], n=[1], v=["ours"]))
        assert world.rows() == [{"id": 1, "day": 4, "n": 1, "v": "ours"}]

    def test_several_columns_tell_the_age_one_after_the_other(self, world: World) -> None:
        sink = world.sink(mode="upsert", key=["id"], sequence_by=["day", "n"])
        world.publish(sink, staged(id=[1, 1], day=[1, 2], n=[9, 1], v=["a", "b"]))
        world.publish(sink, staged(id=[1], day=[1], n=[99], v=["c"]))
        assert world.rows() == [{"id": 1, "day": 2, "n": 1, "v": "b"}]

    def test_the_kafka_offset_tells_the_age_where_nothing_else_does(self, world: World) -> None:
        sink = world.sink(mode="upsert", key=["id"])
        world.publish(sink, staged(id=[1, 1], _eo_offset=[8, 7], v=["later", "earlier"]))
        assert [row["v"] for row in world.rows()] == ["later"]

    def test_a_table_of_keys_alone_keeps_one_row_a_key(self, world: World) -> None:
        sink = world.sink(mode="upsert", key=["a", "b"], sequence_by=["b"])
        world.publish(sink, staged(a=[1, 1], b=[1, 1]), staged(a=[1], b=[1]))
        assert world.rows() == [{"a": 1, "b": 1}]

    def test_texts_are_one_key_only_if_all_their_bytes_are(self, world: World) -> None:
        """MySQL's usual collations find a and A, and a with a blank behind it, the same."""
        keys = ["a", "A", "a ", "ä", ""]
        sink = world.sink(mode="upsert", key=["k"], sequence_by=["at"])
        world.publish(sink, staged(k=keys, at=[1] * 5), staged(k=["a"], at=[2]))
        assert {row["k"]: row["at"] for row in world.rows()} == dict.fromkeys(keys, 1) | {"a": 2}

    def test_in_a_table_made_otherwise_the_table_says_what_one_key_is(self, world: World) -> None:
        world.run(
            "CREATE TABLE t (k varchar(9) CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci"
            " PRIMARY KEY, at bigint)"
        )
        sink = world.sink(mode="upsert", key=["k"], sequence_by=["at"])
        world.publish(sink, staged(k=["a", "A"], at=[1, 2]))
        assert [row["at"] for row in world.rows()] == [2]

    def test_another_unique_constraint_is_refused_for_it_would_replace_a_strangers_row(
        self, world: World, by_time: MySqlSink
    ) -> None:
        world.run("CREATE TABLE t (id bigint PRIMARY KEY, at bigint, mail varchar(9) UNIQUE)")
        with pytest.raises(ConfigError, match=r"sink\.key.*another unique constraint.*mail"):
            world.publish(by_time, staged(id=[1], at=[1], mail=["a@b"]))

    def test_a_number_that_counts_by_itself_is_no_such_constraint(
        self, world: World, by_time: MySqlSink
    ) -> None:
        world.run("CREATE TABLE t (n bigint AUTO_INCREMENT PRIMARY KEY, id bigint UNIQUE, at int8)")
        world.publish(by_time, staged(id=[1], at=[1]), staged(id=[1], at=[2]))
        assert [(row["id"], row["at"]) for row in world.rows()] == [(1, 2)]

    @pytest.mark.parametrize("constraint", ["", ", UNIQUE (id, at)", ", KEY (id)"])
    def test_a_table_whose_key_is_not_unique_is_refused(
        self, world: World, by_time: MySqlSink, constraint: str
    ) -> None:
        world.run(f"CREATE TABLE t (id bigint, at bigint{constraint})")
        with pytest.raises(ConfigError, match=r"sink\.key.*ADD UNIQUE"):
            world.publish(by_time, staged(id=[1], at=[1]))

    def test_a_prefix_of_a_column_is_no_key(self, world: World) -> None:
        world.run("CREATE TABLE t (id varchar(99), at bigint, UNIQUE (id(3)))")
        sink = world.sink(mode="upsert", key=["id"], sequence_by=["at"])
        with pytest.raises(ConfigError, match=r"not on prefixes"):
            world.publish(sink, staged(id=["a"], at=[1]))

    @pytest.mark.parametrize(
        ("rows", "field"),
        [({"at": [1]}, "sink.key.* id"), ({"id": [1]}, "sink.sequence_by.* at")],
    )
    def test_a_result_without_the_columns_is_refused_by_field(
        self, world: World, by_time: MySqlSink, rows: Mapping[str, Any], field: str
    ) -> None:
        with pytest.raises(ConfigError, match=field):
            world.publish(by_time, staged(**rows))
        assert world.tables() == {"eo_ledger"}

    def test_a_null_key_is_refused(self, world: World, by_time: MySqlSink) -> None:
        with pytest.raises(RefusedError, match=r"'id'.*null"):
            world.publish(by_time, staged(id=[1, None], at=[1, 1]))

    def test_a_missing_age_is_refused(self, world: World, by_time: MySqlSink) -> None:
        with pytest.raises(RefusedError, match=r"'at'.*null in 1 row"):
            world.publish(by_time, staged(id=[1, 2], at=[1, None]))
