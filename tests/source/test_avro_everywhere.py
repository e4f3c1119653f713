"""Avro values in the lakes, by `eo init`, and with the schema's GUID in a header."""

from __future__ import annotations

import json
import os
import re
import struct
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka.schema_registry import (
    SchemaRegistryClient,
    header_schema_id_serializer,
)
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog

from eo_pipeline.embedded.registry import EmbeddedRegistry
from tests.cli.shell import Shell, eo
from tests.engine import Bench, Topic
from tests.registry import AvroTopic, record

__all__ = ["eo"]

FIRST = record(("id", "long"), ("name", "string"))
SECOND = record(("id", "long"), ("name", "string"), ("quantity", "int", 1))
THIRD = record(
    ("id", "long"), ("quantity", "int", 1), ("tags", {"type": "array", "items": "string"}, [])
)


def delta_rows(folder: Path) -> pa.Table:
    return pa.table(DeltaTable(str(folder)).to_pyarrow_table())


def iceberg_rows(folder: Path) -> pa.Table:
    catalog = load_catalog("eo", type="sql", uri=f"sqlite:///{folder}/catalog.db")
    return catalog.load_table("ops.events").scan().to_arrow()


@pytest.mark.parametrize(
    ("sink", "where", "read"),
    [
        ({"type": "delta"}, "path", delta_rows),
        ({"type": "iceberg", "table": "ops.events"}, "warehouse", iceberg_rows),
    ],
    ids=["delta", "iceberg"],
)
def test_three_evolving_schemas_land_in_a_lake(
    avro_bench: Bench,
    orders: AvroTopic,
    tmp_path: Path,
    sink: dict[str, Any],
    where: str,
    read: Callable[[Path], pa.Table],
) -> None:
    folder = tmp_path / "lake"
    config = {**avro_bench.config, "sink": {**sink, where: str(folder)}}
    lake = Bench(avro_bench.topic, avro_bench.table, config)
    orders.write(FIRST, {"id": 1, "name": "one"})
    lake.pipeline().run()
    orders.write(SECOND, {"id": 2, "name": "two", "quantity": 20})
    lake.pipeline().run()
    orders.write(THIRD, {"id": 3, "quantity": 30, "tags": ["a", "b"]})
    orders.write(FIRST, {"id": 4, "name": "four"})
    head = lake.pipeline().run().head
    rows = sorted(read(folder).to_pylist(), key=lambda row: row["id"])
    columns = ("id", "name", "quantity", "tags")
    assert [tuple(row[c] for c in columns) for row in rows] == [
        (1, "one", None, None),
        (2, "two", 20, None),
        (3, None, 30, ["a", "b"]),
        (4, None, 1, []),
    ]
    assert head.counts.unknown_fields == ("name",)


def test_init_writes_a_document_for_a_registry_that_runs(
    eo: Shell, events: Topic, registry: EmbeddedRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders = AvroTopic(events, SchemaRegistryClient({"url": registry.url}))
    orders.write(FIRST, {"id": 1, "name": "one"})
    orders.write(SECOND, {"id": 2, "name": "two", "quantity": 20})
    events.write_value(None)
    kafka = ("--bootstrap", events.bootstrap_servers, "--topic", events.name, "--name", "events")
    asked = eo("init", *kafka, "--sink", "postgres", "--out", "unasked.yaml")
    assert "they are read with --registry URL" in asked.out
    begun = eo("init", *kafka, "--sink", "postgres", "--registry", registry.url)
    assert begun.code == 0, begun.err
    assert f"the latest schema of {events.name}-value" in begun.out
    monkeypatch.setenv("EO_EVENTS_DSN", os.environ["EO_TEST_DSN"])
    ran = eo("run", "-f", "pipelines/events.yaml")
    assert ran.code == 0, ran.err
    rows = eo.bench.table.query("select id, name, quantity from events order by id")
    assert rows == [(1, "one", 1), (2, "two", 20)]
    assert "read as " in eo("show", "-f", "pipelines/events.yaml", "1").out
    orders.write(THIRD, {"id": 3, "quantity": 3, "tags": []})
    planned = eo("plan", "-f", "pipelines/events.yaml")
    assert "(new: tags; no longer: name)" in planned.out
    assert "new field: tags (array<string>): evolve" in planned.out
    ahead = eo("schema", "diff", "-f", "pipelines/events.yaml")
    assert re.search(r"dropped field: name \(string\) +evolve +the table follows", ahead.out)
    listed = json.loads(eo("schema", "diff", "-f", "pipelines/events.yaml", "--json").out)
    assert [(each["kind"], each["field"]) for each in listed["columns"]["changes"]] == [
        ("dropped_field", "name"),
        ("new_field", "tags"),
    ]
    assert eo("run", "-f", "pipelines/events.yaml").code == 0
    told = eo("schema", "-f", "pipelines/events.yaml")
    assert "new: tags; no longer: name" in told.out
    assert "changes nothing" in eo("schema", "diff", "-f", "pipelines/events.yaml").out
    well = eo("doctor", "-f", "pipelines/events.yaml")
    assert f"{events.name}-value: schema " in well.out
    absent = eo("init", *kafka, "--sink", "postgres", "--registry", registry.url, "--subject", "no")
    assert absent.code == 2, "the file is there already"
    wrong = eo(
        *("init", *kafka, "--sink", "console", "--out", "wrong.yaml"),
        *("--registry", registry.url, "--subject", "no-such-subject"),
    )
    assert wrong.code == 2
    assert "no subject 'no-such-subject'" in wrong.err
    assert not Path("wrong.yaml").exists()


def test_the_guid_of_a_schema_may_stand_in_a_header_or_in_front(
    avro_bench: Bench, events: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With confluent-kafka's registry in memory: the real one of the tests knows no GUIDs."""
    client = SchemaRegistryClient.new_client({"url": "mock://guids"})
    monkeypatch.setattr(SchemaRegistryClient, "new_client", lambda _: client)
    plain = AvroTopic(events, client)
    in_header = AvroTopic(events, client, {"schema.id.serializer": header_schema_id_serializer})
    plain.write(FIRST, {"id": 1, "name": "one"})
    in_header.write(FIRST, {"id": 2, "name": "two"})
    avro_bench.pipeline().run()
    in_header.write(SECOND, {"id": 3, "name": "three", "quantity": 30})
    subject = f"{events.name}-value"
    guid = client.get_latest_version(subject).guid
    assert guid is not None
    third = struct.pack("b", 1) + uuid.UUID(guid).bytes + b"\x08\x08four\x50"
    producer = events.producer()
    events.send(producer, third, 0)
    producer.produce(events.name, b"\x02\x02x", headers=[("__value_schema_id", b"\x01junk")])
    nobodys = uuid.uuid4()
    producer.produce(
        events.name, b"\x02\x02x", headers=[("__value_schema_id", b"\x01" + nobodys.bytes)]
    )
    assert producer.flush(120) == 0
    head = avro_bench.pipeline(source={"on_bad_record": "dead_letter"}).run().head
    avro_bench.table.assert_holds_once(events.written)
    rows = avro_bench.table.query("select id, name, quantity from events order by id")
    assert rows == [(1, "one", None), (2, "two", None), (3, "three", 30), (4, "four", 40)]
    assert head.counts.schemas is not None
    assert head.counts.schemas.writers == (guid,)
    assert head.counts.schemas.unknown == (str(nobodys),)
    said = {e for (e,) in avro_bench.table.query("select error from events_dead_letters")}
    assert len(said) == 2
    assert any(f"has no AVRO schema {nobodys}" in each for each in said)
