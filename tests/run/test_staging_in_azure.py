"""A database's rows wait in a container of Azure's: killed at every point of a checkpoint, cut off,
gone back, and compared from outside.
"""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

from eo_pipeline.crashpoints import CrashPoint, reaching
from eo_pipeline.embedded.jars import spark_azure_jars, spark_connector_jars
from eo_pipeline.embedded.spark import EmbeddedSpark
from eo_pipeline.errors import FencedError, SetupError, SinkUnavailableError
from tests.azure import AzureFolder
from tests.chaos import rest_is_chaos
from tests.engine import STATE, Bench
from tests.proxy import Cut, Proxy
from tests.run.test_crash_points import PROMISED
from tests.run.test_two_runs import at

SHOUTING = "tests.run.transforms:shouting"

#: A promise that is kept.
TELLING = [CrashPoint.PRE_COMMITTED]


def in_azure(azure: AzureFolder, **more: Any) -> dict[str, Any]:
    """Changes to the bench's pipeline."""
    return {"staging": azure.uri, "storage": azure.document(), **more}


def left(azure: AzureFolder) -> set[str]:
    """Files in staging but the witnesses of the newest commit, and notes of failures."""
    return {name for name in azure.files() if not {"_witness", "_failures"} & {*name.split("/")}}


def behind(proxy: Proxy, azure: AzureFolder, container: str, **more: Any) -> dict[str, Any]:
    """A pipeline's settings that lead by way of ``proxy`` to a container of its own: Spark holds on
    to the way it took first.
    """
    uri = f"{azure.server.container(container)}/{azure.place.key}"
    there = azure.document(endpoint=f"http://127.0.0.1:{proxy.port}", **more)
    return {"staging": uri, "storage": there}


@pytest.mark.parametrize("point", rest_is_chaos(CrashPoint, but=TELLING))
def test_killed_at_a_named_point_the_next_run_leaves_every_record_there_once(
    bench: Bench, azure: AzureFolder, point: CrashPoint
) -> None:
    bench.topic.write(300, partitions=range(4))
    nth = {CrashPoint.RECOVERED: 1, CrashPoint.COMMITTED: 3, CrashPoint.ENTRY_SENT: 3}.get(point, 2)
    killed = bench.run_in_a_process("--crash-at", point, str(nth), **in_azure(azure))
    _, err = killed.communicate(timeout=240)
    assert killed.returncode == -signal.SIGKILL, err
    bench.table.assert_consistent()

    report = bench.pipeline(**in_azure(azure)).run()

    bench.table.assert_holds_once(bench.topic.written)
    assert bench.table.versions() == list(range(report.head.version + 1))
    assert [r for r in report.checkpoints if r.recovered] != [] or point not in PROMISED
    assert left(azure) == set()
    assert bench.pipeline(**in_azure(azure)).audit().passed


def test_rows_from_azure_go_back_and_are_replaced(bench: Bench, azure: AzureFolder) -> None:
    bench.topic.write(300, partitions=range(4))
    pipeline = bench.pipeline(**in_azure(azure))
    pipeline.run()
    pipeline.plan_rewind(1).apply()
    assert bench.table.query("select count(*) from events") == [(100,)]
    pipeline.run()
    other = bench.pipeline(**in_azure(azure, transform=SHOUTING))
    other.plan_replay(1, 1).apply()

    bench.table.assert_holds_once(bench.topic.written)
    assert bench.table.query("select count(*) from events where name = upper(name)") == [(100,)]
    assert left(azure) == set()


def test_of_two_runs_from_one_checkpoint_one_is_fenced(bench: Bench, azure: AzureFolder) -> None:
    bench.topic.write(100, partitions=range(4))
    other = bench.pipeline(**in_azure(azure))
    with at(CrashPoint.STAGED, other.run), pytest.raises(FencedError):
        bench.pipeline(**in_azure(azure)).run()
    bench.table.assert_holds_once(bench.topic.written)


def test_a_token_of_the_container_is_enough_and_is_not_shown(
    bench: Bench, azure: AzureFolder
) -> None:
    """Spark keeps what it opened by the container's name: so this is one that it never saw."""
    bench.topic.write(100, partitions=range(4))
    name = f"token-{azure.place.key}"
    uri, token = azure.server.container(name), azure.server.sas_token(name)
    storage = azure.document(account_key=None, sas_token=token)
    pipeline = bench.pipeline(staging=f"{uri}/staging", storage=storage)
    pipeline.run()
    bench.table.assert_holds_once(bench.topic.written)
    assert token not in f"{pipeline!r} {pipeline.storage!r}"


def test_a_store_that_goes_away_is_no_wrong_setting(bench: Bench, azure: AzureFolder) -> None:
    """Scenario: the store is gone when the promise is written. Outcome: an error that says so and
    may be tried again, and the next run has every record once.
    """
    bench.topic.write(300, partitions=range(4))
    with Proxy(azure.server.host, azure.server.port) as proxy:
        there = behind(proxy, azure, f"away-{azure.place.key}", request_timeout=1)

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
def test_an_answer_to_a_promise_that_is_lost_is_found_out(
    bench: Bench, azure: AzureFolder, cut: Cut
) -> None:
    """The link breaks when the promise is put: before the store hears of it, or before its answer
    is heard.
    """
    bench.topic.write(100, partitions=range(4))
    with Proxy(azure.server.host, azure.server.port) as proxy:
        there = behind(proxy, azure, f"cut-{cut.name.lower().replace('_', '-')}-{azure.place.key}")

        def at_the_promise(reached: CrashPoint) -> None:
            if reached is CrashPoint.STAGED:
                proxy.cut_at(b"/manifest.json", cut)

        with reaching(at_the_promise):
            bench.pipeline(**there).run()
        assert proxy.is_through
    bench.table.assert_holds_once(bench.topic.written)


def test_a_key_that_is_wrong_is_said_before_anything_is_read(
    bench: Bench, azure: AzureFolder
) -> None:
    bench.topic.write(10, partitions=range(4))
    storage = azure.document(account_key="d3Jvbmc=")
    with pytest.raises(SetupError, match="Forbidden"):
        bench.pipeline(staging=azure.uri, storage=storage).run()
    assert azure.files() == set()


@pytest.mark.chaos
@pytest.mark.parametrize("who", ["account_key", "sas_token"])
def test_spark_writes_no_secret_down(
    bench: Bench, azure: AzureFolder, tmp_path: Path, who: str
) -> None:
    """Trap: Spark keeps plans as text, with all options, in its event log. It hides what is called
    a secret or a token, and of Hadoop's name for the key does not know that it is one.
    """
    bench.topic.write(10, partitions=range(4))
    token = azure.server.sas_token(azure.container)
    secret = {"account_key": azure.server.key, "sas_token": token}[who]
    storage = azure.document(account_key=None) | {who: secret}
    (tmp_path / "events").mkdir()
    settings = {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": str(tmp_path / "events"),
        "spark.eventLog.compress": "false",
    }
    jars = (*spark_connector_jars(STATE), *spark_azure_jars(STATE))
    with EmbeddedSpark(tmp_path / "spark", jars=jars, settings=settings) as server:
        spark = {"remote": server.remote}
        bench.pipeline(staging=azure.uri, storage=storage, spark=spark).run()
    bench.table.assert_holds_once(bench.topic.written)
    files = [file for file in (tmp_path / "events").rglob("*") if file.is_file()]
    written = "".join(file.read_text() for file in files)
    assert "redacted" in written
    assert azure.uri.removeprefix("abfss") in written
    assert secret not in written
    assert secret.split("sig=")[-1] not in written
