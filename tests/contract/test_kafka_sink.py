"""What Kafka's transactions do to a pipeline that the contract cannot know of."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from threading import Thread
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import (
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    Producer,
)
from confluent_kafka import TopicPartition as ClientTopicPartition
from confluent_kafka.admin import AdminClient
from pydantic import ValidationError

from eo_pipeline.checkpoint import LedgerEntry, Operation
from eo_pipeline.crashpoints import CrashPoint
from eo_pipeline.embedded.kafka import EmbeddedKafka
from eo_pipeline.errors import (
    CommitUnknownError,
    ConfigError,
    FencedError,
    LedgerBehindError,
    RefusedError,
    SchemaChangeError,
    SinkUnavailableError,
)
from eo_pipeline.offsets import TopicPartition
from eo_pipeline.sinks.base import CommitOutcome, SinkSession
from eo_pipeline.sinks.kafka import KafkaSink, producer
from eo_pipeline.sinks.kafka import session as kafka_session
from eo_pipeline.sinks.kafka.producer import RecordProducer
from eo_pipeline.staged import StagedOutput, StagedTable
from eo_pipeline.testing import child_of, first_entry, raise_at, to_files
from eo_pipeline.testing.contract import killed_while_publishing
from eo_pipeline.testing.crashes import CrashRequested
from tests.contract.kafka_world import headers, read
from tests.servers import MakeTopic, wait_until

COMMITTED = CommitOutcome.COMMITTED
ALREADY_COMMITTED = CommitOutcome.ALREADY_COMMITTED


def staged(ids: range, **columns: Any) -> StagedOutput:
    checkpoint = {"_eo_checkpoint": [1] * len(ids)}
    return StagedOutput(
        rows=StagedTable.in_memory(pa.table({"id": list(ids), **columns, **checkpoint}))
    )


@dataclass
class World:
    """A topic, the sink that writes to it, and a reader that is not the pipeline's."""

    sink: KafkaSink

    def changed(self, **settings: Any) -> World:
        return World(KafkaSink.model_validate({**self.sink.model_dump(), **settings}))

    def open(self, pipeline: str = "p") -> SinkSession:
        return self.sink.open(pipeline)

    def begin(self, session: SinkSession, pipeline: str = "p") -> LedgerEntry:
        entry = first_entry(pipeline)
        assert session.publish(entry, StagedOutput()) is COMMITTED
        return entry

    def read(self, isolation: str = "read_committed") -> list[Any]:
        return read(self.sink.bootstrap_servers, self.sink.topic, isolation)

    def values(self, isolation: str = "read_committed") -> list[bytes]:
        return [message.value() for message in self.read(isolation)]

    def count(self, isolation: str = "read_committed") -> int:
        return len(self.read(isolation))


@pytest.fixture
def admin(kafka: EmbeddedKafka) -> AdminClient:
    return AdminClient({"bootstrap.servers": kafka.bootstrap_servers, "log_level": 0})


@pytest.fixture
def world(kafka: EmbeddedKafka, topic: str) -> World:
    settings = {"bootstrap_servers": kafka.bootstrap_servers, "topic": topic}
    return World(KafkaSink.model_validate(settings))


