"""What was read is counted whatever a transform does, and without a second read as a rule."""

from __future__ import annotations

import itertools
import json
import os
import random
import subprocess
import sys
import zlib
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from eo_pipeline.batch import stage
from eo_pipeline.batch.counting import (
    ReadCounts,
    RowCounter,
    SourceCounter,
    are_whole,
    counts,
    refuse_other_rows,
)
from eo_pipeline.errors import SetupError, SparkJobError
from eo_pipeline.ledger.offsets import OffsetRange
from eo_pipeline.spark import JARS_VARIABLE
from eo_pipeline.spark.connector import spark_connector_jars
from eo_pipeline.spark.jvm import CLIENT_VARIABLES
from eo_pipeline.staging.rows import StagedFile, StagedOutput, StagedTable
from eo_pipeline.testing import child_of, first_entry
from tests.runs.transforms import ROWS_OF_TWENTY
from tests.support.chaos import rest_is_chaos
from tests.support.engine import Bench
from tests.support.servers import STATE

BAD, TOMBSTONES, GOOD = 3, 2, 20
#: What each run must say of the topic's records.
COUNTED = {"records": 25, "dead_letters": BAD, "tombstones": TOMBSTONES}


def write_records(bench: Bench) -> None:
    """Good ones, bad ones and tombstones, in all partitions, the bad ones first and last."""
    bench.topic.write_value(b"not json")
    bench.topic.write_value(None, partition=1)
    bench.topic.write(GOOD, partitions=range(4))
    bench.topic.write_value(None)
    bench.topic.write_value(b"not json", partition=1)
    bench.topic.write_value(b"not json", partition=2)


def write_in_transactions(bench: Bench) -> None:
    """The same, with a marker after each record: an offset that holds no record."""
    producer = bench.topic.producer(**{"transactional.id": f"tx-{bench.topic.name}"})
    producer.init_transactions()
    good = [json.dumps({"id": n, "name": f"record {n}"}).encode() for n in range(GOOD)]
    values = [b"not json", None, *good, None, b"not json", b"not json"]
    for number, value in enumerate(values):
        producer.begin_transaction()
        producer.produce(bench.topic.name, value=value, key=b"k", partition=number % 4)
        producer.commit_transaction()


def settings(bench: Bench, transform: str | None, **changes: Any) -> dict[str, Any]:
    return {
        **bench.config,
        "source": {**bench.config["source"], "on_bad_record": "dead_letter", "tombstones": "skip"},
        "transform": f"tests.runs.transforms:{transform}" if transform else None,
        "lineage": False,
        **changes,
    }


def counted(counts: Any) -> dict[str, int]:
    return {name: getattr(counts, name) for name in COUNTED}


@pytest.mark.core(only=["the_first_five-write_in_transactions", "twice-write_records"])
@pytest.mark.parametrize(
    ("transform", "write"),
    rest_is_chaos(
        [
            (name, write)
            for name in ROWS_OF_TWENTY
            for write in (write_records, write_in_transactions)
        ],
        but=[
            ("asking_whether_empty", write_records),
            ("sorted_by_name", write_records),
            ("nothing", write_records),
            ("twice", write_records),
            ("joined_with_itself", write_in_transactions),
            ("the_first_five", write_in_transactions),
        ],
    ),
)
def test_whatever_a_transform_does_every_record_is_counted_once(
    bench: Bench, transform: str, write: Any
) -> None:
    write(bench)
    head = bench.pipeline(**settings(bench, transform)).run().head
    assert counted(head.counts) == COUNTED
    assert head.counts.rows == ROWS_OF_TWENTY[transform]
    assert bench.table.query("select count(*) from events") == [(ROWS_OF_TWENTY[transform],)]
    assert bench.table.query("select count(*) from events_dead_letters") == [(BAD,)]


