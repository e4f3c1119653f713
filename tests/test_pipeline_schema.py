"""A document's mistakes are found while it is typed: of JSON Schema alone, nothing is loaded."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

from eo_pipeline import Pipeline
from eo_pipeline.pipeline_schema import document_schema
from eo_pipeline.sinks.registry import sink_names

SCHEMA = document_schema()

GOOD = """
name: orders
source: {bootstrap_servers: "h:9092", topics: [orders], value_format: raw}
sink: {type: console}
"""


def found(document: Any) -> list[tuple[str, str]]:
    """Where and what, as an editor marks it."""
    errors = Draft202012Validator(SCHEMA).iter_errors(document)
    return sorted((".".join(map(str, error.path)), error.message) for error in errors)


def changed(where: str, value: Any) -> Any:
    document = yaml.safe_load(GOOD)
    *path, last = where.split(".")
    at = document
    for name in path:
        at = at.setdefault(name, {})
    at[last] = value
    return document


def test_it_is_a_schema_and_a_good_document_fits() -> None:
    Draft202012Validator.check_schema(SCHEMA)
    assert found(yaml.safe_load(GOOD)) == []


@pytest.mark.parametrize(
    ("where", "value", "at", "says"),
    [
        ("sink.type", "postgress", "sink.type", "'postgress' is not one of ['console', "),
        ("source.start", "erliest", "source.start", "is not one of ['earliest', 'latest']"),
        ("source.start", {"group": ""}, "source.start.group", ""),
        (
            "source.value_format",
            "jsn",
            "source.value_format",
            "not one of ['json', 'avro', 'protobuf', 'raw'",
        ),
        ("source.max_records", "lots", "source.max_records", "not of type 'integer', 'null'"),
        ("source.isolaton", "x", "source", "'isolaton' was unexpected"),
        ("sink.max_row", 5, "sink", "'max_row' was unexpected"),
        ("transform", "no_function", "transform", "does not match"),
        ("spark.confg", {}, "spark", "'confg' was unexpected"),
        ("name", "Not A Name", "name", "does not match"),
    ],
)
def test_a_slip_is_found_at_its_field(where: str, value: Any, at: str, says: str) -> None:
    assert [(place, says in message) for place, message in found(changed(where, value))] == [
        (at, True)
    ]


def test_the_fields_of_a_sink_are_those_of_its_type() -> None:
    """`dsn` belongs to PostgreSQL, and is required there."""
    postgres = {"type": "postgres", "dsn": "postgresql://h/d", "table": "t"}
    assert found(changed("sink", postgres)) == []
    assert found(changed("sink", {**postgres, "type": "delta"})) != []
    (missing,) = found(changed("sink", {"type": "postgres", "table": "t"}))
    assert missing == ("sink", "'dsn' is a required property")


@pytest.mark.parametrize("template", ["${LIMIT}", "{{ env.LIMIT }}", "{{ env('LIMIT', '5') }}"])
@pytest.mark.parametrize(
    "where", ["source.max_records", "source.start", "source.client.a", "name", "sink.max_rows"]
)
def test_a_template_may_stand_for_any_value(where: str, template: str) -> None:
    assert found(changed(where, template)) == []


@pytest.mark.parametrize("start", ["latest", {"timestamp": "2026-01-31T12:00:00Z"}])
def test_a_time_may_be_written_with_quotes_or_without(start: Any) -> None:
    assert found(changed("source.start", start)) == []
    bare = yaml.safe_load("{timestamp: 2026-01-31T12:00:00Z}")
    assert found(changed("source.start", bare)) == []


@pytest.mark.parametrize("name", sink_names())
def test_every_field_of_every_sink_says_what_it_is(name: str) -> None:
    (then,) = [
        each["then"]
        for each in SCHEMA["properties"]["sink"]["allOf"]
        if each["if"]["properties"]["type"]["const"] == name
    ]
    silent = [f for f, field in then["properties"].items() if not field.get("description")]
    assert silent == ["type"]


def test_every_field_of_the_pipeline_and_its_source_says_what_it_is() -> None:
    for properties in (
        SCHEMA["properties"],
        SCHEMA["properties"]["source"]["properties"],
        SCHEMA["properties"]["spark"]["properties"],
    ):
        silent = {name for name, field in properties.items() if not field.get("description")}
        assert silent <= {"type"}


def test_the_schema_knows_every_field_of_a_pipeline() -> None:
    assert SCHEMA["properties"].keys() == Pipeline.model_fields.keys()


def test_secrets_are_marked_as_such() -> None:
    assert '"writeOnly": true' in json.dumps(SCHEMA["properties"]["source"]["properties"]["client"])


def test_eo_writes_it_for_editors(tmp_path: Path) -> None:
    printed = subprocess.run(
        [sys.executable, "-m", "eo_pipeline.cli", "json-schema"],
        capture_output=True,
        check=True,
        cwd=tmp_path,
    )
    assert json.loads(printed.stdout) == SCHEMA


@pytest.mark.parametrize(
    "sink",
    [
        {"type": "postgres", "dsn": "postgresql://h/d", "schema": "sales"},
        {"type": "kafka", "bootstrap_servers": "h:9092"},
    ],
)
def test_a_document_with_several_tables_names_none_in_its_sink(sink: dict[str, Any]) -> None:
    document = {**yaml.safe_load(GOOD), "sink": sink, "rest": "ignore"}
    tables = [{"name": "copies", "topics": "orders", "value_schema": "id BIGINT"}]
    assert found({**document, "tables": tables}) == []
    [(where, _)] = found({**document, "tables": [{**tables[0], "sinks": {}}]})
    assert where == "tables.0"
