"""A pipeline's document as JSON Schema, for editors and for `dg check yaml`.

Types, enums, defaults and bounds are pydantic's own; descriptions come from the docstrings.
Any value may also be a template, ``${NAME}`` or ``{{ env.NAME }}``, which is filled in later.

A choice is made by the value's kind (``if`` a text, ``then`` one of these words), not by trying all
branches (``anyOf``): errors then name the intended branch only.
The dialect is JSON Schema 2020-12, without references, so that it can be put into another schema.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from inspect import getdoc
from typing import Any

import docstring_parser
from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from eo_pipeline.errors import ConfigError
from eo_pipeline.pipeline import Pipeline
from eo_pipeline.sinks.registry import sink_class, sink_names
from eo_pipeline.tables import EachTable, Table

Schema = dict[str, Any]

_DIALECT = "https://json-schema.org/draft/2020-12/schema"
_TEMPLATE: Schema = {"type": "string", "pattern": r"\$\{|\{\{"}
_IMPORT_PATH: Schema = {"type": "string", "pattern": r"^[\w.]+:[\w.]+$"}
_REFERENCE = "#/$defs/"

#: Annotations beside a value's rules: they stay where an editor looks for them.
_REMARKS = ("description", "default", "writeOnly", "examples")

#: Of a pipeline with ``tables``, whose sink has no ``table``.
_WITHIN = "{} of the tables in `tables`; replaces `table`."

_NOT_NEEDED = ("title", "discriminator")

#: Keywords whose values are schemas.
_CHOICES = ("anyOf", "oneOf", "allOf")
_INSIDE = ("items", "additionalProperties", "propertyNames")


def document_schema() -> Schema:
    """Return the schema of a plain document, whose top level holds the pipeline's fields."""
    schema = model_schema(Pipeline)
    schema["properties"]["sink"] = sink_schema()
    schema["properties"]["tables"] |= tables_schema()
    return {"$schema": _DIALECT, **schema}


def tables_schema() -> Schema:
    """Return the schema of ``tables``: a list, or the fields of those that appear."""
    listed = {"type": "array", "items": model_schema(Table)}
    return {"if": {"type": "object"}, "then": model_schema(EachTable), "else": listed}


def sink_schema() -> Schema:
    """Return the schema of a sink: ``type``, and the fields of that sink alone."""
    names = sink_names()
    return {
        "description": "Store of the table and its ledger: `type` and the fields of that sink.",
        "type": "object",
        "properties": {"type": {"enum": names, "description": "Kind of store."}},
        "required": ["type"],
        "allOf": [_if_of_type(name) for name in names],
    }


def _if_of_type(name: str) -> Schema:
    try:
        then = model_schema(sink_class(name))
    except ConfigError:  # another package's, and broken: an error once it is used
        return {}
    then["properties"]["type"] = {"const": name}
    sink = sink_class(name)
    if sink.tables_session_class is not None:
        of_tables = {sink.table_field, *sink.of_one_table}
        then["required"] = [f for f in then.get("required", ()) if f not in of_tables]
        if within := sink.tables_within:
            described = _WITHIN.format(within.capitalize())
            then["properties"][within] = {"type": "string", "description": described}
    return {"if": {"properties": {"type": {"const": name}}, "required": ["type"]}, "then": then}


def model_schema(model: type[BaseModel]) -> Schema:
    """Return the schema of an object and those inside it, with their fields' descriptions."""
    raw = model.model_json_schema(mode="validation", schema_generator=_DocumentSchema)
    definitions = raw.pop("$defs", {})
    schema: Schema = _resolved(raw, definitions)
    return schema


