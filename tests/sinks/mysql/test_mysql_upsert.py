"""What MySQL's upserts have of their own; see test_sql_upsert.py for the rest."""

from __future__ import annotations

import pytest

from eo_pipeline.errors import ConfigError
from eo_pipeline.sinks.mysql import MySqlSink
from tests.sinks.mysql.mysql_world import World, staged, world

__all__ = ["world"]


class TestUpsert:
    @pytest.fixture
    def by_time(self, world: World) -> MySqlSink:
        return world.sink(mode="upsert", key=["id"], sequence_by=["at"])

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

    def test_a_prefix_of_a_column_is_no_key(self, world: World) -> None:
        world.run("CREATE TABLE t (id varchar(99), at bigint, UNIQUE (id(3)))")
        sink = world.sink(mode="upsert", key=["id"], sequence_by=["at"])
        with pytest.raises(ConfigError, match=r"not on prefixes"):
            world.publish(sink, staged(id=["a"], at=[1]))
