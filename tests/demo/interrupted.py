"""Not a test of its own: what tests/demo/test_interrupted.py starts, and interrupts."""

from __future__ import annotations

import os
import time
from pathlib import Path

import psutil

from eo_pipeline.embedded.redis import EmbeddedRedis
from tests.demo.demo import Demo


def test_with_a_server_and_a_demo_that_waits(redis_server: EmbeddedRedis, demo: Demo) -> None:
    demo.start("run", "--flights", "20000")
    demo.wait_for("Publishing")
    started = psutil.Process().children(recursive=True)
    assert redis_server.pid in [process.pid for process in started]
    Path(os.environ["EO_TEST_PIDS"]).write_text(" ".join(str(each.pid) for each in started))
    time.sleep(600)
