"""One data node of HDFS dies alone, and stays dead: in a run's job, in a promise's put, before the
rows are read. The name node goes on sending clients to it, as it does for ten minutes.

All of it is chaos: tests/storage/test_hdfs_store.py has one that is dead when files are put.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import hdfs_native
import pytest

from eo_pipeline.crashpoints import CrashPoint, reaching
from tests.runs.test_two_runs import at
from tests.support.engine import Bench
from tests.support.hdfs import DataNodes
from tests.support.servers import wait_until

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(600)]

RECORDS = 300


def assert_exact(bench: Bench, nodes: DataNodes) -> None:
    """With what is left of HDFS, and with all of it again; nothing that waited is left there."""
    bench.table.assert_holds_once(bench.topic.written)
    nodes.start()
    bench.topic.write(20, partitions=range(4))
    pipeline = bench.pipeline(**nodes.settings())
    pipeline.run()
    bench.table.assert_holds_once(bench.topic.written)
    assert pipeline.audit().passed
    kept = {"_witness", "_failures"}
    assert {name for name in nodes.folder.files() if not kept & {*name.split("/")}} == set()


@pytest.mark.parametrize("point", [CrashPoint.STAGING, CrashPoint.STAGED, CrashPoint.PRE_COMMITTED])
def test_a_run_goes_on_with_the_other_one(
    bench: Bench, data_nodes: DataNodes, point: CrashPoint
) -> None:
    bench.topic.write(RECORDS, partitions=range(4))
    with at(point, data_nodes.nodes[0].kill):
        report = bench.pipeline(**data_nodes.settings()).run()
    assert report.head.version == 3
    assert_exact(bench, data_nodes)


def test_in_the_midst_of_a_job_tasks_go_on_with_the_other_one(
    bench: Bench, data_nodes: DataNodes
) -> None:
    bench.topic.write(RECORDS, partitions=range(4))
    pipeline = bench.pipeline(
        **data_nodes.settings(),
        source={"max_records": RECORDS},
        transform="tests.runs.transforms:a_tenth_of_a_second_each",
    )
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(pipeline.run)
        wait_until(lambda: being_written(data_nodes) or running.done())
        assert not running.done()
        data_nodes.nodes[0].kill()
        assert running.result(300).head.version == 1
    assert_exact(bench, data_nodes)


def being_written(nodes: DataNodes) -> bool:
    """Whether tasks have files open."""
    found = nodes.folder.place.below()
    return any("/rows/part-" in str(each) for each, _ in found)


@pytest.mark.parametrize("moment", ["write", "hsync", "close"])
def test_in_the_midst_of_a_promises_put_it_is_kept_by_the_other_one(
    bench: Bench, data_nodes: DataNodes, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.topic.write(RECORDS, partitions=range(4))
    usual, killed = getattr(hdfs_native.FileWriter, moment), list[bool]()

    def kill_and_go_on(writer: hdfs_native.FileWriter, *arguments: Any) -> Any:
        if not killed:
            killed.append(True)
            data_nodes.nodes[0].kill()
        return usual(writer, *arguments)

    def at_the_promise(reached: CrashPoint) -> None:
        if reached is CrashPoint.STAGED and not killed:
            monkeypatch.setattr(hdfs_native.FileWriter, moment, kill_and_go_on)

    with reaching(at_the_promise):
        report = bench.pipeline(**data_nodes.settings()).run()
    assert killed
    assert report.head.version == 3
    assert_exact(bench, data_nodes)


def test_a_promise_made_before_is_kept_by_the_next_run(bench: Bench, data_nodes: DataNodes) -> None:
    """Scenario: the process dies with a data node. Outcome: what they promised is committed, from
    the other copy.
    """
    bench.topic.write(RECORDS, partitions=range(4))
    there = data_nodes.settings()
    run = bench.run_in_a_process("--crash-at", "pre_committed", "2", **there)
    run.communicate(timeout=240)
    data_nodes.nodes[0].kill()
    report = bench.pipeline(**there).run()
    assert [each.recovered for each in report.checkpoints] == [True, False]
    assert_exact(bench, data_nodes)
