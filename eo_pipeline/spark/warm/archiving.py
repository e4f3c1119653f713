"""Makes the class-data archive: a Spark that does a little of all that a run's does, and ends."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JError

from eo_pipeline.errors import SetupError
from eo_pipeline.jvm.archive import archive_of, base_of, folder, forget_unused, making, making_base
from eo_pipeline.jvm.java import find_java
from eo_pipeline.jvm.locks import hold
from eo_pipeline.jvm.submit import spark_home, submit_command, with_users_arguments
from eo_pipeline.spark.launch import submit_arguments
from eo_pipeline.spark.warm import watcher
from eo_pipeline.spark.warm.keeping import environment

_WAIT_S = 600.0
_LOOK_S = 0.05

#: Like what a checkpoint stages: records of Kafka's shape, parsed, checked, counted, written.
_RAW = (
    'cast(concat(\'{"id":\', id, \',"name":"n","at":"2026-01-31T12:00:00Z"}\') as binary) as value',
    "cast(id as binary) as key",
    "'t' as topic",
    "cast(id % 4 as int) as partition",
    "id as offset",
    "timestamp_millis(id) as timestamp",
    "array(named_struct('key', 'k', 'value', cast('v' as binary))) as headers",
)
_PARSED = (
    "*",
    "from_json(cast(value as string), 'id BIGINT, name STRING, at TIMESTAMP, m DECIMAL(20,2)', "
    "map('mode', 'PERMISSIVE')) as row",
)
_COUNTED = ("count(1)", "min(offset)", "max(offset)", "sum(crc32(value))", "count_if(row is null)")


def make_archive(master: str, launch: Mapping[str, str]) -> tuple[Path, bool]:
    """The archive for a Spark of these settings, and whether it was made now, which takes a while.

    Raises:
        SetupError: this Java makes none, or it was not written.
    """
    command = submit_command(
        find_java(), spark_home(), with_users_arguments(submit_arguments(master, launch))
    )
    archive = archive_of(command)
    if archive is None:
        raise SetupError(f"No archive can be made: not every jar of {spark_home()} can be read.")
    try:
        folder().mkdir(mode=0o700, parents=True, exist_ok=True)
        with hold(folder() / ".lock", wait_s=_WAIT_S):
            if archive.is_file():
                return archive, False
            forget_unused()
            _make(command, master, archive)
    except BlockingIOError as error:
        raise SetupError(f"Another process makes an archive and does not end: {error}") from error
    except OSError as error:
        raise SetupError(f"No archive can be made in {folder()}: {error}") from error
    return archive, True


def _make(command: list[str], master: str, archive: Path) -> None:
    """Written aside, and renamed when it is whole."""
    with tempfile.TemporaryDirectory(prefix=".making-", dir=archive.parent) as place:
        _make_base(command[0], Path(place))
        aside, log = Path(place) / archive.name, Path(place) / "log"
        connection = Path(place) / "connection"
        variables = environment(Path(place), master)
        with log.open("wb") as output:
            jvm = subprocess.Popen(
                making(command, aside),
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                cwd=place,
                env={**variables, watcher.CONNECTION_VARIABLE: str(connection)},
            )
        try:
            _rehearse(jvm, connection, Path(place))
            if jvm.stdin is not None:
                jvm.stdin.close()  # it ends by itself, and writes
            jvm.wait(_WAIT_S)
        except (Py4JError, OSError, subprocess.TimeoutExpired) as error:
            raise SetupError(f"No archive was made: {error}. {_end(log)}") from error
        finally:
            jvm.kill()
            jvm.wait()
        if not aside.is_file():
            raise SetupError(f"No archive was written. {_end(log)}")
        aside.chmod(0o600)
        aside.replace(archive)


def _make_base(java: str, place: Path) -> None:
    base = base_of(java)
    if base is None or base.is_file():
        return
    aside = place / base.name
    done = subprocess.run(making_base(java, aside), capture_output=True, text=True, check=False)
    if done.returncode != 0 or not aside.is_file():
        raise SetupError(f"{java} wrote no archive of its own classes: {done.stderr[-500:]}")
    aside.chmod(0o600)
    aside.replace(base)


def _end(log: Path) -> str:
    return log.read_text(errors="replace")[-1000:]


def _rehearse(jvm: subprocess.Popen[bytes], connection: Path, place: Path) -> None:
    while not connection.is_file():
        if jvm.poll() is not None:
            raise OSError(f"Spark ended with exit code {jvm.returncode}")
        time.sleep(_LOOK_S)
    port, secret = watcher.read_connection(connection.read_bytes())
    java = watcher.gateway(port, secret, watcher.START_S).jvm
    settings = java.org.apache.spark.SparkConf()
    settings.set("spark.connect.grpc.binding.address", "127.0.0.1")
    settings.set("spark.connect.grpc.binding.port", "0")
    settings.set("spark.connect.authenticate.token", secret)
    spark = java.org.apache.spark.sql.classic.SparkSession.builder().config(settings).getOrCreate()
    _in_its_own_process(spark, place)
    _kafka(java, spark)
    service = watcher.spark_connect(java)
    service.start(java.org.apache.spark.SparkContext.getOrCreate())
    _over_connect(service.localPort(), secret, place)


def _in_its_own_process(spark: Any, place: Path) -> None:
    """Over py4j, as a session without a server."""
    frame = spark.range(0, 1000, 1, 4).selectExpr(list(_RAW)).selectExpr(list(_PARSED))
    frame.selectExpr(["row.*", "topic", "partition", "offset"]).write().parquet(f"{place}/rows")
    spark.read().parquet([f"{place}/rows"]).selectExpr(["count(1)"]).collect()
    frame.selectExpr(list(_COUNTED)).collect()


def _kafka(java: Any, spark: Any) -> None:
    """The connector, and Kafka's clients, as far as they come without a broker."""
    nobody = "127.0.0.1:1"
    options = {
        "kafka.bootstrap.servers": nobody,
        "assign": '{"t":[0]}',
        "startingOffsets": '{"t":{"0":0}}',
        "endingOffsets": '{"t":{"0":1}}',
        "kafka.default.api.timeout.ms": "500",
        "kafka.request.timeout.ms": "400",
        "fetchOffset.numRetries": "1",
    }
    with suppress(Py4JError):  # nobody is there
        spark.read().format("kafka").options(options).load().collect()
    consumer = {"bootstrap.servers": nobody, "group.id": "none"}
    for side in ("key", "value"):
        name = "org.apache.kafka.common.serialization.ByteArrayDeserializer"
        consumer[f"{side}.deserializer"] = name
    with suppress(Py4JError):
        made = java.org.apache.kafka.clients.consumer.KafkaConsumer(consumer)
        made.poll(java.java.time.Duration.ofMillis(200))
        made.close()


#: In a process of its own: this one may have another kind of session already.
_CLIENT = """
import sys
from pyspark.sql.connect.session import SparkSession
from pyspark.sql import Observation
from pyspark.sql import functions as F
import eo_pipeline.spark.warm.archiving as plan
remote, place = sys.argv[1], sys.argv[2]
spark = SparkSession.builder.remote(remote).create()
observed = Observation("o")
frame = spark.range(0, 1000, 1, 4).selectExpr(*plan._RAW).selectExpr(*plan._PARSED)
frame = frame.observe(observed, *map(F.expr, plan._COUNTED))
frame.selectExpr("row.*", "topic", "offset").write.parquet(place + "/rows2")
frame.selectExpr("row.*", "topic", "offset").toArrow()
observed.get
"""


def _over_connect(port: int, token: str, place: Path) -> None:
    variables = {**os.environ, "SPARK_CONNECT_MODE_ENABLED": "1"}
    remote = f"sc://localhost:{port}/;token={token}"
    subprocess.run(
        [sys.executable, "-c", _CLIENT, remote, str(place)],
        env=variables,
        capture_output=True,
        check=False,  # what it got to is in the archive
        timeout=_WAIT_S,
    )
