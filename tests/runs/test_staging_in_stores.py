"""A database's rows wait in a store: killed at every point of a checkpoint, cut off, gone back, and
compared from outside. What is particular to one store comes last.
"""

from __future__ import annotations

import json
import signal
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from eo_pipeline.crashpoints import CrashPoint, reaching
from eo_pipeline.embedded.spark import EmbeddedSpark
from eo_pipeline.errors import FencedError, SetupError, SinkUnavailableError
from tests.runs.test_crash_points import PROMISED
from tests.runs.test_two_runs import at
from tests.support.azure import AzureFolder
from tests.support.chaos import rest_is_chaos
from tests.support.engine import Bench, spark_jars
from tests.support.google import GoogleBucket, service_account
from tests.support.google_gateway import TOKEN
from tests.support.hdfs import HdfsFolder
from tests.support.proxy import Cut, Proxy
from tests.support.store_folder import STORES, StoreFolder, on_stores

SHOUTING = "tests.runs.transforms:shouting"

#: A promise that is kept, in each; files without one; and a commit whose files still lie there.
TELLING = [
    *((store, CrashPoint.PRE_COMMITTED) for store in STORES),
    *(("google", CrashPoint.STAGED), ("hdfs", CrashPoint.COMMITTED)),
]


def there(store: StoreFolder, **more: Any) -> dict[str, Any]:
    """Changes to the bench's pipeline: its rows wait there."""
    return {"staging": store.uri, "storage": store.document(), **more}


def left(store: StoreFolder) -> set[str]:
    """Files in staging but the witnesses of the newest commit, and notes of failures."""
    return {name for name in store.files() if not {"_witness", "_failures"} & {*name.split("/")}}


@pytest.mark.parametrize(
    ("store", "point"),
    rest_is_chaos(product(STORES, CrashPoint), but=TELLING),
    indirect=["store"],
)
def test_killed_at_a_named_point_the_next_run_leaves_every_record_there_once(
    bench: Bench, store: StoreFolder, point: CrashPoint
) -> None:
    bench.topic.write(300, partitions=range(4))
    nth = {CrashPoint.RECOVERED: 1, CrashPoint.COMMITTED: 3, CrashPoint.ENTRY_SENT: 3}.get(point, 2)
    killed = bench.run_in_a_process("--crash-at", point, str(nth), **there(store))
    _, err = killed.communicate(timeout=240)
    assert killed.returncode == -signal.SIGKILL, err
    bench.table.assert_consistent()

    report = bench.pipeline(**there(store)).run()

    bench.table.assert_holds_once(bench.topic.written)
    assert bench.table.versions() == list(range(report.head.version + 1))
    assert point not in PROMISED or report.checkpoints[0].recovered
    assert left(store) == set()
    assert any("_witness" in name.split("/") for name in store.files())
    assert bench.pipeline(**there(store)).audit().passed


@on_stores("azure", "google", "hdfs")
def test_rows_go_back_and_are_replaced(bench: Bench, store: StoreFolder) -> None:
    bench.topic.write(300, partitions=range(4))
    pipeline = bench.pipeline(**there(store))
    pipeline.run()
    pipeline.plan_rewind(1).apply()
    assert bench.table.query("select count(*) from events") == [(100,)]
    pipeline.run()
    other = bench.pipeline(**there(store, transform=SHOUTING))
    other.plan_replay(1, 1).apply()

    bench.table.assert_holds_once(bench.topic.written)
    assert bench.table.query("select count(*) from events where name = upper(name)") == [(100,)]
    assert left(store) == set()


@on_stores("azure", "hdfs", chaos=["google"])
def test_of_two_runs_from_one_checkpoint_one_is_fenced(bench: Bench, store: StoreFolder) -> None:
    bench.topic.write(100, partitions=range(4))
    other = bench.pipeline(**there(store))
    with at(CrashPoint.STAGED, other.run), pytest.raises(FencedError):
        bench.pipeline(**there(store)).run()
    bench.table.assert_holds_once(bench.topic.written)


#: When the folder is made, or the promise written.
GOES_AWAY = [("bucket", CrashPoint.PLANNED), *product(STORES, [CrashPoint.STAGED])]
TELLING_AWAY = [*GOES_AWAY[:2], ("hdfs", CrashPoint.STAGED)]


@pytest.mark.parametrize(
    ("store", "point"),
    rest_is_chaos(GOES_AWAY, but=TELLING_AWAY),
    indirect=["store"],
)
def test_a_store_that_goes_away_is_no_wrong_setting(
    bench: Bench, store: StoreFolder, point: CrashPoint
) -> None:
    """Scenario: the store is gone when a run has come to ``point``. Outcome: an error that says so
    and may be tried again, and the next run has every record once.
    """
    bench.topic.write(300, partitions=range(4))
    with Proxy(*store.address) as proxy:
        pipeline = bench.pipeline(**there(store.apart().behind(proxy.port, request_timeout=1)))

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


