"""A record whose rows the store would refuse: named, and set aside where the policy says so."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as F

from eo_pipeline.embedded.spark import EmbeddedSpark
from eo_pipeline.errors import BadRecordError, RefusedError
from eo_pipeline.pipeline import Pipeline
from eo_pipeline.sinks.columns import ColumnLimits, reason
from eo_pipeline.spark import SparkSettings
from tests.support.engine import Bench
from tests.support.servers import MakeTopic
from tests.support.stores import MySqlDatabase

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import Column, DataFrame

LENIENT = {"on_bad_record": "dead_letter"}
NUL = b'{"id": 1, "name": "a\\u0000b"}'


def with_odd(*odd: tuple[Callable[[], Column], str]) -> Callable[[DataFrame], DataFrame]:
    """A transform that adds a column ``odd_N`` for each value and type, null in all rows but that
    of id N.
    """

    def transform(df: DataFrame) -> DataFrame:
        for number, (value, kind) in enumerate(odd):
            of_one = F.when(F.col("id") == number, value()).cast(kind)
            df = df.withColumn(f"odd_{number}", of_one)
        return df

    return transform


def not_utf8() -> Column:
    return F.unhex(F.lit("ff")).cast("string")


def far_away() -> Column:
    return F.timestamp_micros(F.lit(253_402_300_800_000_000))


def long_ago() -> Column:
    return F.timestamp_micros(F.lit(-300_000_000_000_000_000))


def epoch() -> Column:
    return F.timestamp_micros(F.lit(0))


def not_a_number() -> Column:
    return F.lit(float("nan"))


def assert_set_aside(config: dict[str, Any], *odd: tuple[Callable[[], Column], str]) -> None:
    """Of the records 0 to 4 each with an odd value is a dead letter, and nothing waits or is
    missed.
    """
    source = {**config["source"], **LENIENT}
    pipeline = Pipeline.from_config({**config, "source": source, "transform": with_odd(*odd)})
    report, letters = pipeline.run(), len(odd)
    assert (report.rows, report.head.counts.dead_letters, report.lag) == (5 - letters, letters, 0)
    assert pipeline.run().checkpoints == ()
    audited = pipeline.audit()
    assert audited.passed, str(audited)


def test_a_record_with_text_that_postgres_refuses_is_named_or_set_aside(bench: Bench) -> None:
    bench.topic.write(1)
    bench.topic.write_value(NUL)
    with pytest.raises(BadRecordError, match=r"\[0\] offset 1: column 'name' .* U\+0000"):
        bench.pipeline().run()
    # nothing was promised that the next run would have to keep
    report = bench.pipeline(source=LENIENT).run()
    bench.table.assert_holds_once(bench.topic.written)
    assert report.head.counts.dead_letters == 1
    [(offset, value, error)] = bench.table.query(
        'select "offset", value, error from events_dead_letters'
    )
    assert (offset, value) == (1, NUL)
    assert "do not fit into" in error
    assert "column 'name' holds text with the character U+0000" in error
    assert bench.pipeline(source=LENIENT).audit().passed


@pytest.mark.parametrize("inline_records", [0, 10_000])
def test_all_rows_of_such_a_record_stay_away(bench: Bench, inline_records: int) -> None:
    def three_rows_each(df: DataFrame) -> DataFrame:
        letters = F.array(F.lit("a"), F.lit("b"), F.col("name"))
        return df.select("id", F.explode(letters).alias("name"), "_kafka")

    bench.topic.write(2)
    bench.topic.write_value(NUL)
    pipeline = bench.pipeline(
        source=LENIENT, transform=three_rows_each, inline_records=inline_records
    )
    counts = pipeline.run().head.counts
    assert (counts.records, counts.rows, counts.dead_letters) == (3, 6, 1)
    assert bench.table.query("select distinct _eo_offset from events order by 1") == [(0,), (1,)]
    assert pipeline.audit().passed


@pytest.mark.core
def test_more_such_records_than_the_limit_fail_the_run(bench: Bench) -> None:
    for _ in range(3):
        bench.topic.write_value(NUL)
    source = {**LENIENT, "dead_letter_limit": 2}
    with pytest.raises(BadRecordError, match=r"More than source.dead_letter_limit \(2\)"):
        bench.pipeline(source=source).run()
    assert bench.table.versions() == [0]


@pytest.mark.core
def test_without_lineage_the_column_and_the_reason_are_named(bench: Bench) -> None:
    bench.topic.write_value(NUL)
    pipeline = bench.pipeline(
        source=LENIENT, lineage=False, transform=lambda df: df.select("id", "name")
    )
    with pytest.raises(RefusedError, match=r"column 'name' holds text .* keeps '_kafka'"):
        pipeline.run()


def test_a_row_without_the_key_of_an_upsert_is_set_aside(bench: Bench) -> None:
    bench.topic.write(1)
    bench.topic.write_value(b'{"id": 2}')
    sink = {"mode": "upsert", "key": ["name"]}
    with pytest.raises(BadRecordError, match="'name' holds null, but the column identifies rows"):
        bench.pipeline(sink=sink).run()
    report = bench.pipeline(sink=sink, source=LENIENT).run()
    assert (report.rows, report.head.counts.dead_letters) == (1, 1)


def test_a_null_in_a_column_that_takes_none_is_set_aside(bench: Bench) -> None:
    bench.topic.write(1)
    bench.pipeline().run()
    bench.table.execute("alter table events alter column name set not null")
    bench.topic.write_value(b'{"id": 2}')
    bench.topic.write(1)
    with pytest.raises(BadRecordError, match="'name' holds null, which the table does not take"):
        bench.pipeline().run()
    report = bench.pipeline(source=LENIENT).run()
    assert (report.rows, report.head.counts.dead_letters) == (1, 1)
    bench.table.assert_holds_once(bench.topic.written)
    assert bench.pipeline(source=LENIENT).audit().passed


def test_mysql_takes_no_null_in_such_a_column_either(
    bench: Bench, mysql_database: MySqlDatabase
) -> None:
    config = {**bench.config, "sink": mysql_database.settings(table="events")}
    config["source"] = {**config["source"], **LENIENT}
    bench.topic.write(1)
    Pipeline.from_config(config).run()
    with mysql_database.connect() as connection, connection.cursor() as cursor:
        cursor.execute("alter table events modify name varchar(100) not null")
    bench.topic.write_value(b'{"id": 2}')
    report = Pipeline.from_config(config).run()
    assert (report.rows, report.head.counts.dead_letters) == (0, 1)


def test_what_postgres_has_no_form_for_is_set_aside(bench: Bench) -> None:
    bench.topic.write(5)
    assert_set_aside(bench.config, (not_utf8, "string"), (long_ago, "timestamp"))


def test_what_mysql_has_no_form_for_is_set_aside(
    bench: Bench, mysql_database: MySqlDatabase
) -> None:
    bench.topic.write(5)
    config = {**bench.config, "sink": mysql_database.settings(table="events")}
    assert_set_aside(
        config, (not_utf8, "string"), (far_away, "timestamp"), (not_a_number, "double")
    )


@pytest.fixture
def sinks(
    bench: Bench, redis_url: str, make_topic: MakeTopic, tmp_path: Path
) -> dict[str, dict[str, Any]]:
    """Configurations by type."""
    kafka = {"bootstrap_servers": bench.topic.bootstrap_servers, "topic": make_topic(partitions=1)}
    return {
        "delta": {"path": str(tmp_path / "delta")},
        "parquet": {"path": str(tmp_path / "parquet")},
        "iceberg": {"table": "ops.events", "warehouse": str(tmp_path / "lake")},
        "redis": {"url": redis_url, "key": "{id}"},
        "kafka": {**kafka, "timestamp": "odd_0"},
    }


@pytest.mark.parametrize(
    ("sink", "odd"),
    [
        ("delta", [(not_utf8, "string"), (far_away, "timestamp")]),
        ("parquet", [(not_utf8, "string")]),
        ("iceberg", [(far_away, "timestamp")]),
        ("redis", [(far_away, "timestamp")]),
        ("kafka", [(epoch, "timestamp")]),
    ],
)
def test_what_other_stores_have_no_form_for_is_set_aside(
    bench: Bench,
    sinks: dict[str, dict[str, Any]],
    sink: str,
    odd: list[tuple[Callable[[], Column], str]],
) -> None:
    bench.topic.write(5)
    assert_set_aside({**bench.config, "sink": {"type": sink, **sinks[sink]}}, *odd)


#: A table of types that only PostgreSQL judges, or that change values in silence.
JUDGED = """
create type mood as enum ('good', 'bad');
create domain small as bigint check (value < 100);
create table events (id bigint, name varchar(5), u uuid, e mood, a inet, j jsonb, n small,
    at timestamp(0), c text check (c <> 'no'))
