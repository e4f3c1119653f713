"""Tables that do something of their own with rows; and what MySQL puts where nothing was sent."""

from __future__ import annotations

import pytest

from eo_pipeline.errors import RefusedError
from eo_pipeline.ledger.entry import CHECKPOINT_COLUMN
from eo_pipeline.staging.rows import StagedOutput, StagedTable
from eo_pipeline.testing import child_of, dead_letters, first_entry
from tests.sinks.mysql.mysql_world import BOTH_WAYS, World, staged, world

__all__ = ["world"]

TABLE = f"CREATE TABLE t (id bigint, {CHECKPOINT_COLUMN} bigint, KEY ({CHECKPOINT_COLUMN}))"
MOVES = (
    "CREATE TRIGGER moves BEFORE INSERT ON {0} FOR EACH ROW"
    f" SET NEW.{CHECKPOINT_COLUMN} = 7"
)  # fmt: skip


def of(checkpoint: int, *ids: int) -> StagedTable:
    return staged(**{"id": list(ids), CHECKPOINT_COLUMN: [checkpoint] * len(ids)})


@BOTH_WAYS
class TestTriggers:
    def test_rows_that_a_trigger_gives_to_another_checkpoint_are_missed(
        self, world: World, load_data: bool
    ) -> None:
        world.run(TABLE)
        world.run(MOVES.format("t"))
        with pytest.raises(RefusedError, match=r"\.t: sent 3 rows, found 0 .*the trigger moves"):
            world.publish(world.sink(load_data=load_data), of(1, 1, 2, 3))
        assert world.rows() == []

    def test_also_by_a_user_who_may_not_see_triggers(self, world: World, load_data: bool) -> None:
        world.publish(world.sink(), of(1, 1))
        world.run(MOVES.format("t"))
        user = world.make_user()
        try:
            world.grant(user, "SELECT, INSERT", "eo_ledger", "t")
            with pytest.raises(
                RefusedError, match=r"\.t: sent 2 rows, found 0 .*(GRANT TRIGGER|the trigger)"
            ):
                world.publish(world.sink_of(user, load_data=load_data), of(2, 2, 3))
        finally:
            world.drop_user(user)
        assert len(world.rows()) == 1

    def test_a_trigger_that_changes_other_columns_is_no_matter(
        self, world: World, load_data: bool
    ) -> None:
        world.run(f"CREATE TABLE t (id bigint, {CHECKPOINT_COLUMN} bigint, loaded varchar(9))")
        world.run("CREATE TRIGGER marks BEFORE INSERT ON t FOR EACH ROW SET NEW.loaded = 'by us'")
        world.publish(world.sink(load_data=load_data), of(1, 1, 2), of(2, 3))
        assert [row["loaded"] for row in world.rows()] == ["by us"] * 3

    def test_dead_letters_are_counted_too(self, world: World, load_data: bool) -> None:
        with world.sink(load_data=load_data).open("p") as session:
            start = first_entry("p")
            session.publish(start, StagedOutput())
            bad = StagedOutput(dead_letters=dead_letters(1, [b"x"]))
            entry = child_of(start, bad)
            session.publish(entry, bad)
            world.run(MOVES.format("t_dead_letters"))
            lost = StagedOutput(dead_letters=dead_letters(2, [b"y"]))
            with pytest.raises(RefusedError, match=r"t_dead_letters: sent 1 rows, found 0 "):
                session.publish(child_of(entry, lost), lost)

    def test_an_upsert_that_a_trigger_undoes_is_noticed(
        self, world: World, load_data: bool
    ) -> None:
        world.run(f"CREATE TABLE t (id bigint PRIMARY KEY, {CHECKPOINT_COLUMN} bigint, at bigint)")
        sink = world.sink(mode="upsert", key=["id"], sequence_by=["at"], load_data=load_data)
        rows = {"id": [1, 2], CHECKPOINT_COLUMN: [1, 1], "at": [1, 1]}
        world.publish(sink, staged(**rows))
        world.run(
            "CREATE TRIGGER undoes BEFORE UPDATE ON t FOR EACH ROW"
            f" SET NEW.{CHECKPOINT_COLUMN} = OLD.{CHECKPOINT_COLUMN}, NEW.at = OLD.at"
        )
        again = staged(**{"id": [2, 3], CHECKPOINT_COLUMN: [2, 2], "at": [2, 2]})
        with pytest.raises(RefusedError, match=r"1 of 2 rows.*the trigger undoes"):
            world.publish(sink, again)
        assert sorted(row["id"] for row in world.rows()) == [1, 2]


@BOTH_WAYS
class TestColumnsThatTheResultLacks:
    def test_one_that_needs_a_value_refuses(self, world: World, load_data: bool) -> None:
        world.run("CREATE TABLE t (id bigint, must varchar(9) NOT NULL)")
        with pytest.raises(RefusedError, match=r"must.*1364"):
            world.publish(world.sink(load_data=load_data), staged(id=[1, 2]))
        assert world.rows() == []

    def test_one_that_a_trigger_fills_is_filled(self, world: World, load_data: bool) -> None:
        world.run("CREATE TABLE t (id bigint, must varchar(9) NOT NULL)")
        world.run("CREATE TRIGGER fills BEFORE INSERT ON t FOR EACH ROW SET NEW.must = 'by us'")
        world.publish(world.sink(load_data=load_data), staged(id=[1, 2]))
        assert [row["must"] for row in world.rows()] == ["by us"] * 2


@BOTH_WAYS
def test_a_server_that_keeps_no_list_of_warnings_is_heard_all_the_same(
    world: World, load_data: bool
) -> None:
    before = world.rows("SELECT @@GLOBAL.max_error_count AS n")[0]["n"]
    world.run("SET GLOBAL max_error_count = 0")
    try:
        world.run("CREATE TABLE t (x varchar(2))")
        with pytest.raises(RefusedError, match=r"max_error_count|too long|truncated"):
            world.publish(world.sink(load_data=load_data), staged(x=["abc"]))
    finally:
        world.run(f"SET GLOBAL max_error_count = {before}")
    assert world.rows() == []
