"""Kafka against the contract, for each of the guarantees it can be configured to give.

The topic has one partition: Kafka ends a transaction partition by partition, so that a reader of
several may for a moment see one part of a checkpoint and not yet the other (docs/sinks/kafka.md).
"""

from __future__ import annotations

import os
from typing import Any, ClassVar

import pyarrow as pa
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from eo_pipeline.embedded.kafka import EmbeddedKafka
from eo_pipeline.errors import RefusedError, TableReplacedError
from eo_pipeline.sinks.config import Sink
from eo_pipeline.sinks.kafka import KafkaSink
from eo_pipeline.sinks.session import CommitOutcome, SinkSession
from eo_pipeline.staging.rows import StagedOutput, StagedTable
from eo_pipeline.testing.contract import SinkContract
from eo_pipeline.testing.exactly_once import ExactlyOnceContract
from eo_pipeline.testing.identity import IdentityContract
from eo_pipeline.testing.odd import RARELY_KEPT
from eo_pipeline.testing.staging import child_of, first_entry
from tests.sinks.kafka.kafka_world import letters, read, rows
from tests.support.topics import delete, recreate


def kafka_sink(kafka: EmbeddedKafka, topic: str, **settings: Any) -> KafkaSink:
    servers = {"bootstrap_servers": kafka.bootstrap_servers, "topic": topic}
    return KafkaSink.model_validate({**servers, **settings})


def read_topic(sink: Sink) -> list[dict[str, Any]]:
    assert isinstance(sink, KafkaSink)
    return rows(read(sink.bootstrap_servers, sink.topic))


class TestExactlyOnce(IdentityContract, ExactlyOnceContract):
    refused_values: ClassVar[frozenset[str]] = RARELY_KEPT - {"no type"}  # null, to JSON
    tells_lineage: ClassVar[bool] = False
    short_tier: ClassVar[frozenset[str]] = frozenset(
        {
            "test_an_entry_comes_back_as_it_was_written",
            "test_a_number_alone_does_not_match",
            "test_of_two_runs_at_once_only_the_winners_rows_are_there",
            "test_a_kill_leaves_nothing_and_a_retry_lands_once",
            "test_every_type_comes_back_equal",
            "test_dead_letters_land_with_the_rows",
            "test_rows_without_a_ledger_are_not_doubled_by_beginning_anew",
            "test_what_is_refused_leaves_nothing",
        }
    )

    @pytest.fixture
    def sink(self, kafka: EmbeddedKafka, topic: str) -> Sink:
        return kafka_sink(kafka, topic)

    def read_rows(self, sink: Sink) -> list[dict[str, Any]]:
        return read_topic(sink)

    def read_dead_letters(self, sink: Sink) -> list[dict[str, Any]]:
        assert isinstance(sink, KafkaSink)
        return letters(read(sink.bootstrap_servers, sink.dead_letters))

    def lose_ledger(self, sink: Sink) -> None:
        assert isinstance(sink, KafkaSink)
        delete(self.admin(sink), sink.ledger_of(self.pipeline))

    def lose_table(self, sink: Sink) -> None:
        """Another topic has its name."""
        assert isinstance(sink, KafkaSink)
        recreate(self.admin(sink), sink.topic, partitions=1)

    def admin(self, sink: KafkaSink) -> AdminClient:
        return AdminClient({"bootstrap.servers": sink.bootstrap_servers, "log_level": 0})

    def test_a_ledger_that_was_made_anew_says_what_happened(self, sink: Sink) -> None:
        """Scenario: somebody deletes the ledger's topic, copies its records and writes them into
        a new one. Outcome: its UUID is another, and that is told.
        """
        assert isinstance(sink, KafkaSink)
        with sink.open(self.pipeline) as session:
            self.written(session)
        ledger, admin = sink.ledger_of(self.pipeline), self.admin(sink)
        kept = read(sink.bootstrap_servers, ledger)
        delete(admin, ledger)
        with sink.open(self.pipeline):
            pass  # makes it anew
        producer = Producer({"bootstrap.servers": sink.bootstrap_servers})
        for record in kept:
            producer.produce(ledger, record.value(), record.key(), partition=0)
        assert producer.flush(60) == 0
        with pytest.raises(TableReplacedError, match=r"made anew \(ledger topic "):
            self.look(sink)

    def test_a_topic_that_another_pipeline_fills_too_tells_nothing_of_ours(
        self, sink: Sink
    ) -> None:
        with sink.open(self.pipeline) as session:
            self.written(session)
        with sink.open("newcomer") as session:
            assert session.verified(session.recover()) is None

    def test_what_is_refused_leaves_nothing(self, sink: Sink, session: SinkSession) -> None:
        """Scenario: a topic has no column types to offend, but a size no record may have.
        Outcome: refused, and not even the records that fitted are visible.
        """
        head = self.forward(session, self.start(session))
        table = self.table(2)
        names = [*table["name"].to_pylist()[:-1], os.urandom(1_500_000).hex()]
        changed = table.set_column(1, "name", pa.array(names))
        staged = StagedOutput(rows=StagedTable.in_memory(changed))
        with pytest.raises(RefusedError, match=r"max\.message\.bytes"):
            session.publish(child_of(head, self.rows), staged)
        assert self.visible(sink) == self.rows_of(1)
        self.forward(session, head)
        assert self.visible(sink) == self.rows_of(1, 2)


@pytest.mark.slow
class TestAtLeastOnce(SinkContract):
    """The ledger is exact; rows are there before it moves, and again after a retry."""

    tells_lineage: ClassVar[bool] = False

    @pytest.fixture
    def sink(self, kafka: EmbeddedKafka, topic: str) -> Sink:
        return kafka_sink(kafka, topic, semantics="at_least_once")

    def read_rows(self, sink: Sink) -> list[dict[str, Any]]:
        return read_topic(sink)


def test_what_promises_nothing_writes_rows_and_ledger_too(kafka: EmbeddedKafka, topic: str) -> None:
    sink = kafka_sink(kafka, topic, semantics="none")
    rows = StagedOutput(rows=StagedTable.in_memory(pa.table({"id": [1, 2, 3]})))
    with sink.open("p") as session:
        start = first_entry("p")
        assert session.publish(start, StagedOutput()) is CommitOutcome.COMMITTED
        entry = child_of(start, 3)
        assert session.publish(entry, rows) is CommitOutcome.COMMITTED
        assert session.head() == session.entry(1)
    assert [row["id"] for row in read_topic(sink)] == [1, 2, 3]


@pytest.mark.slow
@pytest.mark.chaos
class TestNone(TestAtLeastOnce):
    """Differs in how rows are sent, not in the ledger, which the contract is about."""

    @pytest.fixture
    def sink(self, kafka: EmbeddedKafka, topic: str) -> Sink:
        return kafka_sink(kafka, topic, semantics="none")
