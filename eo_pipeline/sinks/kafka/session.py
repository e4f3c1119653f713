"""One pipeline's session with Kafka: the publish protocol."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping
from typing import Any

from eo_pipeline.checkpoint import LedgerEntry, Operation
from eo_pipeline.crashpoints import Reach, keep_going
from eo_pipeline.errors import (
    CommitUnknownError,
    ConfigError,
    EoPipelineError,
    FencedError,
    RefusedError,
    SinkUnavailableError,
)
from eo_pipeline.kafka_clients import connection_settings
from eo_pipeline.sinks.base import CommitOutcome, SinkSession
from eo_pipeline.sinks.kafka.cluster import Cluster, Place
from eo_pipeline.sinks.kafka.errors import TransactionLostError, UnansweredError
from eo_pipeline.sinks.kafka.ledger import LEDGER_SETTINGS, LedgerTopic, check_settings
from eo_pipeline.sinks.kafka.sink import KafkaSink
from eo_pipeline.sinks.kafka.transaction import Publisher
from eo_pipeline.staged import StagedOutput

log = logging.getLogger(__name__)

#: A transaction that was lost is tried once more, with a new producer.
_TRIES = 2

#: Seconds to watch the ledger after a producer was fenced: whoever did it has rows to send.
_RIVAL_SECONDS = 5.0
_LOOK_SECONDS = 0.1

#: Seconds to wait, after a commit, for its rows to be readable.
_READERS_SECONDS = 2.0


class KafkaSession(SinkSession):
    """Publishes by one transactional producer, kept from checkpoint to checkpoint.

    1. **look**: the entry's own id at its version is ``ALREADY_COMMITTED``, another id there
       ``FencedError``. Cheap, before anybody is fenced.
    2. **verify**: every staged file is there with its size.
    3. **fence**: ``init_transactions`` (KIP-98) ends what a dead run left open and shuts out every
       producer of this pipeline that is still alive, older or newer. That is no compare-and-swap.
    4. **compare**: the ledger is read to its end, which cannot be hidden now; its head must be the
       parent. Whoever moves it after this line had to fence us first, so that our commit fails.
    5. **rows**, 6. **entry** (and offsets): in one transaction.
    7. **commit**, and wait until readers can see it: the broker answers before it has written
       the markers that end the transaction in every partition.

    A producer that is fenced learns nothing about who did it: a rival, another run's recovery, or
    the broker because the transaction ran over its timeout. All that is sure is that the
    transaction ended without us. So the ledger is asked, and watched for a moment; if it did not
    move, the same entry is tried once more.
    """

    def __init__(self, sink: KafkaSink, pipeline: str) -> None:
        self._sink = sink
        self._pipeline = pipeline
        self._settings: dict[str, Any] = connection_settings(sink.bootstrap_servers, sink.client)
        self._cluster = Cluster(self._settings, sink.request_timeout)
        self._publisher: Publisher | None = None
        self._require_topic()
        self._ledger = self._open_ledger(sink.ledger_of(pipeline))

    def recover(self) -> LedgerEntry | None:
        """Also ends the transaction a dead run left open, which would hold back the readers of
        the topic until the broker's timeout. Where nothing holds them back, nobody is fenced.
        """
        if self._cluster.has_open_transactions(self._places()):
            self._fence()
        return self.head()

    def head(self) -> LedgerEntry | None:
        return self._ledger.head()

    def entry(self, version: int) -> LedgerEntry | None:
        return self._ledger.entry(version)

    def history(self, since: int = 0) -> Iterator[LedgerEntry]:
        return self._ledger.history(since)

    def publish(
        self, entry: LedgerEntry, staged: StagedOutput, reach: Reach = keep_going
    ) -> CommitOutcome:
        if entry.pipeline != self._pipeline:
            raise ValueError(f"an entry of {entry.pipeline!r} in a session of {self._pipeline!r}")
        if self._has_landed(entry):  # step 1
            return CommitOutcome.ALREADY_COMMITTED
        _refuse_going_back(entry)
        staged.verify()  # step 2
        self._make_dead_letter_topic(staged)
        for left in reversed(range(_TRIES)):
            try:
                return self._attempt(entry, staged, reach)
            except TransactionLostError as lost:
                if self._lands_meanwhile(entry, 0.0 if lost.is_stale else _RIVAL_SECONDS):
                    return CommitOutcome.ALREADY_COMMITTED
                if not left:
                    raise self._given_up(lost) from lost
                log.info("%s: tried again: %s", entry.pipeline, lost)
        raise AssertionError("unreachable: the last try returns or raises")

    def close(self) -> None:
        self._drop_publisher()
        self._ledger.close()

    def _attempt(self, entry: LedgerEntry, staged: StagedOutput, reach: Reach) -> CommitOutcome:
        publisher = self._publisher or self._fence()  # step 3
        if self._is_landed_or_child(entry):  # step 4
            return CommitOutcome.ALREADY_COMMITTED
        try:
            publisher.write(entry, staged, self._partitions(), reach)  # steps 5 and 6
            marks = self._cluster.ends(self._places(), committed=False)
            publisher.commit()  # step 7
        except UnansweredError as error:
            return self._resolve(entry, error)
        except BaseException:
            self._drop_publisher()
            raise
        self._await_readers(entry, marks)
        return CommitOutcome.COMMITTED

    def _resolve(self, entry: LedgerEntry, unanswered: UnansweredError) -> CommitOutcome:
        """What became of a commit without an answer: fencing ends it one way or the other."""
        self._drop_publisher()
        try:
            self._fence()
            if self._has_landed(entry):
                return CommitOutcome.COMMITTED
        except SinkUnavailableError as error:
            raise CommitUnknownError(
                f"{self._sink.topic}: Kafka did not answer the commit of version {entry.version} "
                f"and cannot be asked: {unanswered}. The same transaction is tried again."
            ) from error
        raise TransactionLostError(str(unanswered), is_stale=True) from unanswered

    def _fence(self) -> Publisher:
        """Step 3, and the certainty that the ledger shows its last entry."""
        self._drop_publisher()
        publisher = Publisher(self._sink, self._pipeline, self._ledger.place.topic, self._settings)
        self._publisher = publisher
        try:
            publisher.fence()
            self._ledger.wait_until_settled()
        except EoPipelineError:
            self._drop_publisher()
            raise
        return publisher

    def _has_landed(self, entry: LedgerEntry) -> bool:
        held = self._ledger.entry(entry.version)
        if held is not None and held.id != entry.id:
            raise FencedError(entry.pipeline, entry.version, winner=held.transaction_id)
        return held is not None

    def _is_landed_or_child(self, entry: LedgerEntry) -> bool:
        """Step 4. True if ``entry`` is there already.

        Raises:
            FencedError: the head is neither the entry nor its parent.
        """
        if self._has_landed(entry):
            return True
        if not entry.is_child_of(self._ledger.head()):
            raise FencedError(entry.pipeline, entry.version, winner=None)
        return False

    def _lands_meanwhile(self, entry: LedgerEntry, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while not self._has_landed(entry):
            if time.monotonic() > deadline:
                return False
            time.sleep(_LOOK_SECONDS)
        return True

    def _await_readers(self, entry: LedgerEntry, marks: Mapping[Place, int]) -> None:
        """The commit is decided. A session that does not see it yet must not compare against it;
        for readers of the topic it is a courtesy, which other producers' transactions may prevent.
        """
        ledger = {self._ledger.place: marks[self._ledger.place]}
        try:
            if not self._cluster.wait_until_readable(ledger, self._sink.request_timeout):
                self._drop_publisher()
            elif not self._cluster.wait_until_readable(marks, _READERS_SECONDS):
                log.info(
                    "%s: version %d is committed; an open transaction, perhaps of another "
                    "producer, still hides part of it from read_committed readers of %s",
                    *(entry.pipeline, entry.version, self._sink.topic),
                )
        except SinkUnavailableError:
            self._drop_publisher()

    def _given_up(self, lost: TransactionLostError) -> SinkUnavailableError:
        return SinkUnavailableError(
            f"{self._sink.topic}: the transaction was ended before it was committed ({lost}), by "
            "another run of this pipeline or by the broker after sink.transaction_timeout "
            f"({self._sink.transaction_timeout:g} s). Nothing is visible; the next run tries "
            "again. If it happens again: one run at a time, a longer timeout, or smaller "
            "checkpoints."
        )

    def _drop_publisher(self) -> None:
        if self._publisher is not None:
            self._publisher.close()
            self._publisher = None

    def _require_topic(self) -> None:
        if not self._cluster.appears(self._sink.topic):
            raise ConfigError(f"sink.topic: there is no topic {self._sink.topic!r}; create it")

    def _open_ledger(self, topic: str) -> LedgerTopic:
        partitions = self._cluster.partitions([topic])[topic]
        if not partitions:
            self._cluster.create(topic, self._sink.replication, LEDGER_SETTINGS)
        elif partitions > 1:
            raise ConfigError(f"sink.ledger_topic: {topic!r} has {partitions} partitions, not one")
        check_settings(topic, self._cluster.config(topic))
        return LedgerTopic(self._cluster, self._settings, topic, self._pipeline)

    def _make_dead_letter_topic(self, staged: StagedOutput) -> None:
        name = self._sink.dead_letters
        if staged.dead_letters is not None and not self._cluster.partitions([name])[name]:
            self._cluster.create(name, self._sink.replication, {})

    def _partitions(self) -> int:
        topic = self._sink.topic
        return self._cluster.partitions([topic])[topic]

    def _places(self) -> list[Place]:
        topics = (self._sink.topic, self._sink.dead_letters, self._ledger.place.topic)
        counts = self._cluster.partitions(topics)
        return [Place(topic, n) for topic, count in counts.items() for n in range(count)]


def _refuse_going_back(entry: LedgerEntry) -> None:
    if entry.operation in (Operation.REWIND, Operation.REPLAY):
        raise RefusedError(
            "records in Kafka cannot be taken back. Nothing was changed. Start a new pipeline that "
            "writes to a new topic (fork), or let consumers drop rows by their _eo_checkpoint."
        )
