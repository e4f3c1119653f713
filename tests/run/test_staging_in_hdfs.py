"""A database's rows wait in HDFS: killed at every point of a checkpoint, cut off, gone back, and
compared from outside.
"""

from __future__ import annotations

import signal
from typing import Any

import pytest

from eo_pipeline.crashpoints import CrashPoint, reaching
from eo_pipeline.errors import FencedError, SetupError, SinkUnavailableError
from tests.chaos import rest_is_chaos
from tests.engine import Bench
from tests.hdfs import HdfsFolder
from tests.proxy import Cut, Proxy
from tests.run.test_crash_points import PROMISED
from tests.run.test_two_runs import at

SHOUTING = "tests.run.transforms:shouting"

#: A promise that is kept, files without one, and a commit whose files still lie there.
TELLING = [CrashPoint.STAGED, CrashPoint.PRE_COMMITTED, CrashPoint.COMMITTED]


def in_hdfs(hdfs: HdfsFolder, **more: Any) -> dict[str, Any]:
    """Changes to the bench's pipeline."""
    return {"staging": hdfs.uri, "storage": hdfs.document(), **more}


def left(hdfs: HdfsFolder) -> set[str]:
    """Files in staging but the witnesses of the newest commit, and notes of failures."""
    return {name for name in hdfs.files() if not {"_witness", "_failures"} & {*name.split("/")}}


def behind(proxy: Proxy, hdfs: HdfsFolder, request_timeout: int) -> dict[str, Any]:
    """A pipeline's settings that lead to ``hdfs`` by way of ``proxy``."""
    uri = hdfs.uri.replace(f":{hdfs.server.port}", f":{proxy.port}")
    return {"staging": uri, "storage": {"request_timeout": request_timeout}}


@pytest.mark.parametrize("point", rest_is_chaos(CrashPoint, but=TELLING))
def test_killed_at_a_named_point_the_next_run_leaves_every_record_there_once(
    bench: Bench, hdfs: HdfsFolder, point: CrashPoint
) -> None:
    bench.topic.write(300, partitions=range(4))
    nth = {CrashPoint.RECOVERED: 1, CrashPoint.COMMITTED: 3, CrashPoint.ENTRY_SENT: 3}.get(point, 2)
    killed = bench.run_in_a_process("--crash-at", point, str(nth), **in_hdfs(hdfs))
    _, err = killed.communicate(timeout=240)
    assert killed.returncode == -signal.SIGKILL, err
    bench.table.assert_consistent()

    report = bench.pipeline(**in_hdfs(hdfs)).run()

    bench.table.assert_holds_once(bench.topic.written)
    assert bench.table.versions() == list(range(report.head.version + 1))
    assert [r for r in report.checkpoints if r.recovered] != [] or point not in PROMISED
    assert left(hdfs) == set()
    assert bench.pipeline(**in_hdfs(hdfs)).audit().passed


def test_rows_from_hdfs_go_back_and_are_replaced(bench: Bench, hdfs: HdfsFolder) -> None:
    bench.topic.write(300, partitions=range(4))
    pipeline = bench.pipeline(**in_hdfs(hdfs))
    pipeline.run()
    pipeline.plan_rewind(1).apply()
    assert bench.table.query("select count(*) from events") == [(100,)]
    pipeline.run()
    other = bench.pipeline(**in_hdfs(hdfs, transform=SHOUTING))
    other.plan_replay(1, 1).apply()

    bench.table.assert_holds_once(bench.topic.written)
    assert bench.table.query("select count(*) from events where name = upper(name)") == [(100,)]
    assert left(hdfs) == set()


def test_of_two_runs_from_one_checkpoint_one_is_fenced(bench: Bench, hdfs: HdfsFolder) -> None:
    bench.topic.write(100, partitions=range(4))
    other = bench.pipeline(**in_hdfs(hdfs))
    with at(CrashPoint.STAGED, other.run), pytest.raises(FencedError):
        bench.pipeline(**in_hdfs(hdfs)).run()
    bench.table.assert_holds_once(bench.topic.written)


def test_a_name_node_that_goes_away_is_no_wrong_setting(bench: Bench, hdfs: HdfsFolder) -> None:
    """Scenario: the name node is gone when the promise is written. Outcome: an error that says so
    and may be tried again, and the next run has every record once.
    """
    bench.topic.write(300, partitions=range(4))
    server = hdfs.server
    with Proxy(server.host, server.port) as proxy:
        there = behind(proxy, hdfs, 1)

        def away(reached: CrashPoint) -> None:
            if reached is CrashPoint.STAGED:
                proxy.refuse()
                proxy.cut()

        with reaching(away), pytest.raises(SinkUnavailableError, match="cannot be reached") as told:
            bench.pipeline(**there).run()
        assert told.value.retryable
        proxy.refuse(False)
        bench.pipeline(**there).run()
    bench.table.assert_holds_once(bench.topic.written)


@pytest.mark.parametrize("cut", Cut)
def test_an_answer_to_a_rename_that_is_lost_is_found_out(
    bench: Bench, hdfs: HdfsFolder, cut: Cut
) -> None:
    """The link breaks when the promise gets its name: before the name node hears of it, or before
    its answer is heard.
    """
    bench.topic.write(100, partitions=range(4))
    server = hdfs.server
    with Proxy(server.host, server.port) as proxy:
        there = behind(proxy, hdfs, 5)

        def at_the_promise(reached: CrashPoint) -> None:
            if reached is CrashPoint.STAGED:
                proxy.cut_at(b"rename2", cut)

        with reaching(at_the_promise):
            bench.pipeline(**there).run()
        assert proxy.is_through
    bench.table.assert_holds_once(bench.topic.written)
    assert left(hdfs) == set()


def test_a_folder_that_this_user_may_not_write_is_refused_before_anything_is_read(
    bench: Bench, hdfs: HdfsFolder
) -> None:
    bench.topic.write(10, partitions=range(4))
    path = f"/{hdfs.place.key}"
    hdfs.server.client().mkdirs(path, 0o500, True)
    hdfs.server.client().set_owner(path, "somebody", "else")
    stranger = {"HADOOP_USER_NAME": "stranger"}
    run = bench.run_in_a_process(environment=stranger, **in_hdfs(hdfs))
    _, err = run.communicate(timeout=240)
    assert run.returncode == 1
    assert SetupError.__name__ in err
    assert "Permission denied: user=stranger" in err
