"""Kafka with several shards: atomic per shard, decided by one, and in the end all of it, once."""

from __future__ import annotations

import json
import os
import signal
import uuid
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event, Lock, Thread
from typing import Any, ClassVar

import pyarrow as pa
import pytest
from confluent_kafka import Producer

from eo_pipeline.crashpoints import CrashPoint
from eo_pipeline.embedded.kafka import EmbeddedKafka
from eo_pipeline.errors import CommitUnknownError, FencedError
from eo_pipeline.ledger.entry import LedgerEntry
from eo_pipeline.sinks.config import Sink
from eo_pipeline.sinks.kafka import KafkaSink
from eo_pipeline.sinks.kafka.producer import assign
from eo_pipeline.sinks.kafka.transactions import ShardProducer, Shards
from eo_pipeline.sinks.session import CommitOutcome, SinkSession
from eo_pipeline.staging.rows import StagedOutput, StagedTable
from eo_pipeline.testing import child_of, first_entry, to_files
from eo_pipeline.testing.contract import killed_while_publishing
from eo_pipeline.testing.exactly_once import ExactlyOnceContract
from eo_pipeline.testing.faults import dies
from eo_pipeline.testing.odd import RARELY_KEPT
from tests.sinks.kafka.kafka_world import letters, read, rows

COMMITTED = CommitOutcome.COMMITTED
ALREADY_COMMITTED = CommitOutcome.ALREADY_COMMITTED

SOURCE = "test-topic"
SHARDS = 3
SOURCE_PARTITIONS = 11


def with_origin(table: pa.Table) -> pa.Table:
    """The rows in turn from each of eleven Kafka partitions."""
    count = table.num_rows
    partitions = [n % SOURCE_PARTITIONS for n in range(count)]
    return (
        table.append_column("_eo_topic", pa.array([SOURCE] * count, pa.string()))
        .append_column("_eo_partition", pa.array(partitions, pa.int32()))
        .append_column("_eo_offset", pa.array(range(count), pa.int64()))
    )


def sharded(kafka: EmbeddedKafka, topic: str, shards: int = SHARDS) -> KafkaSink:
    return KafkaSink(bootstrap_servers=kafka.bootstrap_servers, topic=topic, shards=shards)


@pytest.mark.slow
class TestSeveralShards(ExactlyOnceContract):
    """The contract, with every checkpoint in files, so that three shards publish it."""

    refused_values: ClassVar[frozenset[str]] = RARELY_KEPT - {"no type"}  # null, to JSON
    tells_lineage: ClassVar[bool] = False

    #: What a row holds is written the same way by however many shards: test_kafka_sink_contract.py.
    only_chaos: ClassVar[frozenset[str]] = frozenset(
        {
            "test_odd_values_come_back_equal_or_are_refused_by_name",
            "test_odd_names_come_back_equal_or_are_refused",
            "test_every_type_comes_back_equal",
            "test_types_without_a_place_are_refused_by_name",
            "test_a_damaged_staged_file_is_refused",
        }
    )

    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path) -> None:
        self.folder = tmp_path / "staged"

    @pytest.fixture
    def sink(self, kafka: EmbeddedKafka, topic: str) -> Sink:
        return sharded(kafka, topic)

    def table(self, checkpoint: int, rows: int | None = None) -> pa.Table:
        return with_origin(super().table(checkpoint, rows))

    def staged(self, checkpoint: int, rows: int | None = None) -> StagedOutput:
        table = StagedTable.in_memory(self.table(checkpoint, rows))
        return StagedOutput(rows=to_files(table, self.folder / uuid.uuid4().hex))

    def read_rows(self, sink: Sink) -> list[dict[str, Any]]:
        assert isinstance(sink, KafkaSink)
        return rows(read(sink.bootstrap_servers, sink.topic))

    def read_dead_letters(self, sink: Sink) -> list[dict[str, Any]]:
        assert isinstance(sink, KafkaSink)
        return letters(read(sink.bootstrap_servers, sink.dead_letters))

    def test_what_is_refused_leaves_nothing(self, sink: Sink, session: SinkSession) -> None:
        """There are no column types to offend; what a broker refuses is tested with one shard."""

    def test_a_reader_that_polls_never_sees_part_of_a_checkpoint(
        self, sink: Sink, session: SinkSession
    ) -> None:
        """What is promised instead: each shard's part of a checkpoint is there whole or not."""
        head = self.forward(session, self.start(session))
        views: list[Counter[tuple[int, int]]] = []
        done = Event()

        def poll() -> None:
            while not done.is_set():
                views.append(parts(self.read_rows(sink)))

        reader = Thread(target=poll)
        reader.start()
        try:
            for _ in range(6):
                head = self.forward(session, head)
        finally:
            done.set()
            reader.join()
        whole = parts(with_origin(super().table(1)).to_pylist())
        assert len(whole) == SHARDS
        for view in views:
            assert all(count == whole[(1, shard)] for (_, shard), count in view.items()), view
        assert self.visible(sink) == self.rows_of(*range(1, 8))