#: Runs every pipeline it is told of on a classic session, and says what each counted.
CLASSIC = """
import json, sys
from eo_pipeline import Pipeline
for config in json.loads(sys.argv[1]):
    pipeline = Pipeline.from_config(config)
    pipeline.run()
    each = [e.counts for e in pipeline.history()]
    columns = ("records", "dead_letters", "tombstones", "rows")
    print(json.dumps([sum(getattr(counts, name) for counts in each) for name in columns]))
"""


#: The two ways, by ``inline_records``. Half of the transforms go the one, half the other; with the
#: other records each goes the way it did not go.
WAYS = {"files": 0, "inline": 10_000}


@pytest.mark.parametrize(
    ("write", "ways"),
    rest_is_chaos(
        [
            (write, ways)
            for write in (write_records, write_in_transactions)
            for ways in (("files", "inline"), ("inline", "files"))
        ],
        # every transform, over the harder records: between two of them is always an offset without
        but=[(write_in_transactions, ("inline", "files"))],
    ),
)
def test_so_it_is_on_a_classic_session(
    bench: Bench, tmp_path: Path, write: Any, ways: tuple[str, str]
) -> None:
    """In two checkpoints: only what was measured goes inline."""
    write(bench)
    way_of = dict(zip(ROWS_OF_TWENTY, itertools.cycle(ways), strict=False))
    configs = [
        settings(
            bench,
            transform,
            name=transform,
            source={
                **settings(bench, transform)["source"],
                "max_records": 26 if write is write_in_transactions else 13,
            },
            sink={**bench.config["sink"], "table": transform},
            inline_records=WAYS[way_of[transform]],
            spark={"master": "local[2]", "driver_memory": "1g"},
        )
        for transform in ROWS_OF_TWENTY
    ]
    jars = tmp_path / "jars"
    jars.mkdir()
    for jar in spark_connector_jars(STATE):
        (jars / jar.name).symlink_to(jar)
    environment = {k: v for k, v in os.environ.items() if k not in CLIENT_VARIABLES}
    ran = subprocess.run(
        [sys.executable, "-c", CLASSIC, json.dumps(configs)],
        env=environment | {JARS_VARIABLE: str(jars)},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    said = [json.loads(line) for line in ran.stdout.splitlines() if line.startswith("[")]
    rows_of_both = ROWS_OF_TWENTY | {"the_first_five": 10}
    expected = [[*COUNTED.values(), rows] for rows in rows_of_both.values()]
    assert dict(zip(ROWS_OF_TWENTY, said, strict=False)) == dict(
        zip(ROWS_OF_TWENTY, expected, strict=True)
    ), ran.stderr[-3000:]


@pytest.mark.core(only=["narrow-write_in_transactions"])
@pytest.mark.parametrize(
    ("transform", "write"),
    [
        *((name, write_records) for name in ("as_it_is", "one_of_each_id")),
        *((name, write_in_transactions) for name in ("as_it_is", "narrow", "through_python")),
        *((None, write) for write in (write_records, write_in_transactions)),
    ],
)
def test_records_are_read_once_if_they_prove_complete_or_take_a_plain_way(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, transform: str | None, write: Any
) -> None:
    second, again = list[str](), SourceCounter._counted_again

    def spied(reading: SourceCounter) -> Any:
        second.append("read")
        return again(reading)

    monkeypatch.setattr(SourceCounter, "_counted_again", spied)
    # a Connect server with much else to do may not say what it counted: a second read, no error
    for run in range(1, 4):
        write(bench)
        head = bench.pipeline(**settings(bench, transform)).run().head
        assert counted(head.counts) == COUNTED
        if len(second) < run:
            return
    raise AssertionError("a second job counted, every time")


@pytest.mark.core(only=["1"])
@pytest.mark.usefixtures("by_plan")
@pytest.mark.parametrize("silent", [1, 2, stage.STAGING_TRIES])
def test_a_job_that_does_not_say_what_it_made_is_run_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, silent: int
) -> None:
    """As a Spark Connect server may, that has much else to do; and never are such rows staged."""
    was_counted, silences = RowCounter.was_counted, iter(range(silent))

    def sometimes(result: RowCounter) -> bool:
        return was_counted(result) if next(silences, None) is None else False

    monkeypatch.setattr(RowCounter, "was_counted", sometimes)
    bench.topic.write(20)
    pipeline = bench.pipeline(transform="tests.runs.transforms:as_it_is")
    if silent == stage.STAGING_TRIES:
        with pytest.raises(SparkJobError, match="without reporting its number of rows"):
            pipeline.run()
        assert bench.table.versions() == [0]
        return
    pipeline.run()
    bench.table.assert_holds_once(bench.topic.written)


