"""Avro behind a real schema registry, written by confluent-kafka, to PostgreSQL and back."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from eo_pipeline.embedded.registry import EmbeddedRegistry
from eo_pipeline.errors import BadRecordError, RegistryUnavailableError, SchemaChangeError
from tests.engine import Bench
from tests.registry import AvroTopic, record

FIRST = record(("id", "long"), ("name", "string"))
WITH_QUANTITY = record(("id", "long"), ("name", "string"), ("quantity", "long", 1))
WITH_INT = record(("id", "long"), ("name", "string"), ("quantity", "int", 1))
WITHOUT_NAME = record(("id", "long"), ("quantity", "long", 1), ("note", ["null", "string"], None))


def rows(bench: Bench, columns: str) -> list[tuple[Any, ...]]:
    return bench.table.query(f"select {columns} from events order by id")


def test_three_evolving_schemas_land_in_one_table(avro_bench: Bench, orders: AvroTopic) -> None:
    orders.write(FIRST, {"id": 1, "name": "one"}, {"id": 2, "name": "two"})
    avro_bench.pipeline().run()
    assert rows(avro_bench, "id, name") == [(1, "one"), (2, "two")]
    orders.write(WITH_QUANTITY, {"id": 3, "name": "three", "quantity": 30})
    orders.write(FIRST, {"id": 4, "name": "four"})
    avro_bench.pipeline().run()
    orders.write(WITHOUT_NAME, {"id": 5, "quantity": 2**40, "note": "!"})
    orders.write(FIRST, {"id": 6, "name": "six"})
    head = avro_bench.pipeline().run().head
    avro_bench.table.assert_holds_once(orders.written)
    assert head.counts.schemas is not None
    assert len(head.counts.schemas.writers) == 2


def test_a_column_that_the_latest_schema_widens_is_refused_with_the_remedy(
    avro_bench: Bench, orders: AvroTopic
) -> None:
    orders.write(WITH_INT, {"id": 1, "name": "one", "quantity": 10})
    avro_bench.pipeline().run()
    orders.write(WITH_QUANTITY, {"id": 2, "name": "two", "quantity": 2**40})
    with pytest.raises(SchemaChangeError, match="bigint") as raised:
        avro_bench.pipeline().run()
    avro_bench.table.execute(str(raised.value).partition("change the table: ")[2])
    avro_bench.pipeline().run()
    avro_bench.table.assert_holds_once(orders.written)


def test_the_first_checkpoint_reads_all_versions_of_the_subject(
    avro_bench: Bench, orders: AvroTopic
) -> None:
    orders.write(FIRST, {"id": 1, "name": "one"})
    orders.write(WITH_INT, {"id": 2, "name": "two", "quantity": 20})
    orders.write(WITHOUT_NAME, {"id": 3, "quantity": 30, "note": "!"})
    report = avro_bench.pipeline().run()
    assert rows(avro_bench, "id, quantity, note") == [(1, 1, None), (2, 20, None), (3, 30, "!")]
    counts = report.head.counts
    assert counts.unknown == 2
    assert counts.unknown_fields == ("name",)
    assert counts.schemas is not None
    assert len(counts.schemas.writers) == 3
    assert set(counts.schemas.texts) == set(counts.schemas.writers)


def test_a_registry_that_is_away_is_said_and_nothing_is_lost(
    avro_bench: Bench, orders: AvroTopic, registry: EmbeddedRegistry
) -> None:
    orders.write(FIRST, {"id": 1, "name": "one"})
    registry.kill()
    with pytest.raises(RegistryUnavailableError, match=registry.url) as raised:
        avro_bench.pipeline().run()
    assert raised.value.retryable
    registry.start()
    orders.client.clear_caches()
    orders.register(FIRST)
    avro_bench.pipeline().run()
    avro_bench.table.assert_holds_once(orders.written)


def test_a_replay_reads_as_then_when_the_registry_is_gone(
    avro_bench: Bench, orders: AvroTopic, registry: EmbeddedRegistry
) -> None:
    orders.write(FIRST, {"id": 1, "name": "one"})
    orders.write(WITH_QUANTITY, {"id": 2, "name": "two", "quantity": 20})
    first = avro_bench.pipeline().run().head.version
    orders.write(WITHOUT_NAME, {"id": 3, "quantity": 3, "note": "!"})
    avro_bench.pipeline().run()
    before = rows(avro_bench, "id, name, quantity, note")
    registry.kill()
    avro_bench.pipeline().replay(first, first + 1)
    assert rows(avro_bench, "id, name, quantity, note") == before


def test_what_cannot_be_read_is_a_dead_letter_with_the_reason(
    avro_bench: Bench, orders: AvroTopic
) -> None:
    orders.write(FIRST, {"id": 1, "name": "one"})
    number = orders.register(FIRST)
    junk = [b"{}", b"\x00\x00", struct.pack(">bI", 0, 4711) + b"\x02", None]
    junk += [struct.pack(">bI", 0, number) + b"\x02\x0aab"]
    for value in junk:
        orders.topic.write_value(value)
    with pytest.raises(BadRecordError, match="5 bad record"):
        avro_bench.pipeline().run()
    avro_bench.pipeline(source={"on_bad_record": "dead_letter"}).run()
    avro_bench.table.assert_holds_once(orders.written)
    found = avro_bench.table.query("select value, error from events_dead_letters")
    said = {None if v is None else bytes(v): error for v, error in found}
    assert said.keys() == set(junk)
    assert "does not begin with the number of a schema" in said[b"{}"]
    assert "does not begin with the number of a schema" in said[b"\x00\x00"]
    assert "the registry has no schema 4711" in said[junk[2]]
    assert "tombstone" in said[None]
    assert f"schema {number}" in said[junk[4]]
    assert "cut off" in said[junk[4]]
