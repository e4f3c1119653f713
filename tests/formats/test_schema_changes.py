"""Each kind of change under each policy, as data: no registry, no Spark, no table."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from eo_pipeline.batch.decode import _with_policy
from eo_pipeline.errors import ConfigError
from eo_pipeline.formats.avro import Avro
from eo_pipeline.formats.json_schema import JsonSchema
from eo_pipeline.formats.protobuf import Protobuf
from eo_pipeline.formats.schema_diff import (
    Change,
    ChangeKind,
    Policy,
    SchemaChanges,
    SchemaChangesField,
    changes,
    rescaled,
    unreadable,
)
from eo_pipeline.formats.wire_format import WriterSchemas
from eo_pipeline.kafka.source import KafkaSource
from tests.support.registry import record

AVRO = Avro()

SETTING: TypeAdapter[SchemaChanges] = TypeAdapter(SchemaChangesField)


def place(*fields: tuple[str, Any]) -> dict[str, Any]:
    return {
        "type": "record",
        "name": "Place",
        "fields": [{"name": n, "type": t} for n, t in fields],
    }


def enum(*symbols: str, **more: Any) -> dict[str, Any]:
    return {"type": "enum", "name": "Size", "symbols": list(symbols), **more}


def decimal(precision: int, scale: int) -> dict[str, Any]:
    return {"type": "bytes", "logicalType": "decimal", "precision": precision, "scale": scale}


ID = ("id", "long")
OLD, NEW = place(("lat", "int")), place(("lat", "int"), ("lon", "int"))

#: What was, what is, the kind of the one change between them, and its path.
CASES: list[tuple[Any, Any, ChangeKind, str]] = [
    ([ID], [ID, ("x", "string")], ChangeKind.NEW_FIELD, "x"),
    ([ID, ("x", "string")], [ID], ChangeKind.DROPPED_FIELD, "x"),
    ([("x", OLD)], [("x", NEW)], ChangeKind.NEW_NESTED_FIELD, "x.lon"),
    ([("x", NEW)], [("x", OLD)], ChangeKind.DROPPED_FIELD, "x.lon"),
    (
        [("x", {"type": "array", "items": OLD})],
        [("x", {"type": "array", "items": NEW})],
        ChangeKind.NEW_NESTED_FIELD,
        "x.lon",
    ),
    ([("x", "int")], [("x", "long")], ChangeKind.WIDENED_TYPE, "x"),
    ([("x", ["null", "int"])], [("x", "double")], ChangeKind.WIDENED_TYPE, "x"),
    ([("x", "float")], [("x", "double")], ChangeKind.WIDENED_TYPE, "x"),
    ([("x", decimal(5, 2))], [("x", decimal(10, 2))], ChangeKind.WIDENED_TYPE, "x"),
    ([("x", decimal(5, 2))], [("x", decimal(10, 4))], ChangeKind.WIDENED_TYPE, "x"),
    ([("x", OLD)], [("x", place(("lat", "long")))], ChangeKind.WIDENED_TYPE, "x.lat"),
    ([("x", decimal(5, 2))], [("x", decimal(5, 4))], ChangeKind.CHANGED_TYPE, "x"),
    ([("x", "long")], [("x", "double")], ChangeKind.CHANGED_TYPE, "x"),
    ([("x", "long")], [("x", "int")], ChangeKind.CHANGED_TYPE, "x"),
    ([("x", "int")], [("x", "string")], ChangeKind.CHANGED_TYPE, "x"),
    ([("x", enum("S"))], [("x", "string")], ChangeKind.CHANGED_TYPE, "x"),
    ([("x", enum("S"))], [("x", enum("S", "L"))], ChangeKind.NEW_ENUM_VALUE, "x"),
]


def between(before: Any, now: Any) -> list[Change]:
    return list(changes(AVRO.shape_of(record(*before)), AVRO.shape_of(record(*now))))


@pytest.mark.parametrize(("before", "now", "kind", "path"), CASES, ids=lambda case: str(case)[:60])
def test_a_change_is_of_one_kind(before: Any, now: Any, kind: ChangeKind, path: str) -> None:
    result = between(before, now)
    assert [(change.kind, ".".join(change.path)) for change in result] == [(kind, path)]
    assert path in str(result[0])
    assert kind.replace("_", " ") in str(result[0])


@pytest.mark.parametrize("policy", Policy)
@pytest.mark.parametrize(("before", "now", "kind", "path"), CASES, ids=lambda case: str(case)[:60])
def test_each_kind_has_a_policy_of_its_own(
    before: Any, now: Any, kind: ChangeKind, path: str, policy: Policy
) -> None:
    """The columns that follow are those of the new schema, the others those of the old one."""
    if (kind, policy) == (ChangeKind.DROPPED_FIELD, Policy.RESCUE):
        with pytest.raises(ValidationError, match="dropped_field"):
            SETTING.validate_python({kind.value: policy.value})
        return
    decided = SETTING.validate_python({kind.value: policy.value}).decide(between(before, now))
    column = path.partition(".")[0]
    assert decided.policy(column) is policy
    assert [str(decided_change.change.kind) for decided_change in decided.frozen] == [kind] * (
        policy is Policy.FREEZE
    )
    assert decided.unchanged == ({column} if policy is not Policy.EVOLVE else set())
    fields = kind in (ChangeKind.NEW_FIELD, ChangeKind.NEW_NESTED_FIELD, ChangeKind.DROPPED_FIELD)
    assert decided.quarantined == ((path,) if policy is Policy.QUARANTINE and fields else ())
    shape = AVRO.shape_of(AVRO.evolve_except(record(*before), record(*now), decided.unchanged))
    expected = record(*now) if policy is Policy.EVOLVE else record(*before)
    assert shape.fields == AVRO.shape_of(expected).fields


def test_decimals_with_another_number_of_places_are_cast_where_that_can_be_looked_at() -> None:
    def cast(before: Any, now: Any) -> dict[str, bool]:
        return rescaled(AVRO.shape_of(record(("x", before))), AVRO.shape_of(record(("x", now))))

    assert cast(decimal(5, 2), decimal(9, 2)) == {}
    assert cast(decimal(5, 2), decimal(9, 4)) == cast(decimal(9, 4), decimal(5, 2)) == {"x": True}
    within = [place(("d", decimal(5, 2))), place(("d", decimal(9, 4)))]
    assert cast(*within) == {"x": True}
    assert cast(*({"type": "map", "values": values} for values in within)) == {"x": False}
    assert cast(within[0], place(("d", decimal(9, 4)), ("e", "int"))) == {"x": False}


def test_the_columns_of_a_json_schema_are_compared_alike() -> None:
    def properties(**fields: Any) -> str:
        return json.dumps({"type": "object", "properties": fields})

    integer, text = {"type": "integer"}, {"type": "string"}
    of = {"type": "object", "additionalProperties": {"type": "boolean"}}
    at = {"type": "string", "format": "date-time"}
    inner = json.loads(properties(lat=integer, on={"type": "string", "format": "date"}))
    before = properties(id=integer, at=at, x=inner, m=of, gone=text)
    now = properties(id=text, at=at, x=json.loads(properties(lat=integer)), m=of, new=integer)
    kind = JsonSchema()
    texts = {str(change) for change in changes(kind.shape_of(before), kind.shape_of(now))}
    assert texts == {
        *("changed type: id from bigint to string", "dropped field: x.on (date)"),
        *("dropped field: gone (string)", "new field: new (bigint)"),
    }
    assert kind.shape_of(
        kind.evolve_except(before, now, {"id", "x", "gone", "new"})
    ) == kind.shape_of(before)
    assert kind.shape_of(kind.evolve_except(before, now, set())) == kind.shape_of(now)


def test_the_columns_of_a_protobuf_message_are_compared_alike() -> None:
    def message(fields: str, *symbols: str) -> str:
        values = " ".join(f"{name} = {n};" for n, name in enumerate(symbols))
        text = f"""syntax = "proto3"; import "google/protobuf/timestamp.proto";
            enum Size {{ {values} }}
            message Order {{ {fields} google.protobuf.Timestamp at = 99; Size size = 98; }}"""
        return Protobuf("Order").self_contained(text, {})

    before = message("int32 id = 1; repeated string tags = 2; map<string, int32> m = 3;", "S")
    now = message("int64 id = 1; repeated string tags = 2; uint64 n = 4;", "S", "L")
    shape_of = Protobuf("Order").shape_of
    assert {str(change) for change in changes(shape_of(before), shape_of(now))} == {
        *("widened type: id from int to bigint", "dropped field: m (map<string,int>)"),
        *("new enum value: size (L)", "new field: n (decimal(20,0))"),
    }
    assert str(shape_of(before).fields["tags"]) == "array<string>"
    assert str(shape_of(before).fields["at"]) == "timestamp"


@pytest.mark.parametrize(
    ("value_format", "policy", "message"),
    [
        ("json", {"dropped_field": "rescue"}, "dropped_field"),
        ("protobuf", {"dropped_field": "rescue"}, "dropped_field"),
        ("avro", {"dropped_field": "rescue"}, "dropped_field"),
        ("avro", "thaw", "schema_changes"),
    ],
)
def test_what_a_format_does_not_know_is_said_when_a_document_is_read(
    value_format: str, policy: Any, message: str
) -> None:
    source = {"bootstrap_servers": "h:1", "topics": ["t"], "registry": {"url": "http://h:2"}}
    more = {"value_format": value_format, "schema_changes": policy}
    with pytest.raises(ValidationError, match=message):
        KafkaSource.model_validate(source | more)


def test_a_field_with_the_name_of_the_column_of_what_is_rescued_is_refused() -> None:
    text = record(("id", "long"), ("_unknown_fields", "string"))
    source = KafkaSource.model_validate(
        {
            "bootstrap_servers": "h:1",
            "topics": ["t"],
            "value_format": "avro",
            "value_schema": text,
            "unknown_fields": "keep",
        }
    )
    with pytest.raises(ConfigError, match="has a field of that name"):
        _with_policy(WriterSchemas.single(text), source)


def test_one_word_is_for_all_kinds() -> None:
    for policy in Policy:
        setting = SETTING.validate_python(policy.value)
        gone = Policy.EVOLVE if policy is Policy.RESCUE else policy
        assert {setting.of(kind) for kind in ChangeKind} <= {policy, gone}
        assert setting.of(ChangeKind.DROPPED_FIELD) is gone
    assert SETTING.validate_python({}) == SETTING.validate_python("evolve")
    assert SETTING.validate_python({"new_field": "rescue"}).rescues


def test_the_strictest_of_a_columns_changes_decides_and_other_columns_go_their_way() -> None:
    before = [("x", OLD), ("y", "int"), ("z", "int")]
    now = [("x", place(("lat", "long"), ("lon", "int"))), ("y", "long"), ("z", "string"), ID]
    policies = {"new_nested_field": "rescue", "changed_type": "quarantine"}
    decided = SETTING.validate_python(policies).decide(between(before, now))
    assert {name: decided.policy(name) for name in ("x", "y", "z", "id")} == {
        "x": Policy.RESCUE,
        "y": Policy.EVOLVE,
        "z": Policy.QUARANTINE,
        "id": Policy.EVOLVE,
    }
    evolved = AVRO.evolve_except(record(*before), record(*now), decided.unchanged)
    assert AVRO.shape_of(evolved) == AVRO.shape_of(
        record(("x", OLD), ("y", "long"), ("z", "int"), ID)
    )


def test_a_type_of_one_name_that_two_columns_need_in_two_forms_is_told() -> None:
    before, now = (
        record(("x", OLD), ("y", OLD | {"name": "Other"})),
        record(("x", NEW), ("y", "Place")),
    )
    with pytest.raises(ValueError, match=r"shop\.Place"):
        AVRO.evolve_except(before, now, {"x"})


def test_a_type_that_is_defined_in_a_field_that_goes_is_defined_where_it_is_met_next() -> None:
    schema = record(("x", OLD), ("y", "Place"), ("s", enum("S", default="S")))
    assert AVRO.shape_of(AVRO.without(schema, {"x"})) == AVRO.shape_of(
        record(("y", OLD), ("s", enum("S")))
    )
    evolved = json.loads(AVRO.evolve_except(schema, record(("y", OLD)), {"s"}))
    assert "default" not in evolved["fields"][1]["type"]  # it would hide a symbol that is new


def test_a_writers_type_that_is_within_itself_is_looked_into_once() -> None:
    fields = [{"name": "id", "type": "long"}, {"name": "next", "type": ["null", "Row"]}]
    schema = {"type": "record", "name": "Row", "fields": fields}
    plain = {**schema, "fields": fields[:1]}
    assert unreadable(AVRO.shape_of(json.dumps(schema)), AVRO.shape_of(json.dumps(plain))) == []
    kind = Protobuf("")
    file = 'syntax = "proto3"; message Row { int64 id = 1; Row next = 2; }'
    files = [kind.self_contained(text, {}) for text in (file, file.replace("Row next = 2;", ""))]
    written, read = map(kind.shape_of, files)
    assert unreadable(written, read) == []


def test_a_writers_file_without_the_message_is_compared_with_nothing() -> None:
    kind = Protobuf("Row")
    read = kind.self_contained('syntax = "proto3"; message Row { int64 id = 1; }', {})
    other = kind.self_contained('syntax = "proto3"; message Else { string id = 1; }', {})
    assert unreadable(kind.shape_of(other), kind.shape_of(read)) == []
    assert kind.left_out(other, read) == []
    assert kind.left_out(read, other) == []
