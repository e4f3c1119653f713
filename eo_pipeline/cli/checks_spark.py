"""Doctor's checks of a Spark on a cluster or server: what driver and executors lack."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any

from eo_pipeline.cli.checks import Check, State, connector, examined, fail, ok, skipped, warn
from eo_pipeline.cli.output import size
from eo_pipeline.errors import SetupError
from eo_pipeline.kafka.source import KafkaSource, logs_in_by_iam
from eo_pipeline.pipeline import Pipeline
from eo_pipeline.spark import AVRO, CONNECTOR, JARS_VARIABLE, SparkSettings
from eo_pipeline.spark.class_archive import NoArchiveError, exists_for_another, fits
from eo_pipeline.spark.connector import must_download
from eo_pipeline.spark.errors import MSK_LOGIN
from eo_pipeline.spark.launch import is_local, submit_arguments
from eo_pipeline.spark.server.archive_maker import archive_for
from eo_pipeline.spark.server.record import find_server
from eo_pipeline.storage.paths import Place, RemotePath

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_S3 = "org.apache.hadoop:hadoop-aws, of the Hadoop that Spark has, and what it needs"
_AZURE = "org.apache.hadoop:hadoop-azure, 3.4.2 or newer"
#: Part of Spark, unless it was built without Hadoop.
_HDFS = "org.apache.hadoop:hadoop-client, of the Hadoop that Spark has"
_GCS = "com.google.cloud.bigdataoss:gcs-connector:hadoop3-2.2.26, its shaded jar"
#: Jars of a Spark that the engine starts, per store: names of the check and the jar, and content.
_STORE_JARS = {
    _S3: ("spark s3", "hadoop-aws", "Hadoop's file system for S3"),
    _AZURE: ("spark azure", "hadoop-azure", "Hadoop's file system for Azure"),
    _GCS: ("spark gcs", "gcs-connector", "Google's file system"),
}
#: Text in Spark's error if the jar is missing.
_SIGNS = {
    _S3: "S3AFileSystem",
    _AZURE: "AzureBlobFileSystem not found",
    _HDFS: "No FileSystem for scheme",
    _GCS: "GoogleHadoopFileSystem not found",
}
_PACKAGES = "spark.jars.packages"

#: Seconds for a check; the first request to a store includes building its client.
_CHECK_S = 20.0

#: Seconds for a task, which may have to wait for an executor to start.
_TASK_S = 60.0


def spark_checks(pipeline: Pipeline, timeout: float) -> Iterator[Check]:
    """Check the Spark Connect server, and the jars of it and its executors; or the jars that an
    engine-started Spark would have.
    """
    settings = pipeline.spark
    if not settings.server:
        where = "local" if is_local(settings.master) else f"driver of {settings.master}"
        connector_check = connector(where, settings.config)
        yield connector_check
        if not must_download(settings.config):  # a comparison needs the settings of a start
            yield examined("warm spark", lambda: _warm(settings), "Correct `spark`.")
            yield examined("spark archive", lambda: _archive(settings), "Correct `spark`.")
        bucket = _bucket(pipeline)
        jar = None if bucket is None else _jar_of(bucket)
        if jar in _STORE_JARS and connector_check.state is not State.FAIL:
            yield _store_jar(jar, settings.config)
        if logs_in_by_iam(pipeline.source) and connector_check.state is not State.FAIL:
            yield _msk_jar(settings.config)
        return
    limited = settings.model_copy(update={"connect_timeout": timeout})
    sessions: list[SparkSession] = []

    def connect() -> Check:
        sessions.append(limited.session())
        return ok("spark", f"Spark Connect, Spark {sessions[0].version}")

    remedy = "Start the Spark Connect server, or correct spark.remote or SPARK_REMOTE."
    yield examined("spark", connect, remedy)
    if not sessions:
        yield skipped("spark jars", "the server did not respond")
        return
    yield _jars(sessions[0], pipeline, max(timeout, _CHECK_S))
    yield _workers(sessions[0], pipeline.source)


def _warm(settings: SparkSettings) -> Check:
    """Check whether runs started from here would use a warm Spark."""
    if not settings.warm:
        return ok("warm spark", "not used: spark.warm is false")
    server, why_not = find_server(settings.master, settings.launch())
    if why_not:
        return warn("warm spark", "runs start their own Spark instead", why_not)
    if server is None:
        return ok("warm spark", "none; each run starts its own Spark (or use `eo spark start`)")
    return ok("warm spark", f"{server}; runs use it")


def _archive(settings: SparkSettings) -> Check:
    """Check that the Spark of a run would have an archive of its classes."""
    try:
        archive = archive_for(submit_arguments(settings.master, settings.launch()))
    except NoArchiveError as error:
        return ok("spark archive", f"none is possible: {error}. {error.remedy}")
    except SetupError as error:
        return skipped("spark archive", str(error))
    if fits(archive):
        return ok("spark archive", f"{archive}, {size(archive.stat().st_size)}")
    if exists_for_another():
        message = "none matches this JVM and these jars, so Spark starts more slowly"
        return warn("spark archive", message, "Create one with `eo spark archive`.")
    return ok("spark archive", "none; `eo spark archive` creates one, for faster starts")


def _bucket(pipeline: Pipeline) -> RemotePath | None:
    """Return the remote staging folder, None if it is local."""
    place: Place = pipeline.sink.staging_folders().manifests or pipeline.staging
    return place if isinstance(place, RemotePath) else None


def _jar_of(bucket: RemotePath) -> str:
    """Return the jar that Spark needs for this store."""
    jars = {"s3a": _S3, "abfs": _AZURE, "abfss": _AZURE, "gs": _GCS}
    return jars.get(bucket.bucket.hadoop_scheme, _HDFS)


def _store_jar(jar: str, config: Any) -> Check:
    check, artefact, store = _STORE_JARS[jar]
    if _has(artefact, config):
        return ok(check, f"{store} is among the jars")
    return fail(
        check, f"staging is in a bucket, and Spark lacks {jar}", _jar_remedy("object-stores.md")
    )


def _msk_jar(config: Any) -> Check:
    if _has("aws-msk-iam-auth", config):
        return ok("spark msk", "Amazon's login to MSK is among the jars")
    message = f"sasl.mechanism is AWS_MSK_IAM, and Spark has no {MSK_LOGIN}"
    return fail("spark msk", message, _jar_remedy("kafka-logins.md"))


def _has(artefact: str, config: Any) -> bool:
    """Return whether the engine's Spark would have the jar; a class path of the user may hold any
    jar.
    """
    folder = os.environ.get(JARS_VARIABLE)
    listed = config.get(_PACKAGES, "") + config.get("spark.jars", "")
    in_folder = folder and any(Path(folder).glob(f"{artefact}-*.jar"))
    return bool(in_folder) or artefact in listed or any("extraClassPath" in key for key in config)


def _jar_remedy(page: str) -> str:
    return (
        f"Name it in spark.config: {_PACKAGES}, or put the jars into a folder named by "
        f"{JARS_VARIABLE}; docs/{page} has the list."
    )


def _jars(spark: SparkSession, pipeline: Pipeline, patience: float) -> Check:
    """Analyse plans that need the jars, without running a job. Each may take ``patience``
    seconds.
    """
    from pyspark.sql import functions as F
    from pyspark.sql.avro.functions import from_avro

    from eo_pipeline.spark import options_of, path_to_read

    def kafka() -> Any:
        options = {"kafka.bootstrap.servers": "127.0.0.1:1", "subscribe": "t"}
        return spark.read.format("kafka").options(**options).load().schema

    analyses = {CONNECTOR: ("Failed to find data source: kafka", kafka)}
    if "avro" in (pipeline.source.value_format, pipeline.source.key_format):
        empty = spark.range(0).select(from_avro(F.lit(b""), '"string"'))
        analyses[AVRO] = ("AVRO_NOT_LOADED", lambda: empty.schema)
    if bucket := _bucket(pipeline):
        nothing = bucket / "_eo_doctor"
        reader = spark.read.options(**options_of(nothing))
        jar = _jar_of(bucket)
        analyses[jar] = (_SIGNS[jar], lambda: reader.parquet(path_to_read(nothing)).schema)
    lacking, problems = [], []
    for jar, (sign, analyse) in analyses.items():
        error = _error_of(analyse, patience)
        if error and sign in error:
            lacking.append(jar)
        elif error and "PATH_NOT_FOUND" not in error:
            problems.append(f"{jar}: {error.splitlines()[0][:200]}")
    text = "; ".join([*(f"{jar} is missing" for jar in lacking), *problems])
    if lacking:
        remedy = "Put them on the server's class path (--packages, or spark.jars): deployment.md."
        return fail("spark jars", text, remedy)
    if problems:
        remedy = "The server must also reach the staging store: see object-stores.md."
        return fail("spark jars", text, remedy)
    jars = ", ".join(name.split(":")[1].partition(",")[0] for name in analyses)
    return ok("spark jars", f"the server has {jars}")


def _error_of(call: Callable[[], object], patience: float) -> str:
    future = _in_thread(call)
    if wait([future], patience).not_done:
        return f"the server has not answered within {patience:.0f} s"
    return str(future.exception() or "")


def _in_thread(call: Callable[[], object]) -> Future[object]:
    """Call ``call`` in a daemon thread; an error of Spark's is the future's exception."""
    from eo_pipeline.spark import SPARK_ERRORS

    future: Future[object] = Future()

    def run() -> None:
        try:
            future.set_result(call())
        except SPARK_ERRORS as error:
            future.set_exception(error)

    Thread(target=run, daemon=True).start()
    return future


def _workers(spark: SparkSession, source: KafkaSource) -> Check:
    """Check the modules of the executors' Python, with one task."""
    needed = ["pyarrow"]
    if "protobuf" in (source.value_format, source.key_format):
        needed += ["ptars", "google.protobuf"]
    tag = "eo-doctor"

    def probe() -> str:
        spark.addTag(tag)
        return str(_probe(spark, needed))

    future = _in_thread(probe)
    if wait([future], _TASK_S).not_done:
        spark.interruptTag(tag)
        message = f"no executor has run a task within {_TASK_S:.0f} s"
        return warn(
            "spark workers", message, "See that the cluster has a free core for this server."
        )
    remedy = (
        "Set PYSPARK_PYTHON on the server to an executors' Python of this release, with pyarrow"
        f"{', ptars and protobuf' if len(needed) > 1 else ''}. Only Python functions need it."
    )
    if error := future.exception():
        return warn("spark workers", str(error).splitlines()[0][:300], remedy)
    worker = json.loads(str(future.result()))
    if worker["missing"]:
        missing = ", ".join(worker["missing"])
        return fail("spark workers", f"Python {worker['python']} without {missing}", remedy)
    return ok("spark workers", f"Python {worker['python']} with {', '.join(needed)}")


def _probe(spark: SparkSession, needed: list[str]) -> Any:
    from pyspark.sql import functions as F

    def probe_modules(names: str) -> str:
        import importlib
        import json
        import platform

        missing = []
        for name in names.split():
            try:
                importlib.import_module(name)
            except ImportError:
                missing.append(name)
        return json.dumps({"python": platform.python_version(), "missing": missing})

    frame = spark.range(1).select(
        F.udf(probe_modules, "string")(F.lit(" ".join(needed))).alias("told")
    )
    return frame.collect()[0]["told"]
