"""Every checkpoint keeps a checksum of what was staged, the same however it was staged."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from eo_pipeline import Pipeline
from eo_pipeline.batch.counting import SourceCounter
from eo_pipeline.ledger.entry import Counts
from eo_pipeline.spark import JARS_VARIABLE
from eo_pipeline.spark.connector import spark_connector_jars
from eo_pipeline.spark.jvm import CLIENT_VARIABLES
from tests.support.engine import Bench
from tests.support.servers import STATE

#: All of them make the same rows, in any order and number of files.
TRANSFORMS = ("as_it_is", "sorted_by_name", "spread_by_range", "kept_in_memory", "one_of_each_id")

CLASSIC = """
import json, sys
from eo_pipeline import Pipeline
from tests.batch.test_checksums import said
for config in json.loads(sys.argv[1]):
    print(json.dumps(said(Pipeline.from_config(config).run().head.counts)))
"""


def said(counts: Counts) -> list[Any]:
    checksums = (counts.checksum, counts.dead_letters_checksum)
    return [
        counts.rows,
        *(each and [each.algorithm, each.digest, each.columns] for each in checksums),
    ]


#: By ``inline_records``: in files and in memory.
WAYS = (0, 10_000)
#: Of each transform, over Spark Connect and on a classic session, the ways its rows are staged:
#: each way on each, the plain one both ways on both.
ONE_WAY_EACH = [
    (transform, (first,), (second,))
    for transform, (first, second) in zip(
        TRANSFORMS[1:], itertools.cycle([WAYS, WAYS[::-1]]), strict=False
    )
]
EVERY_WAY = [(transform, WAYS, WAYS) for transform in TRANSFORMS]


def settings(bench: Bench, folder: Path, transform: str, inline_records: int) -> dict[str, Any]:
    name = f"{folder.name}-{transform}-{inline_records}"
    return {
        **bench.config,
        "name": name,
        "source": {**bench.config["source"], "on_bad_record": "dead_letter"},
        "transform": f"tests.runs.transforms:{transform}",
        "sink": {"type": "parquet", "path": str(folder / name)},
        "inline_records": inline_records,
    }


def write_records(bench: Bench) -> None:
    bench.topic.write(20, partitions=range(4))
    bench.topic.write_value(b"not json")
    bench.topic.write_value(b"nor this", partition=1)


@pytest.mark.parametrize(
    "cases",
    [
        [*EVERY_WAY[:1], *ONE_WAY_EACH],
        pytest.param(EVERY_WAY, marks=pytest.mark.chaos),
    ],
    ids=["each once", "every way"],
)
def test_the_same_records_have_the_same_checksum_on_every_session_and_way(
    bench: Bench, tmp_path: Path, cases: list[tuple[str, tuple[int, ...], tuple[int, ...]]]
) -> None:
    """In files and in memory, sorted, spread and kept; over Spark Connect and without."""
    write_records(bench)
    over_connect, classic = (
        [
            settings(bench, tmp_path / kind, transform, inline_records)
            for transform, *ways in cases
            for inline_records in ways[session]
        ]
        for session, kind in enumerate(("connect", "classic"))
    )
    found = [said(Pipeline.from_config(config).run().head.counts) for config in over_connect]

    jars = tmp_path / "jars"
    jars.mkdir()
    for jar in spark_connector_jars(STATE):
        (jars / jar.name).symlink_to(jar)
    spark = {"master": "local[2]", "driver_memory": "1g"}
    environment = {k: v for k, v in os.environ.items() if k not in CLIENT_VARIABLES}
    ran = subprocess.run(
        [sys.executable, "-c", CLASSIC, json.dumps([{**c, "spark": spark} for c in classic])],
        env=environment | {JARS_VARIABLE: str(jars)},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    found += [json.loads(line) for line in ran.stdout.splitlines() if line.startswith("[")]
    assert len(found) == len(over_connect) + len(classic), ran.stderr[-3000:]
    assert found == [found[0]] * len(found)
    rows, checksum, letters = found[0]
    assert rows == 20
    assert sorted(checksum[2]) == ["_eo_offset", "_eo_partition", "_eo_topic", "id", "name"]
    assert "headers" in letters[2]


@pytest.mark.core
def test_it_costs_no_read_and_no_job_of_its_own(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another record, another checksum; and the same rows again are the same checksum again."""
    second = list[str]()
    monkeypatch.setattr(SourceCounter, "_counted_again", lambda _: second.append("read"))
    bench.topic.write(20, partitions=range(4))
    pipeline = Pipeline.from_config(settings(bench, tmp_path / "one", "as_it_is", 0))
    first = pipeline.run().head
    bench.topic.write(20, partitions=range(4))
    later = pipeline.run().head
    pipeline.replay(1, 1)
    again = pipeline.history()[-1]
    assert [len(said(each.counts)[1]) for each in (first, later, again)] == [3, 3, 3]
    assert first.counts.checksum == again.counts.checksum != later.counts.checksum
    assert second == []


@pytest.mark.core
def test_rows_that_replace_each_other_have_none(bench: Bench, tmp_path: Path) -> None:
    write_records(bench)
    config = settings(bench, tmp_path / "upsert", "as_it_is", 0)
    sink = {"type": "delta", "path": str(tmp_path / "t"), "mode": "upsert", "key": ["id"]}
    counts = Pipeline.from_config({**config, "sink": sink}).run().head.counts
    assert counts.checksum is None
    assert counts.dead_letters_checksum is not None
