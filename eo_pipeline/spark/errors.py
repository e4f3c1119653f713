"""Translation of Spark's errors: a failed job with its cause, or a lost Spark."""

from __future__ import annotations

import importlib.util
import re
import shutil
from pathlib import Path

from py4j.protocol import Py4JError, Py4JJavaError
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
from eo_pipeline.spark.driver import driver_is_dead, exit_code_of_driver
from eo_pipeline.storage.paths import Place

#: Library for Amazon's login to MSK, and the error of Kafka's client if Java lacks it.
MSK_LOGIN = "software.amazon.msk:aws-msk-iam-auth"
_NO_MSK = re.compile(r"software\.amazon\.msk\.\S+ could not be found|No LoginModule found for sof")

#: Error of Kafka's client for a token endpoint that its Java does not allow (KIP-1139).
_NOT_ALLOWED = re.compile(r"org\.apache\.kafka\.sasl\.oauthbearer\.allowed\.urls")

#: A failed login in Kafka's client; the cause is at the end of the stack.
_NO_LOGIN = re.compile(
    r"(?:Ssl|Sasl)AuthenticationException|UnsupportedSaslMechanismException"
    r"|new KafkaAdminClient|construct kafka consumer"
    r"|LoginException"
)
_CAUSE = re.compile(r"^Caused by: (?:[\w.$]+\.)?(\w+: .*)$", re.MULTILINE)


def login_error(job: str, text: str) -> EoPipelineError | None:
    """Return the error for a failed login of Spark's Kafka client, if ``text`` reports one. The
    planner reached the same brokers with the same settings before.
    """
    if _NO_MSK.search(text):
        return SetupError(
            f"{job} could not begin: Spark has no login module for Amazon MSK. Put "
            f"{MSK_LOGIN} and its dependencies on Spark's class path, executors too; "
            "docs/kafka-logins.md shows how."
        )
    if _NOT_ALLOWED.search(text):
        return SetupError(
            f"{job} could not begin: Spark's Kafka client cannot use the token endpoint. "
            "Start Spark's driver and executors with "
            "-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls=URL (spark.driver.extraJavaOptions, "
            "spark.executor.extraJavaOptions)."
        )
    if not _NO_LOGIN.search(text):
        return None
    why = [text.splitlines()[0], *_CAUSE.findall(text)][-1]
    return SparkJobError(
        f"{job} failed: Spark's Kafka client could not log in, but this process could, with the "
        f"same settings: {why}. Nothing was committed. Check that Spark's hosts reach brokers and "
        "token endpoint and trust their certificates, and check source.spark_options."
    )


#: Errors of a failed or lost Spark; py4j also raises Python's own connection errors.
SPARK_ERRORS = (PySparkException, Py4JError, ConnectionError)

#: SQLSTATE classes of errors in the query or its values, which a retry repeats: feature not
#: supported, cardinality, data exception, external routine (two), syntax or access.
_DETERMINISTIC = frozenset({"0A", "21", "22", "38", "39", "42"})

#: Spark's Kafka connector reports lost records in the class of data exceptions.
_OF_KAFKA = "KAFKA"
_NO_CONNECTOR = "DATA_SOURCE_NOT_FOUND"
_NO_AVRO = "AVRO_NOT_LOADED"
_OF_SETUP = (_OF_KAFKA, _NO_CONNECTOR, _NO_AVRO)

#: Exceptions of Python code in a job that may be transient.
_MAY_PASS = re.compile(r"^[\w.]*(?:Connection|Timeout|Memory|BrokenPipe)\w*(?::|$)", re.MULTILINE)

#: Modules that Spark's Python workers need to decode Protobuf.
_NO_PROTOBUF = re.compile(r"No module named '(ptars|google|google\.protobuf|pyarrow)'")

#: A module that a Python worker cannot import.
_NO_MODULE = re.compile(r"No module named '([\w.]+)'")

#: Python workers that could not be started, or have another Python release.
_NO_PYTHON = re.compile(
    r"Cannot run program \"([^\"]*python[^\"]*)\"|PYTHON_VERSION_MISMATCH[^\n]*"
)

#: A file that an executor does not find, because only this machine has it.
_NOT_SHARED = re.compile(r"File file:(\S+) does not exist")

