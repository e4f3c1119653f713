"""Records of Spark's consumers are rows as they are: seen by the classes that a JVM loads."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from tests.spark.machine import Machine, machine_in
from tests.support.engine import Bench


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Machine:
    return machine_in(tmp_path_factory.mktemp("machine"))


@pytest.mark.slow
def test_no_row_of_sparks_readers_is_made(bench: Bench, machine: Machine, tmp_path: Path) -> None:
    bench.topic.write(40)
    document, log = tmp_path / "pipeline.yaml", tmp_path / "classes"
    document.write_text(yaml.safe_dump(bench.config | {"inline_records": 0}))
    options = f"-XX:TieredStopAtLevel=1 -Xlog:class+load:file={log}-%p"
    done = machine.ended("run", "-f", str(document), JAVA_TOOL_OPTIONS=options)
    assert done.returncode == 0, done.stderr
    loaded = "".join(each.read_text() for each in tmp_path.glob("classes-*"))
    assert "eo.pipeline.KafkaReaders$Record " in loaded
    assert "KafkaRecordToRowConverter" not in loaded
    bench.table.assert_holds_once(bench.topic.written)
