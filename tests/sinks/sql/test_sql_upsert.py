"""Rows that replace their predecessors by key, in every SQL database."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pytest

from eo_pipeline.errors import ConfigError, RefusedError
from eo_pipeline.sinks.sql.config import SqlSink
from eo_pipeline.staging.rows import StagedTable
from tests.sinks.sql.sql_world import SqlWorld, staged
from tests.sinks.sql.sql_worlds import MYSQLS, world

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
        for lineage in ({}, {"_eo_offset": [1]}):
            with pytest.raises(ConfigError, match=r"sink\.sequence_by.*lineage"):
                world.publish(sink, staged(id=[1], v=["a"], **lineage))

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
            *((server, "") for server in MYSQLS),
            *((server, ", UNIQUE (id, at)") for server in MYSQLS),
            *((server, ", KEY (id)") for server in MYSQLS),
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


class TestOrderByOffset:
    """Without ``sequence_by`` offsets tell the age, within one Kafka partition and nowhere else."""

    @pytest.fixture
    def sink(self, world: SqlWorld) -> SqlSink:
        return world.sink(mode="upsert", key=["id"])

    def records(
        self, *places: tuple[str | None, int | None, int | None], key: int = 1
    ) -> StagedTable:
        """A row for each record's topic, partition and offset, all of one key."""
        topics, partitions, offsets = (list(column) for column in zip(*places, strict=True))
        return staged(
            id=[key] * len(places),
            _eo_topic=pa.array(topics, pa.string()),
            _eo_partition=pa.array(partitions, pa.int32()),
            _eo_offset=pa.array(offsets, pa.int64()),
        )

    def offsets(self, world: SqlWorld) -> list[int]:
        return [row["_eo_offset"] for row in world.rows()]

    def test_the_later_offset_wins(self, world: SqlWorld, sink: SqlSink) -> None:
        world.publish(sink, self.records(("a", 0, 8), ("a", 0, 7)))
        world.publish(sink, self.records(("a", 0, 9)))
        assert self.offsets(world) == [9]

    def test_a_topic_that_began_anew_is_later_whatever_its_offsets(
        self, world: SqlWorld, sink: SqlSink
    ) -> None:
        """The next checkpoint is: an accepted loss starts a recreated topic from its beginning."""
        world.publish(sink, self.records(("a", 0, 8)), self.records(("a", 0, 1)))
        assert self.offsets(world) == [1]

    @pytest.mark.parametrize("elsewhere", [("a", 1, 3), ("b", 0, 3)])
    def test_a_key_in_two_partitions_of_one_checkpoint_is_refused(
        self, world: SqlWorld, sink: SqlSink, elsewhere: tuple[str, int, int]
    ) -> None:
        """Scenario: partitions were added; the key's older record has the greater offset."""
        topic, partition, _ = elsewhere
        message = rf"id = 1 .*a partition 0.*{topic} partition {partition}.*sink\.sequence_by"
        with pytest.raises(RefusedError, match=message):
            world.publish(sink, self.records(("a", 0, 1000), elsewhere))
        assert world.is_untouched()

    def test_a_key_that_moved_since_its_row_was_written_is_refused(
        self, world: SqlWorld, sink: SqlSink
    ) -> None:
        world.publish(sink, self.records(("a", 0, 1000)))
        with pytest.raises(RefusedError, match=r"id = 1 .*a partition 0.*a partition 5"):
            world.publish(sink, self.records(("a", 5, 3)))
        assert self.offsets(world) == [1000]

    def test_other_keys_may_come_from_other_partitions(
        self, world: SqlWorld, sink: SqlSink
    ) -> None:
        world.publish(sink, self.records(("a", 0, 1)), self.records(("a", 5, 2), key=2))
        assert sorted(self.offsets(world)) == [1, 2]

    def test_a_column_that_tells_resolves_it(self, world: SqlWorld, sink: SqlSink) -> None:
        """Also in a table that was filled before: its rows have nothing to say and give way."""
        world.publish(sink, self.records(("a", 0, 1000)))
        moved = self.records(("a", 5, 3))
        assert moved.table is not None
        told = StagedTable.in_memory(moved.table.append_column("at", [[7]]))
        world.publish(world.sink(mode="upsert", key=["id"], sequence_by=["at"]), told)
        assert self.offsets(world) == [3]

    def test_a_row_from_elsewhere_gives_way(self, world: SqlWorld, sink: SqlSink) -> None:
        world.run("CREATE TABLE t (id bigint PRIMARY KEY)")
        world.run("INSERT INTO t VALUES (1)")
        world.publish(sink, self.records(("a", 0, 7)))
        assert self.offsets(world) == [7]

    def test_a_row_that_does_not_say_where_it_came_from_is_refused(
        self, world: SqlWorld, sink: SqlSink
    ) -> None:
        with pytest.raises(RefusedError, match=r"'_eo_partition'.*null in 1 row"):
            world.publish(sink, self.records(("a", 0, 7), ("a", None, 8)))
