"""What executors on other machines lack is named, with what to do; without a Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException, PythonException

from eo_pipeline import Pipeline
from eo_pipeline.cli.checks import State
from eo_pipeline.cli.checks_spark import spark_checks
from eo_pipeline.errors import SetupError, TransformError
from eo_pipeline.spark import JARS_VARIABLE, job_error

NOBODY: Any = None  # no session: this process has no JVM that could be dead


@pytest.mark.parametrize(
    ("said", "named"),
    [
        ("ModuleNotFoundError: No module named 'tests.spark.cluster_words'", "spark.py_files"),
        ('java.io.IOException: Cannot run program "/srv/python": error=2', "PYSPARK_PYTHON"),
        ("[PYTHON_VERSION_MISMATCH] Python in worker has different version", "PYSPARK_PYTHON"),
        ("java.io.FileNotFoundException: File file:/srv/x.parquet does not exist", "share"),
    ],
)
def test_what_executors_lack_is_a_matter_of_set_up(said: str, named: str) -> None:
    error = job_error(NOBODY, PySparkException(f"Job aborted.\n{said}\n\tat x.Y"), "The job")
    assert isinstance(error, SetupError)
    assert named in str(error)
    assert "Nothing was committed" in str(error)


def test_another_program_that_is_missing_is_no_python() -> None:
    said = PySparkException('java.io.IOException: Cannot run program "chmod": error=2')
    assert "PYSPARK_PYTHON" not in str(job_error(NOBODY, said, "The job"))


def test_a_module_that_is_nowhere_is_the_transforms_fault() -> None:
    said = PythonException("ModuleNotFoundError: No module named 'no_such_module_anywhere'")
    assert isinstance(job_error(NOBODY, said, "The job"), TransformError)


@pytest.mark.parametrize(
    ("path", "check", "jar"),
    [
        ("s3://lake/flights", "spark s3", "hadoop-aws-3.4.1.jar"),
        ("s3://lake/flights", "spark s3", "hadoop-azure-3.4.2.jar"),
        ("abfss://lake@a00.dfs.core.windows.net/t", "spark azure", "hadoop-azure-3.4.2.jar"),
        ("abfss://lake@a00.dfs.core.windows.net/t", "spark azure", "hadoop-aws-3.4.1.jar"),
    ],
)
def test_the_doctor_tells_whether_a_spark_of_ours_gets_to_the_bucket(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, check: str, jar: str
) -> None:
    monkeypatch.delenv("SPARK_REMOTE", raising=False)
    monkeypatch.setenv(JARS_VARIABLE, str(tmp_path))
    for name in (jar, "spark-sql-kafka-0-10_2.13-4.0.0.jar"):
        (tmp_path / name).touch()
    pipeline = Pipeline.from_config(
        {
            "name": "p",
            "source": {"bootstrap_servers": "h:1", "topics": ["t"], "value_format": "raw"},
            "sink": {"type": "delta", "path": path},
            "spark": {"master": "spark://h:7077"},
        }
    )
    checks = {check.name: check for check in spark_checks(pipeline, 1)}
    assert checks["spark"].message.startswith("driver of spark://h:7077")
    wanted = {"spark s3": "hadoop-aws", "spark azure": "hadoop-azure"}[check]
    state = State.OK if jar.startswith(wanted) else State.FAIL
    assert checks[check].state is state
    assert ("object-stores.md" in checks[check].remedy) == (state is State.FAIL)