"""
TYPED = "id BIGINT, name STRING, u STRING, e STRING, a STRING, j STRING, n BIGINT, at TIMESTAMP_NTZ"
GOOD = {
    "name": "abc",
    "u": "2c1f0d4e-0000-4000-8000-000000000000",
    "e": "good",
    "a": "10.0.0.1",
    "j": "{}",
    "n": 1,
    "at": "2026-01-31T12:00:00",
    "c": "yes",
}
#: What is wrong, and a word of the reason.
WRONG: list[tuple[dict[str, Any], str]] = [
    ({"u": "no uuid"}, "uuid"),
    ({"e": "merry"}, "enum"),
    ({"a": "10.0.0.300"}, "inet"),
    ({"j": "{"}, "json"),
    ({"n": 100}, "domain"),
    ({"c": "no"}, "check"),
    ({"name": "abc   "}, "characters"),
    ({"at": "2026-01-31T12:00:00.5"}, "fraction of a second"),
]


@pytest.mark.parametrize("inline_records", [10_000, 0], ids=["memory", "files"])
def test_what_only_the_server_judges_is_a_dead_letter_with_its_offset(
    bench: Bench, inline_records: int
) -> None:
    """Found before: the pipeline stopped, and no offset was named; blanks were cut and seconds
    rounded in silence, and then the audit failed for ever.
    """
    bench.table.execute(JUDGED)
    schema = {"value_schema": f"{TYPED}, c STRING"}
    for number in range(30):
        bench.topic.write_value(json.dumps({"id": number, **GOOD}).encode())
    for wrong, _ in WRONG:
        bench.topic.write_value(json.dumps({"id": 99, **GOOD, **wrong}).encode())
    with pytest.raises(BadRecordError, match=r"offset 3[67]: .*(characters|fraction)"):
        bench.pipeline(source=schema, inline_records=inline_records).run()
    few = {**schema, **LENIENT, "dead_letter_limit": 4}
    with pytest.raises(BadRecordError, match=r"More than source.dead_letter_limit \(4\)"):
        bench.pipeline(source=few, inline_records=inline_records).run()
    pipeline = bench.pipeline(source={**schema, **LENIENT}, inline_records=inline_records)
    counts = pipeline.run().head.counts
    assert (counts.rows, counts.dead_letters) == (30, len(WRONG))
    said = bench.table.query('select "offset", error from events_dead_letters order by 1')
    assert [offset for offset, _ in said] == [*range(30, 30 + len(WRONG))]
    for (_, error), (_, word) in zip(said, WRONG, strict=True):
        assert word in error
    audited = pipeline.audit()
    assert audited.passed, str(audited)
    bench.table.execute("alter table events alter column u type text")
    redriven = pipeline.plan_redrive().apply(reason="any text may come").entries[-1].counts
    assert (redriven.rows, redriven.dead_letters) == (31, len(WRONG) - 1)
    assert pipeline.audit().passed


def test_with_policy_fail_the_record_is_named_that_the_server_refused(bench: Bench) -> None:
    bench.table.execute("create table events (id bigint, name uuid)")
    bench.topic.write_value(b'{"id": 1, "name": "2c1f0d4e-0000-4000-8000-000000000000"}')
    bench.topic.write_value(b'{"id": 2, "name": "none"}')
    with pytest.raises(BadRecordError, match=r"\[0\] offset 1: PostgreSQL refuses the row: .*uuid"):
        bench.pipeline().run()
    assert bench.table.versions() == [0]


@pytest.mark.parametrize("years", [(1, 9999), (-4712, 5_874_896), (1600, 2038), (1, 294_247)])
def test_times_are_bounded_by_the_calendars_years(
    spark_server: EmbeddedSpark, years: tuple[int, int]
) -> None:
    day = 86_400_000_000
    turns = [
        719_528 - 365 * 4713 - 1178,  # about the first of all
        *(-719_162, -719_163, -135_140, -135_141, 24_836, 24_837, 2_932_896, 2_932_897),
        *(2_145_031_948, 2_145_031_949, 0),
    ]
    spark = SparkSettings(remote=spark_server.remote).session()
    numbers = spark.createDataFrame([(turn,) for turn in turns], "n BIGINT")
    micros = [(turn * day + add,) for turn in turns for add in (-1, 0) if abs(turn) < 10**8]
    frames = {
        "date": numbers.select(F.date_from_unix_date(F.col("n").cast("int")).alias("t")),
        "timestamp": spark.createDataFrame(micros, "n BIGINT").select(
            F.timestamp_micros("n").alias("t")
        ),
    }
    for kind, frame in frames.items():
        why = reason(frame.schema, ColumnLimits(years=years))
        by_calendar = ~F.year("t").between(*years)
        told = F.lit(None).cast("string") if why is None else why
        odd = frame.where(told.isNotNull() != by_calendar)
        assert odd.collect() == [], kind
