"""One pipeline's session with Kafka: the publish protocol."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pyarrow as pa

from eo_pipeline.crashpoints import Reach, keep_going
from eo_pipeline.errors import (
    CommitUnknownError,
    ConfigError,
    EoPipelineError,
    FencedError,
    RefusedError,
    SinkError,
    SinkUnavailableError,
)
from eo_pipeline.ledger.entry import LedgerEntry
from eo_pipeline.sinks.kafka.cluster import Cluster, Place
from eo_pipeline.sinks.kafka.errors import TransactionLostError, UnansweredError
from eo_pipeline.sinks.kafka.ledger import LEDGER_SETTINGS, LedgerTopic, check_settings
from eo_pipeline.sinks.kafka.publication import Publication, Standing
from eo_pipeline.sinks.kafka.shards import Shards
from eo_pipeline.sinks.kafka.sink import KafkaSink
from eo_pipeline.sinks.protocol import CommitOutcome, SinkSession
from eo_pipeline.sinks.removal import goes_back
from eo_pipeline.source.client_options import connection_settings
from eo_pipeline.staging.rows import StagedOutput

log = logging.getLogger(__name__)

#: A transaction that was lost is tried once more, with a new producer.
_TRIES = 2

#: Seconds to watch the ledger after a producer was fenced: whoever did it has rows to send.
_RIVAL_SECONDS = 5.0
_LOOK_SECONDS = 0.1

#: Seconds to wait, after a commit, for its rows to be readable.
_READERS_SECONDS = 2.0


class KafkaSession(SinkSession):
    """Publishes by transactional producers, kept from checkpoint to checkpoint; one by default.

    1. **look**: the entry's own id at its version is ``ALREADY_COMMITTED``, once all shards of it
       are there; another id there is ``FencedError``. Cheap, before anybody is fenced.
    2. **verify**: every staged file is there with its size.
    3. **fence**: ``init_transactions`` (KIP-98) ends what a dead run left open and shuts out every
       producer of this pipeline that is still alive, older or newer. That is no compare-and-swap.
    4. **compare**: the ledger is read to its end, which cannot be hidden now; its head must be the
       parent. Whoever moves it after this line had to fence us first, so that our commit fails.
    5. **rows**, 6. **entry** (and offsets): in one transaction, or the rows in one a shard.
    7. **commit**: shard 0, which has the entry, then the others (:mod:`.shards`); and wait until
       readers can see it: the broker answers before it has written the markers that end the
       transaction in every partition.

    An entry without all its shards is shown to nobody (:mod:`.ledger`), so that to a run it looks
    like a promise that waits to be committed: publishing it completes it.

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
        self._shards: Shards | None = None
        self._require_topic()
        self._ledger = self._open_ledger(sink.ledger_of(pipeline))

    def recover(self) -> LedgerEntry | None:
        """Also ends the transaction a dead run left open, which would hold back the readers of
        the topic until the broker's timeout. Where nothing holds them back, nobody is fenced.
        """
        if self._cluster.has_open_transactions(self._places()):
            self._fence()
        newest = self._ledger.newest()
        if newest is not None and newest.missing:
            log.warning("%s", _unfinished(self._sink, newest))
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
        if self._is_decided(entry):  # step 1
            return self._complete(entry, staged)
        if goes_back(entry):
            self.check_going_back(entry)
        staged.verify()  # step 2
        self._make_dead_letter_topic(staged)
        for left in reversed(range(_TRIES)):
            try:
                return self._attempt(entry, staged, reach)
            except TransactionLostError as lost:
                if self._is_decided_soon(entry, 0.0 if lost.is_stale else _RIVAL_SECONDS):
                    return self._complete(entry, staged)
                if not left:
                    raise self._given_up(lost) from lost
                log.info("%s: tried again: %s", entry.pipeline, lost)
        raise AssertionError("unreachable: the last try returns or raises")

    def check_going_back(self, entry: LedgerEntry) -> None:
        raise RefusedError(
            f"{entry.operation} is not possible: records in Kafka cannot be taken back. Nothing "
            "was changed. Start a new pipeline that writes to a new topic (fork), or let consumers "
            "drop rows by their _eo_checkpoint."
        )

    def lineage(self, since: int = 0) -> Iterator[pa.RecordBatch]:  # noqa: ARG002
        raise RefusedError(
            f"{self._sink.topic}: a sink does not read its topic back; retention or compaction may "
            "have removed records that were published. An audit can only look at the ledger."
        )

    def close(self) -> None:
        self._drop_shards()
        self._ledger.close()

    def _attempt(self, entry: LedgerEntry, staged: StagedOutput, reach: Reach) -> CommitOutcome:
        shards = self._shards or self._fence()  # step 3
        allowed = self._compare(entry)  # step 4
        if allowed is None:
            return self._complete(entry, staged)
        try:  # steps 5 to 7
            publication = shards.write(entry, staged, allowed, self._partitions(), reach)
            marks = self._cluster.ends(self._places(), committed=False)
            shards.decide()
        except UnansweredError as error:
            self._resolve(entry, error)
            self._complete(entry, staged)
            return CommitOutcome.COMMITTED
        except BaseException:
            self._drop_shards()
            raise
        self._follow(entry, staged, publication)
        self._await_readers(entry, marks)
        return CommitOutcome.COMMITTED

    def _follow(self, entry: LedgerEntry, staged: StagedOutput, publication: Publication) -> None:
        """The rest of step 7. Shard 0 decided: what goes wrong now is made good, not undone."""
        if not publication.followers or self._shards is None:
            return
        try:
            self._shards.follow(entry, publication.followers)
            self._ledger.wait_until_settled()
        except (SinkError, TransactionLostError, UnansweredError) as error:
            log.warning("%s: version %d: %s", self._sink.topic, entry.version, error)
            if isinstance(error, TransactionLostError):
                self._is_completed_soon(entry)
            self._complete(entry, staged)
        except BaseException:
            self._drop_shards()
            raise

    def _complete(self, entry: LedgerEntry, staged: StagedOutput) -> CommitOutcome:
        """Publish the shards of a decided entry that are not there.

        Raises:
            CommitUnknownError: they are still not there. Whoever tries the same entry again, with
                the same staged files, goes on here.
        """
        for left in reversed(range(_TRIES)):
            try:
                self._complete_once(entry, staged)
                return CommitOutcome.ALREADY_COMMITTED
            except (TransactionLostError, UnansweredError, SinkError) as error:
                self._drop_shards()
                if not left:
                    raise self._unfinished(entry, error) from error
                if isinstance(error, TransactionLostError):
                    self._is_completed_soon(entry)
        raise AssertionError("unreachable: the last try returns or raises")

    def _complete_once(self, entry: LedgerEntry, staged: StagedOutput) -> None:
        if not self._missing(entry):
            return
        staged.verify()
        shards = self._fence()
        # only now: a zombie's shard may have landed until it was fenced
        standing = self._ledger.standing(entry.version)
        if standing is not None and standing.missing:
            log.info("%s", _unfinished(self._sink, standing))
            shards.complete(standing, staged, self._partitions())
            self._ledger.wait_until_settled()
            ends = self._cluster.ends(self._places(), committed=False)
            self._cluster.wait_until_readable(ends, _READERS_SECONDS)

    def _missing(self, entry: LedgerEntry) -> frozenset[int]:
        standing = self._ledger.standing(entry.version)
        return frozenset() if standing is None else standing.missing

    def _is_completed_soon(self, entry: LedgerEntry) -> bool:
        return _soon(lambda: not self._missing(entry), _RIVAL_SECONDS)

    def _resolve(self, entry: LedgerEntry, unanswered: UnansweredError) -> None:
        """What became of a commit without an answer: fencing ends it one way or the other.

        Raises:
            TransactionLostError: it was not committed.
            CommitUnknownError: the cluster cannot be asked.
        """
        try:
            self._fence()
            if self._is_decided(entry):
                return
        except SinkUnavailableError as error:
            raise CommitUnknownError(
                f"{self._sink.topic}: Kafka did not answer the commit of version {entry.version} "
                f"and cannot be asked: {unanswered}. The same transaction is tried again."
            ) from error
        raise TransactionLostError(str(unanswered), is_stale=True) from unanswered

    def _fence(self) -> Shards:
        """Step 3, and the certainty that the ledger shows its last entry."""
        self._drop_shards()
        shards = Shards(self._sink, self._pipeline, self._ledger.place.topic, self._settings)
        self._shards = shards
        try:
            shards.fence(1)
            shards.fence(self._producers())
            self._ledger.wait_until_settled()
            if len(shards) < self._producers():  # told by what was hidden
                shards.fence(self._producers())
                self._ledger.wait_until_settled()
        except EoPipelineError:
            self._drop_shards()
            raise
        return shards

    def _producers(self) -> int:
        """How many shards may have a transaction open, of this run or of an earlier one."""
        newest = self._ledger.newest()
        return max(self._sink.shards, newest.publication.producers if newest else 1)

    def _is_decided(self, entry: LedgerEntry) -> bool:
        """True if ``entry`` is in the ledger; shards of it may be missing.

        Raises:
            FencedError: another one has its version.
        """
        held = self._ledger.standing(entry.version)
        if held is not None and held.entry.id != entry.id:
            raise FencedError(entry.pipeline, entry.version, winner=held.entry.transaction_id)
        return held is not None

    def _compare(self, entry: LedgerEntry) -> int | None:
        """Step 4: how many shards ``entry`` may use, None if it is there already.

        Raises:
            FencedError: the head is neither the entry nor its parent.
        """
        newest = self._ledger.newest()
        if newest and newest.entry.version >= entry.version and self._is_decided(entry):
            return None
        if not entry.is_child_of(newest.entry if newest else None) or (newest and newest.missing):
            raise FencedError(entry.pipeline, entry.version, winner=None)
        return newest.publication.producers if newest else 1

    def _is_decided_soon(self, entry: LedgerEntry, seconds: float) -> bool:
        return _soon(lambda: self._is_decided(entry), seconds)

    def _await_readers(self, entry: LedgerEntry, marks: Mapping[Place, int]) -> None:
        """The commit is decided. A session that does not see it yet must not compare against it;
        for readers of the topic it is a courtesy, which other producers' transactions may prevent.
        """
        ledger = {self._ledger.place: marks[self._ledger.place]}
        try:
            if not self._cluster.wait_until_readable(ledger, self._sink.request_timeout):
                self._drop_shards()
            elif not self._cluster.wait_until_readable(marks, _READERS_SECONDS):
                log.info(
                    "%s: version %d is committed; an open transaction, perhaps of another "
                    "producer, still hides part of it from read_committed readers of %s",
                    *(entry.pipeline, entry.version, self._sink.topic),
                )
        except SinkUnavailableError:
            self._drop_shards()

    def _given_up(self, lost: TransactionLostError) -> SinkUnavailableError:
        return SinkUnavailableError(
            f"{self._sink.topic}: the transaction was ended before it was committed ({lost}), by "
            "another run of this pipeline or by the broker after sink.transaction_timeout "
            f"({self._sink.transaction_timeout:g} s). Nothing is visible; the next run tries "
            "again. If it happens again: one run at a time, a longer timeout, or smaller "
            "checkpoints."
        )

    def _unfinished(self, entry: LedgerEntry, error: Exception) -> CommitUnknownError:
        return CommitUnknownError(
            f"{self._sink.topic}: version {entry.version} is decided, and not all of its shards "
            f"could be published yet: {error} Nothing is lost while its staged files are there; "
            "the next run goes on with them."
        )

    def _drop_shards(self) -> None:
        if self._shards is not None:
            self._shards.close()
            self._shards = None

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


def _unfinished(sink: KafkaSink, standing: Standing) -> str:
    missing = ", ".join(map(str, sorted(standing.missing)))
    return (
        f"{sink.topic}: version {standing.entry.version} (transaction "
        f"{standing.entry.transaction_id}) is decided, its shards {missing} of "
        f"{len(standing.publication.rows)} are not there yet. They are published by the run that "
        "finds its staged files; until then no later version can be."
    )


def _soon(condition: Callable[[], bool], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(_LOOK_SECONDS)
    return True
