"""What a replay would change is told before it, exactly, and nothing changes by telling it."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from eo_pipeline.audit import Difference
from eo_pipeline.crashpoints import CrashPoint
from eo_pipeline.embedded.spark import EmbeddedSpark
from eo_pipeline.errors import ConfigError, RefusedError, StalePlanError
from eo_pipeline.pipeline import Pipeline
from tests.operations.test_as_of import Store, delta, iceberg, mysql, parquet, pipeline_of, postgres
from tests.runs.transforms import SPARED_BY_REVISED
from tests.support.chaos import rest_is_chaos
from tests.support.engine import TABLE, Bench, Topic, left_over, staged_attempts
from tests.support.stores import MySqlDatabase

REVISED = "tests.runs.transforms:revised"
EVERY_KIND = "tests.runs.transforms:every_kind"


def figures(rows: Difference) -> dict[str, int]:
    names = ("before", "after", "changed", "added", "removed", "unchanged")
    return {name: getattr(rows, name) for name in names}


@pytest.mark.core(only=["postgres"])
@pytest.mark.parametrize(
    "store",
    rest_is_chaos([postgres, mysql, parquet, delta, iceberg], but=[postgres, mysql, delta]),
)
def test_of_every_kind_of_column_what_changes_is_told_and_what_does_not_is_not(
    store: Callable[[Path, MySqlDatabase, str], Store],
    spark_server: EmbeddedSpark,
    events: Topic,
    mysql_database: MySqlDatabase,
    database: str,
    tmp_path: Path,
) -> None:
    used = store(tmp_path / "lake", mysql_database, database)

    def pipeline(transform: str) -> Pipeline:
        source = {"max_records": 200}
        return pipeline_of(events, used.sink, tmp_path, transform=transform, source=source)

    events.write(100, partitions=range(4))
    pipeline(EVERY_KIND).run()
    before = Counter(used.look())

    same = pipeline(EVERY_KIND)
    found = same.preview_replay(same.plan_replay(1))
    assert found.left_out == {}
    assert found.rows.columns == {}, found.rows.examples
    assert figures(found.rows) == {
        "before": 100,
        "after": 100,
        "changed": 0,
        "added": 0,
        "removed": 0,
        "unchanged": 100,
    }

    other = pipeline(REVISED)
    plan = other.plan_replay(1)
    found = other.preview_replay(plan)
    assert figures(found.rows) == {
        "before": 100,
        "after": 95,
        "changed": 20,
        "added": 5,
        "removed": 10,
        "unchanged": 70,
    }
    # "yes" changes with the id's parity: 7 more
    compared = {*found.rows.columns, *SPARED_BY_REVISED}
    assert {"name", "yes", "tiny", "single", "money", "raw", "day", "wall", "words"} <= compared
    assert {"inner", "by_name", "exact", "instant", "double", "whole", "small"} <= compared
    assert set(found.rows.columns.values()) == {20}
    assert Counter(each.kind for each in found.rows.examples).keys() == {
        *("changed", "added", "removed")
    }
    assert Counter(used.look()) == before, "only looked at"
    assert left_behind(tmp_path) == []

    plan.apply()
    after = Counter(used.look())
    assert (before - after).total() == 10 + 20
    assert (after - before).total() == 5 + 20


def left_behind(folder: Path) -> list[Path]:
    """What no run left in staging."""
    return sorted((folder / "staging").rglob("_audit-*"))


def test_rows_are_known_by_a_key_if_one_is_given(bench: Bench) -> None:
    bench.topic.write(100, partitions=range(4))
    bench.pipeline().run()
    shouting = bench.pipeline(transform="tests.runs.transforms:shouting")
    plan = shouting.plan_replay(1)
    found = shouting.preview_replay(plan, key=["id"])
    assert (found.key, found.rows.changed, found.rows.columns) == (("id",), 100, {"name": 100})
    example = found.rows.examples[0]
    number = example.key["id"]
    assert example.before == {"name": f"record {number}"}
    assert example.after == {"name": f"RECORD {number}"}
    # by the name nothing is the same row any more
    by_name = shouting.preview_replay(plan, key=["name"]).rows
    assert (by_name.changed, by_name.added, by_name.removed) == (0, 100, 100)
    with pytest.raises(ConfigError, match="not known by nobody"):
        shouting.preview_replay(plan, key=["nobody"])


def test_rows_that_do_not_say_where_they_are_from_are_known_by_all_their_values(
    bench: Bench,
) -> None:
    bench.topic.write(100, partitions=range(4))
    bench.pipeline(lineage=False).run()
    small = bench.pipeline(lineage=False, transform="tests.runs.transforms:only_small_ids")
    found = small.preview_replay(small.plan_replay(1))
    assert found.key == ()
    assert (found.rows.changed, found.rows.added, found.rows.removed) == (0, 0, 40)


def test_several_checkpoints_are_summed_up_and_bad_records_are_told(bench: Bench) -> None:
    source = {"on_bad_record": "dead_letter"}
    bench.topic.write(150, partitions=range(4))
    bench.topic.write_value(b"no json")
    bench.pipeline(source=source).run()
    again = bench.pipeline(source=source, transform="tests.runs.transforms:only_small_ids")
    found = again.preview_replay(again.plan_replay(1, 2))
    assert [each.checkpoint.version for each in found.checkpoints] == [1, 2]
    assert (found.rows.before, found.rows.removed) == (150, 90)
    assert sum(each.counts.dead_letters for each in found.checkpoints) == 1
    strict = bench.pipeline()
    with pytest.raises(Exception, match="bad record"):
        strict.preview_replay(strict.plan_replay(1, 2))
    assert left_behind(Path(bench.config["staging"]).parent) == []


def test_a_plan_that_the_ledger_has_left_behind_is_not_previewed(bench: Bench) -> None:
    bench.topic.write(100)
    pipeline = bench.pipeline()
    pipeline.run()
    plan = pipeline.plan_replay(1)
    pipeline.replay(1)
    with pytest.raises(StalePlanError):
        pipeline.preview_replay(plan)


def test_an_upserted_table_is_refused_as_its_replay_is(bench: Bench) -> None:
    bench.topic.write(100)
    pipeline = bench.pipeline(sink={"mode": "upsert", "key": ["id"]})
    pipeline.run()
    with pytest.raises(RefusedError, match="upserted"):
        pipeline.plan_replay(1)


@pytest.mark.parametrize(
    "point", rest_is_chaos([CrashPoint.STAGING, CrashPoint.STAGED], but=[CrashPoint.STAGED])
)
def test_a_preview_that_is_killed_leaves_nothing_that_anybody_could_publish(
    bench: Bench, point: CrashPoint
) -> None:
    bench.topic.write(200, partitions=range(4))
    bench.pipeline().run()
    run = bench.run_in_a_process(
        *("--preview", "1", "2", "--crash-at", point, "2"),
        transform="tests.runs.transforms:shouting",
    )
    _, err = run.communicate(timeout=240)
    assert run.returncode == -signal.SIGKILL, err
    assert left_behind(Path(bench.config["staging"]).parent) != []

    assert staged_attempts(bench) == []
    pipeline = bench.pipeline()
    assert pipeline.run().checkpoints == ()
    assert left_over(bench) == [], "the next run swept it"
    assert bench.table.versions() == [0, 1, 2]
    assert bench.table.query(f"select count(*) from {TABLE} where name like 'RECORD%'") == [(0,)]
    bench.table.assert_holds_once(bench.topic.written)
    assert pipeline.audit().passed
