"""What is said of an interrupted run: only what is known."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import ClassVar

import pytest
from pydantic import Field

from eo_pipeline.crashpoints import CrashPoint, Reach, keep_going
from eo_pipeline.errors import FencedError, SinkUnavailableError
from eo_pipeline.ledger.entry import LedgerEntry, Operation
from eo_pipeline.runs.interruption import interruption_in, notes, watched
from eo_pipeline.sinks.config import Guarantee, Sink
from eo_pipeline.sinks.session import CommitOutcome, SinkSession
from eo_pipeline.staging.rows import StagedOutput
from tests.runs.test_transaction import ENTRY

NEXT = replace(ENTRY.child(Operation.FORWARD, "run", {}), transaction_id="ours")


class Memory(Sink):
    """A store in a dictionary, which a test changes as it likes."""

    guarantee: ClassVar[Guarantee] = Guarantee.EXACTLY_ONCE
    held: dict[int, LedgerEntry] = Field(default_factory=dict)

    def open(self, pipeline: str) -> SinkSession:
        if -1 in self.held:
            raise SinkUnavailableError("the store is away.")
        return Session(pipeline, self.held)

    @property
    def table_name(self) -> str:
        return "memory"


class Session(SinkSession):
    def __init__(self, pipeline: str, held: dict[int, LedgerEntry]) -> None:
        super().__init__(pipeline)
        self.held = held

    def head(self) -> LedgerEntry | None:
        return self.held[max(self.held)] if self.held else None

    def entry(self, version: int) -> LedgerEntry | None:
        return self.held.get(version)

    def history(self, since: int = 0) -> Iterator[LedgerEntry]:
        return iter(())

    def publish(
        self, entry: LedgerEntry, staged: StagedOutput, reach: Reach = keep_going
    ) -> CommitOutcome:
        reach(CrashPoint.ROWS_SENT)
        reach(CrashPoint.ENTRY_SENT)
        self.land(entry)
        return CommitOutcome.COMMITTED

    def land(self, entry: LedgerEntry) -> None:
        self.held[entry.version] = entry

    def close(self) -> None: ...


def interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def noted(sink: Memory, work: Callable[[SinkSession], object]) -> str:
    """The note on an interruption of ``work``, without its beginning."""

    def run() -> None:
        with watched("p", sink) as session:
            work(session)
            interrupt()

    with pytest.raises(KeyboardInterrupt) as raised:
        run()
    (note,) = notes(raised.value)
    assert note.startswith("p: interrupted; ")
    return note.removeprefix("p: interrupted; ")


def said(sink: Memory, publish: LedgerEntry | None = None, reach: Reach = keep_going) -> str:
    """The same for a run that read the head, and published ``publish``."""

    def work(session: SinkSession) -> None:
        session.recover()
        if publish is not None:
            session.publish(publish, StagedOutput(), reach)

    return noted(sink, work)


def test_before_a_commit_was_sent_the_head_stands() -> None:
    assert said(Memory()) == "the ledger is empty; nothing of version 0 is visible"
    sink = Memory(held={0: ENTRY})
    assert said(sink) == "version 0 stands; nothing of version 1 is visible"
    assert said(sink, NEXT, interrupt) == "version 0 stands; nothing of version 1 is visible"
    assert said(sink, NEXT) == "version 1 stands; nothing of version 2 is visible"


def test_before_the_ledger_was_read_nothing_is_said_of_it() -> None:
    assert noted(Memory(), lambda _: None) == "the ledger was not read yet, nothing was changed"


def land_then_interrupt(session: Session, entry: LedgerEntry) -> None:
    session.held[entry.version] = entry
    interrupt()


def land_another_then_interrupt(session: Session, entry: LedgerEntry) -> None:
    land_then_interrupt(session, replace(entry, transaction_id="another"))


def go_away_then_interrupt(session: Session, entry: LedgerEntry) -> None:
    session.held[-1] = entry
    interrupt()


@pytest.mark.parametrize(
    ("land", "sentence"),
    [
        (interrupt, "was in progress and is not visible. If it still"),
        (land_then_interrupt, "version 1 is committed: the commit in progress succeeded"),
        (land_another_then_interrupt, "version 1 is another run's; nothing of what this run sent"),
        (go_away_then_interrupt, "not at all; the next run checks which"),
    ],
)
def test_once_a_commit_was_sent_only_the_ledger_can_tell(
    monkeypatch: pytest.MonkeyPatch, land: object, sentence: str
) -> None:
    monkeypatch.setattr(Session, "land", land)
    assert sentence in said(Memory(held={0: ENTRY}), NEXT)


def test_a_commit_that_was_refused_is_no_longer_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    def fenced(session: Session, entry: LedgerEntry) -> None:
        raise FencedError("p", entry.version, None)

    def work(session: SinkSession) -> None:
        session.recover()
        with pytest.raises(FencedError):
            session.publish(NEXT, StagedOutput())

    monkeypatch.setattr(Session, "land", fenced)
    sink = Memory(held={0: ENTRY})
    assert noted(sink, work) == "version 0 stands; nothing of version 1 is visible"


def test_an_error_met_on_the_way_out_does_not_hide_the_interruption() -> None:
    def work(_: SinkSession) -> None:
        try:
            interrupt()
        finally:
            raise SinkUnavailableError("the connection is gone")

    assert "nothing was changed" in noted(Memory(), work)


def test_an_error_by_itself_is_no_interruption() -> None:
    assert interruption_in(ValueError()) is None
    with pytest.raises(SinkUnavailableError) as raised, watched("p", Memory()):
        raise SinkUnavailableError("away")
    assert notes(raised.value) == []