#: A folder that a server does not find; may also be one of a transform's.
_NOT_THERE = re.compile(r"\[PATH_NOT_FOUND\] Path does not exist: file:(\S+?)\.? ")

#: A name that a Java without a UTF-8 locale cannot encode.
_NO_LETTERS = re.compile(r"Malformed input or input contains unmappable characters: (.*)")

#: Contradictory settings, reported by Kafka's client for Java.
_CONTRADICTION = re.compile(r"kafka\.common\.config\.ConfigException: (.*)")

#: A full Java heap, from an exception or an exit code (``SparkExitCode.OOM``), of an executor or of
#: a local driver.
_HEAP_FULL_CODE = 52
_HEAP_FULL = re.compile(rf"java\.lang\.OutOfMemoryError|\bcode {_HEAP_FULL_CODE}\b")

#: Seconds in which a JVM that answers no more has ended.
_EXIT_TIMEOUT_S = 5.0

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
    """Return the error of this package for the ``error`` of a ``job`` on ``spark``.

    Args:
        job: the subject of its sentence: ``Pipeline 'p': the audit's Spark job``.
        folder: the folder it wrote files to.
        transformed: there is a transform, a possible cause.
    """
    text = text_of(error)
    if text is None or server_is_lost(spark):
        return _lost(spark, error, job)
    if isinstance(error, Py4JJavaError):
        error = Py4JError(text)  # whose text stays when the JVM ends
    try:
        condition, state = _classes(error)
    except SPARK_ERRORS:  # the JVM has them
        return _lost(spark, error, job)
    if lacking := _NO_PROTOBUF.search(text):
        return SetupError(
            f"{job} failed: Spark's Python workers have no {lacking[1]}. Nothing was committed. "
            "Install pyarrow, ptars and protobuf into the Python that PYSPARK_PYTHON names where "
            "Spark's executors run; protobuf values need them."
        )
    if setup_error := _of_other_machines(text, job):
        return setup_error
    if match := _NO_LETTERS.search(text):
        return SetupError(
            f"{job} failed: Spark's Java cannot encode {match[1].strip()}. Nothing "
            "was committed. Start this session's Spark with LC_ALL=C.UTF-8 in its "
            "environment, on executors' machines as well."
        )
    if match := _CONTRADICTION.search(text):
        return ConfigError(
            f"{job} could not begin: Kafka's client does not take its settings: "
            f"{match[1].strip()}. Nothing was committed. Correct source.client or "
            "source.spark_options."
        )
    if _is_deterministic(error, condition, state) and not transformed:
        return UnexpectedError(
            f"{job} failed, and will fail again: {error_text(error)} Nothing was committed. There "
            "is no transform, so this is a fault in reading. Please report it, with this text."
        )
    if _is_deterministic(error, condition, state):
        return TransformError(
            f"{job} failed in the transform, and will fail again. Nothing was committed. Correct "
            f"the transform, or what it is given. {error_text(error)}"
        )
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
            f"{job} could not begin: {error_text(error)} Spark needs its Kafka connector: on a "
            "Spark Connect server, put it on the server's class path."
        )
    if condition.startswith(_NO_AVRO):
        return SetupError(
            f"{job} could not begin: Spark has nothing that decodes Avro. Put spark-avro, of the "
            "connector's release, on the class path of the Spark Connect server."
        )
    if login_failure := login_error(job, text):
        return login_failure
    return SparkJobError(f"{job} failed; nothing was committed. {_text(error)}")


def _of_other_machines(text: str, job: str) -> SetupError | None:
    """Return the error for a module, Python or file that executors lack; None for another cause."""
    if (lacking := _NO_MODULE.search(text)) and _is_here(lacking[1]):
        return SetupError(
            f"{job} failed: Spark's Python workers have no module {lacking[1]!r}, which this "
            "process has. Nothing was committed. Name its file, its folder or an archive with it "
            "in spark.py_files, by which it is sent along; or install it into the Python that "
            "PYSPARK_PYTHON names where Spark's executors run."
        )
    if match := _NO_PYTHON.search(text):
        return SetupError(
            f"{job} failed: Spark's executors could not start its Python workers ({match[0]}). "
            "Nothing was committed. They need the Python release of this process, with pyarrow: "
            "set PYSPARK_PYTHON, or spark.pyspark.python in spark.config, to where they have it; "
            "for a Spark Connect server in the server's environment."
        )
    missing = _NOT_SHARED.search(text)
    if missing is None and (path_match := _NOT_THERE.search(text)) and Path(path_match[1]).exists():
        missing = path_match
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


