"""Files that Spark uploads in parts, of five megabytes here, and what becomes of parts that a dead
task, a cut or a store that hangs leaves. All of it is chaos; a driver of its own for each.
"""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from eo_pipeline.embedded.spark import EmbeddedSpark
from eo_pipeline.spark import JARS_VARIABLE
from eo_pipeline.storage.paths import files_below
from tests.spark.cluster_jobs import TRANSFORMS, DeltaTableInABucket
from tests.support.engine import Bench, Table, Topic
from tests.support.proxy import Cut, Proxy
from tests.support.servers import wait_until
from tests.support.stores import Bucket

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(900)]

RECORDS = 200  # a hundred thousand characters each
PARTS = {
    "spark.hadoop.fs.s3a.multipart.size": "5M",
    "spark.hadoop.fs.s3a.multipart.threshold": "5M",
    # else a minute passes until it gives up
    "spark.hadoop.fs.s3a.retry.limit": "2",
    "spark.hadoop.fs.s3a.retry.throttle.limit": "2",
}
PURGING = {
    "spark.hadoop.fs.s3a.multipart.purge": "true",
    "spark.hadoop.fs.s3a.multipart.purge.age": "1",
}
SECOND_PART = b"partNumber=2"


@dataclass(frozen=True)
class Uploads:
    """A pipeline into a Delta table in a bucket, behind a proxy, and an observer who is not."""

    bench: Bench
    table: DeltaTableInABucket
    bucket: Bucket
    proxy: Proxy
    jars: Path
    before: frozenset[str]

    def started(
        self, config: Mapping[str, str] | None = None, **storage: Any
    ) -> subprocess.Popen[str]:
        endpoint = {"endpoint": f"http://127.0.0.1:{self.proxy.port}", **storage}
        settings = {**PARTS, **(config or {})}
        return self.bench.run_in_a_process(
            environment={JARS_VARIABLE: str(self.jars), "SPARK_REMOTE": ""},
            spark={
                "master": "local[2]",
                "driver_memory": "1g",
                "config": settings,
            },
            storage={**self.bucket.document(), **endpoint},
        )

    def left(self) -> set[str]:
        """Uploads that were begun and are not over."""
        return {*self.bucket.uploads_left()} - self.before

    def assert_the_next_run_is_exact(self) -> None:
        self.bench.pipeline().run()
        self.table.assert_holds_once(self.bench.topic.written)
        assert set(self.table.frame()["noise"].str.len_chars()) == {100_000}
        self.bench.topic.write(1)
        pipeline = self.bench.pipeline()
        pipeline.run()
        self.table.assert_holds_once(self.bench.topic.written)
        assert pipeline.audit().passed
        assert [name for name in self.listed() if name not in self.table.files()] == []

    def listed(self) -> list[str]:
        """Of the files with rows."""
        root = self.bucket.storage.place(self.bucket.uri)
        found = (str(place) for place, _ in files_below(root))
        return [name for name in found if "/_delta_log/" not in name and "/_eo_" not in name]


@pytest.fixture
def uploads(
    events: Topic, bucket: Bucket, spark_jars: Path, spark_server: EmbeddedSpark
) -> Iterator[Uploads]:
    assert spark_server.alive
    uri = f"{bucket.uri}/lake/events"
    config: dict[str, Any] = {
        "name": "events",
        "source": events.source(),
        "sink": {"type": "delta", "path": uri},
        "storage": bucket.document(),
        "transform": f"{TRANSFORMS}:with_noise",
        "inline_records": 0,
    }
    events.write(RECORDS)
    with Proxy(bucket.server.host, bucket.server.port) as proxy:
        yield Uploads(
            Bench(events, Table("no database"), config),
            DeltaTableInABucket(uri, bucket),
            bucket,
            proxy,
            spark_jars,
            frozenset(bucket.uploads_left()),
        )


def test_parts_of_a_killed_process_are_seen_by_no_list_until_a_rule_ends_them(
    uploads: Uploads,
) -> None:
    """Outcome: the next run is exact, and nothing of the dead one is listed. But the store keeps
    the parts, until somebody who lists uploads gives this one up: here Spark, as
    docs/object-stores.md says for a bucket without rules.
    """
    uploads.proxy.stall_at(SECOND_PART)
    run = uploads.started()
    wait_until(lambda: uploads.proxy.is_through or run.poll() is not None)
    run.kill()
    _, err = run.communicate(timeout=240)
    assert run.returncode == -signal.SIGKILL, err
    uploads.proxy.stall(False)
    assert uploads.table.coordinates().total() == 0
    uploads.assert_the_next_run_is_exact()
    assert len(uploads.left()) == 1
    uploads.bench.topic.write(1)
    out, err = uploads.started(PURGING).communicate(timeout=240)
    assert out.endswith("done\n"), err
    assert uploads.left() == set()


@pytest.mark.parametrize("cut", Cut, ids=["not heard", "not answered"])
@pytest.mark.parametrize("word", [SECOND_PART, b"?uploadId="], ids=["a part", "the completion"])
def test_a_part_whose_connection_breaks_is_sent_again(
    uploads: Uploads, word: bytes, cut: Cut
) -> None:
    uploads.proxy.cut_at(word, cut)
    out, err = uploads.started().communicate(timeout=240)
    assert out.endswith("done\n"), err
    assert uploads.proxy.is_through
    uploads.table.assert_holds_once(uploads.bench.topic.written)
    assert uploads.left() == set()
    uploads.assert_the_next_run_is_exact()


def test_parts_that_never_get_through_end_the_run_and_the_upload(uploads: Uploads) -> None:
    uploads.proxy.answer_at(SECOND_PART, b"", times=1_000)
    out, err = uploads.started().communicate(timeout=300)
    assert "done" not in out
    print(err[-1500:])  # noqa: T201
    assert "SparkJobError" in err
    assert "nothing was committed" in err
    assert uploads.left() == set(), "the task gave it up"
    uploads.assert_the_next_run_is_exact()


@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("word", [SECOND_PART, b"/rows/part-"], ids=["a part", "the first file"])
def test_a_store_that_hangs_while_rows_are_staged_ends_the_run(
    uploads: Uploads, word: bytes
) -> None:
    """Scenario: it takes what Spark sends, and says nothing more to anybody. Hadoop waits fifteen
    seconds at least for an answer, whatever it is told, and asks six times with these settings; and
    each of a dead task's and a dead job's things that it would remove is asked for like that.
    """
    uploads.proxy.stall_at(word)
    began = time.monotonic()
    out, err = uploads.started(request_timeout=1).communicate(timeout=1_200)
    print(f"{time.monotonic() - began:.0f} s: {err[-1500:]}")  # noqa: T201
    assert "done" not in out
    assert uploads.proxy.is_through
    assert "SparkJobError" in err or "SinkUnavailableError" in err
    uploads.proxy.stall(False)
    uploads.assert_the_next_run_is_exact()
