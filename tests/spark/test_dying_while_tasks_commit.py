"""What dies, or is frozen, on a cluster at the moment when its tasks give files their names.

In a bucket that takes a request for each of hundreds of files, and is no one step: some have their
names by then. All of it is chaos; tests/spark/test_on_a_cluster.py kills in the midst of tasks.
"""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import psutil
import pytest

from eo_pipeline.errors import SparkJobError
from eo_pipeline.storage.paths import files_below
from tests.spark.cluster_jobs import TRANSFORMS, Job
from tests.support.clusters import Cluster
from tests.support.servers import those_alive, wait_until

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(900)]

LAID_OUT = {"transform": f"{TRANSFORMS}:into_many_folders", "sink": {"partition_by": ["drawn"]}}
RECORDS = 2_000  # four tasks of 500, two at a time

#: An executor that says nothing is given up soon.
IMPATIENT = {
    "spark.network.timeout": "8s",
    "spark.executor.heartbeatInterval": "1s",
    "spark.storage.blockManagerHeartbeatTimeoutMs": "8000",
    "spark.network.timeoutInterval": "1s",
}


def listed(job: Job) -> list[str]:
    return [str(place) for place, _ in files_below(job.bucket.storage.place(job.bucket.uri))]


def commits_have_begun(job: Job) -> bool:
    """Some files of a task lie where a task that is done has them."""
    return any("/_temporary/0/task_" in name for name in listed(job))


def assert_exact(job: Job, cluster: Cluster) -> None:
    """Now; and after two more runs, of which the second finds what the first one left, nothing is
    there but the table.
    """
    job.table.assert_holds_once(job.bench.topic.written)
    pipeline = job.bench.pipeline(**cluster.over_connect(), **LAID_OUT)
    assert pipeline.audit().passed
    for _ in range(2):
        job.bench.topic.write(20)
        pipeline.run()
    job.table.assert_holds_once(job.bench.topic.written)
    assert pipeline.audit().passed
    # the note of a run that failed is there for `eo status`
    assert [name for name in job.staged() if "/_failures/" not in name] == []


def killed_executor(cluster: Cluster) -> None:
    cluster.executors()[0].kill()


def killed_executors(cluster: Cluster) -> None:
    for each in cluster.executors():
        each.kill()


def killed_worker(cluster: Cluster) -> None:
    cluster.servers.workers[0].kill()


LAKES = pytest.mark.parametrize("job", ["delta", "iceberg"], indirect=True)


@LAKES
@pytest.mark.parametrize("kill", [killed_executor, killed_executors, killed_worker])
def test_killed_while_tasks_commit_no_row_of_a_dead_attempt_is_seen(
    job: Job, cluster: Cluster, kill: object
) -> None:
    """Outcome: the job is run to its end by others, or fails and says so; then the next run is
    exact. What the dead attempt named is not published, and goes.
    """
    assert callable(kill)
    job.bench.topic.write(RECORDS, partitions=range(4))
    pipeline = job.bench.pipeline(
        **cluster.over_connect(), **LAID_OUT, source={"max_records": RECORDS}
    )
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(pipeline.run)
        wait_until(lambda: commits_have_begun(job) or running.done())
        assert not running.done()
        kill(cluster)
        error = running.exception(300)
    print(f"ended with {error!r}")  # noqa: T201
    if error is not None:
        assert isinstance(error, SparkJobError)
        assert error.retryable
        assert job.table.coordinates().total() == 0
        cluster.start()
        job.bench.pipeline(**cluster.over_connect(), **LAID_OUT).run()
    cluster.start()
    assert_exact(job, cluster)


@LAKES
def test_frozen_while_tasks_commit_it_adds_nothing_when_it_wakes(
    job: Job, cluster: Cluster
) -> None:
    """Scenario: a machine stops in the midst of a task's commit; others do its work, the
    checkpoint is committed; it goes on where it was. Outcome: nothing that it names is seen.
    """
    job.bench.topic.write(RECORDS, partitions=range(4))
    where = {**cluster.with_a_driver(**IMPATIENT), **LAID_OUT}
    known = {each.pid for each in cluster.executors()}
    run = job.bench.run_in_a_process(
        environment=cluster.environment, source={"max_records": RECORDS}, **where
    )
    frozen: list[psutil.Process] = []
    try:
        wait_until(lambda: commits_have_begun(job) or run.poll() is not None)
        new = [each for each in cluster.executors() if each.pid not in known]
        worker = psutil.Process(cluster.servers.workers[0].pid)
        below = {each.pid for each in worker.children(recursive=True)}
        frozen = [worker, *(each for each in new if each.pid in below)]
        assert len(frozen) == 2
        for each in frozen:
            each.suspend()
        out, err = run.communicate(timeout=300)
        print(f"ended with {err[-500:]!r}")  # noqa: T201
    finally:
        for each in frozen:
            with suppress(psutil.NoSuchProcess):
                each.resume()
    if not out.endswith("done\n"):
        assert "SparkJobError" in err
    else:
        job.table.assert_holds_once(job.bench.topic.written)
        assert [json.loads(line)["version"] for line in out.splitlines()[:-1]] == [0, 1]
    # the executor learns that it was given up, and ends; what it does until then is the test
    wait_until(lambda: not list(those_alive(frozen[1:], psutil.Process.cmdline)))
    time.sleep(1)
    job.bench.pipeline(**cluster.start().over_connect(), **LAID_OUT).run()
    assert_exact(job, cluster)
