"""`eo doctor` with a Spark Connect server that lacks the jar of the store where rows wait."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from eo_pipeline.cli.checks import State
from eo_pipeline.cli.checks_spark import spark_checks
from eo_pipeline.embedded.spark import EmbeddedSpark
from eo_pipeline.spark.connector import spark_connector_jars
from tests.support.engine import Bench
from tests.support.servers import STATE

_NOBODY = "http://127.0.0.1:1"


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedSpark]:
    folder = tmp_path_factory.mktemp("bare")
    with EmbeddedSpark(folder, jars=spark_connector_jars(STATE)) as server:
        yield server


@pytest.mark.parametrize(
    ("staging", "storage", "jar"),
    [
        ("s3://bucket/s", {"endpoint": _NOBODY}, "org.apache.hadoop:hadoop-aws"),
        (
            "abfss://rows@account.dfs.core.windows.net/s",
            {"endpoint": _NOBODY, "account_key": "a2V5"},
            "org.apache.hadoop:hadoop-azure",
        ),
        ("gs://bucket/s", {"endpoint": _NOBODY}, "com.google.cloud.bigdataoss:gcs-connector"),
    ],
    ids=["s3", "abfss", "gs"],
)
def test_the_jar_that_the_server_lacks_is_named(
    bench: Bench, bare: EmbeddedSpark, staging: str, storage: dict[str, str], jar: str
) -> None:
    pipeline = bench.pipeline(staging=staging, storage=storage, spark={"remote": bare.remote})
    checks = {check.name: check for check in spark_checks(pipeline, 5)}
    assert checks["spark"].state is State.OK
    found = checks["spark jars"]
    assert found.state is State.FAIL, found.message
    assert found.message.startswith(jar)
    assert found.message.endswith("is missing")
    assert "--packages" in found.remedy
