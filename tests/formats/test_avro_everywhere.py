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
from tests.support.chaos import rest_is_chaos
from tests.support.engine import Bench, Topic
from tests.support.registry import AvroTopic, record

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


def postgres_rows(bench: Bench, _: Path) -> list[dict[str, Any]]:
    rows = bench.table.query("select row_to_json(events) from events")
    return [row for (row,) in rows]


#: What `eo init` is told, and how the rows are found, by other programs' readers.
STORES: dict[str, tuple[list[str], Callable[[Bench, Path], list[dict[str, Any]]]]] = {
    "postgres": (["--sink", "postgres"], postgres_rows),
    "delta": (
        ["--sink", "delta", "--set", "path={}"],
        lambda _, folder: delta_rows(folder).to_pylist(),
    ),
    "iceberg": (
        ["--sink", "iceberg", "--set", "warehouse={}", "--set", "table=ops.events"],
        lambda _, folder: iceberg_rows(folder).to_pylist(),
    ),
}


@pytest.mark.parametrize("store", rest_is_chaos(STORES, but=["postgres"]))
def test_three_evolving_schemas_land_with_init_and_run_alone(
    eo: Shell,
    events: Topic,
    registry: EmbeddedRegistry,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    store: str,
) -> None:
    """Keys too. Nobody writes a line of the document."""
    options, read = STORES[store]
    folder = tmp_path / "lake"
    monkeypatch.setenv("EO_EVENTS_DSN", os.environ["EO_TEST_DSN"])
    orders = AvroTopic(events, SchemaRegistryClient({"url": registry.url}))
    place = record(("city", "string"), name="Place")
    orders.write(FIRST, {"id": 1, "name": "one"}, key=(place, {"city": "Ulm"}))
    kafka = ("--bootstrap", events.bootstrap_servers, "--topic", events.name, "--name", "events")
    sink = [option.format(folder) for option in options]
    begun = eo("init", *kafka, *sink, "--registry", registry.url)
    assert begun.code == 0, begun.err
    assert f"The keys' columns are those of {events.name}-key." in begun.out
    document = ("-f", "pipelines/events.yaml")
    assert eo("run", *document).code == 0
    orders.write(SECOND, {"id": 2, "name": "two", "quantity": 20})
    assert eo("run", *document).code == 0
    wider = record(("city", "string"), ("zip", "int", 0), name="Place")
    three = {"id": 3, "quantity": 30, "tags": ["a", "b"]}
    orders.write(THIRD, three, key=(wider, {"city": "Bonn", "zip": 53111}))
    orders.write(FIRST, {"id": 4, "name": "four"}, key=(place, {"city": "Graz"}))
    planned = eo("plan", *document).out
    assert f"the columns are those of {events.name}-value" in planned
    assert f"the key's columns are those of {events.name}-key" in planned
    assert "new field: zip (int): evolve" in planned
    ahead = json.loads(eo("schema", "diff", *document, "--json").out)
    assert [change["field"] for change in ahead["key_columns"]["changes"]] == ["zip"]
    ran = eo("run", *document)
    assert ran.code == 0, ran.err
    columns = ("id", "name", "quantity", "tags", "key_city", "key_zip")
    rows = sorted(read(eo.bench, folder), key=lambda row: row["id"])
    assert [tuple(row[c] for c in columns) for row in rows] == [
        (1, "one", None, None, "Ulm", None),
        (2, "two", 20, None, None, None),
        (3, None, 30, ["a", "b"], "Bonn", 53111),
        (4, None, 1, [], "Graz", 0),
    ]
    history = json.loads(eo("schema", *document, "--json").out)
    assert [entry["new_fields"] for entry in history["schemas"]] == [None, ["quantity"], ["tags"]]
    assert [entry["new_fields"] for entry in history["key_schemas"]] == [None, ["zip"]]
    written = history["written"]
    assert [entry["new_columns"] for entry in written] == [None, ["quantity"], ["tags", "key_zip"]]
    assert written[-1]["left_out"] == ["name"]
    assert "of" in eo("schema", *document).out


def test_init_writes_a_document_for_a_registry_that_runs(
    eo: Shell, events: Topic, registry: EmbeddedRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders = AvroTopic(events, SchemaRegistryClient({"url": registry.url}))
    orders.write(FIRST, {"id": 1, "name": "one"})
    orders.write(SECOND, {"id": 2, "name": "two", "quantity": 20})
    events.write_value(None)
    kafka = ("--bootstrap", events.bootstrap_servers, "--topic", events.name, "--name", "events")
    first_try = eo("init", *kafka, "--sink", "postgres", "--out", "unasked.yaml")
    assert "to decode them, give --registry URL" in first_try.out
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
    assert [(change["kind"], change["field"]) for change in listed["columns"]["changes"]] == [
        ("dropped_field", "name"),
        ("new_field", "tags"),
    ]
    assert eo("run", "-f", "pipelines/events.yaml").code == 0
    shown = eo("schema", "-f", "pipelines/events.yaml")
    assert "new: tags; no longer: name" in shown.out
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
    errors = {e for (e,) in avro_bench.table.query("select error from events_dead_letters")}
    assert len(errors) == 2
    assert any(f"has no AVRO schema {nobodys}" in error for error in errors)
