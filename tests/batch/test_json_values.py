"""What a JSON record holds reaches the table as it is, or the record is bad and says why."""

from __future__ import annotations

import json
from typing import Any

import pytest

from eo_pipeline.cli.views import report_line
from eo_pipeline.dagster.metadata import entry_metadata, offsets_metadata
from eo_pipeline.errors import BadRecordError, ConfigError
from eo_pipeline.runs.report import RunReport
from tests.support.engine import Bench

NESTED = (
    "id BIGINT NOT NULL, place STRUCT<city: STRING NOT NULL, at: STRUCT<lat: DOUBLE>>, "
    "lines ARRAY<STRUCT<sku: STRING>>"
)


def write(bench: Bench, *values: object) -> None:
    for value in values:
        text = value if isinstance(value, bytes) else json.dumps(value).encode()
        bench.topic.write_value(text)


def run(bench: Bench, **source: Any) -> RunReport:
    return bench.pipeline(source=source).run()


@pytest.mark.core
def test_fields_that_the_schema_does_not_name_are_counted_and_named(bench: Bench) -> None:
    write(bench, {"id": 1, "name": "a"}, {"id": 2, "colour": "red"}, {"id": 3, "size": 4, "x": 1})
    report = run(bench)
    [checkpoint] = [checkpoint for checkpoint in report.checkpoints if checkpoint.entry.ranges]
    counts = checkpoint.entry.counts
    assert counts.unknown == 2
    assert counts.unknown_fields == ("colour", "size", "x")
    assert "2 records with unknown fields (colour, size, x)" in report_line(checkpoint)
    assert offsets_metadata(checkpoint.entry)["unknown_fields"] == "colour, size, x"
    assert entry_metadata(checkpoint.entry)["unknown"].text == "2"
    # the ledger holds it, for whoever looks later
    [(stored,)] = bench.table.query("select counts from eo_ledger where version = 1")
    assert (stored["unknown"], stored["unknown_fields"]) == (2, ["colour", "size", "x"])


def test_a_field_that_is_null_or_absent_is_no_unknown_one(bench: Bench) -> None:
    write(bench, {"id": 1, "name": None}, {"id": 2}, {"name": "x", "id": 3})
    counts = run(bench).head.counts
    assert (counts.unknown, counts.unknown_fields) == (0, ())


def test_names_of_unknown_fields_do_not_fill_the_ledger(bench: Bench) -> None:
    """Keys may be data: {"user-1": ..., "user-2": ...}."""
    write(bench, *({"id": i, **{f"{i}-{k}-" + "x" * 500: 1 for k in range(100)}} for i in range(9)))
    counts = run(bench).head.counts
    assert counts.unknown == 9
    assert 0 < len(counts.unknown_fields) <= 20
    assert max(map(len, counts.unknown_fields)) <= 100


def test_unknown_fields_can_be_kept_in_one_column(bench: Bench) -> None:
    big = b'{"id": 2, "amount": 12345678901234567.25, "tags": {"a": [1, null]}, "text": "1"}'
    write(bench, {"id": 1, "name": "a"}, big)
    counts = run(bench, unknown_fields="keep").head.counts
    kept = dict(bench.table.query("select id, _unknown_fields from events"))
    assert kept == {
        1: None,
        2: '{"amount":12345678901234567.25,"tags":{"a":[1,null]},"text":"1"}',
    }
    assert counts.unknown == 1


def test_unknown_fields_can_make_a_record_bad(bench: Bench) -> None:
    write(bench, {"id": 1, "name": "a"}, {"id": 2, "colour": "red"})
    with pytest.raises(BadRecordError, match=r"offset 1: .* does not name: colour"):
        run(bench, unknown_fields="fail")
    report = run(bench, unknown_fields="fail", on_bad_record="dead_letter")
    assert (report.rows, report.head.counts.dead_letters) == (1, 1)


