"""Each kind of change of a schema under each policy, for each format: what becomes of a record that
needs the change. Without a topic or a table: a registry in memory, a ledger's entries, one Spark
job a cell.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import pytest
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from pydantic import ValidationError
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from eo_pipeline.batch.decode import decode
from eo_pipeline.batch.schemas import SchemaResolver
from eo_pipeline.batch.unknown_fields import shown
from eo_pipeline.embedded.spark import EmbeddedSpark
from eo_pipeline.errors import SchemaChangeError
from eo_pipeline.formats.schema_diff import ChangeKind, Policy
from eo_pipeline.formats.wire_format import ReadSchemas, WriterSchemas
from eo_pipeline.kafka.source import KafkaSource
from eo_pipeline.ledger.entry import Counts, LedgerEntry, Operation, new_transaction_id
from eo_pipeline.spark import SparkSettings
from tests.batch.frames import kafka_frame
from tests.support.registry import record

SUBJECT, FORMATS = "t-value", ("avro", "json")


class Changed(NamedTuple):
    """The field ``x`` before and now (None: it is not there), a value of either, and what of the
    new one the column holds if the column stays as it was.
    """

    before: Any
    now: Any
    old: Any
    new: Any
    fits: Any = None


def place(*names: str) -> dict[str, Any]:
    fields = [{"name": name, "type": "int"} for name in names]
    return {"type": "record", "name": "Place", "fields": fields}


def enum(*symbols: str) -> dict[str, Any]:
    return {"type": "enum", "name": "Size", "symbols": list(symbols)}


def properties(*names: str) -> dict[str, Any]:
    return {"type": "object", "properties": {name: {"type": "integer"} for name in names}}


NESTED = ({"lat": 1}, {"lat": 2, "lon": 3}, {"lat": 2})

CHANGES: dict[tuple[str, ChangeKind], Changed] = {
    ("avro", ChangeKind.NEW_FIELD): Changed(None, "string", None, "!"),
    ("avro", ChangeKind.DROPPED_FIELD): Changed(["null", "string"], None, "gone", None),
    ("avro", ChangeKind.WIDENED_TYPE): Changed("int", "long", 1, 2**40),
    ("avro", ChangeKind.CHANGED_TYPE): Changed("int", "string", 7, "A7"),
    ("avro", ChangeKind.NEW_NESTED_FIELD): Changed(place("lat"), place("lat", "lon"), *NESTED),
    ("avro", ChangeKind.NEW_ENUM_VALUE): Changed(enum("S"), enum("S", "L"), "S", "L"),
    ("json", ChangeKind.NEW_FIELD): Changed(None, {"type": "string"}, None, "!"),
    ("json", ChangeKind.DROPPED_FIELD): Changed({"type": "string"}, None, "gone", None),
    ("json", ChangeKind.CHANGED_TYPE): Changed({"type": "integer"}, {"type": "string"}, 7, "7"),
    ("json", ChangeKind.NEW_NESTED_FIELD): Changed(
        properties("lat"), properties("lat", "lon"), *NESTED
    ),
    ("json", ChangeKind.NEW_ENUM_VALUE): Changed({"enum": ["S"]}, {"enum": ["S", "L"]}, "S", "L"),
}

CELLS = [(*cell, policy) for cell in CHANGES for policy in Policy]


def schema(value_format: str, kind: Any) -> str:
    """Of a record with a number, and with ``x`` if that has a kind."""
    if value_format == "avro":
        optional = isinstance(kind, list)
        more = [] if kind is None else [("x", kind, None) if optional else ("x", kind)]
        return record(("id", "long"), *more)
    fields = {"id": {"type": "integer"}, **({} if kind is None else {"x": kind})}
    return json.dumps({"title": "Order", "type": "object", "properties": fields})


class World:
    """A registry in memory, and a ledger of which each entry is read with the schemas of then."""

    def __init__(self, client: SchemaRegistryClient, source: dict[str, Any]) -> None:
        self.client = client
        self.source = KafkaSource.model_validate(
            {
                "bootstrap_servers": "h:1",
                "topics": ["t"],
                "registry": {"url": "http://nobody"},
                "on_bad_record": "dead_letter",
                **source,
            }
        )
        start = LedgerEntry("p", "l", 0, new_transaction_id(), None, Operation.START, {})
        self.entries = [start]

    def written(self, text: str, value: dict[str, Any]) -> bytes:
        """By confluent-kafka's serializer, which registers the schema."""
        makes = AvroSerializer if self.source.value_format == "avro" else JSONSerializer
        arguments = (self.client, text) if makes is AvroSerializer else (text, self.client)
        serialize = makes(*arguments)
        payload: bytes = serialize(value, SerializationContext("t", MessageField.VALUE))
        return payload

    def next_schemas(self) -> WriterSchemas:
        """Return the schemas of the next checkpoint, and put them into the ledger."""
        assert self.source.registry is not None
        book = SchemaResolver("p", self.source, self.source.registry, self.entries.__getitem__)
        entry = self.entries[-1].child(Operation.FORWARD, "r", {})
        schemas = book.of(entry)
        seen = {"_eo_value_writers_0": (1 << len(schemas.writers)) - 1}
        read = schemas.read_with(seen, entry.identity.schemas.held)
        self.entries.append(entry.with_counts(Counts(schemas=read)))
        return schemas