def _classes(error: Exception) -> tuple[str, str]:
    """Return the error's condition and SQLSTATE; empty if it has none."""
    if not isinstance(error, PySparkException):
        return "", ""
    return error.getCondition() or "", error.getSqlState() or ""


def _is_deterministic(error: Exception, condition: str, state: str) -> bool:
    """Return whether a retry with the same rows and transform would fail again."""
    if isinstance(error, PythonException):
        return not _MAY_PASS.search(str(error))
    return not condition.startswith(_OF_SETUP) and state[:2] in _DETERMINISTIC


def _lost(spark: SparkSession, error: Exception, job: str) -> SparkUnavailableError:
    if not is_connect(spark):
        code = exit_code_of_driver(_EXIT_TIMEOUT_S)
        cause = "killed from outside or by the kernel for memory (spark.driver_memory)"
        if is_full := code == _HEAP_FULL_CODE or _HEAP_FULL.search(text_of(error) or ""):
            cause = "since its heap was full"
        ended = f"has ended, {cause}" if code is not None else "has ended, or does not answer"
        return SparkUnavailableError(
            f"{job} lost its Spark: the JVM of this process {ended}. Nothing was committed. Run "
            "again: a run starts a new one where this one has ended. "
            f"{error_text(error)}{_MORE_HEAP if is_full else ''}"
        )
    from eo_pipeline.spark.connect import endpoint_of

    return SparkUnavailableError(
        f"{job} lost its Spark Connect server at {endpoint_of(spark)}, which ended, was started "
        "again or cannot be reached; nothing was committed. See that it runs, and run again: a run "
        f"connects anew. {_text(error)}"
    )


def _text(error: Exception) -> str:
    """Return Spark's text, with the remedy for a full heap."""
    return error_text(error) + (_MORE_HEAP if _HEAP_FULL.search(text_of(error) or "") else "")


def text_of(error: Exception) -> str | None:
    """Return the text of ``error``; None if the JVM, which has it, has ended meanwhile."""
    try:
        return str(error)
    except SPARK_ERRORS:
        return None


def server_is_lost(spark: SparkSession) -> bool:
    """Return whether ``spark``, on which a job failed, is unusable: its JVM has ended, or its Spark
    Connect server does not know it.

    The job's error does not show it: a restarted server answers, but has lost the session. So a
    request is made on the session, for ``spark.connect_timeout`` at most.
    """
    if not is_connect(spark):
        return driver_is_dead()
    from eo_pipeline.spark.connect import session_is_alive

    return not session_is_alive(spark)


def _free(folder: Place) -> str:
    """Return ``<folder> has 12 MB free of 100 MB``, for the nearest existing parent."""
    if not isinstance(folder, Path):
        return f"{folder} is in a store"
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    usage = shutil.disk_usage(existing)
    return f"{folder} has {usage.free / 1e6:,.1f} MB free of {usage.total / 1e6:,.1f} MB"


def _reason(text: str, pattern: re.Pattern[str]) -> str:
    """Return the line of Spark's text that matches ``pattern``."""
    line = next(line for line in text.splitlines() if pattern.search(line)).strip()
    return line.rpartition("Exception: ")[2][:300]


def error_text(error: Exception, lines_max: int = 6) -> str:
    """Return the readable part of a Spark error, without the stack (kept in ``__cause__``): its
    first lines, or the last ones of an exception in Python code.
    """
    text = text_of(error) or f"{type(error).__name__}."
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("at ")]
    if isinstance(error, PythonException):
        filled = [line for line in lines if line.strip()]
        return "\n".join(filled[-lines_max:])[-2000:]
    causes = [line for line in lines[lines_max:] if line.startswith("Caused by: ")]
    return "\n".join([*lines[:lines_max], *causes[-1:]])[:2000]
