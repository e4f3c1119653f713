"""What Delta and Iceberg keep of earlier states, and what their maintenance takes."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest

from eo_pipeline.errors import RefusedError
from eo_pipeline.ledger.entry import CHECKPOINT_COLUMN, LedgerEntry
from eo_pipeline.sinks.capabilities import Selected
from eo_pipeline.sinks.iceberg import IcebergSink
from eo_pipeline.sinks.session import SinkSession
from tests.sinks.delta.delta_world import World, append_of_another_application, rows_of
from tests.sinks.iceberg.iceberg_world import publish, table_of


def seen(session: SinkSession, entry: LedgerEntry) -> dict[int | None, int]:
    """The rows of each checkpoint in the table as ``entry`` left it."""
    past = session.past(entry)
    assert past is not None
    found = [n for batch in past.batches(None) for n in batch.column(CHECKPOINT_COLUMN).to_pylist()]
    assert past.count() == len(found)
    return dict(Counter(found))


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path / "table")


def test_a_delta_table_of_then_has_the_rows_of_others_too_and_none_that_came_later(
    world: World,
) -> None:
    first, second = world.forward(rows_of(1)), world.forward(rows_of(2))
    append_of_another_application(world)
    third = world.forward(rows_of(3))
    back = world.rewind(1)
    world.optimize()
    with world.sink().open("p") as session:
        assert seen(session, first) == {1: 3}
        assert seen(session, second) == {1: 3, 2: 3}
        assert seen(session, third) == {1: 3, 2: 3, None: 3, 3: 3}
        assert seen(session, back) == {1: 3, None: 3}


def test_an_upserted_delta_table_is_had_back_with_what_was_overwritten(world: World) -> None:
    world.settings |= {"mode": "upsert", "key": ["id"], "sequence_by": [CHECKPOINT_COLUMN]}
    first = world.forward(rows_of(1, word=pa.array(["old"] * 3)))
    moved = rows_of(2, word=pa.array(["new"] * 3)).set_column(0, "id", rows_of(1)["id"])
    second = world.forward(moved)
    with world.sink().open("p") as session:
        past = session.past(first)
        assert past is not None
        [old] = past.batches(None)
        assert old.column("word").to_pylist() == ["old"] * 3
        assert seen(session, second) == {2: 3}


def test_of_a_vacuumed_delta_table_it_is_said_that_files_are_gone(world: World) -> None:
    first, second = world.forward(rows_of(1)), world.forward(rows_of(2))
    world.replay(1, rows_of(1, 2))
    world.observe().vacuum(0, dry_run=False, enforce_retention_duration=False, full=True)
    with world.sink().open("p") as session:
        for entry in (first, second):
            with pytest.raises(RefusedError, match="not there or not whole"):
                session.past(entry)


def test_of_a_delta_table_whose_log_is_cleaned_up_it_is_said(world: World) -> None:
    first = world.forward(rows_of(1))
    world.forward(rows_of(2))
    world.forget()
    with world.sink().open("p") as session:
        with pytest.raises(RefusedError, match="has no commit of version 1"):
            session.past(first)
        # the rows are there all the same, and say whose they are
        assert session.counts_of(Selected(0, 1)) == {1: 3}


def test_where_pipelines_share_a_lake_table_a_number_says_nothing(world: World) -> None:
    first = world.forward(rows_of(1))
    other = World(world.root, pipeline="q")
    other.forward(rows_of(1))
    world.forward(rows_of(2))
    with world.sink().open("p") as session:
        assert seen(session, first) == {1: 3}
        with pytest.raises(RefusedError, match="p, q share the table"):
            session.counts_of(Selected(0, 1))
        with pytest.raises(RefusedError, match="p, q share the table"):
            session.rows_of(Selected(0, 1))


def test_an_iceberg_snapshot_that_expired_is_named(tmp_path: Path) -> None:
    sink = IcebergSink(table="ops.flights", warehouse=tmp_path / "warehouse")
    with sink.open("events") as session:
        head = publish(session, 3)
        history = list(session.history())
        assert seen(session, history[2]) == {1: 2, 2: 2}
        later = datetime.now(UTC) + timedelta(seconds=1)
        table_of(sink).maintenance.expire_snapshots().older_than(later).commit()
        assert seen(session, head) == {1: 2, 2: 2, 3: 2}
        with pytest.raises(RefusedError, match="no snapshot of version 2"):
            session.past(history[2])
        assert session.counts_of(Selected(0, 2)) == {1: 2, 2: 2}


def test_a_table_that_was_widened_since_is_shown_with_its_columns_of_then(world: World) -> None:
    first = world.forward(rows_of(1))
    world.forward(rows_of(2, word=pa.array(["a"] * 3)))
    with world.sink().open("p") as session:
        past = session.past(first)
        assert past is not None
        [batch] = past.batches(None)
        assert batch.schema.names == ["id", CHECKPOINT_COLUMN]
