"""A database's rows wait in a bucket of Google's, as far as an emulator is one: killed at every
point of a checkpoint, cut off, gone back, and compared from outside.
"""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from eo_pipeline.crashpoints import CrashPoint, reaching
from eo_pipeline.embedded.jars import spark_connector_jars, spark_gcs_jars
from eo_pipeline.embedded.spark import EmbeddedSpark
from eo_pipeline.errors import FencedError, SinkUnavailableError
from tests.chaos import rest_is_chaos
from tests.engine import STATE, Bench
from tests.google import GoogleBucket, behind, service_account
from tests.google_gateway import HOST, TOKEN
from tests.proxy import Cut, Proxy
from tests.run.test_crash_points import PROMISED
from tests.run.test_two_runs import at

SHOUTING = "tests.run.transforms:shouting"

#: A promise that is kept, and files without one.
TELLING = [CrashPoint.STAGED, CrashPoint.PRE_COMMITTED]


def in_google(google: GoogleBucket, **more: Any) -> dict[str, Any]:
    """Changes to the bench's pipeline."""
    return {"staging": google.uri, "storage": google.document(), **more}


def left(google: GoogleBucket) -> set[str]:
    """Objects in staging but the witnesses of the newest commit, and notes of failures."""
    return {name for name in google.files() if not {"_witness", "_failures"} & {*name.split("/")}}


@pytest.mark.parametrize("point", rest_is_chaos(CrashPoint, but=TELLING))
def test_killed_at_a_named_point_the_next_run_leaves_every_record_there_once(
    bench: Bench, google: GoogleBucket, point: CrashPoint
) -> None:
    bench.topic.write(300, partitions=range(4))
    nth = {CrashPoint.RECOVERED: 1, CrashPoint.COMMITTED: 3, CrashPoint.ENTRY_SENT: 3}.get(point, 2)
    killed = bench.run_in_a_process("--crash-at", point, str(nth), **in_google(google))
    _, err = killed.communicate(timeout=240)
    assert killed.returncode == -signal.SIGKILL, err
    bench.table.assert_consistent()

    report = bench.pipeline(**in_google(google)).run()

    bench.table.assert_holds_once(bench.topic.written)
    assert bench.table.versions() == list(range(report.head.version + 1))
    assert [r for r in report.checkpoints if r.recovered] != [] or point not in PROMISED
    assert left(google) == set()
    assert bench.pipeline(**in_google(google)).audit().passed


def test_rows_from_google_go_back_and_are_replaced(bench: Bench, google: GoogleBucket) -> None:
    bench.topic.write(300, partitions=range(4))
    pipeline = bench.pipeline(**in_google(google))
    pipeline.run()
    pipeline.plan_rewind(1).apply()
    assert bench.table.query("select count(*) from events") == [(100,)]
    pipeline.run()
    other = bench.pipeline(**in_google(google, transform=SHOUTING))
    other.plan_replay(1, 1).apply()

    bench.table.assert_holds_once(bench.topic.written)
    assert bench.table.query("select count(*) from events where name = upper(name)") == [(100,)]
    assert left(google) == set()


@pytest.mark.chaos
def test_spark_asks_as_the_service_account_and_writes_no_key_down(
    bench: Bench, google: GoogleBucket, tmp_path: Path
) -> None:
    """Trap: Spark keeps plans as text, with all options, in its event log. It hides what is called
    a secret or a token, and of the connector's name for the key does not know that it is one.
    """
    bench.topic.write(10, partitions=range(4))
    account = service_account(google.gateway)
    there = behind(google, google.gateway.port, service_account=json.dumps(account))
    (tmp_path / "events").mkdir()
    settings = {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": str(tmp_path / "events"),
        "spark.eventLog.compress": "false",
    }
    jars = (*spark_connector_jars(STATE), *spark_gcs_jars(STATE))
    google.gateway.presented()
    with EmbeddedSpark(tmp_path / "spark", jars=jars, settings=settings) as server:
        bench.pipeline(**there, spark={"remote": server.remote}).run()
    bench.table.assert_holds_once(bench.topic.written)
    assert f"Bearer {TOKEN}" in google.gateway.presented()
    files = [file for file in (tmp_path / "events").rglob("*") if file.is_file()]
    written = "".join(file.read_text() for file in files)
    assert "redacted" in written
    assert there["staging"] in written
    assert "BEGIN PRIVATE KEY" not in written
    assert account["private_key"].splitlines()[1] not in written


@pytest.mark.chaos
def test_of_two_runs_from_one_checkpoint_one_is_fenced(bench: Bench, google: GoogleBucket) -> None:
    bench.topic.write(100, partitions=range(4))
    other = bench.pipeline(**in_google(google))
    with at(CrashPoint.STAGED, other.run), pytest.raises(FencedError):
        bench.pipeline(**in_google(google)).run()
    bench.table.assert_holds_once(bench.topic.written)


@pytest.mark.chaos
def test_a_bucket_that_goes_away_is_no_wrong_setting(bench: Bench, google: GoogleBucket) -> None:
    """Scenario: the store is gone when the promise is written. Outcome: an error that says so and
    may be tried again, and the next run has every record once.
    """
    bench.topic.write(300, partitions=range(4))
    with Proxy(HOST, google.gateway.port) as proxy:
        there = behind(google, proxy.port, request_timeout=1)

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


@pytest.mark.parametrize("cut", rest_is_chaos(Cut, but=[Cut.BEFORE_THE_REPLY]))
def test_an_answer_to_a_promise_that_is_lost_is_found_out(
    bench: Bench, google: GoogleBucket, cut: Cut
) -> None:
    """The link breaks when the promise is put: before the store hears of it, or before its answer
    is heard.
    """
    bench.topic.write(100, partitions=range(4))
    with Proxy(HOST, google.gateway.port) as proxy:
        there = behind(google, proxy.port, request_timeout=5)

        def at_the_promise(reached: CrashPoint) -> None:
            if reached is CrashPoint.STAGED:
                proxy.cut_at(b"manifest%2Ejson", cut)

        with reaching(at_the_promise):
            bench.pipeline(**there).run()
        assert proxy.is_through
    bench.table.assert_holds_once(bench.topic.written)
