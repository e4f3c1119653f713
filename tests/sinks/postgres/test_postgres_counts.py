"""Tables that do something of their own with rows: what was published is counted, not believed."""

from __future__ import annotations

from typing import Any

import pytest

from eo_pipeline.errors import ConfigError, EoPipelineError, RefusedError
from eo_pipeline.ledger.entry import CHECKPOINT_COLUMN, LedgerEntry, Operation
from eo_pipeline.sinks.postgres.session import PostgresTable
from eo_pipeline.sinks.session import SinkSession
from eo_pipeline.staging.rows import StagedOutput, StagedTable
from eo_pipeline.testing import child_of, dead_letters, first_entry
from tests.sinks.postgres.postgres_world import World, staged, world

__all__ = ["world"]

TABLE = f"CREATE TABLE t (id bigint, {CHECKPOINT_COLUMN} bigint)"


def of(checkpoint: int, *ids: int) -> StagedTable:
    return staged(**{"id": list(ids), CHECKPOINT_COLUMN: [checkpoint] * len(ids)})


def trigger(world: World, when: str, body: str, *, table: str = "t", kind: str = "") -> None:
    """A trigger for each row on ``table``; what ``body`` may name: NEW, OLD."""
    world.run(f"CREATE FUNCTION act() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {body} END $$")
    world.run(
        f"CREATE {kind} TRIGGER acts {when} ON {table} "
        f"{'DEFERRABLE INITIALLY DEFERRED' if kind else ''} FOR EACH ROW EXECUTE FUNCTION act()"
    )


#: What makes less of the rows with an id above 1.
DROPS_ROWS = {
    "a trigger that drops rows": ("BEFORE INSERT", "RETURN CASE WHEN NEW.id = 1 THEN NEW END;"),
    "a trigger that deletes them again": (
        "AFTER INSERT", "DELETE FROM t WHERE id > 1; RETURN NULL;"
    ),
    "a trigger that gives them to another checkpoint": (
        "BEFORE INSERT", f"NEW.{CHECKPOINT_COLUMN} = 7; RETURN NEW;"
    ),
    "a trigger that puts them elsewhere": (
        "BEFORE INSERT", "INSERT INTO elsewhere VALUES (NEW.id); RETURN NULL;"
    ),
}  # fmt: skip


