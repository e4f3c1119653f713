"""Ordinary records go into their files by one pass of the tasks that read them; what is staged, and
what is said of it, is what Spark's own plan makes of them.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from eo_pipeline.batch.stage import Stager
from eo_pipeline.embedded.spark import EmbeddedSpark
from eo_pipeline.errors import BadRecordError
from eo_pipeline.kafka.source import KafkaSource
from eo_pipeline.ledger.entry import Counts, EntryId, LedgerEntry, Operation
from eo_pipeline.ledger.offsets import OffsetRange, TopicPartition
from eo_pipeline.pipeline import Pipeline
from eo_pipeline.sinks.config import Sink
from eo_pipeline.sinks.delta import DeltaSink
from eo_pipeline.sinks.kafka import KafkaSink
from eo_pipeline.sinks.parquet import ParquetSink
from eo_pipeline.sinks.postgres import PostgresSink
from eo_pipeline.spark import SparkSettings
from eo_pipeline.spark.launch import parquet_options
from eo_pipeline.staging.attempt import Attempt
from eo_pipeline.staging.rows import StagedTable
from tests.support.engine import Bench, Topic

#: Values as JSON writes them, of each type that a plain column may have.
VALUES = {
    "STRING": ['""', '"a"', '"é\U0001f600 \\n \\"b\\""', '"' + "x" * 3000 + '"', '"\\u0041"'],
    "BIGINT": ["0", "-9223372036854775808", "9223372036854775807"],
    "INT": ["-2147483648", "2147483647", "-1"],
    "SMALLINT": ["-32768", "32767"],
    "TINYINT": ["-128", "127", "0"],
    "DOUBLE": ["-0.0", "0", "0.0", "-0.1e-7", "1e308", "4.9e-324", "7"],
    "FLOAT": ["-0.0", "0.0", "16777217.5", "1e-45"],
    "BOOLEAN": ["true", "false"],
    "DECIMAL(5,2)": ["0", "-999.99", "1e2", "0.1"],
    "DECIMAL(18,4)": ["12345678901234.0001", "-0.5"],
    "DECIMAL(38,10)": ["9999999999999999999999999999.5", "-1", "0"],
    "DATE": ['"1600-01-01"', '"1969-12-31"', '"2024-02-29"', '"9999-12-31"'],
    "TIMESTAMP": ['"1600-03-01T23:59:59.5Z"', '"1970-01-01T00:00:00.000001Z"'],
}
WIDE = ", ".join(f"c{n} {kind}" for n, kind in enumerate(VALUES))


#: Where raw values go; None: the Delta table of the test.
SINKS_OF_BYTES: list[Sink | None] = [
    None,
    KafkaSink(bootstrap_servers="h:1", topic="t"),
    KafkaSink(bootstrap_servers="h:1", topic="t", key="value"),
    PostgresSink(dsn="postgresql://h/d", table="t"),
]


@pytest.fixture(scope="module")
def spark(spark_server: EmbeddedSpark) -> Iterator[SparkSession]:
    session = SparkSettings(remote=spark_server.remote).session()
    yield session
    session.stop()


@dataclass(frozen=True)
class Staged:
    """One way's result."""

    rows: StagedTable
    counts: Counts
    dead_letters: StagedTable | None = None

    @property
    def letters(self) -> pa.Table | None:
        """The dead letters, in the topic's order."""
        dead = self.dead_letters
        if dead is None:
            return None
        read = pa.concat_tables([pq.read_table(path) for path in dead.paths()])
        return read.sort_by([(name, "ascending") for name in ("partition", "offset")])

    @property
    def footers(self) -> list[pq.FileMetaData]:
        return [pq.read_metadata(path) for path in self.rows.paths()]

    @property
    def table(self) -> pa.Table:
        """In the topic's order."""
        read = self.rows.table
        if read is None:
            files = [pq.read_table(path) for path in self.rows.paths()]
            read = pa.concat_tables(files) if files else self.rows.schema.empty_table()
        return read.sort_by([(name, "ascending") for name in ("_eo_partition", "_eo_offset")])


