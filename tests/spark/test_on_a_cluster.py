"""One document, unchanged but for its URIs, on a cluster that shares nothing but a bucket."""

from __future__ import annotations

import json
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from eo_pipeline import Pipeline
from eo_pipeline.batch.stage import Stager
from eo_pipeline.cli.checks import State
from eo_pipeline.cli.checks_spark import spark_checks
from eo_pipeline.errors import SetupError, SparkUnavailableError
from eo_pipeline.runs.report import RunReport
from tests.sinks.iceberg.iceberg_world import catalog_in
from tests.spark.cluster_jobs import TRANSFORMS, Job, PostgresTable
from tests.support.chaos import rest_is_chaos
from tests.support.clusters import Cluster
from tests.support.engine import Bench
from tests.support.servers import wait_until

IN_DELTA = pytest.mark.parametrize("job", ["delta"], indirect=True)
SINKS = ["delta", "iceberg", "postgres"]
IN_EACH = pytest.mark.parametrize("job", rest_is_chaos(SINKS, but=["delta"]), indirect=True)
IN_EACH_BY_CHAOS = pytest.mark.parametrize("job", SINKS, indirect=True)


@pytest.mark.parametrize("job", SINKS, indirect=True)
def test_the_same_document_fills_its_table_over_connect(job: Job, cluster: Cluster) -> None:
    """The transform's function and the modules it imports reach the executors by themselves."""
    where = {**cluster.over_connect(), "transform": f"{TRANSFORMS}:by_a_module"}
    job.bench.topic.write(3_000, partitions=range(4))
    report = job.bench.pipeline(**where).run()
    assert report.head.version == 3
    job.table.assert_holds_once(job.bench.topic.written)
    assert all(name == name.upper() for name in job.table.names())
    assert job.bench.pipeline(**where).audit().passed
    assert job.staged() == []


@IN_EACH
def test_the_same_document_fills_its_table_by_a_driver_of_its_own(
    job: Job, cluster: Cluster
) -> None:
    job.bench.topic.write(3_000, partitions=range(4))
    where = {**cluster.with_a_driver(), "transform": f"{TRANSFORMS}:by_a_module"}
    run = job.bench.run_in_a_process(environment=cluster.environment, **where)
    out, err = run.communicate(timeout=240)
    assert out.endswith("done\n"), err
    job.table.assert_holds_once(job.bench.topic.written)
    assert all(name == name.upper() for name in job.table.names())


