"""Records of Spark's consumers are rows as they are: seen by the classes that a JVM loads."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.spark.machine import Machine, machine_in
from tests.support.engine import Bench

#: Code of Spark's for rows.
PROJECTION = "GeneratedClass$SpecificUnsafeProjection "


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Machine:
    return machine_in(tmp_path_factory.mktemp("machine"))


def classes_of_a_run(machine: Machine, config: Mapping[str, Any], folder: Path) -> str:
    """Return the names of the classes that the JVM of a run loads."""
    document, log = folder / "pipeline.yaml", folder / "classes"
    document.write_text(yaml.safe_dump({**config}))
    options = f"-XX:TieredStopAtLevel=1 -Xlog:class+load:file={log}-%p"
    done = machine.ended("run", "-f", str(document), JAVA_TOOL_OPTIONS=options)
    assert done.returncode == 0, done.stderr
    return "".join(each.read_text() for each in folder.glob("classes-*"))


@pytest.mark.slow
def test_no_row_of_sparks_readers_is_made(bench: Bench, machine: Machine, tmp_path: Path) -> None:
    bench.topic.write(40)
    loaded = classes_of_a_run(machine, bench.config | {"inline_records": 0}, tmp_path)
    assert "eo.pipeline.KafkaReaders$Record " in loaded
    assert "KafkaRecordToRowConverter" not in loaded
    bench.table.assert_holds_once(bench.topic.written)


@pytest.mark.slow
def test_no_code_is_made_for_an_odd_record(bench: Bench, machine: Machine, tmp_path: Path) -> None:
    """... and no table of old calendars is read for its timestamp."""
    bench.topic.write(40)
    config = bench.config | {"inline_records": 0}
    # otherwise no code is made for anything of so few records
    config["spark"] = {"config": {"spark.sql.codegen.wholeStage": "true"}}
    before = classes_of_a_run(machine, config, tmp_path)
    bench.topic.write_value(b"?")
    config["source"] = config["source"] | {"on_bad_record": "dead_letter"}
    bench.topic.write(40)
    (tmp_path / "odd").mkdir()
    odd = classes_of_a_run(machine, config, tmp_path / "odd")
    assert "eo.pipeline.DeadLetters$File " in odd
    assert odd.count(PROJECTION) == before.count(PROJECTION)
    assert "RebaseDateTime$ " not in odd
