"""A database's rows wait in a bucket: Spark writes them there, and this process reads them."""

from __future__ import annotations

import signal
from typing import Any

import pytest

from eo_pipeline.crashpoints import CrashPoint, reaching
from eo_pipeline.errors import SinkUnavailableError
from eo_pipeline.places import files_below
from tests.engine import Bench
from tests.proxy import Proxy
from tests.stores import Bucket


def test_a_promise_in_a_bucket_is_kept_by_the_next_run(bench: Bench, bucket: Bucket) -> None:
    bench.topic.write(300, partitions=range(4))
    staging = f"{bucket.uri}/staging"
    where: dict[str, Any] = {"staging": staging, "storage": bucket.document()}
    killed = bench.run_in_a_process("--crash-at", CrashPoint.PRE_COMMITTED, "2", **where)
    _, err = killed.communicate(timeout=240)
    assert killed.returncode == -signal.SIGKILL, err

    report = bench.pipeline(**where).run()

    assert report.checkpoints[0].recovered
    bench.table.assert_holds_once(bench.topic.written)
    left = {place.parent.name for place, _ in files_below(bucket.storage.place(staging))}
    assert left == {"_witness"}
    assert bench.pipeline(**where).audit().passed


@pytest.mark.parametrize("point", [CrashPoint.PLANNED, CrashPoint.STAGED])
def test_a_bucket_that_goes_away_is_no_wrong_setting(
    bench: Bench, bucket: Bucket, point: CrashPoint
) -> None:
    """Scenario: the store is gone when the folder is made, or the promise written. Outcome: an
    error that says so and may be tried again, and the next run has every record once.
    """
    bench.topic.write(300, partitions=range(4))
    with Proxy(bucket.server.host, bucket.server.port) as proxy:
        there = {"endpoint": f"http://127.0.0.1:{proxy.port}", "request_timeout": 1}
        storage = {**bucket.document(), **there}
        pipeline = bench.pipeline(staging=f"{bucket.uri}/staging", storage=storage)

        def away(reached: CrashPoint) -> None:
            if reached is point:
                proxy.refuse()
                proxy.cut()

        with reaching(away), pytest.raises(SinkUnavailableError, match="cannot be reached") as told:
            pipeline.run()
        assert told.value.retryable
        proxy.refuse(False)
        pipeline.run()
    bench.table.assert_holds_once(bench.topic.written)
