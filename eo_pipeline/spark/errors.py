"""What an error of Spark's means: the job failed, and why, or the Spark it ran on is gone."""

from __future__ import annotations

import importlib.util
import re
import shutil
from pathlib import Path

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException, PythonException
from pyspark.sql import SparkSession

from eo_pipeline.errors import (
    ConfigError,
    EoPipelineError,
    SetupError,
    SparkJobError,
    SparkUnavailableError,
    TransformError,
    UnexpectedError,
)
from eo_pipeline.spark.clients import is_connect
from eo_pipeline.spark.driver import driver_is_dead
from eo_pipeline.storage.paths import Place

#: What Amazon's login to MSK takes, and how Kafka's client says that Java lacks it.
MSK_LOGIN = "software.amazon.msk:aws-msk-iam-auth"
_NO_MSK = re.compile(r"software\.amazon\.msk\.\S+ could not be found|No LoginModule found for sof")

#: Kafka's client takes a token from nowhere that its Java was not told (KIP-1139).
_NOT_ALLOWED = re.compile(r"org\.apache\.kafka\.sasl\.oauthbearer\.allowed\.urls")

#: How it says that it did not come in; and why, at the end of the stack.
_NO_LOGIN = re.compile(
    r"(?:Ssl|Sasl)AuthenticationException|UnsupportedSaslMechanismException"
    r"|new KafkaAdminClient|construct kafka consumer"
    r"|LoginException"
)
_CAUSE = re.compile(r"^Caused by: (?:[\w.$]+\.)?(\w+: .*)$", re.MULTILINE)


def login_error(job: str, text: str) -> EoPipelineError | None:
    """The error of ours, if the ``text`` of the one that ``job`` ended with says so: the planner
    asked the same brokers before.
    """
    if _NO_MSK.search(text):
        return SetupError(
            f"{job} could not begin: Spark has nothing that logs in to Amazon MSK. Put "
            f"{MSK_LOGIN}, with what it needs, on the class path of Spark, executors too; "
            "docs/kafka-logins.md shows how."
        )
    if _NOT_ALLOWED.search(text):
        return SetupError(
            f"{job} could not begin: Spark's Kafka client may not ask the token endpoint. Start "
            "Spark's driver and executors with "
            "-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls=URL (spark.driver.extraJavaOptions, "
            "spark.executor.extraJavaOptions)."
        )
    if not _NO_LOGIN.search(text):
        return None
    why = [text.splitlines()[0], *_CAUSE.findall(text)][-1]
    return SparkJobError(
        f"{job} failed: Spark's Kafka client could not log in, which this process could with the "
        f"same settings: {why}. Nothing was committed. See that Spark's machines reach brokers and "
        "token endpoint and trust their certificates, and what source.spark_options says."
    )


#: What a Spark that fails, or is gone, raises: over py4j also Python's own, of its connection.
SPARK_ERRORS = (PySparkException, Py4JError, ConnectionError)

#: Classes of SQLSTATE that say something of the query or its values, which stay what they are:
#: feature not supported, cardinality, data exception, external routine (two), syntax or access.
_DETERMINISTIC = frozenset({"0A", "21", "22", "38", "39", "42"})

#: Spark's Kafka connector puts lost records into the class of wrong values.
_OF_KAFKA = "KAFKA"
_NO_CONNECTOR = "DATA_SOURCE_NOT_FOUND"
_NO_AVRO = "AVRO_NOT_LOADED"
_OF_SETUP = (_OF_KAFKA, _NO_CONNECTOR, _NO_AVRO)

#: Exceptions of Python code in a job that may not come again.
_MAY_PASS = re.compile(r"^[\w.]*(?:Connection|Timeout|Memory|BrokenPipe)\w*(?::|$)", re.MULTILINE)

#: What decoding Protobuf takes where Spark's Python workers run.
_NO_PROTOBUF = re.compile(r"No module named '(ptars|google|google\.protobuf|pyarrow)'")

#: What a Python worker says of a module it cannot import.
_NO_MODULE = re.compile(r"No module named '([\w.]+)'")

#: What is said of the Python workers themselves: none could be started, or another release was.
_NO_PYTHON = re.compile(r"Cannot run program \"([^\"]*)\"|PYTHON_VERSION_MISMATCH[^\n]*")

#: An executor that looks for a file where only this machine has it.
_NOT_SHARED = re.compile(r"File file:(\S+) does not exist")

