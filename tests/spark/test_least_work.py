"""What Spark is spared where a process ends with a few records."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import grpc
import pytest

from eo_pipeline.embedded.spark import EmbeddedSpark
from eo_pipeline.runs.checkpoint import TINY_OFFSETS
from eo_pipeline.spark import SparkSettings, startup
from eo_pipeline.spark.connector import spark_connector_jars
from tests.support.engine import Bench
from tests.support.servers import STATE

pytestmark = pytest.mark.slow

_COMPILED = "Code generated in"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedSpark]:
    """Spark that writes down what it compiles."""
    folder = tmp_path_factory.mktemp("spark")
    jars, settings = spark_connector_jars(STATE), {"spark.log.level": "INFO"}
    with EmbeddedSpark(folder, jars=jars, settings=settings) as spark:
        yield spark


@pytest.fixture
def ending(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(startup, "process_ends", lambda: True)


def compiled(server: EmbeddedSpark) -> int:
    return server.log.read_text(errors="replace").count(_COMPILED)


def of_a_new_client(bench: Bench, server: EmbeddedSpark, **changes: Any) -> int:
    """Classes that Spark compiled for a run of a session of its own."""
    pipeline = bench.pipeline(spark={"remote": server.remote}, **changes)
    pipeline.spark.session().stop()  # of a test before
    before = compiled(server)
    pipeline.run()
    return compiled(server) - before


@pytest.mark.usefixtures("ending")
def test_for_few_records_spark_compiles_nothing(bench: Bench, server: EmbeddedSpark) -> None:
    """Found before: a dozen classes for each client, also for what was compiled for another."""
    for inline in (0, 100):
        bench.topic.write(100, partitions=range(4))
        assert of_a_new_client(bench, server, inline_records=inline) == 0
    bench.table.assert_holds_once(bench.topic.written)


@pytest.mark.usefixtures("ending")
def test_for_many_it_does_in_the_same_session_too(bench: Bench, server: EmbeddedSpark) -> None:
    pipeline = bench.pipeline(
        spark={"remote": server.remote}, source={"max_records": 2 * TINY_OFFSETS}
    )
    found = []
    for records in (100, TINY_OFFSETS + 1, 100):
        bench.topic.write(records, partitions=range(4))
        before = compiled(server)
        pipeline.run()
        found.append(compiled(server) > before)
    bench.table.assert_holds_once(bench.topic.written)
    assert found == [False, True, False]


def test_who_stays_has_it_compiled_whatever_its_first_work_is(
    bench: Bench, server: EmbeddedSpark
) -> None:
    bench.topic.write(100, partitions=range(4))
    assert of_a_new_client(bench, server) > 0


@pytest.mark.usefixtures("ending")
def test_a_users_own_word_on_it_stands(bench: Bench, server: EmbeddedSpark) -> None:
    bench.topic.write(100, partitions=range(4))
    config = {"spark.sql.codegen.wholeStage": "true"}
    pipeline = bench.pipeline(spark={"remote": server.remote, "config": config})
    before = compiled(server)
    pipeline.run()
    assert compiled(server) > before


def test_a_session_opens_one_channel(
    server: EmbeddedSpark, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found before: another that was waited for and closed, which takes gRPC 0.2 s."""
    opened = list[Any]()

    def counted(opens: Any) -> Any:
        def counting(*told: Any, **options: Any) -> grpc.Channel:
            opened.append(told)
            return cast(grpc.Channel, opens(*told, **options))

        return counting

    for kind in ("insecure_channel", "secure_channel"):  # the latter with a token
        monkeypatch.setattr(grpc, kind, counted(getattr(grpc, kind)))
    session = SparkSettings(remote=server.remote, config={"spark.eo.mark": "one"}).session()
    session.range(1).collect()
    session.stop()
    assert len(opened) == 1
