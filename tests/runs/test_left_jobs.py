"""A server goes on with the job of a client that was killed; the next run ends it."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.support.engine import Bench, left_over, spark_has_begun, staged_folders
from tests.support.servers import wait_until


@pytest.mark.parametrize("kills", [1, 2])
def test_the_job_of_a_killed_run_does_not_hold_up_the_next_one(bench: Bench, kills: int) -> None:
    bench.topic.write(50)
    for _ in range(kills):
        killed(bench)
    following = bench.run_in_a_process()
    said = following.communicate(timeout=240)
    assert said[0].endswith("done\n"), said
    bench.table.assert_holds_once(bench.topic.written)
    bench.topic.write(50)
    bench.pipeline().run()
    assert left_over(bench) == []


def killed(bench: Bench) -> None:
    """A run whose job takes every core for hours, killed in the midst of it."""
    before = folders(bench)
    running = bench.run_in_a_process(transform="tests.runs.transforms:endless")
    wait_until(lambda: spark_has_begun(bench) and folders(bench) != before)
    running.kill()
    assert running.wait() == -signal.SIGKILL
    for pipe in (running.stdout, running.stderr):
        assert pipe is not None
        pipe.close()


def folders(bench: Bench) -> set[Path]:
    return staged_folders(Path(bench.config["staging"]))
