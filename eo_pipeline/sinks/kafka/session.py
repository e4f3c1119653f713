"""One pipeline's session with Kafka: the steps of the commit protocol."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar

from confluent_kafka import KafkaException

from eo_pipeline._lazy import pa
from eo_pipeline.errors import (
    CommitUnknownError,
    EoPipelineError,
    FencedError,
    RefusedError,
    SinkUnavailableError,
)
from eo_pipeline.ledger.entry import START_VERSION, LedgerEntry
from eo_pipeline.ledger.offsets import TopicPartition
from eo_pipeline.sinks.config import Guarantee
from eo_pipeline.sinks.kafka.broker import (
    KafkaStore,
    TransactionLostError,
    UnansweredError,
    error_of,
    holds_rows,
    while_publishing,
)
from eo_pipeline.sinks.kafka.config import KafkaSink
from eo_pipeline.sinks.kafka.encoding import Schemas
from eo_pipeline.sinks.kafka.ledger import ShardCounts, open_ledger
from eo_pipeline.sinks.kafka.schemas import SchemaNegotiator
from eo_pipeline.sinks.kafka.transactions import (
    READERS_SECONDS,
    Incomplete,
    ShardPool,
    Shards,
    TopicOutput,
    unfinished,
)
from eo_pipeline.sinks.session import (
    CommitConflictError,
    CommitOutcome,
    Publication,
    SinkSession,
    refuse_unless_child,
)
from eo_pipeline.staging.rows import StagedOutput

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

log = logging.getLogger(__name__)


class KafkaSession(SinkSession):
    """Publishes by transactional producers, kept from checkpoint to checkpoint; one by default.

    An entry is *decided* when shard 0, whose transaction holds it, is committed, and committed when
    the others are too. One without all its shards is shown to nobody
    (:mod:`.ledger`), so that to a run it looks like a promise that waits to be committed:
    publishing it completes it.

    A producer that is fenced learns nothing about who did it: a rival, another run's recovery, or
    the broker because the transaction ran over its timeout. All that is sure is that the
    transaction ended without us. So the ledger is asked, and watched for a moment; if it did not
    move, the same entry is tried once more, with a new producer.
    """

    publish_tries: ClassVar[int] = 2
    keeps_itself = (
        "Kafka keeps the topic by its retention, and the ledger's for ever: nothing to do"
    )
    keeps_ledger = "Kafka cannot delete single entries from the ledger topic"

    def __init__(self, sink: KafkaSink, pipeline: str, beside: KafkaSession | None = None) -> None:
        """With the clients, ledger and producers of ``beside``, the session of another topic that
        the same transactions fill.
        """
        super().__init__(pipeline)
        self.sink = sink
        self.store: KafkaStore = KafkaStore(sink, beside.store if beside else None)
        if sink.has_rows:
            self.store.require_topic()
        if beside is None:
            self.ledger = open_ledger(self.store, sink.ledger_of(pipeline), pipeline)
            self.pool = ShardPool(sink, pipeline, self.store, self.ledger)
            self._written = {self.ledger.topic}
        else:
            self.ledger, self.pool, self._written = beside.ledger, beside.pool, beside._written
        self._written |= {sink.topic, sink.dead_letters}
        self._agreed = Schemas()

    def recover(self) -> LedgerEntry | None:
        """Also ends the transaction a dead run left open, which would hold back the readers of
        the topic until the broker's timeout. Where nothing holds them back, nobody is fenced.
        """
        if self.store.has_open_transactions(self.partitions()):
            self.pool.fence()
        newest = self.ledger.newest()
        if newest is not None and newest.missing:
            log.warning("%s", unfinished(self.sink, newest))
        return self.head()

    def head(self) -> LedgerEntry | None:
        return self.ledger.head()

    def entry(self, version: int) -> LedgerEntry | None:
        return self.ledger.entry(version)

    def history(self, since: int = 0) -> Iterator[LedgerEntry]:
        return self.ledger.history(since)

    def has_landed(self, entry: LedgerEntry) -> bool:
        """True if ``entry`` is decided. Whether its parent is the head shows only once everybody
        else is fenced (:meth:`KafkaPublication.write`).
        """
        return self.ledger.is_decided(entry)

    def already_committed(self, entry: LedgerEntry, staged: StagedOutput) -> CommitOutcome:
        self.pool.complete(entry, staged)
        return super().already_committed(entry, staged)

    def agree(self, columns: StructType) -> Schemas:
        """Agree on the schemas that records are written with, where a registry has them.

        Raises:
            SchemaChangeError, ConfigError, RegistryUnavailableError: see ``schemas`` there.
        """
        self._agreed = self._registry.schemas(columns)
        return self._agreed

    def registered(self) -> Mapping[str, str]:
        """The numbers of those."""
        parts = {"value": self._agreed.value, "key": self._agreed.key}
        return {part: str(schema.number) for part, schema in parts.items() if schema}

    @cached_property
    def _registry(self) -> SchemaNegotiator:
        return SchemaNegotiator(self.sink)

    def begin(self, entry: LedgerEntry, staged: StagedOutput) -> Publication:
        return KafkaPublication(self, entry, staged)

    def explain(self, error: Exception) -> EoPipelineError:
        if isinstance(error, KafkaException):
            return while_publishing(error_of(error), self.sink.topic)
        return super().explain(error)

    def given_up(self, error: CommitConflictError) -> EoPipelineError:
        return SinkUnavailableError(
            f"{self.sink.topic}: the transaction was ended before it was committed ({error}), by "
            "another run of this pipeline or by the broker after sink.transaction_timeout "
            f"({self.sink.transaction_timeout:g} s). Nothing is visible; the next run tries "
            "again. If it happens again: one run at a time, a longer timeout, or smaller "
            "checkpoints."
        )

    def table_identity(self) -> Mapping[str, str]:
        """The UUIDs of the rows' topic and of the ledger's: neither is its name."""
        topics = {"topic": self.sink.topic, "ledger topic": self.ledger.topic}
        topic_ids = {what: self.store.topic_id(name) for what, name in topics.items()}
        return {what: uuid for what, uuid in topic_ids.items() if uuid is not None}

    def was_written(self) -> bool:
        """Of rows in transactions only: others are there before the ledger moves."""
        if self.sink.semantics is not Guarantee.EXACTLY_ONCE:
            return False
        rows_left = holds_rows(self.sink, self.pipeline, self.store)
        # asked last: another run may have begun meanwhile, or left shards to be completed
        newest = self.ledger.newest()
        return rows_left and (newest is None or newest.entry.version == START_VERSION)

    def check_going_back(self, entry: LedgerEntry) -> None:
        raise RefusedError(
            f"{entry.operation} is not possible: records in Kafka cannot be taken back. Nothing "
            "was changed. Start a new pipeline that writes to a new topic (fork), or let consumers "
            "drop rows by their _eo_checkpoint."
        )

    def lineage(self, since: int = 0) -> Iterator[pa.RecordBatch]:  # noqa: ARG002
        raise RefusedError(
            f"{self.sink.topic}: a sink does not read its topic back; retention or compaction may "
            "have removed records that were published. An audit can only look at the ledger."
        )

    def dead_letter_values(self, since: int = 0) -> Iterator[pa.RecordBatch]:  # noqa: ARG002
        raise RefusedError(
            "eo does not read dead letters back from Kafka: consume the topic "
            f"{self.sink.dead_letters} (of several tables each has its own)."
        )

    def close(self) -> None:
        self.pool.drop()
        self.ledger.close()

    def output(self, staged: StagedOutput) -> TopicOutput:
        """Return what goes into the topic; that for dead letters is created if there are any."""
        if staged.dead_letters is not None:
            self.store.make_dead_letter_topic()
        partitions = self.store.row_partitions() if self.sink.has_rows else 0
        return TopicOutput(self.sink, staged, partitions)

    def partitions(self) -> list[TopicPartition]:
        """Whatever a transaction of this session may write to."""
        return self.store.partitions(self._written)


class KafkaPublication(Publication):
    """Rows (4) and entry (5) go to the brokers in one transaction, or the rows in one a shard;
    shard 0 is committed, then the others (6).
    """

    session: KafkaSession
    _shards: Shards
    _counts: ShardCounts
    _ends: Mapping[TopicPartition, int]

    #: Shards are in use; if that does not end well, they are closed.
    _is_open = False
    _is_commit_asked = False

    def write(self) -> None:
        """Fence everybody else, compare the ledger's head with the parent, send the rows."""
        outputs = self._outputs()
        self._shards = self.session.pool.shards()
        allowed = self._compare()
        with self._in_transaction():
            self._shards.send(outputs, allowed)

    def _outputs(self) -> Sequence[TopicOutput]:
        """Return what goes into each topic; topics for dead letters are created."""
        return [self.session.output(self.staged)]

    def enter(self) -> None:
        with self._in_transaction():
            self._counts = self._shards.enter(self.entry)

    def commit(self) -> None:
        """Decide by shard 0, then commit the others.

        Raises (also):
            CommitUnknownError: it is decided, and not all of its shards are there.
        """
        self._ends = self.session.store.ends(self.session.partitions(), committed=False)
        self._is_commit_asked = True
        try:
            with self._in_transaction():
                self._shards.decide()
        except UnansweredError as error:
            self._ask_ledger(error)
            self.session.pool.complete(self.entry, self.staged)
        else:
            self._follow()
        self._is_open = False

    def committed(self) -> None:
        """Wait until readers can see it: the broker answers before it has written the markers that
        end the transaction in every partition. A session that does not see it yet must not compare
        against it; for readers of the topic it is a courtesy, which other producers' transactions
        may prevent.
        """
        session, ledger = self.session, self.session.ledger.partition
        entry_end = {ledger: self._ends[ledger]}
        try:
            if not session.store.wait_until_readable(entry_end, session.sink.request_timeout):
                session.pool.drop()
            elif not session.store.wait_until_readable(self._ends, READERS_SECONDS):
                log.info(
                    "%s: version %d is committed; an open transaction, perhaps of another "
                    "producer, still hides part of it from read_committed readers of %s",
                    *(self.entry.pipeline, self.entry.version, session.sink.topic),
                )
        except SinkUnavailableError:
            session.pool.drop()

    def close(self, error: BaseException | None) -> None:  # noqa: ARG002
        if self._is_open:
            self.session.pool.drop()

    def _compare(self) -> int:
        """Return how many shards the entry may use.

        Raises:
            FencedError: the head is neither the entry nor its parent.
        """
        entry, ledger = self.entry, self.session.ledger
        newest = ledger.newest()
        if newest and newest.entry.version >= entry.version and ledger.is_decided(entry):
            raise self._was_decided()
        refuse_unless_child(entry, newest.entry if newest else None)
        if newest and newest.missing:
            raise FencedError(entry.pipeline, entry.version, winner=None)
        return newest.shards.producers if newest else 1

    @contextmanager
    def _in_transaction(self) -> Iterator[None]:
        """Translate a lost transaction: the ledger is watched for who did it.

        Raises:
            FencedError, SinkUnavailableError: somebody else's entry is there, or ours.
            CommitConflictError: nothing is.
            CommitUnknownError: the ledger cannot be asked about a commit that was sent.
        """
        self._is_open = True
        try:
            yield
        except TransactionLostError as lost:
            self.session.pool.drop()
            if self._is_decided_after(lost):
                raise self._was_decided() from lost
            log.info("%s: tried again: %s", self.entry.pipeline, lost)
            raise CommitConflictError(str(lost)) from lost

    def _is_decided_after(self, lost: TransactionLostError) -> bool:
        ledger = self.session.ledger
        try:
            return (ledger.is_decided if lost.is_stale else ledger.is_decided_soon)(self.entry)
        except SinkUnavailableError as error:
            if self._is_commit_asked:
                raise self._unknown(lost) from error
            raise

    def _ask_ledger(self, unanswered: UnansweredError) -> None:
        """Settle a commit without an answer: fencing ends it one way or the other.

        Raises:
            CommitConflictError: it was not committed.
            CommitUnknownError: the cluster cannot be asked.
        """
        try:
            self.session.pool.fence()
            if self.session.ledger.is_decided(self.entry):
                return
        except SinkUnavailableError as error:
            raise self._unknown(unanswered) from error
        raise CommitConflictError(str(unanswered)) from unanswered

    def _follow(self) -> None:
        """Shard 0 decided: what goes wrong now is made good, not undone."""
        session, entry = self.session, self.entry
        if not self._counts.followers:
            return
        try:
            self._shards.follow(entry, self._counts.followers)
            session.ledger.wait_for_open_transactions()
        except Incomplete as error:
            log.warning("%s: version %d: %s", session.sink.topic, entry.version, error)
            if isinstance(error, TransactionLostError):
                with suppress(SinkUnavailableError):  # asked again below
                    session.ledger.is_complete_soon(entry)
            session.pool.complete(entry, self.staged)

    def _was_decided(self) -> SinkUnavailableError:
        return SinkUnavailableError(
            f"{self.session.sink.topic}: version {self.entry.version} was decided by another try "
            "of this very entry; the next look at the ledger finds it."
        )

    def _unknown(self, cause: Exception) -> CommitUnknownError:
        return CommitUnknownError(
            f"{self.session.sink.topic}: Kafka did not answer the commit of version "
            f"{self.entry.version} and cannot be asked: {cause}. The same transaction is tried "
            "again."
        )