class PlanStager(Stager):
    """By Spark's plan alone."""

    def fast_path(self, *_: object, **__: object) -> None: ...

    def _native_decoder(self, *_: object) -> None: ...


class World:
    """A topic, and both ways to stage what it holds."""

    def __init__(self, spark: SparkSession, topic: Topic, folder: Path) -> None:
        self.spark = spark
        self.topic = topic
        self.folder = folder
        self.ends = dict.fromkeys(range(4), 0)

    def write(
        self,
        values: Iterable[bytes | None],
        partition: int = 0,
        key: bytes | None = b"k",
        headers: Sequence[tuple[str, bytes | None]] = (),
    ) -> None:
        producer = self.topic.producer()
        for value in values:
            producer.produce(
                self.topic.name, value=value, key=key, partition=partition, headers=[*headers]
            )
            producer.poll(0)
            self.ends[partition] += 1
        assert producer.flush(120) == 0

    def stager(self, schema: str, sink: Sink | None = None, **source: Any) -> Stager:
        read = KafkaSource(**self.topic.source(value_schema=schema or None, **source))
        return Stager(read, sink or DeltaSink(path=str(self.folder / "t")), None, lineage=True)

    def entry(self) -> LedgerEntry:
        ranges = [OffsetRange(self.topic.name, p, 0, end) for p, end in self.ends.items() if end]
        return LedgerEntry(
            pipeline="p",
            ledger_id=uuid.uuid4().hex,
            version=7,
            transaction_id=uuid.uuid4().hex,
            parent=EntryId(6, "0" * 32),
            operation=Operation.FORWARD,
            offsets={TopicPartition(self.topic.name, p): end for p, end in self.ends.items()},
            topic_ids={self.topic.name: "x8ClxKOHQy2BYyUJ9HcHjA"},
            run_id="r",
            started_at=datetime.now(UTC),
            ranges=tuple(ranges),
            counts=Counts(rows_total=100),
        )

    def directly(
        self, stager: Stager, entry: LedgerEntry | None = None, *, held: bool = False
    ) -> Staged | None:
        """None: it is left to Spark's plan. ``held``: in memory."""
        entry, attempt = entry or self.entry(), None if held else self._attempt()
        direct = stager.fast_path(entry, few=False)
        done = direct.stage(self.spark, entry, attempt, stager._tasks) if direct else None
        if done is None:
            return None
        output, counts = done
        assert output.rows is not None
        return Staged(output.rows, counts, output.dead_letters)

    def by_plan(self, stager: Stager, *, held: bool = False) -> Staged:
        stager = PlanStager(**{f.name: getattr(stager, f.name) for f in fields(stager)})
        output, counts = stager.stage(self.spark, self.entry(), None if held else self._attempt())
        assert output.rows is not None
        return Staged(output.rows, counts, output.dead_letters)

    def both(self, stager: Stager, *, held: bool = False) -> tuple[Staged, Staged]:
        """... and the same of both."""
        direct, plan = self.directly(stager, held=held), self.by_plan(stager, held=held)
        assert direct is not None
        schema = plan.rows.schema
        if held:  # where a plan on rows of this process does not know that it is never null
            place = schema.get_field_index("_eo_checkpoint")
            schema = schema.set(place, schema.field(place).with_nullable(False))
        assert direct.rows.schema == schema
        assert direct.table.equals(plan.table.cast(schema))
        assert direct.counts == plan.counts
        assert direct.rows.form == plan.rows.form
        assert direct.letters == plan.letters
        return direct, plan

    def _attempt(self) -> Attempt:
        place = self.folder / uuid.uuid4().hex
        place.mkdir()
        return Attempt(place, EntryId(7, "of-nobody"), ledger_id=None, data=place)


@pytest.fixture
def world(spark: SparkSession, events: Topic, tmp_path: Path) -> World:
    return World(spark, events, tmp_path)


def record(values: Sequence[str]) -> bytes:
    """Of :data:`WIDE`; no text, no field."""
    told = (f'"c{n}": {value}' for n, value in enumerate(values) if value)
    return f"{{{', '.join(told)}}}".encode()


