"""What becomes of keys, of topics that confluent-kafka writes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from eo_pipeline.errors import BadRecordError, ConfigError
from tests.engine import Bench
from tests.registry import record, serialized

PLACE = record(("city", "string"), ("zip", ["null", "int"], None), name="Place")


def send(bench: Bench, *keys: bytes | None) -> None:
    """A record for each key, whose number is its id."""
    producer = bench.topic.producer()
    for n, key in enumerate(keys):
        value = json.dumps({"id": n, "name": f"record {n}"}).encode()
        producer.produce(
            bench.topic.name, value, key, partition=0, on_delivery=bench.topic._delivered
        )
    assert producer.flush(120) == 0


def rows(bench: Bench, columns: str) -> list[tuple[Any, ...]]:
    return bench.table.query(f"select {columns} from events order by id")


def errors(bench: Bench) -> dict[int, str]:
    found = bench.table.query('select "offset", error from events_dead_letters')
    return dict(found)


def test_a_key_that_is_text_becomes_a_column(bench: Bench) -> None:
    send(bench, b"N1", None, "Zürich".encode(), b"\xff")
    source = {"key_format": "text", "on_bad_record": "dead_letter"}
    bench.pipeline(source=source).run()
    assert rows(bench, "id, key, name") == [
        (0, "N1", "record 0"),
        (1, None, "record 1"),
        (2, "Zürich", "record 2"),
    ]
    assert errors(bench) == {3: "the key is not text in UTF-8"}
    bench.table.assert_holds_once({c for c in bench.topic.written if c[2] != 3})
    assert bench.pipeline(source=source).audit().passed


def test_the_fields_of_a_json_key_become_columns_with_a_prefix(bench: Bench) -> None:
    send(bench, b'{"id": 7, "more": 1}', None, b"7", b'{"more": 1}')
    source = {
        "key_format": "json",
        "key_schema": "id BIGINT NOT NULL, at DATE",
        "on_bad_record": "dead_letter",
    }
    head = bench.pipeline(source=source).run().head
    assert rows(bench, "id, key_id, key_at") == [(0, 7, None), (1, None, None)]
    assert errors(bench) == {
        2: "the key is not a JSON object",
        3: "the key: required field 'id' is missing or null",
    }
    assert (head.counts.unknown, head.counts.unknown_fields) == (1, ("key: more",))
    with pytest.raises(ConfigError, match=r"both have a column id\. .*\(source\.key_prefix\)"):
        bench.pipeline(
            source={**source, "key_prefix": ""}, name="other", sink={"table": "other"}
        ).run()


@pytest.mark.parametrize("inline_records", [0, 10_000], ids=["files", "inline"])
def test_an_avro_key_is_a_record_or_a_plain_value(bench: Bench, inline_records: int) -> None:
    send(bench, serialized(PLACE, {"city": "Ulm", "zip": 89073}), None, b"\x08U")
    source = {"key_format": "avro", "key_schema": PLACE}
    with pytest.raises(BadRecordError, match="the key is cut off, or is not of the schema"):
        bench.pipeline(source=source, inline_records=inline_records).run()
    source["on_bad_record"] = "dead_letter"
    bench.pipeline(source=source, inline_records=inline_records).run()
    assert rows(bench, "id, key_city, key_zip") == [(0, "Ulm", 89073), (1, None, None)]
    plain = {"topics": [bench.topic.name], "key_format": "avro", "key_schema": "long"}
    send(bench, b"\x0e")
    start = {"offsets": {bench.topic.name: {"0": 3}}, "or_else": "earliest"}
    other = bench.pipeline(name="plain", source={**plain, "start": start}, sink={"table": "plain"})
    other.run()
    assert bench.table.query("select key from plain") == [(7,)]


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ({"key_format": "json"}, "key_schema belongs to key_format json and avro"),
        ({"key_schema": "id INT"}, "key_schema belongs to key_format json and avro"),
        ({"key_format": "avro", "key_schema": "{"}, "key_schema, an Avro schema as JSON, is not"),
        ({"key_format": "protobuf"}, "'raw', 'text', 'json' or 'avro'"),
    ],
)
def test_what_a_document_cannot_ask_for(bench: Bench, source: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        bench.pipeline(source=source)
