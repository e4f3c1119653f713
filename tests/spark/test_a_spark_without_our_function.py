"""A Spark that was not started by us has no function of ours: it is sent it, or decodes as ever."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from eo_pipeline.batch.decode_json import has_native_json
from eo_pipeline.embedded import spark as embedded
from eo_pipeline.embedded.spark import EmbeddedSpark
from eo_pipeline.spark import SparkSettings
from eo_pipeline.spark.connector import spark_connector_jars
from eo_pipeline.spark.launch import class_path
from tests.batch.test_fast_json import is_read
from tests.support.servers import STATE

pytestmark = pytest.mark.slow

#: A session of the user's own, which a run then takes, and gives its settings.
_OWN_SESSION = """
from pyspark.sql import SparkSession
SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()

from eo_pipeline.spark.native_jar import CATALOG_SETTING
from eo_pipeline.kafka.source import KafkaSource
from eo_pipeline.batch.decode import decode
from eo_pipeline.batch.decode_json import has_native_json
from eo_pipeline.spark import SparkSettings
from tests.batch.frames import kafka_frame

spark = SparkSettings(warm=False).session()
assert spark.conf.get(CATALOG_SETTING), "it was given the setting, and not the jar"
has = has_native_json(spark)
source = KafkaSource(bootstrap_servers="n:1", topics=["t"], value_schema="id BIGINT")
decoded = decode(kafka_frame(spark, [b'{"id": 7}']), source, native=has)
print("FOUND", has, [row.id for row in decoded.good(decoded.all).collect()])
"""


def test_a_session_of_the_users_own_reads_records_by_sparks_functions_alone() -> None:
    command = [sys.executable, "-c", _OWN_SESSION]
    # which a test of Spark Connect may have left in this process
    of_connect = ("SPARK_REMOTE", "SPARK_CONNECT_MODE_ENABLED")
    environment = {k: v for k, v in os.environ.items() if k not in of_connect}
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=False, timeout=300
    )
    assert "FOUND False [7]" in done.stdout, done.stdout + done.stderr


def test_a_spark_connect_server_of_somebody_elses_is_sent_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedded, "jars_settings", class_path)
    with EmbeddedSpark(tmp_path, jars=spark_connector_jars(STATE)) as server:
        spark = SparkSettings(remote=server.remote).session()
        assert has_native_json(spark)
        assert is_read(spark, "v BIGINT", b'{"v": 1}', b'{"v": "x"}') == [True, False]
        spark.stop()
