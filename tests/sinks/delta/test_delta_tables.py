"""Delta tables of every shape: features, types, statistics, partitions, other readers."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from types import SimpleNamespace
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pytest
from pyspark.sql import types as T

from eo_pipeline.errors import (
    ConfigError,
    RefusedError,
    SchemaChangeError,
)
from eo_pipeline.ledger.entry import CHECKPOINT_COLUMN
from eo_pipeline.sinks.delta.types import TYPES
from tests.sinks.delta.delta_world import ID_ONLY, World, rows_of, table_of, with_features, world

__all__ = ["world"]


def test_a_table_with_a_check_that_files_would_bypass_is_refused(world: World) -> None:
    table_of(world, ID_ONLY).alter.add_constraint({"positive": "id > 0"})
    with pytest.raises(ConfigError, match=r"delta\.constraints\.positive"):
        world.start()


def test_a_table_with_a_feature_of_the_future_is_refused(world: World) -> None:
    table_of(world, ID_ONLY)
    with_features(world, "rowTracking")
    with pytest.raises(ConfigError, match="rowTracking"):
        world.start()


def test_features_that_delta_rs_gives_a_table_with_its_properties_do_no_harm(world: World) -> None:
    """It names variants as a feature of any table that names its features, as times without a zone
    make a table do.
    """
    wall = pa.array([None] * 3, pa.timestamp("us"))
    world.forward(rows_of(1, at=wall))
    world.observe().alter.set_table_properties({"delta.logRetentionDuration": "interval 9 days"})
    assert "variantType" in (world.observe().protocol().writer_features or [])
    world.forward(rows_of(2, at=wall))
    assert world.checkpoints() == {1: 3, 2: 3}


def test_a_map_of_times_that_delta_rs_does_not_see_is_refused() -> None:
    """Such a table would not have the feature that it needs; beside other such times it has."""
    within = T.StructType().add("at", T.TimestampNTZType())
    hidden = T.StructType().add("m", T.MapType(T.StringType(), within))
    with pytest.raises(SchemaChangeError, match="the map 'm' holds TIMESTAMP_NTZ"):
        TYPES.refuse_unknown(as_frame(hidden))
    TYPES.refuse_unknown(as_frame(hidden.add("s", T.ArrayType(within))))
    TYPES.refuse_unknown(
        as_frame(T.StructType().add("m", T.MapType(T.StringType(), T.TimestampType())))
    )


def as_frame(schema: T.StructType) -> Any:
    """What of a DataFrame is looked at."""
    return SimpleNamespace(schema=schema, columns=schema.names)


def test_a_null_where_the_table_takes_none_is_refused(world: World) -> None:
    strict = pa.schema([pa.field("id", pa.int64(), nullable=False), ID_ONLY.field(1)])
    table_of(world, strict)
    world.forward(rows_of(1))
    holes = rows_of(2).set_column(0, "id", pa.array([1, None, 3]))
    with pytest.raises(RefusedError, match="id"):
        world.forward(holes)
    with pytest.raises(RefusedError, match="id"):
        world.forward(rows_of(2).drop_columns(["id"]))
    assert world.checkpoints() == {1: 3}


def test_other_partition_columns_than_the_tables_are_refused(world: World) -> None:
    world.settings["partition_by"] = ["kind"]
    world.forward(rows_of(1, kind=pa.array(["a"] * 3)))
    world.settings["partition_by"] = ["id"]
    with pytest.raises(ConfigError, match="partitioned by kind"):
        world.head()


# Types, names, columns.


def test_a_column_without_time_zone_is_added_to_an_old_table(world: World) -> None:
    """The table's protocol must rise for it; delta-rs does that in the same commit."""
    table_of(world, ID_ONLY)
    wall = datetime(2013, 1, 1, 5, 15)  # noqa: DTZ001 - without a zone is the point
    world.forward(rows_of(1, at=pa.array([wall] * 3, pa.timestamp("us"))))
    assert {row["at"] for row in world.rows()} == {wall}
    assert "timestampNtz" in (world.observe().protocol().writer_features or [])