LOST = [*product(["azure", "google", "hdfs"], Cut)]


@pytest.mark.parametrize(
    ("store", "cut"),
    rest_is_chaos(LOST, but=[each for each in LOST if each != ("google", Cut.BEFORE_THE_REQUEST)]),
    indirect=["store"],
)
def test_an_answer_to_a_promise_that_is_lost_is_found_out(
    bench: Bench, store: StoreFolder, cut: Cut
) -> None:
    """The link breaks when the promise gets its name: before the store hears of it, or before its
    answer is heard.
    """
    bench.topic.write(100, partitions=range(4))
    apart = store.apart()
    with Proxy(*store.address) as proxy:

        def at_the_promise(reached: CrashPoint) -> None:
            if reached is CrashPoint.STAGED:
                proxy.cut_at(store.putting("/manifest.json"), cut)

        with reaching(at_the_promise):
            bench.pipeline(**there(apart.behind(proxy.port, request_timeout=5))).run()
        assert proxy.is_through
    bench.table.assert_holds_once(bench.topic.written)
    assert left(apart) == set()


def written_down_by_spark(bench: Bench, store: StoreFolder, folder: Path) -> str:
    """What is in the event log of a Spark whose only run had its rows wait there. It keeps plans
    as text, with all options.
    """
    events = folder / "events"
    events.mkdir()
    settings = {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": str(events),
        "spark.eventLog.compress": "false",
    }
    bench.topic.write(10, partitions=range(4))
    with EmbeddedSpark(folder / "spark", jars=spark_jars(), settings=settings) as server:
        bench.pipeline(**there(store), spark={"remote": server.remote}).run()
    bench.table.assert_holds_once(bench.topic.written)
    written = "".join(file.read_text() for file in events.rglob("*") if file.is_file())
    assert "redacted" in written
    assert store.uri.partition("://")[2] in written
    return written


# Azure alone


def test_a_token_of_the_container_is_enough_and_is_not_shown(
    bench: Bench, azure: AzureFolder
) -> None:
    """Spark keeps what it opened by the container's name: so this is one that it never saw."""
    bench.topic.write(100, partitions=range(4))
    apart = azure.apart()
    token = azure.server.sas_token(apart.container)
    pipeline = bench.pipeline(**there(apart.saying(account_key=None, sas_token=token)))
    pipeline.run()
    bench.table.assert_holds_once(bench.topic.written)
    assert token not in f"{pipeline!r} {pipeline.storage!r}"


def test_a_key_that_is_wrong_is_said_before_anything_is_read(
    bench: Bench, azure: AzureFolder
) -> None:
    bench.topic.write(10, partitions=range(4))
    with pytest.raises(SetupError, match="Forbidden"):
        bench.pipeline(**there(azure.saying(account_key="d3Jvbmc="))).run()
    assert azure.files() == set()


@pytest.mark.chaos
@pytest.mark.parametrize("who", ["account_key", "sas_token"])
def test_spark_writes_no_secret_down(
    bench: Bench, azure: AzureFolder, tmp_path: Path, who: str
) -> None:
    """Trap: it hides what is called a secret or a token, and of Hadoop's name for the key does not
    know that it is one.
    """
    token = azure.server.sas_token(azure.container)
    secret = {"account_key": azure.server.key, "sas_token": token}[who]
    known = azure.saying(**{"account_key": None, who: secret})
    written = written_down_by_spark(bench, known, tmp_path)
    assert secret not in written
    assert secret.split("sig=")[-1] not in written


# Google alone


@pytest.mark.chaos
def test_spark_asks_as_the_service_account_and_writes_no_key_down(
    bench: Bench, google: GoogleBucket, tmp_path: Path
) -> None:
    """Trap: of the connector's name for the key Spark does not know that it is one, either."""
    account = service_account(google.gateway)
    known = google.apart().saying(service_account=json.dumps(account))
    google.gateway.presented()
    written = written_down_by_spark(bench, known, tmp_path)
    assert f"Bearer {TOKEN}" in google.gateway.presented()
    assert "BEGIN PRIVATE KEY" not in written
    assert account["private_key"].splitlines()[1] not in written


# HDFS alone


def test_a_folder_that_this_user_may_not_write_is_refused_before_anything_is_read(
    bench: Bench, hdfs: HdfsFolder
) -> None:
    bench.topic.write(10, partitions=range(4))
    path = f"/{hdfs.place.key}"
    hdfs.server.client().mkdirs(path, 0o500, True)
    hdfs.server.client().set_owner(path, "somebody", "else")
    stranger = {"HADOOP_USER_NAME": "stranger"}
    run = bench.run_in_a_process(environment=stranger, **there(hdfs))
    _, err = run.communicate(timeout=240)
    assert run.returncode == 1
    assert SetupError.__name__ in err
    assert "Permission denied: user=stranger" in err
