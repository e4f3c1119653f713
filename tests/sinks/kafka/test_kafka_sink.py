"""What Kafka's transactions do to a pipeline that the contract cannot know of."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from confluent_kafka import (
    KafkaError,
    KafkaException,
    Producer,
)

from eo_pipeline.crashpoints import CrashPoint
from eo_pipeline.embedded.kafka import EmbeddedKafka
from eo_pipeline.errors import (
    CommitUnknownError,
    FencedError,
    SinkUnavailableError,
)
from eo_pipeline.ledger.entry import LedgerEntry
from eo_pipeline.ledger.offsets import TopicPartition
from eo_pipeline.sinks.kafka import ledger as kafka_ledger
from eo_pipeline.sinks.kafka import producer, transactions
from eo_pipeline.sinks.kafka.ledger import LedgerTopic
from eo_pipeline.sinks.kafka.producer import RecordProducer
from eo_pipeline.sinks.session import CommitOutcome, SinkSession
from eo_pipeline.staging.rows import StagedOutput, StagedTable
from eo_pipeline.testing import child_of, to_files
from eo_pipeline.testing.contract import killed_while_publishing
from tests.sinks.kafka.kafka_sink_world import COMMITTED, World, session, staged, world
from tests.support.servers import own_kafka, wait_until

kafka = own_kafka

__all__ = ["session", "world"]


ALREADY_COMMITTED = CommitOutcome.ALREADY_COMMITTED


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fenced producer looks at the ledger once and does not wait for its rival."""
    monkeypatch.setattr(kafka_ledger, "RIVAL_SECONDS", 0.0)


def nth(point: CrashPoint, number: int, act: Callable[[], object]) -> Callable[[CrashPoint], None]:
    """Do ``act`` when ``point`` is reached for the ``number``-th time."""
    seen: list[CrashPoint] = []

    def reach(reached: CrashPoint) -> None:
        seen.append(reached)
        if reached == point and seen.count(point) == number:
            act()

    return reach


# Dead runs, zombies, time.


@pytest.mark.slow
def test_a_dead_run_holds_back_readers_until_recover(world: World, tmp_path: Path) -> None:
    """Scenario: SIGKILL with rows and entry in the open transaction; another producer of the topic
    commits behind it. Outcome: read_committed readers see neither, until recover() ends it.
    """
    with world.open() as session:
        entry = child_of(world.begin(session), 5)
    output = StagedOutput(rows=to_files(_table(staged(range(5))), tmp_path))
    killed_while_publishing(world.sink, "p", entry, output, CrashPoint.ENTRY_SENT)
    other = Producer({"bootstrap.servers": world.sink.bootstrap_servers})
    other.produce(world.sink.topic, b"somebody else's")
    assert other.flush(120) == 0
    assert (world.count(), world.count("read_uncommitted")) == (0, 6)

    with world.open() as session:
        head = session.recover()
        assert head is not None
        assert head.version == 0
        assert world.values() == [b"somebody else's"]
        assert session.publish(entry, output) is COMMITTED
    assert world.count() == 6


@pytest.mark.slow
def test_recover_fences_nobody_where_no_reader_is_held_back(world: World) -> None:
    with world.open() as session, world.open() as other:
        head = world.begin(session)
        reach = nth(CrashPoint.ROWS_SENT, 2, lambda: pytest.fail("it was tried twice"))
        assert other.recover() == session.head()
        assert session.publish(child_of(head, 3), staged(range(3)), reach) is COMMITTED


@pytest.mark.slow
@pytest.mark.usefixtures("impatient")
def test_a_run_fenced_by_another_ones_recover_tries_once_more(world: World) -> None:
    """Scenario: a second run starts while the first one's transaction is open, and takes it for a
    dead one's. Outcome: the first one finds the ledger unmoved, and its second try lands.
    """
    with world.open() as session, world.open() as other:
        entry = child_of(world.begin(session), 3)
        reach = nth(CrashPoint.ENTRY_SENT, 1, other.recover)
        assert session.publish(entry, staged(range(3)), reach) is COMMITTED
        assert (world.count(), world.count("read_uncommitted")) == (3, 6)