@pytest.mark.core
@pytest.mark.usefixtures("by_plan")
def test_what_does_not_add_up_is_refused_with_the_numbers(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    believed = SourceCounter._believed

    def one_good_less(self: SourceCounter, result: Any) -> Any:
        found = believed(self, result)
        return {**found, "good": found["good"] - 1} if found else None

    monkeypatch.setattr(SourceCounter, "_believed", one_good_less)
    write_records(bench)
    with pytest.raises(SparkJobError, match=r"25 records .* 19 are good, 3 bad and 2"):
        bench.pipeline(**settings(bench, None)).run()
    assert bench.table.versions() == [0]


RANGES = (OffsetRange("t", 0, 5, 9), OffsetRange("t", 1, 0, 4), OffsetRange("ü", 0, 0, 4))
ALL = [(r.topic, r.partition, o) for r in RANGES for o in range(r.start, r.end)]


def whole(counted: Iterable[tuple[str, int, int]]) -> bool:
    """By the sums that Spark's expressions make, told anew here."""
    prime, sums, records = 2**31 - 1, {"weights": 0, "firsts": 0, "squares": 0}, 0
    for topic, partition, offset in counted:
        weight = zlib.crc32(f"{topic}-{partition}".encode()) % prime
        sums["weights"] += weight
        sums["firsts"] += weight * offset % prime
        sums["squares"] += weight * offset * offset % prime
        records += 1
    return are_whole(RANGES, records, sums)


def test_whole_ranges_prove_themselves_in_any_order() -> None:
    assert whole(ALL)
    assert whole(random.sample(ALL, len(ALL)))


@pytest.mark.parametrize(
    "wrong",
    [
        ALL[:-1],
        ALL * 2,
        [*ALL[:-1], ALL[0]],
        # as many, and the same sum of offsets: the outer ones twice for the inner ones
        [*ALL[:4], *[("t", 1, o) for o in (0, 3, 0, 3)], *ALL[8:]],
        # one partition twice for another one with the same offsets
        [*ALL[:4], *ALL[4:8], *ALL[4:8]],
        [],
    ],
)
def test_ranges_that_were_not_read_whole_do_not(wrong: list[tuple[str, int, int]]) -> None:
    assert not whole(wrong)


def test_records_that_are_neither_good_nor_bad_nor_skipped_stop_the_run() -> None:
    seen = ReadCounts(25, 0, 0, 20, 3, 0, None, 0, (), {})
    staged = StagedOutput(rows=StagedTable.in_memory(pa.table({"id": [1]})))
    entry = child_of(first_entry("p"))
    with pytest.raises(SparkJobError, match=r"25 records .* 20 are good, 3 bad and 0 skipped"):
        counts(seen, staged, entry, None, None)
    assert counts(replace(seen, skipped=2), staged, entry, None, None).records == 25


def test_other_rows_than_the_job_made_are_refused_with_both_numbers(tmp_path: Path) -> None:
    in_memory = StagedTable.in_memory(pa.table({"id": [1, 2, 3]}))
    refuse_other_rows(3, in_memory, 7)
    in_files = StagedTable(in_memory.schema, tmp_path, (StagedFile("a.parquet", 9, 2),))
    for made, staged in ((4, in_memory), (2, in_memory), (3, in_files)):
        said = f"checkpoint 7 made {made} rows, and {staged.rows} are"
        with pytest.raises(SetupError, match=said):
            refuse_other_rows(made, staged, 7)