def parts(found: list[dict[str, Any]]) -> Counter[tuple[int, int]]:
    """Rows by checkpoint and shard."""
    return Counter(
        (row["_eo_checkpoint"], assign(row["_eo_topic"], row["_eo_partition"], SHARDS))
        for row in found
    )


# One checkpoint that is decided, and what becomes of its followers.


@dataclass
class Checkpoint:
    """Version 1 of a pipeline, staged in files and not published; 22 rows."""

    sink: KafkaSink
    folder: Path
    entry: LedgerEntry = field(init=False)
    output: StagedOutput = field(init=False)

    def __post_init__(self) -> None:
        with self.sink.open("p") as session:
            start = first_entry("p")
            assert session.publish(start, StagedOutput()) is COMMITTED
        self.entry, self.output = self.attempt(start, "a")

    def attempt(self, head: LedgerEntry, name: str) -> tuple[LedgerEntry, StagedOutput]:
        """Another child of ``head``."""
        ids = {"id": list(range(22)), "_eo_checkpoint": [head.version + 1] * 22}
        table = StagedTable.in_memory(with_origin(pa.table(ids)))
        return child_of(head, 22), StagedOutput(rows=to_files(table, self.folder / name))

    def ids(self, isolation: str = "read_committed") -> list[int]:
        found = rows(read(self.sink.bootstrap_servers, self.sink.topic, isolation))
        return sorted(row["id"] for row in found)

    def ledger(self) -> list[dict[str, Any]]:
        messages = read(self.sink.bootstrap_servers, self.sink.ledger_of("p"))
        return [json.loads(message.value() or b"") for message in messages]

    def markers(self) -> list[tuple[int, int]]:
        """(version, shard) of the followers that landed."""
        return sorted((r["version"], r["shard"]) for r in self.ledger() if "shard" in r)

    def published_by(self, version: int) -> list[int]:
        """Rows of each shard, as the ledger has it."""
        entries = {r["version"]: r for r in self.ledger() if "shard" not in r}
        found: list[int] = entries[version]["publication"]["rows"]
        return found

    def with_shards(self, shards: int) -> KafkaSink:
        return self.sink.model_copy(update={"shards": shards})

    def assert_is_completed_by(self, sink: KafkaSink, *, seen: int = 0) -> None:
        """The next run sees version ``seen``; publishing the manifest makes it 1, once."""
        with sink.open("p") as session:
            head = session.recover()
            assert head is not None
            assert head.version == seen
            assert [entry.version for entry in session.history()] == list(range(seen + 1))
            assert (session.entry(1) is None) == (seen == 0)
            assert session.publish(self.entry, self.output) is ALREADY_COMMITTED
            head = session.head()
            assert head is not None
            assert head.id == self.entry.id
            assert self.ids() == list(range(22))
            assert self.markers() == [(1, 1), (1, 2)]
            entry, output = self.attempt(head, "next")
            assert session.publish(entry, output) is COMMITTED
        assert Counter(self.ids()) == Counter([*range(22), *range(22)])


@pytest.fixture
def checkpoint(kafka: EmbeddedKafka, topic: str, tmp_path: Path) -> Checkpoint:
    return Checkpoint(sharded(kafka, topic), tmp_path)


def killed_after_commits(checkpoint: Checkpoint, commits: int) -> None:
    """Publish in a process that dies by SIGKILL when ``commits`` of its shards were committed."""
    dies(_publish_and_die, checkpoint.sink, checkpoint.entry, checkpoint.output, commits)


