"""Folders that go back: what the exchange leaves alone, what a crash leaves, where it cannot be."""

from __future__ import annotations

import errno
import os
import signal
import stat
from pathlib import Path
from threading import Event, Thread

import duckdb
import pytest

from eo_pipeline.crashpoints import CrashPoint, Reach
from eo_pipeline.errors import FencedError, RefusedError, SinkUnavailableError
from eo_pipeline.ledger.entry import LedgerEntry, Operation
from eo_pipeline.sinks.parquet import ParquetSink, exchange
from eo_pipeline.sinks.parquet import exchange as exchanges
from eo_pipeline.sinks.parquet.session import ParquetSession
from eo_pipeline.staging.rows import StagedOutput
from eo_pipeline.testing import child_of
from eo_pipeline.testing.faults import dies
from tests.sinks.parquet.test_parquet_sink import ALREADY, COMMITTED, publish, staged


@pytest.fixture
def sink(tmp_path: Path) -> ParquetSink:
    return ParquetSink(path=str(tmp_path / "lake" / "flights"))


@pytest.fixture
def session(sink: ParquetSink) -> ParquetSession:
    opened = sink.open("events")
    assert isinstance(opened, ParquetSession)
    return opened


def rewind(head: LedgerEntry, target: int) -> LedgerEntry:
    return child_of(head, operation=Operation.REWIND, target=target)


def ids(root: Path) -> list[int]:
    pattern = root / "checkpoint=*" / "*.parquet"
    query = f"select id from read_parquet('{pattern}', union_by_name = true)"
    with duckdb.connect() as reader:
        return sorted(row[0] for row in reader.execute(query).fetchall())


def of(*checkpoints: int) -> list[int]:
    return [c * 10 + n for c in checkpoints for n in (0, 1)]


def beside(sink: ParquetSink) -> list[str]:
    """What lies next to the table."""
    return sorted(path.name for path in sink.root.parent.iterdir() if path != sink.root)


def leave_things(root: Path) -> None:
    """Files of people, and a promise of a run that is alive."""
    (root / "README").write_text("ours")
    attempt = root / "_eo_staging" / "events" / "9-abc"
    attempt.mkdir(parents=True)
    (attempt / "part-0.parquet").write_text("staged")


def assert_things(root: Path) -> None:
    assert (root / "README").read_text() == "ours"
    left = root / "_eo_staging" / "events" / "9-abc" / "part-0.parquet"
    assert left.read_text() == "staged"


def test_what_else_lies_in_the_folder_stays(sink: ParquetSink, session: ParquetSession) -> None:
    head = publish(session, 3)
    leave_things(sink.root)
    (sink.root / "checkpoint=1" / "_notes").write_text("seen")
    sink.root.chmod(0o2750)
    session.publish(rewind(head, 1), StagedOutput())
    assert ids(sink.root) == of(1)
    assert_things(sink.root)
    assert (sink.root / "checkpoint=1" / "_notes").read_text() == "seen"
    assert stat.S_IMODE(sink.root.stat().st_mode) == 0o2750
    assert beside(sink) == []


def test_a_version_that_went_keeps_its_name_and_its_entry(
    sink: ParquetSink, session: ParquetSession
) -> None:
    head = publish(session, 3)
    back = rewind(head, 1)
    session.publish(back, StagedOutput())
    for version in (2, 3, 4):
        assert os.listdir(sink.root / f"checkpoint={version}") == ["_eo_ledger.json"]
    (sink.root / "_eo_head").unlink()
    with pytest.raises(FencedError):
        session.publish(child_of(head, 2), staged(4))
    assert publish(session, 1, back).version == 5
    assert [entry.version for entry in session.history()] == list(range(6))
    assert ids(sink.root) == of(1, 5)


def test_a_reader_that_listed_before_misses_a_file_and_takes_no_other_for_it(
    sink: ParquetSink, session: ParquetSession
) -> None:
    """It would otherwise read some files of before and some of after, and not know."""
    head = publish(session, 3)
    listed = set(sink.root.glob("checkpoint=*/*.parquet"))
    of_second = {path for path in listed if path.parent.name == "checkpoint=2"}
    replay = child_of(head, 2, operation=Operation.REPLAY, target=2)
    session.publish(replay, staged(2))
    assert {path for path in listed if not path.exists()} == of_second
    assert ids(sink.root) == of(1, 2, 3)
    telling = session.lineage()
    next(telling)
    session.publish(rewind(replay, 1), StagedOutput())
    with pytest.raises(SinkUnavailableError, match="Ask again"):
        list(telling)