@pytest.fixture
def session(world: World) -> Iterator[SinkSession]:
    with world.open() as session:
        yield session


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fenced producer looks at the ledger once and does not wait for its rival."""
    monkeypatch.setattr(kafka_session, "_RIVAL_SECONDS", 0.0)


def nth(point: CrashPoint, number: int, act: Callable[[], object]) -> Callable[[CrashPoint], None]:
    """Do ``act`` when ``point`` is reached for the ``number``-th time."""
    seen: list[CrashPoint] = []

    def reach(reached: CrashPoint) -> None:
        seen.append(reached)
        if reached == point and seen.count(point) == number:
            act()

    return reach


# Dead runs, zombies, time.


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
    assert other.flush(10) == 0
    assert (world.count(), world.count("read_uncommitted")) == (0, 6)

    with world.open() as session:
        head = session.recover()
        assert head is not None
        assert head.version == 0
        assert world.values() == [b"somebody else's"]
        assert session.publish(entry, output) is COMMITTED
    assert world.count() == 6


def test_recover_fences_nobody_where_no_reader_is_held_back(world: World) -> None:
    with world.open() as session, world.open() as other:
        head = world.begin(session)
        reach = nth(CrashPoint.ROWS_SENT, 2, lambda: pytest.fail("it was tried twice"))
        assert other.recover() == session.head()
        assert session.publish(child_of(head), staged(range(3)), reach) is COMMITTED


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


def test_a_transaction_that_ran_over_its_timeout_loses_nothing(world: World) -> None:
    """Scenario: the process sleeps longer than the broker waits; the broker aborts, and the commit
    is answered by "fenced". Outcome: not FencedError; the same entry is tried again and lands.
    """
    short = world.changed(transaction_timeout=1.0)
    with short.open() as session:
        entry = child_of(short.begin(session), 3)
        reach = nth(CrashPoint.ENTRY_SENT, 1, lambda: time.sleep(4))
        assert session.publish(entry, staged(range(3)), reach) is COMMITTED
        assert session.head() == session.entry(1)
    assert world.count() == 3


def test_a_transaction_that_always_runs_over_its_timeout_says_what_to_do(world: World) -> None:
    short = world.changed(transaction_timeout=1.0)
    with short.open() as session:
        entry = child_of(short.begin(session), 3)

        def sleep(point: CrashPoint) -> None:
            if point is CrashPoint.ENTRY_SENT:
                time.sleep(4)

        with pytest.raises(SinkUnavailableError, match=r"sink\.transaction_timeout \(1 s\)"):
            session.publish(entry, staged(range(3)), sleep)
        assert world.count() == 0
        assert session.publish(entry, staged(range(3))) is COMMITTED
    assert world.count() == 3


def test_a_transaction_that_used_most_of_its_timeout_is_warned_about(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    short = world.changed(transaction_timeout=4.0)
    with short.open() as session, caplog.at_level(logging.WARNING):
        entry = short.begin(session)
        assert "sink.transaction_timeout" not in caplog.text
        reach = nth(CrashPoint.ROWS_SENT, 1, lambda: time.sleep(3.3))
        assert session.publish(child_of(entry), staged(range(1)), reach) is COMMITTED
        assert "of the 4 s after which the broker would have aborted it" in caplog.text


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
        caller.join(30)
        assert not caller.is_alive()
        assert "Nothing was published" in str(outcomes)
    monkeypatch.undo()
    kafka.start()
    with world.changed(offsets_group="lag-tools").open() as session:
        wait_until(lambda: publishes(session, entry, staged(range(3))), timeout_s=60)
    assert world.count() == 3


def publishes(session: SinkSession, entry: LedgerEntry, output: StagedOutput) -> bool:
    """False while a broker that was just started cannot be asked about its own leaders."""
    try:
        return session.publish(entry, output) is COMMITTED
    except SinkUnavailableError:
        return False


# What a record is made of.


def test_keys_headers_and_timestamps_come_from_columns(world: World) -> None:
    # not long ago: retention goes by the records' own timestamps
    moment = datetime.now(UTC).replace(microsecond=250_999)
    full = world.changed(key="tail", headers={"carrier": "carrier"}, timestamp="at")
    with full.open() as session:
        entry = child_of(full.begin(session), 2)
        columns = {"tail": ["N1", None], "carrier": ["UA", None], "at": [moment, moment]}
        assert session.publish(entry, staged(range(2), **columns)) is COMMITTED
    first, second = full.read()
    assert (first.key(), second.key()) == (b"N1", None)
    assert first.headers() == [("carrier", b"UA")]
    assert second.headers() == [("carrier", None)]
    assert first.timestamp()[1] == int(moment.timestamp() * 1000)
    assert first.value() == b'{"id":0,"_eo_checkpoint":1}'


def test_a_raw_value_is_sent_as_it_is_and_its_lineage_as_headers(world: World) -> None:
    raw = world.changed(key="id", value="body", headers="more")
    more = pa.array(
        [[{"key": "a", "value": b"\x00"}], None],
        pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
    )
    with raw.open() as session:
        entry = child_of(raw.begin(session), 2)
        output = staged(range(2), body=pa.array([b"\xff\x00", None], pa.binary()), more=more)
        assert session.publish(entry, output) is COMMITTED
    first, tombstone = raw.read()
    assert (first.key(), first.value()) == (b"0", b"\xff\x00")
    assert headers(first) == {"a": b"\x00", "_eo_checkpoint": b"1"}
    assert (tombstone.key(), tombstone.value()) == (b"1", None)
    assert headers(tombstone) == {"_eo_checkpoint": b"1"}


def test_one_key_goes_to_one_partition(kafka: EmbeddedKafka, make_topic: MakeTopic) -> None:
    world = _world(kafka, make_topic(partitions=5), key="id")
    with world.open() as session:
        head = world.begin(session)
        for _ in range(2):
            head = child_of(head, 40)
            assert session.publish(head, staged(range(40))) is COMMITTED
    places: dict[bytes, set[int]] = {}
    for message in world.read():
        places.setdefault(message.key(), set()).add(message.partition())
    assert len(places) == 40
    assert all(len(found) == 1 for found in places.values())
    assert len(set.union(*places.values())) == 5


def _lineage(partitions: list[int]) -> dict[str, Any]:
    return {
        "_eo_topic": ["test-topic"] * len(partitions),
        "_eo_partition": pa.array(partitions, pa.int32()),
    }


def test_the_source_partition_is_kept(kafka: EmbeddedKafka, make_topic: MakeTopic) -> None:
    world = _world(kafka, make_topic(partitions=3), partitioning="source")
    with world.open() as session:
        entry = child_of(world.begin(session), 3)
        with pytest.raises(RefusedError, match="keeps Kafka partition 3, and the topic has 3"):
            session.publish(entry, staged(range(3), **_lineage([0, 3, 1])))
        output = staged(range(3), **_lineage([2, 0, 2]))
        assert session.publish(entry, output) is COMMITTED
    assert sorted(message.partition() for message in world.read()) == [0, 2, 2]


@pytest.mark.parametrize(("partitions", "first"), [(5, 1), (6, 0)])
def test_eleven_source_partitions_are_dealt_out_by_the_assigner(
    kafka: EmbeddedKafka, make_topic: MakeTopic, partitions: int, first: int
) -> None:
    world = _world(kafka, make_topic(partitions=partitions), partitioning="assigner")
    with world.open() as session:
        entry = child_of(world.begin(session), 11)
        output = staged(range(11), **_lineage(list(range(11))))
        assert session.publish(entry, output) is COMMITTED
    found = sorted(message.partition() for message in world.read())
    assert found == sorted((first + source) % partitions for source in range(11))


def test_a_column_that_is_named_must_be_there_and_fit(world: World, session: SinkSession) -> None:
    head = world.begin(session)
    for settings, error, words in (
        ({"key": "nobody"}, ConfigError, r"sink\.key: the result has no column nobody"),
        ({"partitioning": "source"}, ConfigError, "lineage"),
        ({"timestamp": "id"}, SchemaChangeError, "'id' must be a timestamp"),
        ({"key": "half"}, SchemaChangeError, "'half' must be text"),
    ):
        with world.changed(**settings).open() as other, pytest.raises(error, match=words):
            other.publish(child_of(head), staged(range(1), half=[0.5]))
    with pytest.raises(SchemaChangeError, match="'gap' must be a type that JSON can hold"):
        session.publish(child_of(head), staged(range(1), gap=pa.array([1], pa.duration("s"))))
    assert world.count() == 0


def test_source_offsets_move_in_the_same_transaction(world: World, admin: AdminClient) -> None:
    grouped = world.changed(offsets_group="lag-tools")
    place = ClientTopicPartition(world.sink.topic, 0)

    def committed() -> int:
        asked = [ConsumerGroupTopicPartitions("lag-tools", [place])]
        answer = admin.list_consumer_group_offsets(asked)["lag-tools"].result(10)
        offset: int = answer.topic_partitions[0].offset
        return offset

    with grouped.open() as session:
        start = replace(first_entry("p"), offsets={TopicPartition(world.sink.topic, 0): 5})
        with pytest.raises(CrashRequested):
            session.publish(start, StagedOutput(), raise_at(CrashPoint.ENTRY_SENT))
        assert committed() < 0
        assert session.publish(start, StagedOutput()) is COMMITTED
        assert committed() == 5


# The ledger's topic.


def test_an_entry_is_found_in_a_long_ledger_with_holes(world: World, session: SinkSession) -> None:
    head = world.begin(session)
    for number in range(1, 45):
        entry = child_of(head)
        if number % 10 == 0:  # aborted, several times: records that nobody is shown
            for _ in range(3):
                with pytest.raises(CrashRequested):
                    session.publish(entry, StagedOutput(), raise_at(CrashPoint.ENTRY_SENT))
        assert session.publish(entry, StagedOutput()) is COMMITTED
        head = entry
    with world.open() as other:
        history = list(other.history())
        assert [entry.version for entry in history] == list(range(45))
        assert [other.entry(version) for version in range(46)] == [*history, None]
        assert list(other.history(since=30)) == history[30:]
        assert list(other.history(since=45)) == []


def test_the_head_is_found_behind_many_aborted_ones(world: World, session: SinkSession) -> None:
    head = world.begin(session)
    for _ in range(12):
        with pytest.raises(CrashRequested):
            session.publish(child_of(head), StagedOutput(), raise_at(CrashPoint.ENTRY_SENT))
    found = session.head()
    assert found is not None
    assert found.id == head.id


def test_a_ledger_that_was_emptied_is_not_a_new_one(
    world: World, session: SinkSession, admin: AdminClient
) -> None:
    world.begin(session)
    ledger = ClientTopicPartition(world.sink.ledger_of("p"), 0, -1)
    admin.delete_records([ledger])[ledger].result(10)
    with pytest.raises(LedgerBehindError, match="was deleted"):
        session.head()


@pytest.mark.parametrize(
    "config", [{"retention.ms": "60000"}, {"cleanup.policy": "compact"}], ids=str
)
def test_a_ledger_that_would_forget_is_refused(
    world: World, make_topic: MakeTopic, config: dict[str, str]
) -> None:
    whole = {"retention.ms": "-1", "retention.bytes": "-1", "cleanup.policy": "delete"}
    ledger = make_topic(config={**whole, **config})
    with pytest.raises(ConfigError, match=next(iter(config))):
        world.changed(ledger_topic=ledger).open()


def test_a_ledger_of_another_pipeline_is_refused(world: World, session: SinkSession) -> None:
    world.begin(session)
    stranger = world.changed(ledger_topic=world.sink.ledger_of("p"))
    with stranger.open("q") as other, pytest.raises(ConfigError, match="'p'"):
        other.head()


def test_two_pipelines_share_a_topic_and_no_ledger(world: World) -> None:
    with world.open("p") as one, world.open("q") as two:
        for name, session in (("p", one), ("q", two)):
            entry = child_of(world.begin(session, name), 2)
            assert session.publish(entry, staged(range(2))) is COMMITTED
    assert world.count() == 4


def test_a_missing_topic_and_a_ledger_of_two_partitions_are_refused(
    world: World, make_topic: MakeTopic
) -> None:
    with pytest.raises(ConfigError, match="there is no topic 'nowhere'"):
        world.changed(topic="nowhere").open()
    with pytest.raises(ConfigError, match="has 2 partitions, not one"):
        world.changed(ledger_topic=make_topic(partitions=2)).open()


def test_a_cluster_that_does_not_answer_is_unavailable(world: World) -> None:
    gone = world.changed(bootstrap_servers="127.0.0.1:1", request_timeout=1.0)
    with pytest.raises(SinkUnavailableError):
        gone.open()


@pytest.mark.parametrize("operation", [Operation.REWIND, Operation.REPLAY])
def test_going_back_is_refused_with_a_way_out(
    world: World, session: SinkSession, operation: Operation
) -> None:
    entry = child_of(world.begin(session), operation=operation, target=0)
    with pytest.raises(RefusedError, match="new topic"):
        session.publish(entry, StagedOutput())
    assert session.entry(1) is None


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"client": {"enable.idempotence": False}}, "client"),
        ({"client": {"transactional.id": "mine"}}, "client"),
        ({"topic": "no such name"}, "topic"),
        ({"dead_letter_topic": "t"}, "dead_letter_topic"),
        ({"semantics": "at_least_once", "offsets_group": "g"}, "offsets_group"),
        ({"semantics": "at_least_once", "shards": 2}, "shards"),
        ({"shards": 0}, "shards"),
        ({"transaction_timeout": 0.1}, "transaction_timeout"),
    ],
)
def test_settings_that_would_break_the_promise_are_refused(
    settings: dict[str, Any], field: str
) -> None:
    with pytest.raises(ValidationError) as refused:
        KafkaSink.model_validate({"bootstrap_servers": "b:1", "topic": "t", **settings})
    assert [error["loc"][0] for error in refused.value.errors()] == [field]


def _table(output: StagedOutput) -> StagedTable:
    assert output.rows is not None
    return output.rows


def _world(kafka: EmbeddedKafka, topic: str, **settings: Any) -> World:
    servers = {"bootstrap_servers": kafka.bootstrap_servers, "topic": topic}
    return World(KafkaSink.model_validate({**servers, **settings}))
