"""A field that holds a schema: its text, a ``StructType``, or the file that it stands in."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from eo_pipeline.settings import Settings


class SchemaFile(Settings):
    """A schema that stands in a file of its own.

    Args:
        file: its path; in a document relative to that.
    """

    file: str = Field(min_length=1)


#: What an object has that is a schema itself: a StructType, one of Avro, a JSON Schema.
_OF_A_SCHEMA = frozenset({"fields", "type", "properties", "$ref", "allOf", "$schema"})


def _schema_text(value: Any) -> Any:
    """Accept a pyspark ``StructType`` by its JSON form, and ``{file: PATH}`` by what is in it."""
    if isinstance(value, Mapping) and value.keys() & _OF_A_SCHEMA:
        return json.dumps(value)  # what Dagster makes of JSON in a document
    if isinstance(value, Mapping):
        value = SchemaFile.model_validate(value)
    if isinstance(value, SchemaFile):
        try:
            return Path(value.file).read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ValueError(f"{value.file} cannot be read: {error}") from None
    to_json = getattr(value, "json", None)
    return to_json() if callable(to_json) else value


SchemaText = Annotated[
    str | None,
    BeforeValidator(_schema_text, json_schema_input_type=str | SchemaFile | None),
]