@pytest.fixture(scope="module")
def spark(spark_server: EmbeddedSpark) -> SparkSession:
    return SparkSettings(config={"spark.sql.session.timeZone": "UTC"}).session()


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> SchemaRegistryClient:
    registry = SchemaRegistryClient.new_client({"url": f"mock://{abs(hash(request.node.name))}"})
    monkeypatch.setattr(SchemaRegistryClient, "new_client", lambda _: registry)
    return registry


def read(
    spark: SparkSession, world: World, schemas: WriterSchemas, values: list[bytes]
) -> tuple[dict[int, dict[str, Any]], list[str]]:
    """The good rows by their numbers, and what is wrong with the others."""
    both = decode(kafka_frame(spark, values), world.source, ReadSchemas(schemas))
    good = both.good(both.all).drop("_kafka").select(F.to_json(F.struct("*")), F.lit(True))
    texts = good.union(both.dead_letters(1).select("error", F.lit(False))).collect()
    rows = [json.loads(text) for text, is_good in texts if is_good]
    return {row["id"]: row for row in rows}, [text for text, is_good in texts if not is_good]


@pytest.mark.core(
    only=[
        "json-new_field-quarantine",
        "avro-changed_type-rescue",
        "avro-dropped_field-freeze",
        "avro-new_nested_field-quarantine",
    ]
)
@pytest.mark.parametrize(("value_format", "kind", "policy"), CELLS, ids=str)
def test_a_record_that_needs_a_change_is_what_policy_makes_of_it(
    spark: SparkSession,
    client: SchemaRegistryClient,
    value_format: str,
    kind: ChangeKind,
    policy: Policy,
) -> None:
    source = {"value_format": value_format, "schema_changes": {kind.value: policy.value}}
    if (kind, policy) == (ChangeKind.DROPPED_FIELD, Policy.RESCUE):
        with pytest.raises(ValidationError, match="dropped_field"):
            World(client, source)
        return
    world, change = World(client, source), CHANGES[value_format, kind]
    texts = [schema(value_format, field) for field in (change.before, change.now)]
    old, new = ({"id": n, "x": x} for n, x in ((1, change.old), (2, change.new)))
    for value, kind_of_x in ((old, change.before), (new, change.now)):
        if kind_of_x is None:
            value.pop("x")
    values = [world.written(texts[0], old)]
    world.next_schemas()
    values.append(world.written(texts[1], new))
    if policy is Policy.FREEZE:
        with pytest.raises(SchemaChangeError, match=f"{kind.replace('_', ' ')}: x"):
            world.next_schemas()
        return
    schemas = world.next_schemas()
    rows, errors = read(spark, world, schemas, values)
    if policy is Policy.EVOLVE:
        assert rows[2] == new
        return
    assert rows[1] == old
    if policy is Policy.QUARANTINE:
        assert 2 not in rows
        [error] = errors
        # Spark's decoder of Avro does not say which field it is
        assert "x" in error or (value_format, kind) == ("avro", ChangeKind.NEW_ENUM_VALUE)
        return
    assert errors == []
    assert rows[2].get("x") == change.fits
    assert json.loads(rows[2]["_unknown_fields"]) == {"x": change.new}
    # a field that is left out, and a value that its column cannot hold
    both = decode(kafka_frame(spark, values), world.source, ReadSchemas(schemas))
    counted = both.trimmed.agg(*both.metrics()).toArrow().to_pylist()[0]
    assert counted["unknown"] == 1
    assert [name.partition(".")[0] for name in shown(counted)] in (["x"], ["x", "x"])