def test_a_table_that_is_a_link_goes_back_where_it_lies(
    tmp_path: Path, sink: ParquetSink, session: ParquetSession
) -> None:
    head = publish(session, 2)
    link = tmp_path / "link"
    link.symlink_to(sink.root)
    with ParquetSink(path=str(link)).open("events") as other:
        other.publish(rewind(head, 1), StagedOutput())
    assert link.is_symlink()
    assert ids(sink.root) == ids(link) == of(1)


def _die_after_the_exchange(sink: ParquetSink, back: LedgerEntry) -> None:
    exchange._move_over = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
    with sink.open("events") as session:
        session.publish(back, StagedOutput())


def test_the_next_run_finishes_what_was_killed_right_after_the_exchange(
    sink: ParquetSink, session: ParquetSession
) -> None:
    back = rewind(publish(session, 3), 1)
    leave_things(sink.root)
    dies(_die_after_the_exchange, sink, back)
    assert ids(sink.root) == of(1)  # it has landed
    (sink.root / "_eo_staging").mkdir()  # somebody was faster than the next run's recovery
    recovered = session.recover()
    assert recovered is not None
    assert recovered.id == back.id
    assert_things(sink.root)
    assert beside(sink) == []
    assert session.publish(back, StagedOutput()) is ALREADY


def test_what_lost_its_version_is_removed_and_nothing_that_may_live(
    sink: ParquetSink, session: ParquetSession
) -> None:
    head = publish(session, 2)
    builder = exchange.SwapFolder.new(sink.root, rewind(head, 1))
    (builder.path / "checkpoint=0").mkdir(parents=True)
    session.recover()
    assert beside(sink) == [builder.path.name]
    publish(session, 1, head)
    session.recover()
    assert beside(sink) == []
    assert ids(sink.root) == of(1, 2, 3)


def test_a_run_that_holds_the_folder_is_waited_for_and_then_named(
    sink: ParquetSink, session: ParquetSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scenario: a run that goes back hangs in the one step. Outcome: nobody slips in."""
    head = publish(session, 2)
    holds, let_go = Event(), Event()

    def hang() -> None:
        with exchanges.locked(sink.root, exclusive=True):
            holds.set()
            let_go.wait(240)

    holder = Thread(target=hang)
    holder.start()
    holds.wait(240)
    monkeypatch.setattr(exchanges, "LOCK_SECONDS", 0.05)
    entry = child_of(head, 2)
    try:
        for attempt, rows in ((entry, staged(3)), (rewind(head, 1), StagedOutput())):
            with pytest.raises(SinkUnavailableError, match="another run has held it"):
                session.publish(attempt, rows)
    finally:
        let_go.set()
        holder.join()
    assert session.publish(entry, staged(3)) is COMMITTED
    assert ids(sink.root) == of(1, 2, 3)


def test_who_is_overtaken_in_the_last_moment_is_fenced(
    sink: ParquetSink, session: ParquetSession
) -> None:
    """An exchange compares nothing, and would take away what somebody committed meanwhile."""
    head = publish(session, 2)
    forward, back = child_of(head, 2), rewind(head, 1)

    def overtake(by: LedgerEntry, rows: StagedOutput) -> Reach:
        def reach(point: CrashPoint) -> None:
            if point is CrashPoint.ENTRY_SENT:
                with sink.open("events") as other:
                    assert other.publish(by, rows) is COMMITTED

        return reach

    with pytest.raises(FencedError):
        session.publish(back, StagedOutput(), overtake(forward, staged(3)))
    assert ids(sink.root) == of(1, 2, 3)
    back = rewind(forward, 1)
    with pytest.raises(FencedError):
        session.publish(child_of(forward, 2), staged(4), overtake(back, StagedOutput()))
    assert ids(sink.root) == of(1)
    assert session.head() == session.entry(4)
    assert beside(sink) == []


def test_where_folders_cannot_be_exchanged_going_back_is_refused(
    sink: ParquetSink, session: ParquetSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    head = publish(session, 2)

    def no_exchange(*_: object) -> None:
        raise OSError(errno.EINVAL, "Invalid argument")

    with monkeypatch.context() as patch:
        patch.setattr(exchange, "exchange", no_exchange)
        for act in (session.check_going_back, lambda e: session.publish(e, StagedOutput())):
            with pytest.raises(RefusedError, match=r"(?s)exchange.*type: iceberg.*fork"):
                act(rewind(head, 1))
    with monkeypatch.context() as patch:
        patch.setattr(os.path, "ismount", lambda _: True)
        with pytest.raises(RefusedError, match="mount point"):
            session.check_going_back(rewind(head, 1))
    assert ids(sink.root) == of(1, 2)
    assert beside(sink) == []
    assert not list((sink.root / "_eo_publishing").iterdir())