def test_a_zombie_that_was_fenced_asks_the_ledger_who_won(world: World) -> None:
    with world.open() as zombie, world.open() as rival:
        head = world.begin(zombie)
        winner = child_of(head, 2)
        reach = nth(CrashPoint.ROWS_SENT, 1, lambda: rival.publish(winner, staged(range(10, 12))))
        with pytest.raises(FencedError) as fenced:
            zombie.publish(child_of(head, 3), staged(range(3)), reach)
        assert fenced.value.winner == winner.transaction_id
        assert world.count() == 2


@pytest.mark.usefixtures("impatient")
def test_a_zombie_whose_entry_a_rival_published_is_told_so(world: World) -> None:
    with world.open() as zombie, world.open() as rival:
        entry = child_of(world.begin(zombie), 3)
        reach = nth(CrashPoint.ENTRY_SENT, 1, lambda: rival.publish(entry, staged(range(3))))
        assert zombie.publish(entry, staged(range(3)), reach) is ALREADY_COMMITTED
        assert world.count() == 3


@pytest.mark.slow
def test_a_transaction_that_ran_over_its_timeout_loses_nothing(world: World) -> None:
    """Scenario: the process sleeps longer than the broker waits; the broker aborts, and the commit
    is answered by "fenced". Outcome: not FencedError; the same entry is tried again and lands.
    """
    short = world.changed(transaction_timeout=5.0)
    with short.open() as session:
        entry = child_of(short.begin(session), 3)
        reach = nth(CrashPoint.ENTRY_SENT, 1, lambda: time.sleep(8))
        assert session.publish(entry, staged(range(3)), reach) is COMMITTED
        assert session.head() == session.entry(1)
    assert world.count() == 3


@pytest.mark.slow
def test_a_transaction_that_always_runs_over_its_timeout_says_what_to_do(world: World) -> None:
    short = world.changed(transaction_timeout=5.0)
    with short.open() as session:
        entry = child_of(short.begin(session), 3)

        def sleep(point: CrashPoint) -> None:
            if point is CrashPoint.ENTRY_SENT:
                time.sleep(8)

        with pytest.raises(SinkUnavailableError, match=r"sink\.transaction_timeout \(5 s\)"):
            session.publish(entry, staged(range(3)), sleep)
        assert world.count() == 0
        assert session.publish(entry, staged(range(3))) is COMMITTED
    assert world.count() == 3


@pytest.mark.slow
def test_a_transaction_that_used_most_of_its_timeout_is_warned_about(
    world: World, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transactions, "_NEARLY", 0.1)  # far from the end on a busy machine too
    short = world.changed(transaction_timeout=30.0)
    with short.open() as session, caplog.at_level(logging.WARNING):
        entry = short.begin(session)
        assert "sink.transaction_timeout" not in caplog.text
        reach = nth(CrashPoint.ROWS_SENT, 1, lambda: time.sleep(3.3))
        assert session.publish(child_of(entry, 1), staged(range(1)), reach) is COMMITTED
        assert "of the 30 s after which the broker would have aborted it" in caplog.text


# Commits without an answer.


def unanswered(*, landed: bool, times: int = 1) -> Callable[[RecordProducer, float], None]:
    """A commit whose answer is lost, after the broker did it or before it heard of it."""
    commit = RecordProducer.commit
    left = times

    def lose(producer: RecordProducer, seconds: float) -> None:
        nonlocal left
        left -= 1
        if left < 0 or landed:
            commit(producer, seconds)
        if left >= 0:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT, "no answer", retriable=True))

    return lose


@pytest.mark.parametrize("landed", [True, False], ids=["landed", "never arrived"])
def test_a_lost_answer_is_settled_by_the_ledger(
    world: World, session: SinkSession, monkeypatch: pytest.MonkeyPatch, landed: bool
) -> None:
    entry = child_of(world.begin(session), 3)
    monkeypatch.setattr(RecordProducer, "commit", unanswered(landed=landed))
    assert session.publish(entry, staged(range(3))) is COMMITTED
    assert world.count() == 3
    assert session.publish(entry, staged(range(3))) is ALREADY_COMMITTED