def _publish_and_die(
    sink: KafkaSink, entry: LedgerEntry, output: StagedOutput, commits: int
) -> None:
    commit, one_at_a_time, done = ShardProducer.commit, Lock(), []

    def commit_and_perhaps_die(publisher: ShardProducer) -> None:
        with one_at_a_time:
            commit(publisher)
            done.append(publisher)
            if len(done) == commits:
                os.kill(os.getpid(), signal.SIGKILL)

    setattr(ShardProducer, "commit", commit_and_perhaps_die)  # noqa: B010 - this process dies with it
    with sink.open("p") as session:
        session.publish(entry, output)


@pytest.mark.parametrize(
    "landed",
    [1, *(pytest.param(n, marks=pytest.mark.slow) for n in (2, 3))],
    ids="{} of three shards landed".format,
)
def test_a_kill_between_shards_is_made_good_by_the_next_run(
    checkpoint: Checkpoint, landed: int
) -> None:
    killed_after_commits(checkpoint, landed)
    assert max(Counter(checkpoint.ids()).values(), default=1) == 1
    assert len(checkpoint.markers()) <= landed - 1
    checkpoint.assert_is_completed_by(checkpoint.sink, seen=int(landed == SHARDS))


@pytest.mark.slow
@pytest.mark.parametrize("shards", [1, 5])
def test_what_three_shards_left_is_completed_by_a_run_with_another_number(
    checkpoint: Checkpoint, shards: int
) -> None:
    killed_after_commits(checkpoint, 1)
    checkpoint.assert_is_completed_by(checkpoint.with_shards(shards))
    # two checkpoints later it is the new number that publishes
    with checkpoint.with_shards(shards).open("p") as session:
        head = session.head()
        assert head is not None
        entry, output = checkpoint.attempt(head, "third")
        assert session.publish(entry, output) is COMMITTED
    assert len(checkpoint.published_by(3)) == shards


@pytest.mark.slow
def test_a_decided_checkpoint_has_no_child_and_no_rival(checkpoint: Checkpoint) -> None:
    killed_after_commits(checkpoint, 1)
    with checkpoint.sink.open("p") as session:
        start = session.recover()
        assert start is not None
        for stranger in (child_of(start), child_of(checkpoint.entry)):
            with pytest.raises(FencedError):
                session.publish(stranger, StagedOutput())
    checkpoint.assert_is_completed_by(checkpoint.sink)


@pytest.mark.slow
def test_without_its_staged_files_it_waits_for_them(checkpoint: Checkpoint) -> None:
    """Never refused: a manifest that is refused is forgotten, and with it the other shards."""
    killed_after_commits(checkpoint, 1)
    hidden = checkpoint.folder / "hidden"
    (checkpoint.folder / "a").rename(hidden)
    with (
        checkpoint.sink.open("p") as session,
        pytest.raises(CommitUnknownError, match=r"not all of its shards.*is missing"),
    ):
        session.publish(checkpoint.entry, checkpoint.output)
    hidden.rename(checkpoint.folder / "a")
    checkpoint.assert_is_completed_by(checkpoint.sink)


@pytest.mark.slow
def test_other_rows_than_those_it_names_are_not_published(checkpoint: Checkpoint) -> None:
    killed_after_commits(checkpoint, 1)
    with (
        checkpoint.sink.open("p") as session,
        pytest.raises(CommitUnknownError, match=r"not all of its shards.* 0 rows and 0 dead"),
    ):
        session.publish(checkpoint.entry, StagedOutput())
    checkpoint.assert_is_completed_by(checkpoint.sink)


# Zombies.


def before(
    monkeypatch: pytest.MonkeyPatch, method: str, nth: int, act: Callable[[], object]
) -> None:
    """Do ``act`` before ``Shards.<method>`` is called for the ``nth`` time."""
    called: Callable[..., None] = getattr(Shards, method)
    left = nth

    def act_first(shards: Shards, *arguments: Any) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            act()
        called(shards, *arguments)

    monkeypatch.setattr(Shards, method, act_first)


