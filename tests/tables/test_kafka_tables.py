"""Several tables of one pipeline as topics of Kafka: one transaction, one ledger entry."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition

from eo_pipeline.crashpoints import CrashPoint
from eo_pipeline.embedded.kafka import EmbeddedKafka
from eo_pipeline.embedded.spark import EmbeddedSpark
from eo_pipeline.errors import ConfigError, RefusedError
from eo_pipeline.pipeline import Pipeline
from tests.support.servers import MakeTopic
from tests.tables.shop import hold_once, killed
from tests.tables.test_postgres_tables import Shop


def committed_values(kafka: str, topic: str) -> list[dict[str, Any]]:
    """Committed values of ``topic``, as another client reads them."""
    settings = {
        "bootstrap.servers": kafka,
        "group.id": "looks",
        "isolation.level": "read_committed",
        "enable.partition.eof": True,
    }
    reader, found, open_partitions = Consumer(settings), [], set()
    partitions = reader.list_topics(topic).topics[topic].partitions
    open_partitions = {*partitions}
    reader.assign([TopicPartition(topic, number, 0) for number in partitions])
    while open_partitions:
        record = reader.poll(20)
        assert record is not None, f"{topic}: {open_partitions} have no end"
        if record.error():
            open_partitions.discard(record.partition())
        else:
            found.append(json.loads(record.value() or b"null"))
    reader.close()
    return found


class KafkaShop(Shop):
    """The shop in topics of the same cluster."""

    def __init__(
        self, kafka: str, orders: str, customers: str, targets: Mapping[str, str], staging: Path
    ) -> None:
        self.kafka, self.orders, self.customers, self.sent = kafka, orders, customers, 0
        self.targets = targets
        sink = {"type": "kafka", "bootstrap_servers": kafka}
        self.config = self.document(sink, staging)
        for table in self.config["tables"]:
            table["name"] = targets[table["name"]]

    def records(self, topic: str) -> list[dict[str, Any]]:
        return committed_values(self.kafka, topic)

    def holds_once(self, count: int) -> None:
        names = ("orders", "order_lines", "customers")
        hold_once(count, *(self.records(self.targets[name]) for name in names))


@pytest.fixture
def kafka_shop(
    spark_server: EmbeddedSpark, kafka: EmbeddedKafka, make_topic: MakeTopic, tmp_path: Path
) -> KafkaShop:
    targets = {
        "orders": make_topic(partitions=2),
        "order_lines": make_topic(),
        "customers": make_topic(partitions=3),
    }
    topics = make_topic(partitions=4), make_topic()
    return KafkaShop(kafka.bootstrap_servers, *topics, targets, tmp_path / "staging")


def test_one_transaction_fills_all_topics(kafka_shop: KafkaShop) -> None:
    kafka_shop.write(60)
    pipeline = kafka_shop.pipeline()
    pipeline.run()
    kafka_shop.holds_once(60)
    kafka_shop.write(30)
    pipeline.run()
    kafka_shop.holds_once(90)
    head = pipeline.head()
    assert head is not None
    assert {name: counts.rows_total for name, counts in head.counts.tables.items()} == {
        kafka_shop.targets["orders"]: 90,
        kafka_shop.targets["order_lines"]: 180,
        kafka_shop.targets["customers"]: 9,
    }
    assert head.identity.tables[kafka_shop.targets["orders"]].sink["topic"]
    assert pipeline.status().lag == 0
    with pytest.raises(RefusedError, match="records in Kafka cannot be taken back"):
        pipeline.rewind(1)
    # the first table leaves: ledger and transactional id stay
    kafka_shop.write(10)
    shorter = kafka_shop.pipeline(tables=kafka_shop.config["tables"][1:])
    shorter.run()
    assert len(kafka_shop.records(kafka_shop.targets["order_lines"])) == 200
    assert len(kafka_shop.records(kafka_shop.targets["orders"])) == 90


@pytest.mark.parametrize(
    "point",
    [CrashPoint.STAGED, CrashPoint.PRE_COMMITTED, CrashPoint.ROWS_SENT, CrashPoint.ENTRY_SENT],
)
def test_killed_while_it_fills_topics_it_shows_none_or_all(
    kafka_shop: KafkaShop, point: CrashPoint
) -> None:
    kafka_shop.write(20)
    kafka_shop.pipeline().run()
    kafka_shop.write(80)
    killed(kafka_shop.config, "--crash-at", point, "1")
    report = kafka_shop.pipeline().run()
    kafka_shop.holds_once(100)
    promised = point is not CrashPoint.STAGED
    assert any(checkpoint.recovered for checkpoint in report.checkpoints) == promised


def test_a_topic_has_a_key_and_dead_letters_of_its_own(kafka_shop: KafkaShop) -> None:
    kafka_shop.write(10)
    orders, lines, customers = kafka_shop.config["tables"]
    pipeline = kafka_shop.pipeline(
        tables=[
            {**orders, "sink": {"key": "id"}},
            lines,
            {**customers, "value_schema": "id BIGINT NOT NULL, name INT NOT NULL"}
            | {"on_bad_record": "dead_letter"},
        ]
    )
    pipeline.run()
    head = pipeline.head()
    assert head is not None
    assert head.counts.tables[kafka_shop.targets["customers"]].dead_letters == 1
    letters = kafka_shop.records(f"{kafka_shop.targets['customers']}._dead_letters")
    assert letters == [{"id": 0, "name": "customer 0"}]
    with pytest.raises(RefusedError, match="from Kafka: consume"):
        list(pipeline.dead_letter_rows())
    # of the key there is nothing in the value
    assert {"id"}.isdisjoint(kafka_shop.records(kafka_shop.targets["orders"])[0])


@pytest.mark.parametrize(
    ("sink", "table", "words"),
    [
        ({"shards": 2}, {}, "several topics need one transaction"),
        ({"semantics": "at_least_once"}, {}, "several topics need one transaction"),
        ({"topic": "x"}, {}, "sink: topic: not allowed with tables"),
        ({}, {"sink": {"shards": 2}}, "sink: shards is the same for all tables"),
    ],
)
def test_what_is_no_one_transaction_is_refused(
    sink: dict[str, Any], table: dict[str, Any], words: str
) -> None:
    config = {
        "name": "shop",
        "source": {"bootstrap_servers": "localhost:9092", "topics": ["orders"]},
        "sink": {"type": "kafka", "bootstrap_servers": "localhost:9092", **sink},
        "tables": [{"name": "copies", "value_schema": "id BIGINT", **table}],
    }
    with pytest.raises(ConfigError, match=words):
        Pipeline.from_config(config)


def test_records_that_no_table_takes_are_dead_letters_of_a_topic_of_their_own(
    kafka_shop: KafkaShop,
) -> None:
    kafka_shop.write(20)
    orders, _, customers = kafka_shop.config["tables"]
    few = {**orders, "where": "get_json_object(value, '$.id') in ('3', '4')"}
    pipeline = kafka_shop.pipeline(tables=[few, customers], rest="dead_letter")
    pipeline.run()
    assert len(kafka_shop.records(orders["name"])) == 2
    assert len(kafka_shop.records("shop_rest._dead_letters")) == 18
    head = pipeline.head()
    assert head is not None
    assert (head.counts.rest, head.counts.dead_letters) == (18, 18)
    kafka_shop.write(1)
    pipeline.run()
    assert len(kafka_shop.records("shop_rest._dead_letters")) == 19