def by_chance(seed: int, count: int) -> list[bytes]:
    """Fields that are absent, null, and every value there is."""
    chance = random.Random(seed)
    kinds = [["", "null", *values, *values] for values in VALUES.values()]
    return [record([chance.choice(values) for values in kinds]) for _ in range(count)]


@pytest.mark.core
@pytest.mark.parametrize("held", [False, True])
def test_every_value_of_every_type_is_staged_as_spark_stages_it(world: World, held: bool) -> None:
    for n, values in enumerate(VALUES.values()):
        lines = [[v if m == n else "" for m in range(len(VALUES))] for v in [*values, "null"]]
        world.write([record(line) for line in lines], partition=n % 4)
    direct, _ = world.both(world.stager(WIDE), held=held)
    assert direct.counts.checksum is not None
    assert direct.counts.rows_total == 100 + direct.counts.rows


@pytest.mark.parametrize("seed", [1, 2])
def test_so_are_rows_by_chance_over_many_pages_and_row_groups(
    world: World, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Pages begin with nulls, in their middle, and are all null; dictionaries are kept and given
    up, at once and later.
    """
    small = {"parquet.page.size": "20000", "parquet.block.size": "60000"}
    monkeypatch.setattr(
        "eo_pipeline.batch.native_decode.parquet_options",
        lambda spark: {**parquet_options(spark), **small},
    )
    for partition in (0, 2):
        world.write(by_chance(seed, 6000), partition)
    direct, _ = world.both(world.stager(WIDE))
    assert min(footer.num_row_groups for footer in direct.footers) > 1


@pytest.mark.parametrize("distinct", [1, 3, 4000, 5000, 100_000])
def test_values_that_come_again_are_in_a_dictionary_and_others_are_not(
    world: World, distinct: int
) -> None:
    chance = random.Random(distinct)
    numbers = [chance.randrange(distinct) for _ in range(30_000)]
    world.write(b'{"n": %d, "s": "text %d"}' % (n, n) for n in numbers)
    direct, plan = world.both(world.stager("n BIGINT, s STRING"))
    if distinct < 4000:
        [(ours,), (theirs,)] = [
            [pq.read_metadata(p) for p in s.rows.paths()] for s in (direct, plan)
        ]
        for column in range(2):
            mine = ours.row_group(0).column(column)
            assert mine.encodings == theirs.row_group(0).column(column).encodings
            assert "PLAIN_DICTIONARY" in mine.encodings
    sizes = [sum(file.size for file in staged.rows.files) for staged in (direct, plan)]
    assert sizes[0] < 1.02 * sizes[1]


def test_the_bounds_in_a_footer_are_those_of_spark(world: World) -> None:
    """Delta and Iceberg skip files by them."""
    world.write(by_chance(3, 500))
    direct, plan = world.both(world.stager(WIDE))
    [ours], [theirs] = direct.footers, plan.footers
    for n in range(ours.num_columns):
        mine, other = (each.row_group(0).column(n) for each in (ours, theirs))
        assert mine.statistics == other.statistics, mine.path_in_schema
        assert mine.statistics is not None


@pytest.mark.core
def test_other_readers_read_the_same(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "eo_pipeline.batch.native_decode.parquet_options", lambda _: {"parquet.page.size": "3000"}
    )
    world.write(by_chance(4, 3000))
    direct = world.directly(world.stager(WIDE))
    assert direct is not None
    path = str(direct.rows.paths()[0])
    names = direct.table.column_names
    polars = pl.read_parquet(path).sort("_eo_offset").to_arrow()
    assert polars.cast(direct.table.schema).equals(direct.table)
    read = world.spark.read.parquet(f"file://{path}").sort("_eo_offset")
    assert read.select(names).toArrow().cast(direct.table.schema).equals(direct.table)
    # one page by its index: it is found by the offsets in the footer
    some = pl.scan_parquet(path).filter(pl.col("_eo_offset") == 2500).collect()
    assert some["_eo_offset"].to_list() == [2500]
    assert world.spark.read.parquet(f"file://{path}").where("_eo_offset = 2500").count() == 1


def test_a_codec_that_the_session_asks_for_is_used(world: World) -> None:
    world.write(by_chance(5, 100))
    name = "spark.sql.parquet.compression.codec"
    world.spark.conf.set(name, "zstd")
    try:
        direct, _ = world.both(world.stager(WIDE))
    finally:
        world.spark.conf.unset(name)
    [footer] = direct.footers
    assert footer.row_group(0).column(0).compression == "ZSTD"


def test_keys_values_and_tombstones_are_counted(world: World) -> None:
    world.write([b'{"id": 1}', None, b'{"id": 2}', None], key=b"four")
    direct, _ = world.both(world.stager("id BIGINT", tombstones="skip"))
    assert (direct.counts.tombstones, direct.counts.records, direct.counts.key_bytes) == (2, 4, 16)
    assert direct.counts.bytes == 18


@pytest.mark.parametrize("held", [False, True])
@pytest.mark.parametrize("sink", SINKS_OF_BYTES, ids=["delta", "kafka", "kafka-key", "postgres"])
def test_raw_values_are_staged_as_they_are(world: World, sink: Sink | None, held: bool) -> None:
    odd = [b"", b"\0", b"\xff\xfe", b"{}", bytes(range(256)) * 40, None]
    for partition in (0, 3):
        world.write(odd * 60, partition, key=b"k\xc3\xa9y")
    raw = {"value_format": "raw", "tombstones": "skip"}
    direct, _ = world.both(world.stager("", sink, **raw), held=held)
    assert direct.counts.rows == 600
    if sink is None:
        assert direct.table["value"].to_pylist()[:5] == odd[:5]
    direct, _ = world.both(world.stager("", sink, key_format="text", **raw), held=held)
    if sink is None:
        assert set(direct.table["key"].to_pylist()) == {"k\xe9y"}


def test_a_raw_value_that_is_null_is_judged(world: World) -> None:
    world.write([b"a", None, b"b"])
    direct, _ = world.both(world.stager("", value_format="raw", on_bad_record="dead_letter"))
    assert (direct.counts.rows, direct.counts.dead_letters) == (2, 1)


def test_records_without_rows_make_no_file(world: World) -> None:
    world.write([None])
    direct, _ = world.both(world.stager("id BIGINT", tombstones="skip"))
    assert direct.rows.files == ()
    in_memory, _ = world.both(world.stager("id BIGINT", tombstones="skip"), held=True)
    assert in_memory.rows.rows == 0


@pytest.mark.core(only=["id BIGINT-not json-1"])
@pytest.mark.parametrize(
    ("schema", "value", "bad"),
    [
        ("id BIGINT", b"not json", 1),
        ("id BIGINT", b"\xff\xfe", 1),
        ("id BIGINT", None, 1),
        ("id BIGINT", b'{"id": 1, "more": 2, "and": 3}', 0),
        ("id BIGINT", b' {"id": 1} ', 0),
        ("id BIGINT", b'{"id": 1, "id": 2}', 1),
        ("id BIGINT NOT NULL", b"{}", 1),
        ("at TIMESTAMP", b'{"at": "2026-01-31 08:30:00"}', 0),
        ("x DOUBLE", b'{"x": 1e999}', 1),
        ("x FLOAT", b'{"x": 1e39}', 1),
        ("s STRING", b'{"s": {"a": 1}}', 0),
    ],
)
def test_a_record_that_is_not_ordinary_is_judged_in_its_place(
    world: World, schema: str, value: bytes | None, bad: int
) -> None:
    world.write([b"{}" if "NOT NULL" not in schema else b'{"id": 1}'] * 50)
    world.write([value], partition=3)
    direct, _ = world.both(world.stager(schema, on_bad_record="dead_letter"))
    assert direct.counts.dead_letters == bad


def test_so_are_many_of_which_the_first_are_interpreted(world: World) -> None:
    odd = [b'{"at": "2026-01-31 08:30:00"}', b"not json", b'{"at": "32"}']
    world.write(odd * 5000)
    stager = world.stager("at TIMESTAMP", on_bad_record="dead_letter", dead_letter_limit=10_000)
    direct, _ = world.both(stager)
    assert direct.counts.dead_letters == 10_000


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ("s STRING", b'{"s": "a\\u0000b"}'),
        ("s STRING", b'{"s": "12345678\\u0000"}'),
        ("s STRING", b'{"s": "1\\u0000234567"}'),
        ("at TIMESTAMP", b'{"at": "0001-01-01 00:00:00"}'),
        ("day DATE", b'{"day": "1500-01-01"}'),
    ],
)
def test_what_not_every_store_takes_is_left_to_sparks_plan_with_all_of_its_batch(
    world: World, caplog: pytest.LogCaptureFixture, schema: str, value: bytes
) -> None:
    caplog.set_level("INFO", "eo_pipeline.batch.fast_path")
    world.write([b"{}"] * 50)
    world.write([value], partition=3)
    assert world.directly(world.stager(schema)) is None
    assert "not every store takes" in caplog.text


def test_more_than_a_process_should_hold_is_not_held(world: World) -> None:
    long = b'{"s": "%s"}' % (b"x" * 900_000)
    world.write([long] * 80)
    assert world.directly(world.stager("s STRING"), held=True) is None
    assert world.directly(world.stager("s STRING")) is not None


def test_a_value_that_an_upsert_needs_must_be_there(world: World) -> None:
    sink = DeltaSink(path=str(world.folder / "t"), mode="upsert", key=["id"])
    world.write([b'{"id": 1, "n": 2}'])
    world.both(world.stager("id BIGINT, n INT", sink))
    world.write([b'{"n": null}'])
    assert world.directly(world.stager("id BIGINT, n INT", sink)) is None
    assert world.directly(world.stager("id BIGINT, n INT")) is not None
    refusing = replace(world.stager("id BIGINT, n INT"), never_null={"N"})
    assert world.directly(refusing) is None


@pytest.mark.parametrize(
    ("schema", "sink", "source"),
    [
        ("id BIGINT, s STRUCT<a: INT>", {}, {}),
        ("id BIGINT, s ARRAY<INT>", {}, {}),
        ("id BIGINT", {"partition_by": ["id"]}, {}),
        ("id BIGINT", {}, {"unknown_fields": "keep"}),
    ],
)
def test_tables_of_another_kind_are_staged_by_sparks_plan(
    world: World, schema: str, sink: dict[str, Any], source: dict[str, Any]
) -> None:
    world.write([b'{"id": 1}'])
    stager = world.stager(schema, DeltaSink(path=str(world.folder / "t"), **sink), **source)
    assert world.directly(stager) is None
    assert world.by_plan(stager).counts.rows == 1


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("spark.sql.files.maxRecordsPerFile", "10"),
        ("parquet.bloom.filter.enabled#id", "true"),
        ("parquet.writer.version", "v2"),
        ("parquet.crypto.factory.class", "org.apache.example.Factory"),
    ],
)
def test_files_of_settings_that_are_not_known_here_are_written_by_spark(
    world: World, setting: str, value: str
) -> None:
    world.write([b'{"id": 1}'] * 20)
    world.spark.conf.set(setting, value)
    try:
        assert world.directly(world.stager("id BIGINT")) is None
    finally:
        world.spark.conf.unset(setting)
    assert world.directly(world.stager("id BIGINT")) is not None


def test_numbers_are_stored_as_a_session_has_them(world: World) -> None:
    """Hive's earlier releases want decimal numbers in bytes."""
    world.write(by_chance(6, 200))
    name = "spark.sql.parquet.writeLegacyFormat"
    world.spark.conf.set(name, "true")
    try:
        direct, _ = world.both(world.stager(WIDE))
    finally:
        world.spark.conf.unset(name)
    [path] = direct.rows.paths()
    stored = pq.ParquetFile(path).schema.column(8)
    assert stored.physical_type == "FIXED_LEN_BYTE_ARRAY"


def test_a_ledger_whose_records_are_not_ordinary_is_not_tried_each_time(world: World) -> None:
    stager, entry = world.stager("id BIGINT"), world.entry()
    world.write([b"{}"])
    odd = replace(entry, ranges=world.entry().ranges)
    assert world.directly(stager, odd, held=True) is not None
    world.write([b"?"])
    assert world.directly(stager, replace(odd, ranges=world.entry().ranges), held=True) is None
    tried = [world.directly(stager, odd, held=True) is not None for _ in range(18)]
    assert tried == [*[False] * 16, True, True]


def test_a_bad_record_stops_the_tasks_once_and_not_again(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "eo_pipeline.batch.fast_path")
    stager = world.stager("id BIGINT", on_bad_record="dead_letter")
    world.write([b"{}", b"?"])
    entry = world.entry()
    for _ in range(3):
        staged = world.directly(stager, entry)
        assert staged is not None
        assert staged.counts.dead_letters == 1
    assert caplog.text.count("not ordinary") == 1


def test_a_first_checkpoint_that_may_have_dead_letters_is_read_once(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "eo_pipeline.batch.fast_path")
    stager = world.stager("id BIGINT", on_bad_record="dead_letter")
    world.write([b"{}", b"?"])
    first = replace(world.entry(), version=1, parent=EntryId(0, "0" * 32))
    staged = world.directly(stager, first)
    assert staged is not None
    assert staged.counts.dead_letters == 1
    assert "not ordinary" not in caplog.text
    with_transform = stager._native_decoder(world.spark, first, world._attempt(), None)
    assert with_transform is not None
    assert with_transform.judges


def test_a_table_is_as_it_would_be_whoever_staged_its_checkpoints(bench: Bench) -> None:
    """By a bad record, which is set aside, one of three goes the other way."""
    source = {"on_bad_record": "dead_letter"}
    bench.topic.write(100, (0, 1))
    assert bench.pipeline(source=source).run().head.counts.dead_letters == 0
    bench.topic.write(20)
    bench.topic.write_value(b"?")
    bad = bench.pipeline(source=source).run().head
    assert (bad.counts.rows, bad.counts.dead_letters) == (20, 1)
    bench.topic.write(30)
    assert bench.pipeline(source=source).run().rows == 30
    bench.table.assert_holds_once(bench.topic.written)
    assert bench.pipeline(source=source).audit().passed


@pytest.mark.core
def test_a_bad_record_is_refused_with_its_reason_as_ever(bench: Bench) -> None:
    bench.topic.write(10)
    bench.topic.write_value(b'{"id": "x", "name": "y"}')
    with pytest.raises(BadRecordError, match="'id' is no whole number"):
        bench.pipeline().run()
    assert bench.table.versions() == [0]


@pytest.mark.core
def test_files_that_no_task_named_are_none_of_the_batch(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task that was given up may have written one, and may write it at any time."""
    world.write([b'{"id": 1}'])
    real = Attempt.collect

    def collect(self: Attempt, folder: Path, *more: Any) -> StagedTable:
        [file] = folder.glob("*.parquet")
        (folder / "part-9-of-a-task-that-was-given-up.parquet").write_bytes(file.read_bytes())
        return real(self, folder, *more)

    monkeypatch.setattr(Attempt, "collect", collect)
    direct = world.directly(world.stager("id BIGINT", ParquetSink(path=str(world.folder / "p"))))
    assert direct is not None
    assert (direct.rows.rows, len(direct.rows.files)) == (1, 1)


def test_delta_reads_a_table_of_such_files(bench: Bench, tmp_path: Path) -> None:
    bench.topic.write(300, (0, 1, 2, 3))
    table = tmp_path / "a table"
    Pipeline.from_config({**bench.config, "sink": {"type": "delta", "path": str(table)}}).run()
    read = DeltaTable(table).to_pyarrow_table()
    assert sorted(read["id"].to_pylist()) == list(range(300))