class TestInsert:
    def test_another_number_than_the_database_says_it_took_is_missed(
        self, world: World, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        insert = PostgresTable.insert

        def one_less(table: PostgresTable, *given: Any) -> int:
            return insert(table, *given) - 1

        monkeypatch.setattr(PostgresTable, "insert", one_less)
        with pytest.raises(RefusedError, match=r"sent 3 rows, found 2 as they"):
            world.publish(world.sink(), of(1, 1, 2, 3))
        assert world.is_untouched()

    @pytest.mark.parametrize(("when", "body"), DROPS_ROWS.values(), ids=[*DROPS_ROWS])
    def test_rows_that_a_trigger_takes_are_missed(self, world: World, when: str, body: str) -> None:
        world.run(TABLE)
        world.run("CREATE TABLE elsewhere (id bigint)")
        trigger(world, when, body)
        with pytest.raises(
            RefusedError, match=r"public\.t: sent 3 rows, found [01] .*the trigger acts on t"
        ):
            world.publish(world.sink(), of(1, 1, 2, 3))
        assert world.rows() == []
        assert world.rows("SELECT max(version) FROM eo_ledger") == [{"max": 0}]

    def test_a_trigger_that_waits_for_the_commit_is_waited_for(self, world: World) -> None:
        world.run(TABLE)
        body = "DELETE FROM t WHERE id > 1; RETURN NULL;"
        trigger(world, "AFTER INSERT", body, kind="CONSTRAINT")
        with pytest.raises(RefusedError, match=r"3 rows.*1 .*the trigger acts on t"):
            world.publish(world.sink(), of(1, 1, 2, 3))
        assert world.rows() == []

    def test_a_trigger_that_changes_other_columns_is_no_matter(self, world: World) -> None:
        world.run(f"{TABLE[:-1]}, loaded text)")
        trigger(world, "BEFORE INSERT", "NEW.loaded = 'by us'; RETURN NEW;")
        world.publish(world.sink(), of(1, 1, 2), of(2, 3))
        assert [row["loaded"] for row in world.rows()] == ["by us"] * 3

    def test_a_trigger_may_send_rows_to_the_children_of_the_table(self, world: World) -> None:
        """How tables were partitioned before PostgreSQL 10: the command's own count is 0."""
        world.run(TABLE)
        world.run("CREATE TABLE t_odd () INHERITS (t)")
        trigger(world, "BEFORE INSERT", "INSERT INTO t_odd VALUES (NEW.*); RETURN NULL;")
        world.publish(world.sink(), of(1, 1, 2, 3), of(2, 4))
        assert world.rows("SELECT count(*) FROM ONLY t") == [{"count": 0}]
        assert len(world.rows()) == 4

    def test_a_trigger_on_a_partition_counts(self, world: World) -> None:
        world.run(f"{TABLE} PARTITION BY RANGE (id)")
        world.run("CREATE TABLE t_low PARTITION OF t FOR VALUES FROM (0) TO (2)")
        world.run("CREATE TABLE t_high PARTITION OF t FOR VALUES FROM (2) TO (9)")
        trigger(world, "BEFORE INSERT", "RETURN NULL;", table="t_high")
        with pytest.raises(RefusedError, match=r"3 rows.*1 .*the trigger acts on t_high"):
            world.publish(world.sink(), of(1, 1, 2, 3))

    def test_a_trigger_that_is_switched_off_does_not(self, world: World) -> None:
        world.run(TABLE)
        trigger(world, "BEFORE INSERT", "RETURN NULL;")
        world.run("ALTER TABLE t DISABLE TRIGGER acts")
        world.publish(world.sink(), of(1, 1, 2, 3))
        assert len(world.rows()) == 3

    def test_rows_without_a_checkpoint_are_counted_all(self, world: World) -> None:
        world.run("CREATE TABLE t (id bigint)")
        world.run("INSERT INTO t VALUES (1), (2), (3)")
        trigger(world, "BEFORE INSERT", DROPS_ROWS["a trigger that drops rows"][1])
        with pytest.raises(RefusedError, match=r"3 rows.*1 "):
            world.publish(world.sink(), staged(id=[1, 2, 3]))

    def test_a_rule_that_makes_nothing_of_an_insert_is_noticed(self, world: World) -> None:
        """COPY knows no rules; rows that need a conversion are inserted from a stage."""
        world.run(f"CREATE TABLE t (id numeric(9,1), {CHECKPOINT_COLUMN} bigint)")
        world.run("CREATE RULE nothing AS ON INSERT TO t DO INSTEAD NOTHING")
        with pytest.raises(RefusedError, match=r"2 rows.*0 .*the rule nothing on t"):
            world.publish(world.sink(), of(1, 1, 2))

    def test_dead_letters_are_counted_too(self, world: World) -> None:
        with world.sink().open("p") as session:
            start = first_entry("p")
            session.publish(start, StagedOutput())
            bad = StagedOutput(dead_letters=dead_letters(1, [b"x"]))
            entry = child_of(start, bad)
            session.publish(entry, bad)
            trigger(world, "BEFORE INSERT", "RETURN NULL;", table="t_dead_letters")
            lost = StagedOutput(dead_letters=dead_letters(2, [b"y", b"z"]))
            with pytest.raises(RefusedError, match=r"t_dead_letters: sent 2 rows, found 0 "):
                session.publish(child_of(entry, lost), lost)

    def test_an_upsert_that_a_trigger_undoes_is_noticed(self, world: World) -> None:
        world.run(f"{TABLE[:-1]}, v text, PRIMARY KEY (id))")
        sink = world.sink(mode="upsert", key=["id"], sequence_by=[CHECKPOINT_COLUMN])
        world.publish(sink, staged(**{"id": [1, 2], CHECKPOINT_COLUMN: [1, 1], "v": ["a", "b"]}))
        trigger(world, "BEFORE UPDATE", "RETURN NULL;")
        again = staged(**{"id": [2, 3], CHECKPOINT_COLUMN: [2, 2], "v": ["B", "c"]})
        with pytest.raises(RefusedError, match=r"1 of 2 rows.*the trigger acts on t"):
            world.publish(sink, again)
        assert sorted(row["v"] for row in world.rows()) == ["a", "b"]

    def test_an_upsert_beside_an_idle_trigger_goes_on(self, world: World) -> None:
        world.run(f"{TABLE[:-1]}, at bigint, PRIMARY KEY (id))")
        trigger(world, "BEFORE INSERT OR UPDATE", "RETURN NEW;")
        sink = world.sink(mode="upsert", key=["id"], sequence_by=["at"])
        world.publish(sink, staged(**{"id": [1, 2], CHECKPOINT_COLUMN: [1, 1], "at": [5, 5]}))
        later = {"id": [1, 1, 2, 3], CHECKPOINT_COLUMN: [2] * 4, "at": [4, 3, 6, 1]}
        world.publish(sink, staged(**later))
        assert sorted((row["id"], row["at"]) for row in world.rows()) == [(1, 5), (2, 6), (3, 1)]


def test_a_ledger_that_takes_no_entry_is_told(world: World) -> None:
    with world.sink().open("p") as session:
        start = first_entry("p")
        session.publish(start, StagedOutput())
        world.run("CREATE RULE nothing AS ON INSERT TO eo_ledger DO INSTEAD NOTHING")
        with pytest.raises(RefusedError, match=r"eo_ledger did not take version 1"):
            session.publish(child_of(start, 1), StagedOutput(of(1, 1)))
    assert world.tables() == {"eo_ledger"}


class TestDelete:
    def going_back(
        self, session: SinkSession, operation: Operation, output: StagedOutput
    ) -> LedgerEntry:
        head = session.head()
        assert head is not None
        return child_of(head, output, operation=operation, target=1)

    @pytest.mark.parametrize("operation", [Operation.REWIND, Operation.REPLAY])
    @pytest.mark.parametrize(
        "hindrance",
        [
            "CREATE RULE keep AS ON DELETE TO {0} DO INSTEAD NOTHING",
            "CREATE TRIGGER keep BEFORE DELETE ON {0} FOR EACH ROW EXECUTE FUNCTION keep()",
        ],
    )
    @pytest.mark.parametrize("table", ["t", "t_dead_letters"])
    def test_rows_that_do_not_go_stop_a_way_back(
        self, world: World, operation: Operation, hindrance: str, table: str
    ) -> None:
        with world.sink().open("p") as session:
            head = first_entry("p")
            session.publish(head, StagedOutput())
            for checkpoint in (1, 2):
                output = StagedOutput(of(checkpoint, 1, 2, 3), dead_letters(checkpoint, [b"x"]))
                head = child_of(head, output)
                session.publish(head, output)
            world.run(
                "CREATE FUNCTION keep() RETURNS trigger LANGUAGE plpgsql AS"
                " $$ BEGIN RETURN NULL; END $$"
            )
            world.run(hindrance.format(table))
            output = StagedOutput(of(1, 4, 5, 6) if operation is Operation.REPLAY else None)
            entry = self.going_back(session, operation, output)
            with pytest.raises(RefusedError, match=rf"{table}: \d rows.*still.*keep on {table}"):
                session.publish(entry, output)
            assert session.entry(3) is None
        assert len(world.rows()) == 6

    def test_a_replay_by_way_of_children_takes_back_and_counts(self, world: World) -> None:
        world.run(TABLE)
        world.run("CREATE TABLE t_odd () INHERITS (t)")
        trigger(world, "BEFORE INSERT", "INSERT INTO t_odd VALUES (NEW.*); RETURN NULL;")
        world.publish(world.sink(), of(1, 1, 2, 3), of(2, 4))
        with world.sink().open("p") as session:
            again = StagedOutput(of(1, 8, 9))
            session.publish(self.going_back(session, Operation.REPLAY, again), again)
        assert sorted(row["id"] for row in world.rows()) == [4, 8, 9]


class TestRowLevelSecurity:
    """A role that sees a part of the rows would delete a part, and believe a part of the ledger."""

    @pytest.fixture
    def role(self, world: World) -> str:
        world.publish(world.sink(), of(1, 1, 2, 3))
        role = world.make_user()
        world.grant(role, "SELECT, INSERT, UPDATE, DELETE", "t", "eo_ledger")
        return role

    def test_a_role_to_which_policies_apply_is_told(self, world: World, role: str) -> None:
        world.run("ALTER TABLE t ENABLE ROW LEVEL SECURITY")
        world.run(f"CREATE POLICY mine ON t TO {role} USING (id = 1) WITH CHECK (true)")
        with pytest.raises(ConfigError, match=r"row-level security of t .*BYPASSRLS"):
            world.sink_of(role).open("p")
        world.drop_user(role)

    def test_also_if_they_came_while_a_run_was_open(self, world: World, role: str) -> None:
        with world.sink_of(role).open("p") as session:
            head = session.head()
            assert head is not None
            world.run("ALTER TABLE t ENABLE ROW LEVEL SECURITY")
            world.run(f"CREATE POLICY mine ON t TO {role} USING (id = 1) WITH CHECK (true)")
            entry = child_of(head, operation=Operation.REWIND, target=0)
            with pytest.raises(ConfigError, match="row-level security"):
                session.publish(entry, StagedOutput())
        assert len(world.rows()) == 3
        world.drop_user(role)

    def test_a_ledger_that_hides_entries_is_not_believed(self, world: World, role: str) -> None:
        world.run("ALTER TABLE eo_ledger ENABLE ROW LEVEL SECURITY")
        with pytest.raises(ConfigError, match=r"row-level security of eo_ledger .*BYPASSRLS"):
            world.sink_of(role).open("p")
        world.drop_user(role)

    def test_an_owner_whom_no_policy_concerns_goes_on(self, world: World, role: str) -> None:
        world.run("ALTER TABLE t ENABLE ROW LEVEL SECURITY")
        world.publish(world.sink(), of(2, 4))
        assert len(world.rows()) == 4
        world.drop_user(role)


class TestWhatIsLostWithTheServer:
    """A table is no better kept than the worst of its parts."""

    PARTS = (
        "CREATE UNLOGGED TABLE part PARTITION OF t FOR VALUES FROM (0) TO (9)",
        "CREATE UNLOGGED TABLE part () INHERITS (t)",
        "CREATE FOREIGN DATA WRAPPER w; CREATE SERVER s FOREIGN DATA WRAPPER w;"
        " CREATE FOREIGN TABLE part PARTITION OF t FOR VALUES FROM (0) TO (9) SERVER s",
    )

    @pytest.mark.parametrize("part", PARTS)
    def test_a_part_of_the_table_that_is_not_as_durable_is_refused(
        self, world: World, part: str
    ) -> None:
        world.run(TABLE + (" PARTITION BY RANGE (id)" if "PARTITION" in part else ""))
        world.run(part)
        with pytest.raises(ConfigError, match=r"public\.t.*part.*(unlogged|foreign)"):
            world.sink().open("p")

    def test_also_if_it_came_after_opening(self, world: World) -> None:
        world.run(TABLE)
        with world.sink().open("p") as session:
            start = first_entry("p")
            session.publish(start, StagedOutput())
            world.run(self.PARTS[1])
            with pytest.raises(EoPipelineError, match=r"part.*unlogged"):
                session.publish(child_of(start, 1), StagedOutput(of(1, 1)))

    def test_and_a_ledger_that_is_not(self, world: World) -> None:
        world.sink().open("p").close()
        world.run("ALTER TABLE eo_ledger DROP CONSTRAINT eo_ledger_parent")
        world.run("ALTER TABLE eo_ledger SET UNLOGGED")
        with pytest.raises(ConfigError, match=r"eo_ledger.*unlogged"):
            world.sink().open("p")