class _DocumentSchema(GenerateJsonSchema):
    """Generate schemas of a document's values: import paths for functions, text for secrets."""

    def model_schema(self, schema: core_schema.ModelSchema) -> JsonSchemaValue:
        model: type[BaseModel] = schema["cls"]
        written = super().model_schema(schema)
        aliases = {name: field.alias or name for name, field in model.model_fields.items()}
        described = {aliases.get(n, n): text for n, text in _described_fields(model).items()}
        for name, field in written.get("properties", {}).items():
            if name in described:
                field.setdefault("description", described[name])
        docstring = docstring_parser.parse(getdoc(model) or "")
        return {**written, "description": _one_line(docstring.short_description)}

    def callable_schema(self, schema: core_schema.CallableSchema) -> JsonSchemaValue:  # noqa: ARG002
        return dict(_IMPORT_PATH)

    def datetime_schema(self, schema: core_schema.DatetimeSchema) -> JsonSchemaValue:  # noqa: ARG002
        """Accept a time, which YAML reads without quotes, and a text with quotes."""
        return {"format": "date-time"}

    def is_instance_schema(self, schema: core_schema.IsInstanceSchema) -> JsonSchemaValue:  # noqa: ARG002
        """Accept any value for a Python object; the document's form is described elsewhere."""
        return {}


def _described_fields(model: type[BaseModel]) -> dict[str, str]:
    """Return the descriptions of arguments in the docstrings of the model and its bases."""
    descriptions: dict[str, str] = {}
    for cls in model.__mro__:
        for argument in docstring_parser.parse(getdoc(cls) or "").params:
            for name in argument.arg_name.split(","):
                descriptions.setdefault(name.strip(), _one_line(argument.description))
    return descriptions


def _one_line(text: str | None) -> str:
    return " ".join((text or "").replace("``", "`").split())


def _resolved(schema: Schema, definitions: Mapping[str, Any]) -> Schema:
    """Return ``schema`` without references (no model contains itself), choices as conditions."""
    if reference := schema.get("$ref"):
        definition = definitions[str(reference).removeprefix(_REFERENCE)]
        schema = {**definition, **{k: v for k, v in schema.items() if k != "$ref"}}

    def resolve(key: str, value: Any) -> Any:
        if key == "properties":
            return {name: _resolved(v, definitions) for name, v in value.items()}
        if key in _CHOICES:
            return [_resolved(item, definitions) for item in value]
        inside = key in _INSIDE and isinstance(value, Mapping)
        return _resolved(dict(value), definitions) if inside else value

    return _or_template({k: resolve(k, v) for k, v in schema.items() if k not in _NOT_NEEDED})


def _or_template(schema: Schema) -> Schema:
    """Accept the value or a template. An object has no template, but its values may; a text
    without rules accepts both anyway.
    """
    choices = schema.get("anyOf") or schema.get("oneOf")
    if not choices:
        is_value = "type" in schema and schema["type"] != "object"
        has_rules = schema.keys() - {"type", *_REMARKS} or schema.get("type") != "string"
        return _unless_template(schema) if is_value and has_rules else schema
    remarks = {k: v for k, v in schema.items() if k in _REMARKS}
    return {**remarks, **_chosen(list(_bare(choices)))}


def _unless_template(schema: Schema) -> Schema:
    remarks = {k: v for k, v in schema.items() if k in _REMARKS}
    rules = {k: v for k, v in schema.items() if k not in _REMARKS}
    return {**remarks, "if": _TEMPLATE, "else": rules}


def _bare(choices: Sequence[Schema]) -> Iterator[Schema]:
    """Yield the choices without their own template rule: one covers them all."""
    for choice in choices:
        yield choice["else"] if choice.get("if") == _TEMPLATE else choice


def _chosen(choices: Sequence[Schema]) -> Schema:
    """Reduce the errors of a union to those of the choice whose kind the value has."""
    decided: Schema = {"type": sorted({choice["type"] for choice in choices})}
    conditions = [{"if": _kind(choice), "then": choice} for choice in choices if _has_rules(choice)]
    if conditions:
        decided["allOf"] = conditions
    return {"if": _TEMPLATE, "else": decided}


def _has_rules(schema: Schema) -> bool:
    return bool(schema.keys() - {"type", *_REMARKS})


def _kind(choice: Schema) -> Schema:
    """Return the fields that tell this choice from the others: its type and required fields."""
    kind = {"type": choice["type"]}
    return {**kind, "required": choice["required"]} if "required" in choice else kind
