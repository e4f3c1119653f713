"""Partitioned Delta tables: every reader sees the same rows, whoever wrote which file and how."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder, write_deltalake
from pyspark.sql import types as T

from eo_pipeline.crashpoints import CrashPoint
from eo_pipeline.errors import ConfigError, RefusedError
from eo_pipeline.ledger.entry import CHECKPOINT_COLUMN
from eo_pipeline.sinks.capabilities import Maintenance
from eo_pipeline.sinks.delta.layout import refuse_layout
from eo_pipeline.sinks.delta.log import is_removable
from eo_pipeline.testing import child_of, crash_at
from eo_pipeline.testing.faults import dies
from tests.sinks.delta.delta_world import World, rows_of, world
from tests.sinks.maintaining import AT_ONCE, maintain

__all__ = ["world"]

#: Values at the edges of their types, by which a table may be laid out.
VALUES = {
    "text": pa.array(["a b=c/d%20ü#?:{}[]^'\"\\~.", "..", " ", "null", "日" * 27, "t" * 250, None]),
    "yes": pa.array([True, False, None]),
    "tiny": pa.array([-(2**7), 2**7 - 1, None], pa.int8()),
    "number": pa.array([-(2**63), 2**63 - 1, 0, None], pa.int64()),
    "exact": pa.array([Decimal("0.00"), Decimal("99999999.99"), None], pa.decimal128(10, 2)),
    "whole": pa.array([Decimal(-(10**37)), Decimal(10**37), None], pa.decimal128(38, 0)),
    "day": pa.array([date(1, 1, 1), date(1969, 12, 31), date(9999, 12, 31), None]),
    "instant": pa.array(
        [
            datetime(1, 1, 1, tzinfo=UTC),
            datetime(1969, 12, 31, 23, 59, 59, 999999, UTC),
            datetime(9999, 12, 31, 23, 59, 59, 999999, UTC),
            None,
        ],
        pa.timestamp("us", "UTC"),
    ),
    "local": pa.array(
        [datetime(1, 1, 1), datetime(1969, 12, 31, 23, 59, 59, 7), None],  # noqa: DTZ001
        pa.timestamp("us"),
    ),
}


def readers(path: str) -> Iterator[tuple[str, pa.Table]]:
    """What each of them reads."""
    table = DeltaTable(path)
    yield "polars", pl.read_delta(path).to_arrow()
    yield "arrow", table.to_pyarrow_table()
    yield "datafusion", pa.table(QueryBuilder().register("t", table).execute("SELECT * FROM t"))


def assert_readers_agree(world: World, expected: dict[int, Any]) -> None:
    """On the value of the column ``c`` of each id."""
    for reader, table in readers(str(world.root)):
        found = {row["id"]: row["c"] for row in table.select(["id", "c"]).to_pylist()}
        assert (reader, found, table.num_rows) == (reader, expected, len(expected))


def batch(checkpoint: int, values: pa.Array) -> pa.Table:
    return rows_of(checkpoint, len(values), c=values)


@pytest.mark.parametrize("name", VALUES)
def test_each_reader_has_the_values_back_whoever_wrote_them(world: World, name: str) -> None:
    """By us, from memory and from files; put together; by delta-rs; without rows that a replay and
    a rewind took out of files of several checkpoints.
    """
    values = VALUES[name]
    world.settings = {"partition_by": ["c"]}
    expected = dict[int, Any]()
    for number in range(1, 7):
        world.forward(batch(number, values))
        expected |= {number * 100 + i: value for i, value in enumerate(values.to_pylist())}
    assert_readers_agree(world, expected)
    maintain(world.sink(), "p", AT_ONCE)
    assert len(world.files()) == len(values)
    assert_readers_agree(world, expected)
    world.forward(batch(7, values))
    expected |= {700 + i: value for i, value in enumerate(values.to_pylist())}
    assert_readers_agree(world, expected)
    world.replay(2, batch(2, values[:1]))
    for gone in range(201, 200 + len(values)):
        del expected[gone]
    assert_readers_agree(world, expected)
    world.optimize()
    assert_readers_agree(world, expected)
    world.rewind(4)
    assert_readers_agree(world, {i: value for i, value in expected.items() if i < 500})
    world.forward(batch(9, values))
    expected |= {900 + i: value for i, value in enumerate(values.to_pylist())}
    left = {i: value for i, value in expected.items() if i < 500 or i >= 900}
    assert_readers_agree(world, left)  # files of delta-rs beside ours
    maintain(world.sink(), "p", AT_ONCE)
    assert_readers_agree(world, left)
    assert set(map(str, (world.root).rglob("part-*.parquet"))) == set(), "delta-rs' are gone"


def test_files_that_were_staged_lie_in_the_folders_of_their_values(world: World) -> None:
    world.settings = {"partition_by": ["c", "d"]}
    rows = rows_of(1, c=pa.array(["a/b"] * 3), d=pa.array([None] * 3, pa.int64()))
    world.forward(rows, files=True)
    [file] = world.files()
    assert "/published/000000/c=a%2Fb/d=__HIVE_DEFAULT_PARTITION__/" in file
    assert_readers_agree(world, dict.fromkeys((100, 101, 102), "a/b"))


@pytest.mark.parametrize("name", [name for name in VALUES if name not in ("exact", "whole")])
def test_each_reader_has_upserted_values_back(world: World, name: str) -> None:
    values = VALUES[name]
    world.settings = {"mode": "upsert", "partition_by": ["c"], "key": ["id"], "sequence_by": ["n"]}
    ids, kind = range(len(values)), pa.int64()
    expected = dict(enumerate(values.to_pylist()))
    for number in (1, 2, 3):
        columns = {"id": pa.array(ids, kind), "c": values, "n": pa.array([number] * len(ids), kind)}
        checkpoint = pa.array([number] * len(ids), kind)
        world.forward(pa.table({**columns, CHECKPOINT_COLUMN: checkpoint}))
        assert_readers_agree(world, expected)
    maintain(world.sink(), "p")
    world.rewind(2)
    assert_readers_agree(world, expected)


# What delta-rs does with values by itself: once one of these fails, a refusal may go.


def test_a_negative_decimal_of_delta_rs_makes_a_table_that_nobody_opens(world: World) -> None:
    rows = pa.table({"id": [1], "c": pa.array([Decimal("-12.34")])})
    with pytest.raises(Exception, match=r"-12\.-34"):
        write_deltalake(str(world.root), rows, partition_by=["c"])


def test_bytes_do_not_come_back_from_delta_rs(world: World) -> None:
    write_deltalake(str(world.root), pa.table({"id": [1], "c": [b"abc"]}), partition_by=["c"])
    assert world.observe().to_pyarrow_table()["c"].to_pylist() != [b"abc"]


def test_polars_reads_the_text_of_a_nulls_folder_as_null(world: World) -> None:
    rows = pa.table({"id": [1], "c": ["__HIVE_DEFAULT_PARTITION__"]})
    write_deltalake(str(world.root), rows, partition_by=["c"])
    assert pl.read_delta(str(world.root))["c"].to_list() == [None]


# What is refused, and when.


@pytest.mark.parametrize(
    ("kind", "mode", "said"),
    [
        (T.DoubleType(), "append", "'c' is of type double"),
        (T.BinaryType(), "append", "'c' is of type binary"),
        (T.ArrayType(T.LongType()), "append", "'c' is of type array<bigint>"),
        (T.DecimalType(10, 2), "upsert", r"decimal\(10,2\): delta-rs.*negative values"),
        (T.DecimalType(10, 2), "append", None),
        (T.TimestampType(), "upsert", None),
    ],
)
def test_a_type_that_makes_no_folder_is_refused_before_anything_is_read(
    kind: T.DataType, mode: str, said: str | None
) -> None:
    schema = T.StructType([T.StructField("id", T.LongType()), T.StructField("c", kind)])
    if said is None:
        refuse_layout(schema, ("c",), merges=mode == "upsert")
        return
    with pytest.raises(ConfigError, match=f"sink.partition_by: .*{said}.*Nothing was read"):
        refuse_layout(schema, ("c",), merges=mode == "upsert")


UNREADABLE = [
    ("", "an empty text"),
    ("__HIVE_DEFAULT_PARTITION__", "which stands for null"),
    ("t" * 254, "more than 253 bytes"),
    ("ü" * 43, "more than 253 bytes"),
    (Decimal("-0.50"), "a negative number that is not whole"),
]


@pytest.mark.parametrize(("value", "said"), UNREADABLE)
def test_what_was_staged_without_a_look_at_its_values_is_refused(
    world: World, value: object, said: str
) -> None:
    """By an earlier release; the ranges are read again, and the records looked at."""
    world.settings = {"partition_by": ["c"]}
    with pytest.raises(RefusedError, match=f"'c' holds .*{said}"):
        world.forward(batch(1, pa.array([value])))


@pytest.mark.parametrize(
    ("value", "said"), [*UNREADABLE[:-1], (Decimal("-0.50"), "makes the table unreadable")]
)
def test_such_rows_are_not_merged(world: World, value: object, said: str) -> None:
    kind = pa.decimal128(10, 2) if isinstance(value, Decimal) else pa.string()
    other, first = pa.array([value], kind), pa.array(["1"]).cast(kind)
    world.settings = {"partition_by": ["c"], "mode": "upsert", "key": ["id"], "sequence_by": ["id"]}
    world.forward(batch(1, first))
    version = world.observe().version()
    with pytest.raises(RefusedError, match=said):
        world.forward(batch(2, other))
    assert world.observe().version() == version


# Tables of earlier releases, and files of others.


def of_an_earlier_release(world: World, checkpoints: int = 6) -> dict[int, Any]:
    """Each file right in its folder of thousands."""
    world.settings = {"partition_by": ["c"]}
    values = pa.array(["a b", None])
    expected = dict[int, Any]()
    for number in range(1, checkpoints + 1):
        world.forward(batch(number, values))
        expected |= {number * 100: "a b", number * 100 + 1: None}
    for commit in (world.root / "_delta_log").glob("*.json"):
        text = commit.read_text()
        for folder in ("c=a%2520b/", "c=__HIVE_DEFAULT_PARTITION__/"):
            text = text.replace(folder, "")
        commit.write_text(text)
    for path in (world.root / "eo_rows").rglob("*.parquet"):
        path.rename(path.parent.parent / path.name)
    return expected


def test_files_of_an_earlier_release_are_read_and_put_into_folders(world: World) -> None:
    expected = of_an_earlier_release(world)
    assert_readers_agree(world, expected)
    maintain(world.sink(), "p", AT_ONCE)
    assert all("/c=" in file for file in world.files())
    assert_readers_agree(world, expected)


def test_files_that_are_not_put_together_are_laid_out_if_asked(world: World) -> None:
    expected = of_an_earlier_release(world, 2)
    history = world.history()
    maintain(world.sink(), "p", AT_ONCE)
    assert len(world.files()) == 4
    assert all("/c=" not in file for file in world.files())
    rules = Maintenance(rewrite_layout=True)
    assert maintain(world.sink(), "p", rules, dry_run=True)["compact"].files == 4
    maintain(world.sink(), "p", rules)
    assert all("/c=" in file for file in world.files())
    assert_readers_agree(world, expected)
    assert world.history() == history
    version = world.observe().version()
    maintain(world.sink(), "p", rules)
    assert world.observe().version() == version, "all are"
    world.rewind(1)
    assert_readers_agree(world, {i: value for i, value in expected.items() if i < 200})


@pytest.mark.parametrize(
    ("path", "removable"),
    [
        ("c=a%2520b/x.parquet", True),  # delta-rs'
        ("c=a%20b/x.parquet", True),
        ("c=ü/x.parquet", False),  # Spark's
        ("c=%c3%bc/x.parquet", False),
    ],
)
def test_a_file_is_removed_by_the_very_text_that_added_it(path: str, removable: bool) -> None:
    assert is_removable(path) == removable


def test_a_file_of_delta_rs_in_an_escaped_folder_is_removed_and_not_kept_beside(
    world: World,
) -> None:
    """Its path in the log is escaped twice."""
    world.settings = {"partition_by": ["c"]}
    world.forward(*(batch(n, pa.array(["a b", "a b"])) for n in (1, 2, 3)))
    world.optimize()
    world.rewind(2)
    world.forward(batch(5, pa.array(["a b"])))
    world.optimize()
    world.rewind(1)
    assert world.checkpoints() == {1: 2}


# What killed and refused attempts leave.


def killed_in_a_run(world: World, point: CrashPoint) -> None:
    head = world.head()
    assert head is not None
    entry = child_of(head, 2)
    world.commit(entry, world.staged(batch(3, pa.array(["a b", None])), entry), crash_at(point))


@pytest.mark.parametrize("point", [CrashPoint.ROWS_SENT, CrashPoint.ENTRY_SENT])
def test_what_a_killed_attempt_left_in_folders_goes(world: World, point: CrashPoint) -> None:
    world.settings = {"partition_by": ["c"]}
    values = pa.array(["a b", None])
    world.forward(batch(1, values), batch(2, values))
    dies(killed_in_a_run, world, point)
    left = set(map(str, (world.root / "eo_rows").rglob("*.parquet")))
    assert len(left) == 6
    world.forward(batch(4, values))
    with world.sink().open("p") as session:
        session.recover()
    assert set(map(str, (world.root / "eo_rows").rglob("*.parquet"))) == set(world.files())


def test_what_a_live_run_has_published_in_folders_is_never_removed(world: World) -> None:
    """However old it looks."""
    world.settings = {"partition_by": ["c"]}
    values = pa.array(["a b", None])
    world.forward(batch(1, values))
    head = world.head()
    assert head is not None
    entry = child_of(head, 2)

    def maintained(point: CrashPoint) -> None:
        if point == CrashPoint.ENTRY_SENT:
            for path in (world.root / "eo_rows").rglob("*.parquet"):
                os.utime(path, (0, 0))
            maintain(world.sink(), "p", AT_ONCE)

    world.commit(entry, world.staged(batch(2, values), entry), maintained)
    assert world.checkpoints() == {1: 2, 2: 2}


# Rows of several checkpoints in one file, and other columns.


@pytest.mark.parametrize("mixed", [World.optimize, lambda w: maintain(w.sink(), "p", AT_ONCE)])
@pytest.mark.parametrize("settings", [{}, {"partition_by": ["c"]}], ids=["plain", "partitioned"])
def test_a_replay_into_a_mixed_file_needs_not_all_columns(
    world: World, settings: dict[str, object], mixed: Callable[[World], object]
) -> None:
    """The table got columns and fields since."""
    world.settings = settings
    c = pa.array(["x y"] * 2)
    one = pa.array([{"f": 1}, None], pa.struct([("f", pa.int64())]))
    two = pa.array([{"f": 2, "g": 3}, None], pa.struct([("f", pa.int64()), ("g", pa.int64())]))
    for number in (1, 2, 3):
        world.forward(rows_of(number, 2, c=c, s=one))
    for number in (4, 5, 6):
        world.forward(rows_of(number, 2, c=c, s=two, more=pa.array([1.5, None])))
    mixed(world)
    assert len(world.files()) == 1
    world.replay(2, rows_of(2, 2, c=c, s=one))
    world.replay(5, rows_of(5, 2, c=c))
    rows = {row["id"]: (row["s"], row["more"]) for row in world.rows()}
    assert world.checkpoints() == dict.fromkeys(range(1, 7), 2)
    assert rows[200] == ({"f": 1, "g": None}, None)
    assert rows[500] == (None, None)
    assert rows[600] == ({"f": 2, "g": 3}, 1.5)
    world.rewind(3)
    assert world.checkpoints() == dict.fromkeys(range(1, 4), 2)


def test_the_log_names_the_zone_of_an_instant(world: World) -> None:
    """Without one Spark takes it for a time of its session's zone."""
    world.settings = {"partition_by": ["c"]}
    world.forward(batch(1, pa.array([datetime(2026, 1, 31, 12, tzinfo=UTC)])))
    log = (world.root / "_delta_log" / f"{0:020d}.json").read_text().splitlines()
    [add] = [json.loads(line)["add"] for line in log if '"add"' in line]
    assert add["partitionValues"] == {"c": "2026-01-31T12:00:00.000000Z"}
