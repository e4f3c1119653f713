"""The fields of a schema, as a catalog shows them before anything has run."""

from __future__ import annotations

import pytest
from pyspark.sql.types import DecimalType, LongType, StructField, StructType

from eo_pipeline.formats.ddl import Field, fault_of, fields_of


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


@pytest.mark.parametrize(
    "schema",
    [
        "id BIGINT NOT NULL COMMENT 'the order (a <copy>\\'s>) id', `odd ``name` struct<x: int>",
        "a:INT",
        "struct<a: int>",
        "s STRING COLLATE UTF8_LCASE, d DEC(38, 38), i INTERVAL YEAR TO MONTH, w timestamp_ntz",
        "m MAP<STRING, ARRAY<STRUCT<a:DECIMAL(3,1), `b c`: DATE NOT NULL>>>, d decimal(12,  2)",
        """a ARRAY<INT> COMMENT 'x, FOO<y>', b MAP<STRING,INT> comment "a > b, c FOO" """,
        "a-b INT, naïve INT",
        StructType([StructField("id", LongType(), False)]).json(),
    ],
)
def test_nothing_is_wrong_with_what_spark_reads(schema: str) -> None:
    assert fault_of(schema) is None


@pytest.mark.parametrize(
    ("schema", "fault"),
    [
        ("id BIGINTT NOT NULL", "field 'id' has the type BIGINTT, which Spark lacks; did you mean"),
        ("a INT, b STRUCT<x:INT, y: ARRAY<STRIN>>", "field 'b.y' has the type STRIN"),
        ("m MAP<STRING, strng> COMMENT 'x'", "field 'm' has the type strng"),
        ("id BIGINT, name", "field 'name' has no type"),
        ('{"type": "struct", "fields": [{"name": "id", "type": "longg"}]}', "JSON form"),
        ("id BIGINT, v VARCHAR(3)", "field 'v' has the type VARCHAR(3), and a record's text is a"),
        ("d DECIMAL(39,2)", "field 'd' has the type DECIMAL(39,2): Spark has 38 digits at most"),
        ("a ARRAY<DECIMAL(2,5)>", "field 'a' has the type DECIMAL(2,5): it has more decimal"),
        ("m MAP<INT, INT>", "field 'm' has keys of the type INT; JSON's are STRING"),
        ("id BIGINT, `ID` INT", "field 'ID' differs from id only in case"),
        ("id BIGINT, id INT", "field 'id' is named twice"),
        ("s STRUCT<id: BIGINT, ID: BIGINT>", "field 's.ID' differs from id only in case"),
        (
            StructType(
                [StructField("s", StructType([StructField(n, LongType()) for n in ("a", "A")]))]
            ).json(),
            "field 's.A' differs from a only in case",
        ),
        ("{", "it is not the JSON form of a StructType"),
    ],
)
def test_a_type_that_spark_lacks_is_told_without_it(schema: str, fault: str) -> None:
    assert fault in (fault_of(schema) or "")