@pytest.mark.slow
def test_a_lost_answer_with_the_cluster_gone_is_unknown_and_settled_later(
    world: World, session: SinkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = child_of(world.begin(session), 3)

    def cannot(producer: RecordProducer, seconds: float) -> None:
        raise KafkaException(KafkaError(KafkaError._TRANSPORT, "gone"))

    with monkeypatch.context() as patch:
        patch.setattr(RecordProducer, "commit", unanswered(landed=True))
        patch.setattr(RecordProducer, "init", cannot)
        with pytest.raises(CommitUnknownError):
            session.publish(entry, staged(range(3)))
    assert session.publish(entry, staged(range(3))) is ALREADY_COMMITTED
    assert world.count() == 3


@pytest.mark.slow
def test_a_commit_that_was_fenced_with_the_ledger_out_of_reach_is_unknown_and_settled_later(
    world: World, session: SinkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scenario: the broker commits, the answer is lost, and the next one is "fenced", because
    another run ended what it took for a dead one's. Who cannot ask the ledger does not know.
    """
    entry = child_of(world.begin(session), 3)
    commit = RecordProducer.commit

    def out_of_reach(ledger: LedgerTopic) -> int:
        raise SinkUnavailableError("gone")

    def fenced(producer: RecordProducer, seconds: float) -> None:
        commit(producer, seconds)
        monkeypatch.setattr(LedgerTopic, "_end", out_of_reach)
        raise KafkaException(KafkaError(KafkaError._FENCED, "somebody else's"))

    with monkeypatch.context() as patch:
        patch.setattr(RecordProducer, "commit", fenced)
        with pytest.raises(CommitUnknownError):
            session.publish(entry, staged(range(3)))
    monkeypatch.undo()
    assert session.publish(entry, staged(range(3))) is ALREADY_COMMITTED
    assert world.count() == 3


@pytest.mark.slow
def test_a_call_that_never_returns_is_given_up_and_tried_later(
    world: World, kafka: EmbeddedKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scenario: the broker is killed while the offsets are on their way into the transaction, in a
    call of the client's that may then ignore its own timeout. Outcome: an answer in bounded time,
    nothing visible, and the next run publishes it once the broker is back.
    """
    hurried = world.changed(offsets_group="lag-tools", request_timeout=2.0)
    add_offsets = RecordProducer.add_offsets

    def killed_in_it(*arguments: Any) -> None:
        kafka.kill()
        add_offsets(*arguments)

    monkeypatch.setattr(producer, "_GRACE_SECONDS", 0.5)
    with world.open() as session:
        offsets = {TopicPartition(world.sink.topic, 0): 5}
        entry = replace(child_of(world.begin(session), 3), offsets=offsets)
    with hurried.open() as session:
        outcomes: list[object] = []

        def publish() -> None:
            try:
                outcomes.append(session.publish(entry, staged(range(3))))
            except SinkUnavailableError as error:
                outcomes.append(str(error))

        monkeypatch.setattr(RecordProducer, "add_offsets", killed_in_it)
        caller = Thread(target=publish, daemon=True)
        caller.start()
        caller.join(240)
        assert not caller.is_alive()
        assert "Nothing was published" in str(outcomes)
    monkeypatch.undo()
    kafka.start()
    with world.changed(offsets_group="lag-tools").open() as session:
        wait_until(lambda: publishes(session, entry, staged(range(3))))
    assert world.count() == 3


def publishes(session: SinkSession, entry: LedgerEntry, output: StagedOutput) -> bool:
    """False while a broker that was just started cannot be asked about its own leaders."""
    try:
        return session.publish(entry, output) is COMMITTED
    except SinkUnavailableError:
        return False


def _table(output: StagedOutput) -> StagedTable:
    assert output.rows is not None
    return output.rows
