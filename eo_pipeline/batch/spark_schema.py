"""The Spark type that a source's ``value_schema`` writes."""

from __future__ import annotations

import json
from functools import lru_cache

from pyspark.errors import AnalysisException
from pyspark.sql.types import StructType

from eo_pipeline.errors import ConfigError
from eo_pipeline.formats import json_schema
from eo_pipeline.formats.wire_format import UNKNOWN_COLUMN
from eo_pipeline.kafka.source import KafkaSource


def value_schema(source: KafkaSource) -> StructType:
    """``source.value_schema`` as a Spark type.

    Raises:
        ConfigError: see :func:`parsed_schema`; or a field has a name that is taken.
    """
    schema = parsed_schema(source.value_schema or "")
    if source.keeps_unknown and UNKNOWN_COLUMN in schema.names:
        raise ConfigError(
            f"source.unknown_fields: keep makes a column {UNKNOWN_COLUMN!r}, and "
            "source.value_schema has a field of that name"
        )
    return schema


def parsed_schema(text: str) -> StructType:
    """The Spark type that ``text`` writes. Spark itself is asked, unless it is JSON.

    Raises:
        ConfigError: it is not a DDL string, not the JSON form of a StructType and no JSON Schema.
    """
    try:
        if json_schema.is_one(text):
            text = json_schema.spark_type(text)
        if text.lstrip().startswith("{"):
            return StructType.fromJson(json.loads(text))
        schema = StructType.fromDDL(text)
    except (AnalysisException, AssertionError, ValueError, KeyError) as error:
        reason = " ".join(str(error).partition("== SQL")[0].split())
        raise ConfigError(f"source.value_schema is not a Spark schema: {reason}") from error
    if not isinstance(schema, StructType):
        raise ConfigError(f"source.value_schema is a {schema.typeName()}; name the fields")
    return schema


def typed_source(source: KafkaSource) -> KafkaSource:
    """``source``, with schemas that Spark need not be asked about again."""
    parts = (
        ("value", str(source.value_format), source.value_schema),
        ("key", str(source.key_format), source.key_schema),
    )
    typed = {
        f"{name}_schema": schema_json(text)
        for name, kind, text in parts
        if text and kind == "json" and not json_schema.is_one(text)
    }
    return source.model_copy(update=typed)


@lru_cache(maxsize=16)
def schema_json(ddl: str) -> str:
    """Under the settings of staging the same for good."""
    return parsed_schema(ddl).json()