@pytest.mark.parametrize("job", ["postgres"], indirect=True)
def test_one_read_fills_several_tables_over_connect(
    job: Job, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Executors decode the records, and run each table's transform over its own."""
    alone: list[str] = []
    monkeypatch.setattr(Stager, "stage", lambda stager, *_: alone.append(stager.sink.table_name))
    job.bench.topic.write(3_000, partitions=range(4))
    report = Pipeline.from_config(halves(job, "by_a_module", cluster.over_connect())).run()
    assert alone == []
    assert (report.head.version, report.head.counts.rows_total) == (3, 3_000)
    names = halves_hold_once(job)
    assert all(name == name.upper() for name in names)


def halves(job: Job, transform: str, where: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Return a document of two tables that have half of the records each."""
    sink = {k: v for k, v in job.bench.config["sink"].items() if k != "table"}
    tables = [
        {
            "name": f"half_{half}",
            "where": f"offset % 2 = {half}",
            "transform": f"{TRANSFORMS}:{transform}",
        }
        for half in (0, 1)
    ]
    return {**job.bench.config, **where, "sink": sink, "tables": tables, **more}


def halves_hold_once(job: Job) -> list[str]:
    """Return the names in both tables, which have each record once between them."""
    assert isinstance(job.table, PostgresTable)
    columns = "_eo_topic, _eo_partition, _eo_offset, name"
    rows = [
        (*row, half)
        for half in (0, 1)
        for row in job.table.query(f"select {columns} from half_{half}")
    ]
    found = Counter((*place, half) for *place, _, half in rows)
    assert found == Counter((*place, place[-1] % 2) for place in job.bench.topic.written)
    assert job.staged() == []
    return [row[3] for row in rows]


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A module of this process that lies elsewhere than the transform."""
    module = tmp_path / "words_of_ours.py"
    module.write_text("def shouted(word):\n    return word.upper()\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield module
    sys.modules.pop(module.stem, None)


@IN_DELTA
def test_a_module_that_executors_lack_is_named_with_the_setting_that_sends_it(
    job: Job, cluster: Cluster, library: Path
) -> None:
    job.bench.topic.write(20)
    where = cluster.over_connect()
    transform = f"{TRANSFORMS}:by_a_library"
    with pytest.raises(SetupError, match="no module 'words_of_ours'") as lacking:
        job.bench.pipeline(**where, transform=transform).run()
    assert "spark.py_files" in str(lacking.value)
    where["spark"]["py_files"] = [str(library)]
    job.bench.pipeline(**where, transform=transform).run()
    job.table.assert_holds_once(job.bench.topic.written)


@IN_DELTA
def test_the_doctor_asks_the_server_for_its_jars_and_an_executor_for_its_python(
    job: Job, cluster: Cluster
) -> None:
    pipeline = job.bench.pipeline(**cluster.over_connect())
    found = {check.name: check for check in spark_checks(pipeline, 30)}
    assert {check.state for check in found.values()} == {State.OK}, found
    assert "spark-sql-kafka-0-10_2.13, hadoop-aws" in found["spark jars"].message
    assert "pyarrow" in found["spark workers"].message


@IN_EACH_BY_CHAOS
@pytest.mark.chaos
def test_executors_that_stage_on_disks_of_their_own_commit_nothing(
    job: Job, cluster: Cluster, tmp_path: Path
) -> None:
    job.bench.topic.write(20)
    folder = str(tmp_path / "staging")
    own = {"delta": {"path": folder}, "iceberg": {"catalog": catalog_in(tmp_path, folder)}}
    sink = own.get(job.bench.config["sink"]["type"], {})
    with pytest.raises(SetupError, match="share"):
        job.bench.pipeline(**cluster.over_connect(), staging=folder, sink=sink).run()


def killed_executor(cluster: Cluster) -> None:
    cluster.executors()[0].kill()


def killed_worker(cluster: Cluster) -> None:
    """And its executor with it."""
    cluster.servers.workers[0].kill()


def run_through(
    kill: Callable[[Cluster], None], pipeline: Pipeline, cluster: Cluster, *, after: int = 1
) -> RunReport:
    """The run's report, of which something is killed once so many tasks have begun."""
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(pipeline.run)
        wait_until(lambda: len(cluster.begun()) >= after or running.done())
        kill(cluster)
        return running.result(240)


@pytest.mark.parametrize(
    ("kill", "transform"),
    rest_is_chaos(
        [
            (kill, transform)
            for kill in (killed_executor, killed_worker)
            for transform in ("slowly", "slowly_after_a_shuffle")
        ],
        but=[(killed_executor, "slowly_after_a_shuffle")],
    ),
)
@IN_EACH
def test_what_dies_of_the_cluster_costs_a_run_nothing_but_time(
    job: Job, cluster: Cluster, kill: Any, transform: str
) -> None:
    """After a shuffle, what the dead one had read is read again: a stage is run twice."""
    job.bench.topic.write(120, partitions=range(4))
    pipeline = job.bench.pipeline(**cluster.over_connect(), transform=f"{TRANSFORMS}:{transform}")
    report = run_through(kill, pipeline, cluster)
    job.table.assert_holds_once(job.bench.topic.written)
    assert (report.head.counts.records, report.head.counts.rows) == (120, 120)
    assert job.staged() == []


@pytest.mark.chaos
@pytest.mark.parametrize("job", ["postgres"], indirect=True)
def test_what_dies_while_a_task_makes_the_rows_of_several_tables_counts_once(
    job: Job, cluster: Cluster
) -> None:
    """A task is tried again when it has the rows of one table, and not yet those of the other."""
    job.bench.topic.write(120, partitions=range(4))
    pipeline = Pipeline.from_config(halves(job, "slowly", cluster.over_connect()))
    report = run_through(killed_executor, pipeline, cluster, after=3)
    halves_hold_once(job)
    assert (report.head.counts.records, report.head.counts.rows) == (120, 120)
    assert pipeline.audit().passed


@IN_EACH_BY_CHAOS
@pytest.mark.chaos
def test_a_connect_server_that_dies_takes_the_run_with_it_and_the_next_one_is_exact(
    job: Job, cluster: Cluster
) -> None:
    job.bench.topic.write(120, partitions=range(4))
    pipeline = job.bench.pipeline(**cluster.over_connect(), transform=f"{TRANSFORMS}:slowly")
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(pipeline.run)
        wait_until(lambda: bool(cluster.begun()) or running.done())
        cluster.connect.kill()
        with pytest.raises(SparkUnavailableError):
            running.result(240)
    cluster.start()
    job.bench.pipeline(**cluster.over_connect()).run()
    job.table.assert_holds_once(job.bench.topic.written)
    job.bench.topic.write(20)
    job.bench.pipeline(**cluster.over_connect()).run()
    job.table.assert_holds_once(job.bench.topic.written)
    assert job.staged() == []


@IN_EACH_BY_CHAOS
@pytest.mark.chaos
@pytest.mark.parametrize("way", ["with_a_driver", "over_connect"])
def test_a_killed_run_leaves_nothing_that_the_next_one_does_not_settle(
    job: Job, cluster: Cluster, way: str
) -> None:
    """Its job goes on where the server does, until the next run of the pipeline ends it."""
    job.bench.topic.write(1_200, partitions=range(4))
    where = {**getattr(cluster, way)(), "transform": f"{TRANSFORMS}:slowly"}
    environment = cluster.environment if way == "with_a_driver" else {}
    run = job.bench.run_in_a_process(environment=environment, **where)
    wait_until(lambda: bool(cluster.begun()))
    run.kill()
    run.communicate(timeout=240)
    assert run.returncode == -signal.SIGKILL
    job.bench.pipeline(**cluster.over_connect()).run()
    job.table.assert_holds_once(job.bench.topic.written)
    job.bench.topic.write(20)
    job.bench.pipeline(**cluster.over_connect()).run()
    assert job.staged() == []


#: As soon as one task has ended, whatever takes longer is tried twice.
SPECULATING = {
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.quantile": "0.1",
}


@IN_EACH_BY_CHAOS
@pytest.mark.chaos
def test_of_a_task_that_is_tried_twice_one_attempt_is_published(job: Job, cluster: Cluster) -> None:
    job.bench.topic.write(80, partitions=range(4))
    where = {**cluster.with_a_driver(**SPECULATING), "transform": f"{TRANSFORMS}:slowly"}
    try_tasks_twice(replace(job.bench, config={**job.bench.config, **where}), cluster)
    job.table.assert_holds_once(job.bench.topic.written)
    job.bench.topic.write(20)
    job.bench.pipeline(**cluster.over_connect()).run()
    job.table.assert_holds_once(job.bench.topic.written)
    assert job.staged() == []


@pytest.mark.chaos
@pytest.mark.parametrize("job", ["postgres"], indirect=True)
def test_of_a_task_of_several_tables_that_is_tried_twice_one_attempt_is_published(
    job: Job, cluster: Cluster
) -> None:
    job.bench.topic.write(80, partitions=range(4))
    config = halves(job, "slowly", cluster.with_a_driver(**SPECULATING))
    try_tasks_twice(replace(job.bench, config=config), cluster)
    job.bench.topic.write(20)
    pipeline = Pipeline.from_config(halves(job, "by_a_module", cluster.over_connect()))
    assert pipeline.run().head.counts.rows_total == 100
    halves_hold_once(job)
    assert pipeline.audit().passed


def try_tasks_twice(bench: Bench, cluster: Cluster) -> None:
    """Run the pipeline, in two checkpoints of a topic with 80 records.

    Scenario: one executor is frozen in the midst of a task, another one takes that over. The
    frozen one goes on when its checkpoint has been committed and the next is under way.
    """
    known = {each.pid for each in cluster.executors()}
    run = bench.run_in_a_process(environment=cluster.environment, source={"max_records": 40})
    assert run.stdout is not None
    started = json.loads(run.stdout.readline())
    assert started["version"] == 0
    wait_until(lambda: len(cluster.begun()) >= 2)
    frozen = psutil.Process(next(e.pid for e in cluster.executors() if e.pid not in known))
    frozen.suspend()
    try:
        assert json.loads(run.stdout.readline())["version"] == 1
    finally:
        frozen.resume()
    out, err = run.communicate(timeout=240)
    assert out.endswith("done\n"), err
    # the frozen one may have gone on for a while after the last commit
    wait_until(lambda: all(each.pid in known for each in cluster.executors()))
