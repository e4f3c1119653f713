"""A database's rows wait in a bucket: Spark writes them there, and this process reads them."""

from __future__ import annotations

import signal
from typing import Any

from eo_pipeline.crashpoints import CrashPoint
from eo_pipeline.places import files_below
from tests.engine import Bench
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
