"""Which pyspark the pinned connector was tested with, and what is said of another one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from eo_pipeline.cli import checks
from eo_pipeline.cli.checks import State
from eo_pipeline.spark import CONNECTOR, JARS_VARIABLE, TESTED_WITH

ROOT = Path(__file__).parents[2]


def of_this_machine(
    monkeypatch: pytest.MonkeyPatch, folder: Path, pyspark: str, connector: str
) -> checks.Check:
    """What the doctor says of a local Spark with that pyspark and that connector's jar."""
    (folder / f"spark-sql-kafka-0-10_2.13-{connector}.jar").touch()
    monkeypatch.setenv(JARS_VARIABLE, str(folder))
    monkeypatch.setattr(checks, "_version", {"pyspark": pyspark}.get)
    return checks.connector("local", {})


def test_the_pinned_versions_are_a_tested_pair() -> None:
    pinned = re.search(r"(?m)^pyspark==(.+)$", (ROOT / "constraints.txt").read_text())
    assert pinned is not None
    assert pinned[1] in TESTED_WITH


def test_the_doctor_is_content_with_a_tested_pair(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    connector = CONNECTOR.rpartition(":")[2]
    said = of_this_machine(monkeypatch, tmp_path, TESTED_WITH[0], connector)
    assert said.state is State.OK


@pytest.mark.parametrize(
    ("pyspark", "connector"), [("4.3.0", "4.0.0"), ("4.2.0", "4.2.0"), ("4.0.0", "3.5.1")]
)
def test_the_doctor_warns_of_a_pair_that_was_not_tested(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, pyspark: str, connector: str
) -> None:
    said = of_this_machine(monkeypatch, tmp_path, pyspark, connector)
    assert said.state is State.WARN
    assert f"pyspark {pyspark} with connector {connector}: expected to work" in said.message
    assert f"pyspark {' or '.join(TESTED_WITH)}" in said.remedy
