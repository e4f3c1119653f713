"""A Spark that only our own code uses has no functions of machine learning, until others use it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from eo_pipeline.pipeline import Pipeline
from eo_pipeline.spark import SparkSettings

pytestmark = pytest.mark.slow

_PIPELINE = {
    "name": "p",
    "source": {"bootstrap_servers": "n:1", "topics": ["t"], "value_schema": "id BIGINT"},
    "sink": {"type": "console", "ledger": "l"},
}

_REGISTERED = "org.apache.spark.sql.ml.InternalFunctionRegistration"

_SESSION = """
from eo_pipeline._process import this_process_ends
from eo_pipeline.spark import SparkSettings

this_process_ends(is_ours={is_ours})
settings = SparkSettings(warm=False, master="local[1]", config={{"spark.ui.enabled": "false"}})
spark = settings.session(of_ours=True)
print("ROWS", spark.range(7).selectExpr("id + 1 AS n").count())
"""

_LATER = """
from pyspark.ml.functions import array_to_vector, vector_to_array
from pyspark.sql import functions as F

spark = settings.session()
frame = spark.range(2).select(F.array(F.col("id").cast("double")).alias("a"))
frame = frame.select(vector_to_array(array_to_vector("a")).alias("b"))
print("FOUND", [row.b for row in frame.collect()])
"""


def ran(program: str, loaded: Path) -> tuple[str, bool]:
    """What a process of its own says, and whether its JVM loaded what registers them."""
    # which a test of Spark Connect may have left in this process
    of_connect = ("SPARK_REMOTE", "SPARK_CONNECT_MODE_ENABLED")
    environment = {k: v for k, v in os.environ.items() if k not in of_connect}
    environment["JDK_JAVA_OPTIONS"] = f"-Xlog:class+load:file={loaded}"
    command = [sys.executable, "-c", program]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout, _REGISTERED in loaded.read_text()


@pytest.mark.parametrize("is_ours", [True, False], ids=["a command", "a process of others"])
def test_only_a_command_without_other_code_begins_without_them(
    tmp_path: Path, is_ours: bool
) -> None:
    said, registered = ran(_SESSION.format(is_ours=is_ours), tmp_path / "loaded")
    assert "ROWS 7" in said
    assert registered is not is_ours


def test_other_code_in_such_a_command_finds_them_as_ever(tmp_path: Path) -> None:
    said, registered = ran(_SESSION.format(is_ours=True) + _LATER, tmp_path / "loaded")
    assert "FOUND [[0.0], [1.0]]" in said
    assert registered


@pytest.mark.parametrize("transform", [None, "tests.runs.transforms:shouting"])
def test_a_transform_is_other_code(transform: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []
    monkeypatch.setattr(SparkSettings, "session", lambda _, *, of_ours: asked.append(of_ours))
    pipeline = Pipeline.from_config({**_PIPELINE, "transform": transform})
    with pipeline._open_context() as context:
        context.spark()
    assert asked == [transform is None]
