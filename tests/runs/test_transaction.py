"""The states of one attempt: legal moves, and what each outcome leaves behind."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from eo_pipeline.crashpoints import Reach, keep_going
from eo_pipeline.errors import (
    CommitUnknownError,
    FencedError,
    RefusedError,
    SinkUnavailableError,
)
from eo_pipeline.ledger.entry import Counts, LedgerEntry, Operation
from eo_pipeline.runs import transaction as transaction_module
from eo_pipeline.runs.transaction import COMMIT_TRIES, SinkTransaction, TransactionState
from eo_pipeline.sinks.session import CommitOutcome, SinkSession
from eo_pipeline.staging.attempt import Attempt, StagingArea
from eo_pipeline.staging.rows import StagedOutput

ENTRY = LedgerEntry(
    pipeline="p",
    ledger_id="l",
    version=0,
    transaction_id="t",
    parent=None,
    operation=Operation.START,
    offsets={},
)


class Answers(SinkSession):
    """A store that answers each publish with the next of ``answers``."""

    def __init__(self, *answers: CommitOutcome | Exception) -> None:
        self.answers = list(answers)
        self.published: list[str] = []

    def publish(
        self, entry: LedgerEntry, staged: StagedOutput, reach: Reach = keep_going
    ) -> CommitOutcome:
        self.published.append(entry.transaction_id)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def head(self) -> LedgerEntry | None:
        return None

    def entry(self, version: int) -> LedgerEntry | None:
        return None

    def history(self, since: int = 0) -> Iterator[LedgerEntry]:
        return iter(())

    def close(self) -> None: ...


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transaction_module, "COMMIT_WAIT_SECONDS", 0)


def promised(session: SinkSession, attempt: Attempt | None = None) -> SinkTransaction:
    transaction = SinkTransaction(session, ENTRY, attempt)
    transaction.write(lambda *_: (StagedOutput(), Counts(rows=3)))
    transaction.pre_commit()
    return transaction


def test_a_lost_reply_is_tried_again_under_the_same_transaction_id() -> None:
    store = Answers(CommitUnknownError("?"), CommitOutcome.ALREADY_COMMITTED)
    transaction = promised(store)
    assert transaction.commit() is CommitOutcome.ALREADY_COMMITTED
    assert store.published == ["t", "t"]
    assert transaction.state is TransactionState.COMMITTED


def test_a_store_that_never_answers_leaves_the_outcome_unknown() -> None:
    store = Answers(*[CommitUnknownError("?")] * COMMIT_TRIES)
    transaction = promised(store)
    with pytest.raises(CommitUnknownError):
        transaction.commit()
    assert transaction.state is TransactionState.UNKNOWN
    assert store.answers == []


def test_each_wait_before_another_try_is_twice_the_one_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waits: list[float] = []
    monkeypatch.setattr(transaction_module, "COMMIT_WAIT_SECONDS", 0.5)
    monkeypatch.setattr("time.sleep", waits.append)
    with pytest.raises(CommitUnknownError):
        promised(Answers(*[CommitUnknownError("?")] * COMMIT_TRIES)).commit()
    assert waits == [0.5, 1.0, 2.0]


@pytest.mark.parametrize("later", [RefusedError("constraint"), SinkUnavailableError("down")])
def test_after_a_lost_reply_no_later_answer_proves_that_nothing_landed(
    tmp_path: Path, later: Exception
) -> None:
    attempt = StagingArea(tmp_path, "p").begin(ENTRY)
    transaction = promised(Answers(CommitUnknownError("?"), later), attempt)
    with pytest.raises(CommitUnknownError, match="may still succeed"):
        transaction.commit()
    assert transaction.state is TransactionState.UNKNOWN
    assert not attempt.is_refused
    assert attempt.manifest() is not None


def test_an_unavailable_store_may_be_asked_again_later() -> None:
    transaction = promised(Answers(SinkUnavailableError("down"), CommitOutcome.COMMITTED))
    with pytest.raises(SinkUnavailableError):
        transaction.commit()
    assert transaction.commit() is CommitOutcome.COMMITTED


def test_a_fenced_attempt_keeps_its_folder_for_the_rules_to_delete(tmp_path: Path) -> None:
    attempt = StagingArea(tmp_path, "p").begin(ENTRY)
    transaction = promised(Answers(FencedError("p", 0, "other")), attempt)
    with pytest.raises(FencedError):
        transaction.commit()
    assert attempt.manifest() is not None
    assert not attempt.is_refused


def test_a_refused_attempt_is_marked_and_deletes_nothing(tmp_path: Path) -> None:
    attempt = StagingArea(tmp_path, "p").begin(ENTRY)
    transaction = promised(Answers(RefusedError("constraint")), attempt)
    with pytest.raises(RefusedError):
        transaction.commit()
    assert attempt.is_refused
    assert attempt.manifest() is not None


def test_an_abort_before_the_promise_removes_the_folder(tmp_path: Path) -> None:
    attempt = StagingArea(tmp_path, "p").begin(ENTRY)
    SinkTransaction(Answers(), ENTRY, attempt).abort()
    assert not attempt.folder.exists()


@pytest.mark.parametrize(
    "illegal",
    [
        lambda t: t.abort(),
        lambda t: t.pre_commit(),
        lambda t: t.write(lambda *_: (StagedOutput(), Counts())),
    ],
)
def test_a_promise_is_not_taken_back(illegal: Callable[[SinkTransaction], None]) -> None:
    with pytest.raises(RuntimeError, match="cannot go from pre_committed"):
        illegal(promised(Answers()))


def test_nothing_is_promised_before_all_rows_are_staged(tmp_path: Path) -> None:
    attempt = StagingArea(tmp_path, "p").begin(ENTRY)
    transaction = SinkTransaction(Answers(), ENTRY, attempt)

    def stage(*_: object) -> tuple[StagedOutput, Counts]:
        assert attempt.manifest() is None
        return StagedOutput(), Counts()

    transaction.write(stage)
    assert attempt.manifest() is None
    transaction.pre_commit()
    assert attempt.manifest() is not None


def test_counts_travel_with_the_entry() -> None:
    assert promised(Answers()).entry.counts.rows == 3
