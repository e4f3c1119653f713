"""Avro behind a real schema registry, written by confluent-kafka, to PostgreSQL and back."""

from __future__ import annotations

import os
import signal
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient

from eo_pipeline.crashpoints import CrashPoint
from eo_pipeline.embedded.ports import HOST, free_port
from eo_pipeline.embedded.registry import EmbeddedRegistry
from eo_pipeline.errors import (
    BadRecordError,
    RegistryUnavailableError,
    SourceError,
)
from tests.support.chaos import rest_is_chaos
from tests.support.engine import Bench
from tests.support.registry import QUICKLY, AvroTopic, record, serialized

FIRST = record(("id", "long"), ("name", "string"))
WITH_QUANTITY = record(("id", "long"), ("name", "string"), ("quantity", "long", 1))
WITH_INT = record(("id", "long"), ("name", "string"), ("quantity", "int", 1))
STRICT = record(("id", "long"), ("must", "string"))
WITHOUT_NAME = record(("id", "long"), ("quantity", "long", 1), ("note", ["null", "string"], None))


def behind(url: str, **more: Any) -> dict[str, Any]:
    """The source, with another registry."""
    return {"registry": {"url": url, "client": QUICKLY, **more}}


@contextmanager
def frozen(server: EmbeddedRegistry) -> Iterator[None]:
    """It takes connections, and says nothing."""
    os.kill(server.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(server.pid, signal.SIGCONT)


def rows(bench: Bench, columns: str) -> list[tuple[Any, ...]]:
    return bench.table.query(f"select {columns} from events order by id")


def test_three_evolving_schemas_land_in_one_table(avro_bench: Bench, orders: AvroTopic) -> None:
    orders.write(FIRST, {"id": 1, "name": "one"}, {"id": 2, "name": "two"})
    avro_bench.pipeline().run()
    assert rows(avro_bench, "id, name") == [(1, "one"), (2, "two")]
    orders.write(WITH_QUANTITY, {"id": 3, "name": "three", "quantity": 30})
    orders.write(FIRST, {"id": 4, "name": "four"})
    avro_bench.pipeline().run()
    planned = avro_bench.pipeline().plan_run().reader
    orders.write(WITHOUT_NAME, {"id": 5, "quantity": 2**40, "note": "!"})
    changed = avro_bench.pipeline().plan_run().reader
    assert planned is not None
    assert (planned.before, planned.new, planned.gone) == (planned.schema, (), ())
    assert changed is not None
    assert (changed.before, changed.new, changed.gone) == (planned.schema, ("note",), ("name",))
    assert "(new: note; no longer: name)" in str(changed)
    orders.write(FIRST, {"id": 6, "name": "six"})
    head = avro_bench.pipeline().run().head
    avro_bench.table.assert_holds_once(orders.written)
    assert head.counts.schemas is not None
    assert len(head.counts.schemas.writers) == 2


def test_a_column_follows_a_latest_schema_that_widens_it(
    avro_bench: Bench, orders: AvroTopic
) -> None:
    orders.write(WITH_INT, {"id": 1, "name": "one", "quantity": 10})
    avro_bench.pipeline().run()
    orders.write(WITH_QUANTITY, {"id": 2, "name": "two", "quantity": 2**40})
    avro_bench.pipeline().run()
    avro_bench.table.assert_holds_once(orders.written)
    avro_bench.pipeline().replay(1)
    assert rows(avro_bench, "id, quantity") == [(1, 10), (2, 2**40)]


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
    nobody = f"http://{HOST}:{free_port()}"
    with pytest.raises(RegistryUnavailableError, match=f"{nobody} does not answer") as raised:
        avro_bench.pipeline(source=behind(nobody)).run()
    assert raised.value.retryable
    with frozen(registry), pytest.raises(RegistryUnavailableError, match="timed out"):
        avro_bench.pipeline(source=behind(registry.url, timeout=0.2)).run()
    avro_bench.pipeline().run()
    avro_bench.table.assert_holds_once(orders.written)


def test_a_registry_is_not_asked_where_there_is_nothing_to_read(
    avro_bench: Bench, orders: AvroTopic
) -> None:
    orders.write(FIRST, {"id": 1, "name": "one"})
    head = avro_bench.pipeline().run().head
    nobody = f"http://{HOST}:{free_port()}"
    assert avro_bench.pipeline(source=behind(nobody)).run().head.id == head.id


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
    letters = avro_bench.table.query("select value, error from events_dead_letters")
    errors = {None if v is None else bytes(v): error for v, error in letters}
    assert errors.keys() == set(junk)
    assert "does not begin with the number of a schema" in errors[b"{}"]
    assert "does not begin with the number of a schema" in errors[b"\x00\x00"]
    assert "the registry has no AVRO schema 4711" in errors[junk[2]]
    assert "tombstone" in errors[None]
    assert f"schema {number}" in errors[junk[4]]
    assert "cut off" in errors[junk[4]]


def test_a_schema_that_is_new_to_the_run_is_read_in_the_same_run(
    avro_bench: Bench, orders: AvroTopic
) -> None:
    """An older schema that the checkpoint before had no record of, and one of another subject."""
    orders.write(FIRST, {"id": 1, "name": "one"})
    orders.write(WITH_QUANTITY, {"id": 2, "name": "two", "quantity": 20})
    first = avro_bench.pipeline(source={"max_records": 1}).run(max_checkpoints=1).head
    assert first.counts.schemas is not None
    assert len(first.counts.schemas.writers) == 1
    elsewhere = record(("id", "long"), ("name", "string"), ("place", "string"))
    number = orders.client.register_schema("elsewhere", Schema(elsewhere, "AVRO"))
    third = serialized(elsewhere, {"id": 3, "name": "three", "place": "x"})
    producer = orders.topic.producer()
    orders.topic.send(producer, struct.pack(">bI", 0, number) + third, 0)
    assert producer.flush(120) == 0
    head = avro_bench.pipeline().run().head
    avro_bench.table.assert_holds_once(orders.written)
    assert rows(avro_bench, "id, name, quantity") == [
        (1, "one", 1),
        (2, "two", 20),
        (3, "three", 1),
    ]
    assert head.counts.schemas is not None
    assert str(number) in head.counts.schemas.writers
    assert head.counts.unknown_fields == ("place",)


def test_a_registry_that_means_another_schema_by_a_number_is_refused(
    avro_bench: Bench, orders: AvroTopic, registry: EmbeddedRegistry
) -> None:
    orders.write(FIRST, {"id": 1, "name": "one"})
    avro_bench.pipeline().run()
    orders.write(FIRST, {"id": 2, "name": "two"})
    registry.kill()
    registry.start()
    anew = SchemaRegistryClient({"url": registry.url})
    read = avro_bench.pipeline().head()
    assert read is not None
    assert read.counts.schemas is not None
    for n in range(int(read.counts.schemas.reader)):
        schema = record(("id", "long"), ("name", "string"), (f"another_{n}", "string"))
        anew.register_schema(f"{orders.topic.name}-value", Schema(schema, "AVRO"))
    with pytest.raises(SourceError, match="differs from the one that version 1 was read"):
        avro_bench.pipeline().run()
    assert rows(avro_bench, "id") == [(1,)]


def test_a_fork_an_audit_and_a_rewind_know_the_schemas(
    avro_bench: Bench, orders: AvroTopic, registry: EmbeddedRegistry
) -> None:
    orders.write(STRICT, {"id": 1, "must": "be"})
    first = avro_bench.pipeline().run().head
    orders.write(WITH_QUANTITY, {"id": 2, "name": "two", "quantity": 20})
    pipeline = avro_bench.pipeline(source={"on_bad_record": "dead_letter"})
    pipeline.run()
    pipeline.rewind(first.version)
    orders.write(STRICT, {"id": 3, "must": "go"})
    head = pipeline.run().head
    assert head.counts.dead_letters == 1  # it has no name, and there is no default
    registry.kill()
    report = pipeline.audit()
    assert report.findings == ()
    copied = pipeline.fork(head.version, "copied", {**avro_bench.config["sink"], "table": "copied"})
    start = copied.head()
    assert start is not None
    assert start.counts.schemas is not None
    assert set(start.counts.schemas.texts) == set(head.known_schemas.held)


@pytest.mark.parametrize(
    "points",
    rest_is_chaos(
        [[CrashPoint.PRE_COMMITTED], [CrashPoint.STAGED, CrashPoint.COMMITTED]],
        but=[[CrashPoint.PRE_COMMITTED]],
    ),
)
def test_a_run_that_is_killed_loses_nothing(
    avro_bench: Bench, orders: AvroTopic, points: list[CrashPoint]
) -> None:
    values = [{"id": n, "name": f"record {n}"} for n in range(300)]
    orders.write(FIRST, *values[:150])
    orders.write(WITH_QUANTITY, *({**value, "quantity": 1} for value in values[150:]))
    for point in points:
        process = avro_bench.run_in_a_process("--crash-at", point, "1")
        process.communicate(timeout=300)
        assert process.returncode == -signal.SIGKILL
    avro_bench.pipeline().run()
    avro_bench.table.assert_holds_once(orders.written)


def test_a_small_batch_in_memory_is_read_alike(avro_bench: Bench, orders: AvroTopic) -> None:
    """Fetched by this process, with a schema that the run did not think of, and staged again."""
    changes = {"inline_records": 10_000, "source": {"on_bad_record": "dead_letter"}}
    orders.write(FIRST, {"id": 1, "name": "one"})
    avro_bench.pipeline(**changes).run()
    elsewhere = record(("id", "long"), ("name", "string"), ("place", "string"))
    number = orders.client.register_schema("elsewhere", Schema(elsewhere, "AVRO"))
    orders.write(WITH_QUANTITY, {"id": 2, "name": "two", "quantity": 20})
    second = serialized(elsewhere, {"id": 3, "name": "three", "place": "x"})
    producer = orders.topic.producer()
    orders.topic.send(producer, struct.pack(">bI", 0, number) + second, 0)
    assert producer.flush(120) == 0
    orders.topic.write_value(struct.pack(">bI", 0, number + 1000) + second)
    head = avro_bench.pipeline(**changes).run().head
    avro_bench.table.assert_holds_once(orders.written)
    assert rows(avro_bench, "id, quantity") == [(1, None), (2, 20), (3, 1)]
    assert head.counts.dead_letters == 1
    assert head.counts.schemas is not None
    assert len(head.counts.schemas.writers) == 2
    assert head.counts.schemas.unknown == (str(number + 1000),)
    assert not list(Path(avro_bench.config["staging"]).rglob("*.parquet"))