@pytest.mark.slow
def test_a_zombie_that_sleeps_before_its_followers_commit_publishes_nothing_twice(
    checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scenario: shard 0 is committed, then the process sleeps; another run completes the rest.
    Outcome: the zombie's shards are fenced, it finds them landed, and says so.
    """
    with checkpoint.sink.open("p") as zombie, checkpoint.sink.open("p") as rival:
        rivals: list[CommitOutcome] = []
        publish = lambda: rivals.append(rival.publish(checkpoint.entry, checkpoint.output))  # noqa: E731
        before(monkeypatch, "follow", 1, publish)
        assert zombie.publish(checkpoint.entry, checkpoint.output) is COMMITTED
        assert rivals == [ALREADY_COMMITTED]
    assert checkpoint.ids() == list(range(22))
    assert checkpoint.markers() == [(1, 1), (1, 2)]


@pytest.mark.slow
def test_a_zombie_whose_followers_land_until_they_are_fenced_publishes_them_for_all(
    checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scenario: another run finds shards missing, and just before it fences them they land.
    Outcome: it looks for the markers after fencing, and sends nothing.
    """
    go_on, asleep = Event(), Event()
    zombies: list[CommitOutcome] = []

    def publish() -> None:
        with checkpoint.sink.open("p") as zombie:
            zombies.append(zombie.publish(checkpoint.entry, checkpoint.output))

    def sleep() -> None:
        asleep.set()
        assert go_on.wait(240)

    def wake_up() -> None:
        go_on.set()
        sleeper.join(240)

    before(monkeypatch, "follow", 1, sleep)
    sleeper = Thread(target=publish)
    sleeper.start()
    assert asleep.wait(240)
    with checkpoint.sink.open("p") as rival:
        before(monkeypatch, "fence", 1, wake_up)
        assert rival.publish(checkpoint.entry, checkpoint.output) is ALREADY_COMMITTED
    assert zombies == [COMMITTED]
    assert checkpoint.ids() == list(range(22))
    assert checkpoint.ids("read_uncommitted") == list(range(22))


@pytest.mark.slow
def test_recover_ends_what_more_shards_than_now_left_open(checkpoint: Checkpoint) -> None:
    """Scenario: three shards, killed with their rows sent, nothing decided; the next run has one.
    Outcome: its recover() ends all three, and readers go on.
    """
    point = CrashPoint.ROWS_SENT
    killed_while_publishing(checkpoint.sink, "p", checkpoint.entry, checkpoint.output, point)
    other = Producer({"bootstrap.servers": checkpoint.sink.bootstrap_servers})
    other.produce(checkpoint.sink.topic, b'{"id": 99}')
    assert other.flush(120) == 0
    assert checkpoint.ids() == []
    with checkpoint.with_shards(1).open("p") as session:
        session.recover()
        assert checkpoint.ids() == [99]
        assert session.publish(checkpoint.entry, checkpoint.output) is COMMITTED
    assert checkpoint.ids() == [*range(22), 99]


# Who publishes what.


@pytest.mark.parametrize(("shards", "published"), [(5, [2, 3, 2, 2, 2]), (6, [2, 2, 2, 2, 2, 1])])
def test_eleven_source_partitions_are_dealt_out_to_the_shards(
    kafka: EmbeddedKafka, topic: str, tmp_path: Path, shards: int, published: list[int]
) -> None:
    checkpoint = Checkpoint(sharded(kafka, topic, shards), tmp_path)
    with checkpoint.sink.open("p") as session:
        assert session.publish(checkpoint.entry, checkpoint.output) is COMMITTED
    # two rows of each partition; of "test-topic" partition 0 goes to 1 of five, to 0 of six
    assert checkpoint.published_by(1) == [2 * count for count in published]


def test_rows_in_memory_and_rows_without_an_origin_are_shard_0s_alone(
    checkpoint: Checkpoint,
) -> None:
    """Nobody could follow with rows that die with the process."""
    assert checkpoint.output.rows is not None
    table = pa.Table.from_batches(list(checkpoint.output.rows.batches()))
    bare = to_files(
        StagedTable.in_memory(table.select(["id", "_eo_checkpoint"])), checkpoint.folder / "bare"
    )
    with checkpoint.sink.open("p") as session:
        held = StagedOutput(rows=StagedTable.in_memory(table))
        assert session.publish(checkpoint.entry, held) is COMMITTED
        entry = child_of(checkpoint.entry, 22)
        assert session.publish(entry, StagedOutput(rows=bare)) is COMMITTED
    assert (checkpoint.published_by(1), checkpoint.published_by(2)) == ([22], [22])
    assert checkpoint.markers() == []