@pytest.mark.core
def test_nested_unknown_fields_are_named_by_their_path_and_kept_with_what_they_are_in(
    bench: Bench,
) -> None:
    fields = {"id": 1, "place": {"city": "x", "at": {"lat": 1.5}}, "lines": [{"sku": "a"}]}
    place = {"city": "y", "at": {"lat": 2.5, "lon": 3}}
    lines = [{"sku": "a"}, {"sku": "b", "price": 4}]
    write(bench, fields, {"id": 2, "place": place}, {"id": 3, "place": None, "lines": lines})
    counts = run(bench, value_schema=NESTED, unknown_fields="keep").head.counts
    assert counts.unknown_fields == ("lines.price", "place.at.lon")
    kept = dict(bench.table.query("select id, _unknown_fields::jsonb from events"))
    assert kept == {1: None, 2: {"place": place}, 3: {"lines": lines}}


@pytest.mark.core
def test_a_schema_with_the_column_of_the_kept_fields_is_refused(bench: Bench) -> None:
    write(bench, {"id": 1})
    schema = "id BIGINT, _unknown_fields STRING"
    with pytest.raises(ConfigError, match="_unknown_fields"):
        run(bench, value_schema=schema, unknown_fields="keep")


#: value_schema, a value that fits, one that does not, and what is said of it
UNFIT: list[tuple[str, object, object, str]] = [
    (NESTED, {"id": 1}, {"id": 1, "place": {"at": None}}, "'place.city' is missing or null"),
    (
        "amount DECIMAL(10,2)",
        b'{"amount": 99999999.990}',
        b'{"amount": 1.005}',
        "'amount' is no decimal number, or has more decimal places or digits than DECIMAL(10,2)",
    ),
    (
        "lines ARRAY<STRUCT<price: DECIMAL(10,2)>>",
        {"lines": [{"price": 1.25}, {"price": None}]},
        {"lines": [{"price": 1.25}, {"price": 1.255}]},
        "'lines[].price'",
    ),
    ("n TINYINT", {"n": -128}, {"n": 200}, "'n' is no whole number, or is out of range for TINY"),
    (
        "at TIMESTAMP",
        {"at": 1_700_000_000},
        {"at": 1_700_000_000_000},
        "'at' is no time as 2026-01-31T08:30:00.125Z to the microsecond, or is outside the years",
    ),
    # as seconds it runs over, and comes out somewhere within the years
    ("at TIMESTAMP", {"at": 0}, {"at": 1_745_089_571_123_456}, "'at' is no time as"),
    ("day DATE", {"day": "2026-01-31"}, {"day": "20260131"}, "'day' is no date as 2026-01-31"),
    ("name STRING", {"name": "é"}, b'{"name": "\xff"}', "not valid UTF-8"),
    ("name STRING", {"name": "C:\\ud800 \U0001f600"}, b'{"name": "\\ud83d x"}', "half a character"),
    ("name STRING", {"name": "a"}, b'{"name": "a", "name": "b"}', "a field is written twice"),
    ("name STRING", {"name": "}{"}, b'{"name": "a"}\n{"name": "b"}', "more than one JSON object"),
]


@pytest.mark.parametrize(("schema", "fits", "unfit", "reason"), UNFIT)
def test_a_value_that_would_change_on_its_way_makes_the_record_bad(
    bench: Bench, schema: str, fits: object, unfit: object, reason: str
) -> None:
    write(bench, fits, unfit)
    report = run(bench, value_schema=schema, on_bad_record="dead_letter")
    letters = bench.table.query('select "offset", error from events_dead_letters')
    assert [offset for offset, _ in letters] == [1]
    assert reason in letters[0][1]
    assert (report.rows, report.head.counts.records) == (1, 2)


@pytest.mark.core
def test_values_that_fit_arrive_exact(bench: Bench) -> None:
    schema = "amount DECIMAL(10,2), n TINYINT, at TIMESTAMP, lines ARRAY<STRUCT<p: DECIMAL(4,1)>>"
    value = b'{"amount": 12345678.9, "n": -7, "at": 1700000000, "lines": [{"p": 1.5}, null]}'
    write(bench, value)
    run(bench, value_schema=schema)
    columns = "amount::text, n::text, extract(epoch from at)::bigint::text, lines::jsonb"
    assert bench.table.query(f"select {columns} from events") == [
        ("12345678.90", "-7", "1700000000", [{"p": 1.5}, None])
    ]
