"""The doctor's look at a Spark that is elsewhere: what its driver and its executors lack."""

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
from eo_pipeline.spark.class_archive import NoArchiveError, fits
from eo_pipeline.spark.errors import MSK_LOGIN
from eo_pipeline.spark.launch import is_local, submit_arguments
from eo_pipeline.spark.server.archive_maker import archive_for
from eo_pipeline.storage.paths import BucketPath, Place

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_S3 = "org.apache.hadoop:hadoop-aws, of the Hadoop that Spark has, and what it needs"
_AZURE = "org.apache.hadoop:hadoop-azure, 3.4.2 or newer"
#: Which Spark brings along, unless it was built without.
_HDFS = "org.apache.hadoop:hadoop-client, of the Hadoop that Spark has"
_GCS = "com.google.cloud.bigdataoss:gcs-connector:hadoop3-2.2.26, its shaded jar"
#: What a Spark of ours is started with for a store: the check's name, the jar's, and whose it is.
_OF_OURS = {
    _S3: ("spark s3", "hadoop-aws", "Hadoop's file system for S3"),
    _AZURE: ("spark azure", "hadoop-azure", "Hadoop's file system for Azure"),
    _GCS: ("spark gcs", "gcs-connector", "Google's file system"),
}
#: What an error of Spark's has where the jar is missing.
_SIGNS = {
    _S3: "S3AFileSystem",
    _AZURE: "AzureBlobFileSystem not found",
    _HDFS: "No FileSystem for scheme",
    _GCS: "GoogleHadoopFileSystem not found",
}
_PACKAGES = "spark.jars.packages"

#: A server that asks a store for the first time makes its client.
_LOOK_S = 20.0

#: A task may have to wait for an executor to start.
_TASK_S = 60.0


def spark_checks(pipeline: Pipeline, timeout: float) -> Iterator[Check]:
    """A Spark Connect server that lets us in, and what it and its executors have; or the jars that
    a Spark of ours would be started with.
    """
    settings = pipeline.spark
    if not settings.server:
        there = connector("local" if is_local(settings.master) else f"driver of {settings.master}")
        yield there
        yield examined("spark archive", lambda: _archive(settings), "Correct `spark`.")
        bucket = _bucket(pipeline)
        jar = None if bucket is None else _jar_of(bucket)
        if jar in _OF_OURS and there.state is not State.FAIL:
            yield _store_of_ours(jar, settings.config)
        if logs_in_by_iam(pipeline.source) and there.state is not State.FAIL:
            yield _msk_of_ours(settings.config)
        return
    patient = settings.model_copy(update={"connect_timeout": timeout})
    found: list[SparkSession] = []

    def look() -> Check:
        found.append(patient.session())
        return ok("spark", f"Spark Connect, Spark {found[0].version}")

    remedy = "Start the Spark Connect server, or correct spark.remote or SPARK_REMOTE."
    yield examined("spark", look, remedy)
    if not found:
        yield skipped("spark jars", "the server did not respond")
        return
    yield _jars(found[0], pipeline, max(timeout, _LOOK_S))
    yield _workers(found[0], pipeline.source)


def _archive(settings: SparkSettings) -> Check:
    """Whether the Spark that a run would start has an archive of its classes."""
    try:
        archive = archive_for(submit_arguments(settings.master, settings.launch()))
    except NoArchiveError as error:
        said = f"Spark starts without one, more slowly: {error}"
        return warn("spark archive", said, error.remedy)
    except SetupError as error:
        return skipped("spark archive", str(error))
    if fits(archive):
        return ok("spark archive", f"{archive}, {size(archive.stat().st_size)}")
    said = "none matches this JVM and these jars, so Spark starts more slowly"
    return warn("spark archive", said, "Create one with `eo spark archive`.")


def _bucket(pipeline: Pipeline) -> BucketPath | None:
    """Where rows wait, if that is no folder."""
    place: Place = pipeline.sink.staging_folders().manifests or pipeline.staging
    return place if isinstance(place, BucketPath) else None


def _jar_of(bucket: BucketPath) -> str:
    """What Spark needs to get there."""
    jars = {"s3a": _S3, "abfs": _AZURE, "abfss": _AZURE, "gs": _GCS}
    return jars.get(bucket.bucket.hadoop_scheme, _HDFS)


def _store_of_ours(jar: str, config: Any) -> Check:
    check, artefact, store = _OF_OURS[jar]
    if _has(artefact, config):
        return ok(check, f"{store} is among the jars")
    return fail(
        check, f"rows wait in a bucket, and Spark has no {jar}", _name_it("object-stores.md")
    )


def _msk_of_ours(config: Any) -> Check:
    if _has("aws-msk-iam-auth", config):
        return ok("spark msk", "Amazon's login to MSK is among the jars")
    said = f"sasl.mechanism is AWS_MSK_IAM, and Spark has no {MSK_LOGIN}"
    return fail("spark msk", said, _name_it("kafka-logins.md"))