def test_nested_values_come_back_equal(world: World) -> None:
    nested: list[Any] = [
        {"a": [1, None], "m": [("k", {"d": date(2013, 1, 1)})]},
        None,
        {"a": [], "m": []},
    ]
    kind = pa.struct(
        [
            ("a", pa.list_(pa.int32())),
            ("m", pa.map_(pa.string(), pa.struct([("d", pa.date32())]))),
        ]
    )
    world.forward(rows_of(1, x=pa.array(nested, kind)))
    world.forward(rows_of(2, x=pa.array(nested, kind)), files=True)
    found = sorted(world.rows(), key=lambda row: row["id"])
    assert [row["x"] for row in found] == nested * 2


@pytest.mark.parametrize(
    ("values", "error"),
    [
        (pa.array([1, 2, 3], pa.uint32()), SchemaChangeError),
        (pa.nulls(3), SchemaChangeError),
        (pa.array([1, 2, 3], pa.time64("us")), SchemaChangeError),
        (pa.array([{"t": 1}] * 3, pa.struct([("t", pa.duration("us"))])), SchemaChangeError),
        (pa.array([1, 2, 3], pa.timestamp("ns", "UTC")), RefusedError),
    ],
    ids=str,
)
def test_what_delta_cannot_hold_is_refused_by_name(
    world: World, values: pa.Array, error: type[RefusedError]
) -> None:
    with pytest.raises(error, match="odd" if error is SchemaChangeError else "would lose data"):
        world.forward(rows_of(1, odd=values))
    assert [entry.version for entry in world.history()] == [0]


@pytest.mark.parametrize("name", ["a b", "a,b", "a;b", "a=b", "a(b", ""])
def test_a_name_delta_does_not_take_is_refused(world: World, name: str) -> None:
    with pytest.raises(RefusedError, match="Rename"):
        world.forward(rows_of(1, **{name: pa.array([1, 2, 3])}))


def test_a_name_that_differs_in_case_only_is_refused(world: World) -> None:
    world.forward(rows_of(1))
    with pytest.raises(SchemaChangeError, match="'ID'"):
        world.forward(rows_of(2).rename_columns(["ID", CHECKPOINT_COLUMN]))


def test_forms_of_one_type_are_stored_alike(world: World) -> None:
    """What Spark, pandas and Arrow call text or an instant is one column here."""
    noon = datetime(2013, 1, 1, 12, tzinfo=UTC)
    for version, (text, instant) in enumerate(
        [
            (pa.array(["a"] * 3), pa.array([noon] * 3, pa.timestamp("us", "UTC"))),
            (
                pa.array(["a"] * 3, pa.large_string()),
                pa.array([noon] * 3, pa.timestamp("ns", "UTC")),
            ),
            (
                pa.array(["a"] * 3).dictionary_encode(),
                pa.array([noon] * 3, pa.timestamp("s", "Asia/Tokyo")),
            ),
        ],
        start=1,
    ):
        world.forward(rows_of(version, text=text, instant=instant))
    assert {(row["text"], row["instant"]) for row in world.rows()} == {("a", noon)}


# Statistics.


def test_statistics_let_a_reader_skip_and_count(world: World) -> None:
    world.forward(rows_of(1), files=True)
    world.forward(rows_of(2), rows_of(3))
    table = world.observe()
    dataset = table.to_pyarrow_dataset()
    wanted = pa.compute.field("id") == 201
    assert len(list(dataset.get_fragments(filter=wanted))) == 1
    assert dataset.to_table(filter=wanted).num_rows == 1
    assert table.count() == 9


