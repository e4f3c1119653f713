"""What `eo init` makes of values: types wide enough for all of them, and no wider."""

from __future__ import annotations

import json
from typing import Any

import pytest

from eo_pipeline.cli.sampling import InferredSchema, infer_schema


def seen(*values: Any) -> InferredSchema:
    """A sample of JSON values; bytes and None are taken as they are."""
    as_bytes = (v if isinstance(v, bytes) or v is None else json.dumps(v).encode() for v in values)
    return infer_schema(as_bytes)


def type_of(*values: Any) -> str:
    """The type of one field that had these values in turn."""
    return seen(*({"x": value} for value in values)).ddl().removeprefix("x ")


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([1, -5], "BIGINT"),
        ([1, 2.5], "DOUBLE"),
        ([2**63], "DECIMAL(38,0)"),
        ([1, -(2**63) - 1], "DECIMAL(38,0)"),
        ([2**63, 0.5], "STRING"),
        ([10**38], "STRING"),
        ([True, False], "BOOLEAN"),
        ([True, 1], "STRING"),
        (["a", 1], "STRING"),
        (["2026-01-31", "2025-12-01"], "DATE"),
        (["2026-02-30"], "STRING"),
        (["2026-01-31T12:00Z", "2026-01-31 12:00:00.123456+02:00"], "TIMESTAMP"),
        (["2026-01-31T25:00:00"], "STRING"),
        (["2026-01-31", "2026-01-31T12:00:00"], "STRING"),
        (["2026-01-31 at noon"], "STRING"),
        ([None, 7], "BIGINT"),
        ([None], "STRING"),
        ([[1, 2], [], [0.5]], "ARRAY<DOUBLE>"),
        ([[]], "ARRAY<STRING>"),
        ([[1], {"a": 1}], "STRING"),
        ([{}], "STRING"),
        ([{"a": 1}, {"b": "2026-01-31"}], "STRUCT<a: BIGINT, b: DATE>"),
        ([{"a": [{"b c": 1}]}], "STRUCT<a: ARRAY<STRUCT<`b c`: BIGINT>>>"),
        ([{"a": 1, "A": 2}], "STRING"),
    ],
)
def test_a_field_gets_the_narrowest_type_that_holds_all_its_values(
    values: list[Any], expected: str
) -> None:
    assert type_of(*values) == expected


def test_not_null_is_never_guessed_unless_asked_for() -> None:
    found = seen({"id": 1, "name": "a"}, {"id": 2, "name": None}, {"id": 3})
    assert found.ddl() == "id BIGINT,\nname STRING"
    assert found.ddl(not_null=True) == "id BIGINT NOT NULL,\nname STRING"


def test_what_is_not_one_json_object_is_counted_and_not_looked_into() -> None:
    found = seen({"id": 1}, b"{", b"[1]", b'"text"', b"\xff\xfe", None, b"\x00\x00\x00\x00\x07avro")
    assert (found.records, found.good, found.tombstones, found.bad, found.framed) == (7, 1, 1, 5, 1)
    assert found.ddl() == "id BIGINT"


def test_deeply_nested_values_are_bad_and_do_not_end_the_sampling() -> None:
    assert seen(b"[" * 100_000, {"id": 1}).bad == 1


def test_names_that_spark_or_the_pipeline_would_mix_up_are_left_out_with_the_reason() -> None:
    found = seen({"Id": 1, "ID": 2, "_eo_offset": 3, "_kafka": 4, "": 5, "a`b": 6})
    assert found.ddl() == "Id BIGINT,\n`a``b` BIGINT"
    assert set(found.left_out()) == {"ID", "_eo_offset", "_kafka", ""}
    assert found.left_out()["ID"] == "differs from Id only in case"


def test_a_field_that_was_never_anything_but_null_is_told() -> None:
    assert seen({"id": 1, "ghost": None}).unknown() == ["ghost"]
