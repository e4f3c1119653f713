"""Policies for changes of a registry's schema, through to the table: each told by its rows."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from eo_pipeline.embedded.registry import EmbeddedRegistry
from eo_pipeline.errors import SchemaChangeError
from tests.formats.test_avro_everywhere import delta_rows, iceberg_rows
from tests.support.engine import Bench
from tests.support.registry import AvroTopic, record


def enum(*symbols: str, **more: Any) -> dict[str, Any]:
    return {"type": "enum", "name": "Size", "symbols": list(symbols), **more}


def place(**fields: str) -> dict[str, Any]:
    declared = [{"name": name, "type": kind} for name, kind in fields.items()]
    return {"type": "record", "name": "Place", "fields": declared}


def money(precision: int, scale: int) -> dict[str, Any]:
    return {"type": "bytes", "logicalType": "decimal", "precision": precision, "scale": scale}


BEFORE = record(
    *(("id", "long"), ("q", "int"), ("code", "int"), ("gone", ["null", "string"], None)),
    *(("size", enum("S", "M", default="S")), ("at", place(lat="int")), ("price", money(5, 2))),
)
NOW = record(
    *(("id", "long"), ("q", "long"), ("code", "string")),
    *(("size", enum("S", "M", "L", default="S")), ("at", place(lat="int", lon="int"))),
    *(("price", money(9, 4)), ("colour", ["null", "string"], None)),
)
OLD = {"id": 1, "q": 1, "code": 7, "gone": "x", "size": "M", "at": {"lat": 1}}
OLD["price"] = Decimal("1.25")
NEW = {"id": 2, "q": 2**40, "code": "A7", "size": "L", "at": {"lat": 2, "lon": 3}}
NEW |= {"price": Decimal("123.4567"), "colour": "red"}
FITS = {"id": 3, "q": 3, "code": "A7", "size": "S", "at": {"lat": 4, "lon": 5}}
FITS |= {"price": Decimal("1.5"), "colour": None}


def rows(bench: Bench, columns: str) -> list[tuple[Any, ...]]:
    return bench.table.query(f"select {columns} from events order by id")


def with_policy(bench: Bench, policy: Any, **source: Any) -> Any:
    return bench.pipeline(source={"schema_changes": policy, **source})


def test_a_frozen_schema_is_refused_before_anything_is_read(
    avro_bench: Bench, orders: AvroTopic
) -> None:
    orders.write(record(("id", "long")), {"id": 1})
    with_policy(avro_bench, "freeze").run()
    orders.write(record(("id", "long"), ("x", "string")), {"id": 2, "x": "!"})
    frozen = with_policy(avro_bench, {"new_field": "freeze"})
    with pytest.raises(SchemaChangeError, match=r"new field: x \(string\)") as raised:
        frozen.run()
    assert "say evolve, rescue or quarantine for new_field" in str(raised.value)
    assert "new field: x (string): freeze" in str(frozen.plan_run().reader)
    assert rows(avro_bench, "id") == [(1,)]
    head = with_policy(avro_bench, {"new_field": "rescue", "dropped_field": "freeze"}).run().head
    assert head.counts.unknown_fields == ("x",)
    assert rows(avro_bench, "id, _unknown_fields") == [(1, None), (2, '{"x":"!"}')]


def test_what_is_rescued_goes_into_one_column_and_what_fits_where_it_did(
    avro_bench: Bench, orders: AvroTopic, registry: EmbeddedRegistry
) -> None:
    """All kinds at once; and a replay reads as then, with no registry."""
    orders.write(BEFORE, OLD)
    pipeline = with_policy(avro_bench, "rescue")
    pipeline.run()
    orders.write(NOW, NEW, FITS)
    orders.write(BEFORE, {**OLD, "id": 4})
    head = pipeline.run().head
    avro_bench.table.assert_holds_once(orders.written)
    table = rows(avro_bench, "id, q, code, size, at, price, _unknown_fields::json")
    new_code, whole = {"code": "A7"}, {"lat": 2, "lon": 3}
    rescued = {**new_code, "q": 2**40, "size": "L", "at": whole, "colour": "red"}
    assert table == [
        (1, 1, 7, "M", {"lat": 1}, Decimal("1.25"), None),
        (2, None, None, None, {"lat": 2}, None, {**rescued, "price": 123.4567}),
        (3, 3, None, "S", {"lat": 4}, Decimal("1.50"), {**new_code, "at": {"lat": 4, "lon": 5}}),
        (4, 1, 7, "M", {"lat": 1}, Decimal("1.25"), {"gone": "x"}),
    ]
    registry.kill()
    pipeline.replay(head.version)
    assert rows(avro_bench, "id, q, code, size, at, price, _unknown_fields::json") == table
    assert pipeline.audit().findings == ()


def test_a_decimal_with_more_places_keeps_what_was_written_with_fewer(
    avro_bench: Bench, orders: AvroTopic
) -> None:
    """Avro itself compares the digits alone: 1.25 would become 0.0125."""
    orders.write(
        record(("id", "long"), ("price", money(5, 2))), {"id": 1, "price": Decimal("1.25")}
    )
    avro_bench.pipeline().run()
    now = record(("id", "long"), ("price", ["null", money(9, 4)], None))
    orders.write(now, {"id": 2, "price": Decimal("1.2345")})
    orders.write(
        record(("id", "long"), ("price", money(5, 2))), {"id": 3, "price": Decimal("2.25")}
    )
    avro_bench.pipeline().run()
    expected = [(1, Decimal("1.25")), (2, Decimal("1.2345")), (3, Decimal("2.25"))]
    assert rows(avro_bench, "id, price") == expected


def test_records_that_need_a_quarantined_change_are_dead_letters(
    avro_bench: Bench, orders: AvroTopic
) -> None:
    orders.write(BEFORE, OLD)
    pipeline = with_policy(avro_bench, "quarantine", on_bad_record="dead_letter")
    pipeline.run()
    orders.write(NOW, NEW)
    orders.write(BEFORE, {**OLD, "id": 4})
    head = pipeline.run().head
    assert rows(avro_bench, "id, q, gone") == [(1, 1, "x"), (4, 1, "x")]
    (error,) = avro_bench.table.query("select error from events_dead_letters")[0]
    for change in ("colour", "at.lon", "gone", "widened type: q", "changed type: code"):
        assert change in error
    pipeline.replay(head.version)
    assert rows(avro_bench, "id") == [(1,), (4,)]


def test_what_was_quarantined_is_brought_back_once_the_policy_lets_it(
    avro_bench: Bench, orders: AvroTopic
) -> None:
    """Found before: a redrive read with the reader of then, and its decisions; and a replay of the
    checkpoint that was redriven set all aside again.
    """
    before = record(("id", "long"), ("code", "int"), ("size", enum("S", default="S")))
    now = record(
        *(("id", "long"), ("code", "long"), ("size", enum("S", "L", default="S"))),
        ("colour", ["null", "string"], None),
    )
    orders.write(before, {"id": 1, "code": 1, "size": "S"})
    strict = with_policy(avro_bench, "quarantine", on_bad_record="dead_letter")
    strict.run()
    orders.write(now, {"id": 2, "code": 2**40, "size": "L", "colour": "red"})
    orders.write(before, {"id": 3, "code": 3, "size": "S"})
    version = strict.run().head.version
    assert rows(avro_bench, "id") == [(1,), (3,)]
    strict.plan_redrive().apply(reason="still")
    assert rows(avro_bench, "id") == [(1,), (3,)]
    lenient = with_policy(avro_bench, "evolve", on_bad_record="dead_letter")
    lenient.plan_redrive().apply(reason="the change is meant")
    expected = [(1, 1, "S", None), (2, 2**40, "L", "red"), (3, 3, "S", None)]
    assert rows(avro_bench, "id, code, size, colour") == expected
    assert avro_bench.table.query("select count(*) from events_dead_letters") == [(0,)]
    lenient.replay(version)
    assert rows(avro_bench, "id, code, size, colour") == expected
    orders.write(now, {"id": 4, "code": 4, "size": "L", "colour": "blue"})
    lenient.run()
    assert rows(avro_bench, "id, colour")[3:] == [(4, "blue")]
    assert lenient.audit().findings == ()


@pytest.mark.parametrize("kind", ["new_field", "dropped_field", "new_enum_value"])
def test_one_kind_is_quarantined_and_the_others_followed(
    avro_bench: Bench, orders: AvroTopic, kind: str
) -> None:
    before = record(("id", "long"), ("size", enum("S", default="S")), ("gone", "string"))
    now = record(("id", "long"), ("size", enum("S", "L", default="S")), ("new", "string", ""))
    orders.write(before, {"id": 1, "size": "S", "gone": "x"})
    pipeline = with_policy(avro_bench, {kind: "quarantine"}, on_bad_record="dead_letter")
    pipeline.run()
    orders.write(now, {"id": 2, "size": "L", "new": "!"}, {"id": 3, "size": "S", "new": "!"})
    pipeline.run()
    good = [(1,), (3,)] if kind == "new_enum_value" else [(1,)]
    assert rows(avro_bench, "id") == good
    columns = {name for (name,) in avro_bench.table.query(
        "select column_name from information_schema.columns where table_name = 'events'"
    )}  # fmt: skip
    assert ("new" in columns) == (kind != "new_field")


def test_all_that_a_store_can_follow_is_followed(
    avro_bench: Bench, orders: AvroTopic, tmp_path: Path
) -> None:
    lakes = {
        "delta": {"type": "delta", "path": str(tmp_path / "delta")},
        "iceberg": {"type": "iceberg", "table": "ops.events", "warehouse": str(tmp_path / "ice")},
    }
    benches = {
        name: Bench(avro_bench.topic, avro_bench.table, {**avro_bench.config, "sink": sink})
        for name, sink in lakes.items()
    }
    before = record(("id", "long"), ("q", "int"), ("f", "float"), ("at", place(lat="int")))
    now = record(
        *(("id", "long"), ("q", "long"), ("f", "double"), ("at", place(lat="int", lon="int"))),
        ("size", enum("S"), "S"),
    )
    orders.write(before, {"id": 1, "q": 1, "f": 0.5, "at": {"lat": 1}})
    pipelines = [avro_bench.pipeline(), *(other.pipeline() for other in benches.values())]
    for pipeline in pipelines:
        pipeline.run()
    orders.write(now, {"id": 2, "q": 2**40, "f": 0.1, "at": {"lat": 2, "lon": 3}, "size": "S"})
    columns = avro_bench.pipeline().run().checkpoints[-1].columns  # what Dagster's catalog shows
    assert columns is not None
    assert (columns["q"], columns["f"], columns["size"]) == ("bigint", "double precision", "text")
    benches["iceberg"].pipeline().run()
    with pytest.raises(SchemaChangeError, match="typeWidening"):
        benches["delta"].pipeline().run()
    rescuing = {"widened_type": "rescue"}
    benches["delta"].pipeline(source={"schema_changes": rescuing}).run()
    at = [{"lat": 1, "lon": None}, {"lat": 2, "lon": 3}]
    assert rows(avro_bench, "q, f, at, size") == [
        (1, 0.5, {"lat": 1}, None),
        (2**40, 0.1, at[1], "S"),
    ]
    followed = sorted(iceberg_rows(tmp_path / "ice").to_pylist(), key=lambda row: row["id"])
    assert [(row["q"], row["f"], row["at"], row["size"]) for row in followed] == [
        (1, 0.5, at[0], None),
        (2**40, 0.1, at[1], "S"),
    ]
    kept = sorted(delta_rows(tmp_path / "delta").to_pylist(), key=lambda row: row["id"])
    assert [(row["q"], row["f"], row["at"], row["size"]) for row in kept] == [
        (1, 0.5, at[0], None),
        (None, None, at[1], "S"),
    ]
    assert json.loads(kept[1]["_unknown_fields"]) == {"q": 2**40, "f": 0.1}