#: The same of a server, about a folder, which may also be one of a transform's.
_NOT_THERE = re.compile(r"\[PATH_NOT_FOUND\] Path does not exist: file:(\S+?)\.? ")

#: A Java that was not started in a UTF-8 locale, and a name that it has no letters for.
_NO_LETTERS = re.compile(r"Malformed input or input contains unmappable characters: (.*)")

#: What Kafka's client for Java says of settings that do not fit together.
_CONTRADICTION = re.compile(r"kafka\.common\.config\.ConfigException: (.*)")

#: A full heap of Java's, in an exception or in how an executor ended (``SparkExitCode.OOM``).
_HEAP_FULL = re.compile(r"java\.lang\.OutOfMemoryError|\bcode 52\b")

#: What is said of it.
_MORE_HEAP = (
    "\nSpark's heap is full. Set spark.driver_memory higher (of a cluster spark.executor.memory), "
    "read less at once (source.max_records, max_bytes), or, of a topic with thousands of "
    "partitions, have Spark keep fewer consumers (spark.kafka.consumer.cache.capacity)."
)

_DISK_FULL = re.compile(r"No space left on device|Disk quota exceeded", re.IGNORECASE)
_MAY_NOT_WRITE = re.compile(
    r"Mkdirs failed to create|Permission denied|Read-only file system", re.IGNORECASE
)


def job_error(
    spark: SparkSession,
    error: Exception,
    job: str,
    folder: Place | None = None,
    *,
    transformed: bool = True,
) -> EoPipelineError:
    """The error of ours for one that ``job`` on ``spark`` ended with.

    Args:
        job: the subject of its sentence: ``Pipeline 'p': the audit's Spark job``.
        folder: where it wrote files.
        transformed: there is a transform, which may be to blame.
    """
    if server_is_lost(spark):
        return _lost(spark, error, job)
    condition = (error.getCondition() if isinstance(error, PySparkException) else None) or ""
    if lacking := _NO_PROTOBUF.search(str(error)):
        return SetupError(
            f"{job} failed: Spark's Python workers have no {lacking[1]}. Nothing was committed. "
            "Install pyarrow, ptars and protobuf into the Python that PYSPARK_PYTHON names where "
            "Spark's executors run; protobuf values take them."
        )
    if elsewhere := _of_other_machines(error, job):
        return elsewhere
    if found := _NO_LETTERS.search(str(error)):
        return SetupError(
            f"{job} failed: Spark's Java does not know the letters of {found[1].strip()}. Nothing "
            "was committed. Start the Spark that this session is of with LC_ALL=C.UTF-8 in its "
            "environment, on executors' machines as well."
        )
    if found := _CONTRADICTION.search(str(error)):
        return ConfigError(
            f"{job} could not begin: Kafka's client does not take its settings: "
            f"{found[1].strip()}. Nothing was committed. Correct source.client or "
            "source.spark_options."
        )
    if _is_deterministic(error, condition) and not transformed:
        return UnexpectedError(
            f"{job} failed, and will fail again: {first_lines(error)} Nothing was committed. There "
            "is no transform, so this is a fault in reading. Please report it, with this text."
        )
    if _is_deterministic(error, condition):
        return TransformError(
            f"{job} failed in the transform, and will fail again. Nothing was committed. Correct "
            f"the transform, or what it is given. {first_lines(error)}"
        )
    text = str(error)
    if folder is not None and _DISK_FULL.search(text):
        return SetupError(
            f"{job} found a disk full: {_free(folder)}. Nothing was committed. Free space there, "
            "on the disk of spark.local.dir as well, or set the pipeline's staging folder to a "
            "larger disk."
        )
    if folder is not None and _MAY_NOT_WRITE.search(text):
        return SetupError(
            f"{job} could not write in {folder}: {_reason(text, _MAY_NOT_WRITE)}. Nothing was "
            "committed. Let Spark's user write there, or set the pipeline's staging folder to "
            f"another one. {_free(folder)}."
        )
    if condition == _NO_CONNECTOR:
        return SetupError(
            f"{job} could not begin: {first_lines(error)} Spark needs its Kafka connector: on a "
            "Spark Connect server, put it on the server's class path."
        )
    if condition.startswith(_NO_AVRO):
        return SetupError(
            f"{job} could not begin: Spark has nothing that decodes Avro. Put spark-avro, of the "
            "connector's release, on the class path of the Spark Connect server."
        )
    if login := login_error(job, text):
        return login
    return SparkJobError(f"{job} failed; nothing was committed. {_said(error)}")


