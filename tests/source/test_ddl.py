"""The fields of a schema, as a catalog shows them before anything has run."""

from __future__ import annotations

from pyspark.sql.types import DecimalType, LongType, StructField, StructType

from eo_pipeline.source.ddl import Field, fields_of


def test_names_types_and_comments_are_those_of_the_document() -> None:
    schema = """
        id BIGINT NOT NULL COMMENT 'the order''s, or (a <copy>\\'s>) id',
        `odd ``name` struct<x: int, y: array<string>>,
        amount decimal(12,  2), day: date not null
    """.replace("''s", "s")
    assert fields_of(schema) == (
        Field("id", "BIGINT", True, "the orders, or (a <copy>'s>) id"),
        Field("odd `name", "struct<x: int, y: array<string>>"),
        Field("amount", "DECIMAL(12, 2)"),
        Field("day", "DATE", True),
    )


def test_a_struct_type_is_read_by_its_json_form() -> None:
    fields = [
        StructField("id", LongType(), False, {"comment": "whose"}),
        StructField("amount", DecimalType(12, 2)),
    ]
    assert fields_of(StructType(fields).json()) == (
        Field("id", "BIGINT", True, "whose"),
        Field("amount", "DECIMAL(12,2)"),
    )


def test_what_cannot_be_told_without_spark_is_not_guessed() -> None:
    for schema in (None, "", "BIGINT", "{}", "{", "struct<a: int>"):
        assert fields_of(schema) == ()