@pytest.mark.parametrize(
    ("before", "now", "values"),
    [
        ({"type": "integer"}, {"type": "number"}, [(3, 3, False), (2.5, None, True)]),
        ({"type": "integer"}, {"type": "string"}, [("5", None, True), (None, None, False)]),
        ({"type": "string"}, {"type": "integer"}, [(5, None, True)]),
        (
            {"type": "string", "format": "date"},
            {"type": ["integer", "string"]},
            [(20000, None, True), ("2026-01-02", "2026-01-02", False), ("soon", None, True)],
        ),
        (
            {"type": "array", "items": {"type": "integer"}},
            {"type": "array", "items": {"type": "string"}},
            [(["a"], None, True), (None, None, False)],
        ),
        ({"enum": ["S"]}, {"enum": ["S", "L"]}, [("S", "S", False), ("L", None, True)]),
    ],
    ids=str,
)
def test_a_json_value_that_fits_stays_in_its_column_and_another_is_rescued(
    spark: SparkSession, client: SchemaRegistryClient, before: Any, now: Any, values: list[Any]
) -> None:
    world = World(client, {"value_format": "json", "schema_changes": "rescue"})
    client.register_schema(SUBJECT, Schema(schema("json", before), "JSON"))
    world.next_schemas()
    text = schema("json", {"anyOf": [{"type": "null"}, now]})
    written = [world.written(text, {"id": n, "x": value}) for n, (value, _, _) in enumerate(values)]
    rows, errors = read(spark, world, world.next_schemas(), written)
    assert errors == []
    for n, (value, column, is_rescued) in enumerate(values):
        assert rows[n].get("x") == column
        kept = rows[n].get("_unknown_fields")
        assert (json.loads(kept) if kept else None) == ({"x": value} if is_rescued else None)


@pytest.mark.core(only=["json"])
@pytest.mark.parametrize("value_format", FORMATS)
def test_a_nested_enum_value_is_quarantined_too(
    spark: SparkSession, client: SchemaRegistryClient, value_format: str
) -> None:
    def within(*symbols: str) -> Any:
        if value_format == "avro":
            return {"type": "array", "items": enum(*symbols)}
        inner = {"s": {"type": "array", "items": {"enum": list(symbols)}}}
        return {"type": "object", "properties": inner}

    source = {"value_format": value_format, "schema_changes": {"new_enum_value": "quarantine"}}
    world = World(client, source)
    client.register_schema(SUBJECT, Schema(schema(value_format, within("S")), value_format.upper()))
    world.next_schemas()
    both = [["S", "L"], ["S"]]
    values = both if value_format == "avro" else [{"s": values} for values in both]
    text = schema(value_format, within("S", "L"))
    written = [world.written(text, {"id": n, "x": value}) for n, value in enumerate(values)]
    rows, errors = read(spark, world, world.next_schemas(), written)
    assert list(rows) == [1]
    assert len(errors) == 1