def test_no_bound_of_the_statistics_excludes_a_row(world: World) -> None:
    """Bounds are cut or rounded outwards; where none is certain, there is none."""
    long = "x" * 40
    world.forward(
        rows_of(
            1,
            text=pa.array([long + "a", long + "z", "a"]),
            top=pa.array(["y" * 32 + "\U0010ffff\U0010ffff"] * 3),
            at=pa.array(
                [datetime(2013, 1, 1, 0, 0, 0, 999_999, UTC)] * 3, pa.timestamp("us", "UTC")
            ),
            day=pa.array([date(1, 1, 1), date(9999, 12, 31), None]),
            price=pa.array([Decimal("-1.10"), Decimal("99999999999.99"), None]),
            number=pa.array([1.0, float("nan"), 2.0]),
            end=pa.array([datetime(9999, 12, 31, 23, 59, 59, 999_999)] * 3),  # noqa: DTZ001
        )
    )
    [action] = pa.table(world.observe().get_add_actions(flatten=True)).to_pylist()
    assert action["min.text"] <= "a"
    assert action["max.text"] >= long + "z"
    assert len(action["max.text"]) == 33
    assert action.get("max.top") is None
    assert action["max.at"] == datetime(2013, 1, 1, 0, 0, 1, tzinfo=UTC)
    assert action["min.at"] == datetime(2013, 1, 1, 0, 0, 0, 999_000, UTC)
    assert (action["min.day"], action["max.day"]) == (date(1, 1, 1), date(9999, 12, 31))
    assert (action["min.price"], action["max.price"]) == (
        Decimal("-1.10"),
        Decimal("99999999999.99"),
    )
    assert action.get("max.number") is None
    assert action.get("max.end") is None
    assert action["null_count.day"] == 1
    assert len(world.rows()) == 3


def test_a_table_too_wide_for_statistics_of_the_checkpoint_is_rewound_too(world: World) -> None:
    """Readers load the statistics of the first 32 columns: whose rows a file holds is not known."""
    wide = {f"c{n}": pa.array([n] * 3) for n in range(60)}
    for version in (1, 2, 3):
        rows = rows_of(version)
        world.forward(pa.table({**wide, **{name: rows[name] for name in rows.column_names}}))
    [action, *_] = pa.table(world.observe().get_add_actions(flatten=True)).to_pylist()
    assert action["max.c31"] == 31
    assert action.get(f"max.{CHECKPOINT_COLUMN}") is None
    world.rewind(1)
    assert world.checkpoints() == {1: 3}


# Layout by partition columns.


def test_partition_values_of_every_kind_come_back_equal(world: World) -> None:
    columns = {
        "word": pa.array(["a/b c=ü%:", None, "x"]),
        "day": pa.array([date(2013, 1, 1), None, date(1999, 12, 31)]),
        "yes": pa.array([True, None, False]),
        "price": pa.array([Decimal("1.10"), None, Decimal("-3.00")], pa.decimal128(10, 2)),
        "at": pa.array(
            [datetime(2013, 1, 1, 5, 15, 0, 7, UTC), None, datetime(2000, 1, 1, tzinfo=UTC)]
        ),
    }
    world.settings["partition_by"] = list(columns)
    world.forward(rows_of(1, **columns))
    found = sorted(world.rows(), key=lambda row: row["id"])
    assert [{n: row[n] for n in columns} for row in found] == pa.table(columns).to_pylist()
    frame = pl.read_delta(str(world.root)).sort("id")
    assert frame["day"].to_list() == columns["day"].to_pylist()


def test_files_staged_for_another_layout_are_refused(world: World) -> None:
    """Scenario: promised while the table had no partitions, found after it was made anew."""
    world.settings["partition_by"] = ["word"]
    with pytest.raises(RefusedError, match="2 values of the partition column 'word'"):
        world.forward(rows_of(1, word=pa.array(["a", "b", "b"])), files=True)


def test_a_partitioned_table_must_be_configured_as_such(world: World) -> None:
    world.settings["partition_by"] = ["word"]
    world.forward(rows_of(1, word=pa.array(["a"] * 3)))
    world.settings["partition_by"] = []
    with pytest.raises(ConfigError, match="partitioned by word, not by nothing"):
        world.head()


def test_an_empty_text_to_partition_by_is_refused(world: World) -> None:
    world.settings["partition_by"] = ["word"]
    with pytest.raises(RefusedError, match="word"):
        world.forward(rows_of(1, word=pa.array(["", "a", "b"])))


# Readers.


def test_polars_and_duckdb_read_the_same(world: World) -> None:
    world.forward(rows_of(1), files=True)
    world.forward(rows_of(2, word=pa.array(["a", None, "ü"])))
    frame = pl.read_delta(str(world.root)).sort("id")
    assert frame["word"].to_list() == [None, None, None, "a", None, "ü"]
    rows = world.observe().to_pyarrow_dataset()
    assert rows is not None
    found = duckdb.sql(f"select count(*), sum({CHECKPOINT_COLUMN}) from rows")
    assert found is not None
    assert found.fetchall() == [(6, 9)]