def _of_other_machines(error: Exception, job: str) -> SetupError | None:
    """What executors lack that this process has, if that is what ``error`` says."""
    text = str(error)
    if (lacking := _NO_MODULE.search(text)) and _is_here(lacking[1]):
        return SetupError(
            f"{job} failed: Spark's Python workers have no module {lacking[1]!r}, which this "
            "process has. Nothing was committed. Name its file, its folder or an archive with it "
            "in spark.py_files, by which it is sent along; or install it into the Python that "
            "PYSPARK_PYTHON names where Spark's executors run."
        )
    if found := _NO_PYTHON.search(text):
        return SetupError(
            f"{job} failed: Spark's executors could not start its Python workers ({found[0]}). "
            "Nothing was committed. They need the Python release of this process, with pyarrow: "
            "set PYSPARK_PYTHON, or spark.pyspark.python in spark.config, to where they have it; "
            "for a Spark Connect server in the server's environment."
        )
    missing = _NOT_SHARED.search(text)
    if missing is None and (there := _NOT_THERE.search(text)) and Path(there[1]).exists():
        missing = there
    if missing:
        return SetupError(
            f"{job} failed: Spark's executors do not find {missing[1]}, which is on this machine. "
            "Nothing was committed. Set Pipeline.staging (for a lake table, the table's path) to a "
            "bucket, or to a folder that this process and all executors share."
        )
    return None


def _is_here(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError, AttributeError):
        return False


def _is_deterministic(error: Exception, condition: str) -> bool:
    """Whether the same rows and the same transform would end in the same way."""
    if isinstance(error, PythonException):
        return not _MAY_PASS.search(str(error))
    if not isinstance(error, PySparkException) or condition.startswith(_OF_SETUP):
        return False
    return (error.getSqlState() or "")[:2] in _DETERMINISTIC


def _lost(spark: SparkSession, error: Exception, job: str) -> SparkUnavailableError:
    if not is_connect(spark):
        return SparkUnavailableError(
            f"{job} lost its Spark: the JVM of this process has ended, killed from outside or by "
            "the kernel for memory (spark.driver_memory). Nothing was committed. Run again: a run "
            f"starts a new one. {_said(error)}"
        )
    from eo_pipeline.spark.connect import endpoint_of

    return SparkUnavailableError(
        f"{job} lost its Spark Connect server at {endpoint_of(spark)}, which ended, was started "
        "again or cannot be reached; nothing was committed. See that it runs, and run again: a run "
        f"connects anew. {_said(error)}"
    )


def _said(error: Exception) -> str:
    """Spark's words, and what to do about a full heap."""
    return first_lines(error) + (_MORE_HEAP if _HEAP_FULL.search(str(error)) else "")


def server_is_lost(spark: SparkSession) -> bool:
    """Whether ``spark``, on which a job failed, is of no more use: its JVM has ended, or its Spark
    Connect server does not know it.

    The job's error does not tell: a server that was started again answers, but knows nothing of
    this session. So the session is asked, for ``spark.connect_timeout`` at most.
    """
    if not is_connect(spark):
        return driver_is_dead()
    from eo_pipeline.spark.connect import knows_its_session

    return not knows_its_session(spark)


def _free(folder: Place) -> str:
    """``<folder> has 12 MB free of 100 MB``; the nearest parent that is there is asked."""
    if not isinstance(folder, Path):
        return f"{folder} is in a store"
    there = next(path for path in (folder, *folder.parents) if path.exists())
    usage = shutil.disk_usage(there)
    return f"{folder} has {usage.free / 1e6:,.1f} MB free of {usage.total / 1e6:,.1f} MB"


def _reason(text: str, pattern: re.Pattern[str]) -> str:
    """The line of Spark's text that ``pattern`` was found in."""
    line = next(line for line in text.splitlines() if pattern.search(line)).strip()
    return line.rpartition("Exception: ")[2][:300]


def first_lines(error: Exception, lines_max: int = 6) -> str:
    """The part of a Spark error a person reads; the stack stays in ``__cause__``. Of an exception
    in Python code that is its end.
    """
    lines = [line for line in str(error).splitlines() if not line.lstrip().startswith("at ")]
    if isinstance(error, PythonException):
        filled = [line for line in lines if line.strip()]
        return "\n".join(filled[-lines_max:])[-2000:]
    causes = [line for line in lines[lines_max:] if line.startswith("Caused by: ")]
    return "\n".join([*lines[:lines_max], *causes[-1:]])[:2000]