def _has(artefact: str, config: Any) -> bool:
    """Whether a Spark of ours would have the jar; a class path of the user's may hold anything."""
    folder = os.environ.get(JARS_VARIABLE)
    named = config.get(_PACKAGES, "") + config.get("spark.jars", "")
    there = folder and any(Path(folder).glob(f"{artefact}-*.jar"))
    return bool(there) or artefact in named or any("extraClassPath" in key for key in config)


def _name_it(page: str) -> str:
    return (
        f"Name it in spark.config: {_PACKAGES}, or put the jars into a folder named by "
        f"{JARS_VARIABLE}; docs/{page} has the list."
    )


def _jars(spark: SparkSession, pipeline: Pipeline, patience: float) -> Check:
    """What analysing a plan takes; no job is run. Each look may go for ``patience`` seconds."""
    from pyspark.sql import functions as F
    from pyspark.sql.avro.functions import from_avro

    from eo_pipeline.spark import options_of, path_to_read

    def kafka() -> Any:
        options = {"kafka.bootstrap.servers": "127.0.0.1:1", "subscribe": "t"}
        return spark.read.format("kafka").options(**options).load().schema

    looks = {CONNECTOR: ("Failed to find data source: kafka", kafka)}
    if "avro" in (pipeline.source.value_format, pipeline.source.key_format):
        empty = spark.range(0).select(from_avro(F.lit(b""), '"string"'))
        looks[AVRO] = ("AVRO_NOT_LOADED", lambda: empty.schema)
    if bucket := _bucket(pipeline):
        nothing = bucket / "_eo_doctor"
        reader = spark.read.options(**options_of(nothing))
        jar = _jar_of(bucket)
        looks[jar] = (_SIGNS[jar], lambda: reader.parquet(path_to_read(nothing)).schema)
    lacking, said = [], []
    for jar, (sign, look) in looks.items():
        why = _why_not(look, patience)
        if why and sign in why:
            lacking.append(jar)
        elif why and "PATH_NOT_FOUND" not in why:
            said.append(f"{jar}: {why.splitlines()[0][:200]}")
    text = "; ".join([*(f"{jar} is missing" for jar in lacking), *said])
    if lacking:
        remedy = "Put them on the server's class path (--packages, or spark.jars): deployment.md."
        return fail("spark jars", text, remedy)
    if said:
        remedy = "The server has to reach the store where rows wait, too: object-stores.md."
        return fail("spark jars", text, remedy)
    there = ", ".join(each.split(":")[1].partition(",")[0] for each in looks)
    return ok("spark jars", f"the server has {there}")


def _why_not(look: Callable[[], object], patience: float) -> str:
    done = _begun(look)
    if wait([done], patience).not_done:
        return f"the server has not answered within {patience:.0f} s"
    return str(done.exception() or "")


def _begun(ask: Callable[[], object]) -> Future[object]:
    """``ask`` in a thread, whose answer need not be waited for; an error of Spark's is one, too."""
    from eo_pipeline.spark import SPARK_ERRORS

    done: Future[object] = Future()

    def run() -> None:
        try:
            done.set_result(ask())
        except SPARK_ERRORS as error:
            done.set_exception(error)

    Thread(target=run, daemon=True).start()
    return done


def _workers(spark: SparkSession, source: KafkaSource) -> Check:
    """One task in a Python worker, which tells what it can import."""
    needed = ["pyarrow"]
    if "protobuf" in (source.value_format, source.key_format):
        needed += ["ptars", "google.protobuf"]
    tag = "eo-doctor"

    def ask() -> str:
        spark.addTag(tag)
        return str(_asked(spark, needed))

    done = _begun(ask)
    if wait([done], _TASK_S).not_done:
        spark.interruptTag(tag)
        said = f"no executor has run a task within {_TASK_S:.0f} s"
        return warn("spark workers", said, "See that the cluster has a free core for this server.")
    remedy = (
        "PYSPARK_PYTHON of the server names the executors' Python: of this release, with pyarrow"
        f"{', ptars and protobuf' if len(needed) > 1 else ''}. Only Python functions take it."
    )
    if error := done.exception():
        return warn("spark workers", str(error).splitlines()[0][:300], remedy)
    told = json.loads(str(done.result()))
    if told["missing"]:
        named = ", ".join(told["missing"])
        return fail("spark workers", f"Python {told['python']} without {named}", remedy)
    return ok("spark workers", f"Python {told['python']} with {', '.join(needed)}")


def _asked(spark: SparkSession, needed: list[str]) -> Any:
    from pyspark.sql import functions as F

    def look(names: str) -> str:
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

    asked = spark.range(1).select(F.udf(look, "string")(F.lit(" ".join(needed))).alias("told"))
    return asked.collect()[0]["told"]
