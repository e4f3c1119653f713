"""Maintenance of an Iceberg table: beside runs and readers, killed, raced; going back behind it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from eo_pipeline.crashpoints import CrashPoint
from eo_pipeline.errors import SinkUnavailableError, UnexpectedError
from eo_pipeline.ledger.entry import CHECKPOINT_COLUMN, LedgerEntry, Operation
from eo_pipeline.sinks.iceberg import IcebergSink
from eo_pipeline.sinks.iceberg import maintenance as iceberg_maintain
from eo_pipeline.sinks.iceberg.session import IcebergSession
from eo_pipeline.sinks.session import SinkSession
from eo_pipeline.staging.rows import StagedOutput, StagedTable
from eo_pipeline.testing import child_of, first_entry, to_files
from eo_pipeline.testing.all_types import ALL_TYPES
from eo_pipeline.testing.faults import dies
from tests.sinks.iceberg.iceberg_world import (
    files_in,
    ids,
    of,
    publish,
    rows,
    session,
    sink,
    sink_in,
    staged,
    table_of,
)
from tests.sinks.maintaining import AT_ONCE, POINTS, at, killed_at, maintain
from tests.sinks.test_values_given_back import of as shown_as
from tests.support.chaos import rest_is_chaos
from tests.support.stores import Bucket

__all__ = ["session", "sink"]


def back(
    sink: IcebergSink, operation: Operation, target: int, rows: StagedTable | None = None
) -> LedgerEntry:
    with sink.open("events") as session:
        head = session.head()
        assert head is not None
        count = rows.rows if rows else 0
        entry = child_of(head, count, operation=operation, target=target)
        session.publish(entry, StagedOutput(rows=rows))
    return entry


def one_more(sink: IcebergSink, **columns: Any) -> None:
    with sink.open("events") as session:
        publish(session, 1, session.head(), **columns)


def test_small_files_become_one_and_rows_and_ledger_stay(
    session: IcebergSession, sink: IcebergSink
) -> None:
    publish(session, 6)
    history = list(session.history())
    told = maintain(sink, "events", dry_run=True)["compact"]
    assert (told.files, told.files_after, len(files_in(sink))) == (6, 1, 6)
    done = maintain(sink, "events")["compact"]
    assert (done.files, done.files_after, len(files_in(sink))) == (6, 1, 1)
    assert ids(sink) == of(*range(1, 7))
    assert list(session.history()) == history


def test_where_there_is_nothing_to_do_nothing_is_committed(
    session: IcebergSession, sink: IcebergSink
) -> None:
    publish(session, 6)
    maintain(sink, "events")
    before = table_of(sink).metadata_location
    maintain(sink, "events")
    assert table_of(sink).metadata_location == before


@pytest.mark.parametrize("partition_by", [[], ["kind"]], ids=["plain", "partitioned"])
def test_a_rewind_and_a_replay_behind_it_are_exact(
    sink: IcebergSink, partition_by: list[str]
) -> None:
    sink = sink.model_copy(update={"partition_by": tuple(partition_by)})
    kind = pa.array(["a b=ü%", None])
    with sink.open("events") as session:
        publish(session, 6, kind=kind)
    maintain(sink, "events", AT_ONCE)
    assert len(files_in(sink)) == (2 if partition_by else 1)
    back(sink, Operation.REPLAY, 2, rows(2, kind=kind))
    assert ids(sink) == of(*range(1, 7))
    back(sink, Operation.REWIND, 4)
    assert ids(sink) == of(*range(1, 5))
    one_more(sink, kind=kind)
    maintain(sink, "events", AT_ONCE)
    found = table_of(sink).scan().to_arrow().to_pylist()
    assert sorted(row["id"] for row in found) == of(1, 2, 3, 4, 9)
    assert {row["id"] % 10: row["kind"] for row in found} == {0: "a b=ü%", 1: None}


def test_values_of_every_type_are_the_same(sink: IcebergSink) -> None:
    number = ALL_TYPES.column_names.index(CHECKPOINT_COLUMN)
    with sink.open("events") as session:
        head = first_entry("events")
        session.publish(head, StagedOutput())
        for n in range(1, 7):
            head = child_of(head, 3)
            own = ALL_TYPES.set_column(number, CHECKPOINT_COLUMN, pa.array([n] * 3, pa.int64()))
            session.publish(head, StagedOutput(rows=StagedTable.in_memory(own)))
        before = values(session)
        maintain(sink, "events", AT_ONCE)
        assert len(files_in(sink)) == 1
        assert values(session) == before


def values(session: SinkSession) -> str:
    shown = pa.Table.from_batches(session.values())
    return shown_as(shown.sort_by([(CHECKPOINT_COLUMN, "ascending"), ("id", "ascending")]))


def test_rows_that_pyiceberg_reads_otherwise_than_they_stand_are_left_alone(
    sink: IcebergSink,
) -> None:
    """An array that is null in a struct would come back empty."""
    inner = pa.array(
        [{"words": None}, {"words": ["a"]}], pa.struct([("words", pa.list_(pa.string()))])
    )
    with sink.open("events") as session:
        publish(session, 6, inner=inner)
    told = maintain(sink, "events", AT_ONCE)["compact"]
    assert "back as written in the files" in told.remark
    assert len(files_in(sink)) == 6


def test_rows_from_before_a_column_are_the_same(session: IcebergSession, sink: IcebergSink) -> None:
    head = publish(session, 3)
    publish(session, 3, head, more=pa.array([1, None]))
    maintain(sink, "events", AT_ONCE)
    assert len(files_in(sink)) == 1
    found = table_of(sink).scan().to_arrow().to_pylist()
    assert {row["id"]: row["more"] for row in found} == {
        n: 1 if n >= 40 and n % 10 == 0 else None for n in of(*range(1, 7))
    }


_GROWING: list[dict[str, Any]] = [
    {"kind": ["a", None], "n": pa.array([1, 2], pa.int32())},
    {"kind": ["a", "b"], "n": pa.array([3, None], pa.int32()), "more": ["x", None]},
    {"kind": ["b", None], "n": pa.array([2**40, 4], pa.int64()), "more": [None, "y"],
     "s": pa.array([{"x": "z"}, None], pa.struct([("x", pa.string())]))},
    {"kind": ["a", None], "n": pa.array([5, 6], pa.int64()), "more": ["x", "y"],
     "s": pa.array([{"x": "z", "y": 7}] * 2, pa.struct([("x", pa.string()), ("y", pa.int32())]))},
]  # fmt: skip


@pytest.mark.parametrize("partition_by", [[], ["kind"]], ids=["plain", "partitioned"])
@pytest.mark.parametrize("files", [False, True], ids=["memory", "files without ids"])
def test_it_is_done_again_as_the_table_grows_and_its_columns_do(
    sink: IcebergSink, tmp_path: Path, partition_by: list[str], files: bool
) -> None:
    sink = sink.model_copy(update={"partition_by": tuple(partition_by)})
    head = None
    for number, columns in enumerate(_GROWING):
        with sink.open("events") as session:
            if files and head is not None and not partition_by:
                entry = child_of(head, 2)
                old = to_files(rows(entry.version, **columns), tmp_path / str(number), files=1)
                session.publish(entry, StagedOutput(rows=old))
                head = entry
            head = publish(session, 6, head, **columns)
            before = values(session)
            done = maintain(sink, "events", AT_ONCE)["compact"]
            assert done.files_after < done.files
            assert values(session) == before
    assert len(files_in(sink)) == (3 if partition_by else 1)


def test_what_will_not_pass_is_not_tried_for_ever_and_leaves_no_file(
    session: IcebergSession, sink: IcebergSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(session, 6)
    cases = [
        (TypeError("odd"), UnexpectedError, False),
        (OSError("away"), SinkUnavailableError, True),
    ]
    for error, expected, passes in cases:

        def fail(*_: Any, error: Exception = error) -> None:
            raise error

        monkeypatch.setattr(iceberg_maintain, "refuse_other_count", fail)
        with pytest.raises(expected, match="maintenance stopped") as found:
            maintain(sink, "events", AT_ONCE)
        assert found.value.retryable is passes
        assert rows_on_disk(sink) == {uri.removeprefix("file://") for uri in files_in(sink)}


# Races.


def forward(sink: IcebergSink) -> list[int]:
    one_more(sink)
    return of(*range(1, 8))


def widened(sink: IcebergSink) -> list[int]:
    one_more(sink, more=pa.array([1, 2]))
    return of(*range(1, 8))


def rewound(sink: IcebergSink) -> list[int]:
    back(sink, Operation.REWIND, 2)
    return of(1, 2)


def replayed(sink: IcebergSink) -> list[int]:
    back(sink, Operation.REPLAY, 2, rows(2))
    return of(*range(1, 7))


def deleted_by_others(sink: IcebergSink) -> list[int]:
    table_of(sink).delete("id = 30")
    return [n for n in of(*range(1, 7)) if n != 30]


@pytest.mark.parametrize("event", [forward, widened, rewound, replayed, deleted_by_others])
def test_what_others_commit_while_files_are_written_stands(
    session: IcebergSession, sink: IcebergSink, event: Callable[[IcebergSink], list[int]]
) -> None:
    publish(session, 6)
    expected: list[list[int]] = []
    hook = at(CrashPoint.ROWS_SENT, lambda: expected.append(event(sink)))
    maintain(sink, "events", AT_ONCE, reach=hook)
    assert ids(sink) == expected[0]
    maintain(sink, "events", AT_ONCE)
    assert ids(sink) == expected[0]
    one_more(sink)


def test_a_run_that_meets_maintenance_commits_behind_it(
    session: IcebergSession, sink: IcebergSink
) -> None:
    head = publish(session, 6)
    met = at(CrashPoint.ENTRY_SENT, lambda: maintain(sink, "events", AT_ONCE))
    session.publish(child_of(head, 2), staged(7), met)
    assert ids(sink) == of(*range(1, 8))
    assert len(files_in(sink)) == 2


def test_of_two_maintenances_the_older_stops(session: IcebergSession, sink: IcebergSink) -> None:
    publish(session, 6)
    second = at(CrashPoint.ROWS_SENT, lambda: maintain(sink, "events", AT_ONCE))
    with pytest.raises(SinkUnavailableError, match="another maintenance of the table has begun"):
        maintain(sink, "events", AT_ONCE, reach=second)
    assert ids(sink) == of(*range(1, 7))
    assert len(files_in(sink)) == 1


# Killed; and what is removed.


@pytest.mark.parametrize("point", rest_is_chaos(POINTS, but=[CrashPoint.ROWS_SENT]))
def test_killed_anywhere_nothing_is_lost_and_the_next_one_goes_on(
    session: IcebergSession, sink: IcebergSink, point: CrashPoint
) -> None:
    publish(session, 6)
    back(sink, Operation.REWIND, 5)
    dies(killed_at, sink, "events", point)
    assert ids(sink) == of(*range(1, 6))
    written_long_ago(sink)
    one_more(sink)
    maintain(sink, "events", AT_ONCE)
    maintain(sink, "events", AT_ONCE)
    assert ids(sink) == of(1, 2, 3, 4, 5, 8)
    assert rows_on_disk(sink) == {uri.removeprefix("file://") for uri in files_in(sink)}


def written_long_ago(sink: IcebergSink) -> None:
    for path in Path(str(sink.root)).rglob("*"):
        os.utime(path, (0, 0))


def rows_on_disk(sink: IcebergSink) -> set[str]:
    return {str(path) for path in Path(str(sink.root)).rglob("data/**/*.parquet")}


def test_what_snapshots_still_have_stays_and_can_be_read(
    session: IcebergSession, sink: IcebergSink
) -> None:
    publish(session, 6)
    written_long_ago(sink)
    reader = table_of(sink).scan()
    maintain(sink, "events")
    maintain(sink, "events")
    assert reader.to_arrow().num_rows == 12
    past = session.past(list(session.history())[3])
    assert past is not None
    assert past.count() == 6


def test_what_no_snapshot_has_any_more_is_removed(
    session: IcebergSession, sink: IcebergSink
) -> None:
    publish(session, 6)
    written_long_ago(sink)
    maintain(sink, "events", AT_ONCE)
    maintain(sink, "events", AT_ONCE)
    assert len(rows_on_disk(sink)) == 1
    lists = list(Path(str(sink.root)).rglob("metadata/snap-*.avro"))
    assert len(lists) < 6
    assert ids(sink) == of(*range(1, 7))


def test_what_a_live_run_has_staged_is_never_removed(
    session: IcebergSession, sink: IcebergSink
) -> None:
    head = publish(session, 6)
    entry = child_of(head, 2)
    into = sink.staging_folders().rows
    assert isinstance(into, Path)
    folder = into / "events" / f"{entry.version:012d}-{entry.transaction_id}"
    waiting = StagedOutput(rows=to_files(rows(7), folder, files=1))
    written_long_ago(sink)
    maintain(sink, "events", AT_ONCE)
    session.publish(entry, waiting)
    assert ids(sink) == of(*range(1, 8))


def test_in_a_bucket(bucket: Bucket, tmp_path: Path) -> None:
    sink = sink_in(bucket, tmp_path, table="ops.kept")
    with sink.open("events") as session:
        publish(session, 6)
    dies(killed_at, sink, "events", CrashPoint.ROWS_SENT)
    done = maintain(sink, "events", AT_ONCE)
    assert (done["compact"].files, done["compact"].files_after) == (6, 1)
    back(sink, Operation.REWIND, 4)
    done = maintain(sink, "events", AT_ONCE)
    assert done["remove"].files >= 6, "what was put together; what the killed one wrote is young"
    with sink.open("events") as session:
        lineage = pa.Table.from_batches(session.lineage())
    assert sorted(lineage[CHECKPOINT_COLUMN].to_pylist()) == [1, 1, 2, 2, 3, 3, 4, 4]
