"""What a process waits for that ends with one run of Dagster's: it is made anew for each."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
from pathlib import Path

import dagster as dg
import pytest
from dagster._core.remote_representation.external_data import RepositorySnap
from dagster._serdes import serialize_value

from eo_pipeline.dagster import Fleet, component, definitions
from eo_pipeline.dagster.resources import spark_definition
from eo_pipeline.dagster.spark_resource import SparkResource
from eo_pipeline.spark import SparkSettings
from tests.dagster.projects import write_project
from tests.support.engine import Bench

#: `dg launch` in a process that tells in the end what it did.
LAUNCH = """
import gc, json, sys
from dagster_dg_cli.cli import main
from eo_pipeline.dagster.component import KafkaPipelineComponent
builds, build = [], KafkaPipelineComponent.build_defs
KafkaPipelineComponent.build_defs = lambda *given: builds.append(1) or build(*given)
sys.argv = ["dg", "launch", "--assets", "events"]
try:
    main()
finally:
    frozen = gc.get_freeze_count() > len(gc.get_objects())
    told = {"loads": len(builds), "frozen": frozen, "modules": [*sys.modules]}
    print(json.dumps(told))
"""

#: Each takes a tenth of a second or more.
NOT_FOR_NOTHING = {"pyspark", "dagster_pyspark", "numpy", "pyarrow", "pandas", "grpc"}
NOT_FOR_NOTHING |= {
    "eo_pipeline.batch.stage",
    "eo_pipeline.audit.audit",
    "eo_pipeline.audit.compare",
}
#: Of sinks that the document does not name.
NOT_FOR_NOTHING |= {f"eo_pipeline.sinks.{each}.config" for each in ("redis", "mysql", "iceberg")}


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(tmp_path)
    document = """
name: orders
source: {bootstrap_servers: "broker:9092", topics: [orders], value_schema: id BIGINT}
sink: {type: delta, path: /lake/orders}
lag_threshold: 10
"""
    return write_project(tmp_path, document)


@pytest.fixture
def one_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(definitions, "is_of_one_run", lambda: True)
    monkeypatch.setattr(definitions, "_LOADED", {})
    monkeypatch.setattr(gc, "freeze", lambda: None)  # this process goes on


def builds(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Grows with each time that a document becomes definitions."""
    found: list[object] = []
    build = component.KafkaPipelineComponent.build_defs

    def counted(self: component.KafkaPipelineComponent, context: object) -> dg.Definitions:
        found.append(self)
        return build(self, context)  # type: ignore[arg-type]

    monkeypatch.setattr(component.KafkaPipelineComponent, "build_defs", counted)
    return found


def test_the_package_for_dagster_imports_no_spark() -> None:
    """Found before: dagster-pyspark, a quarter of a second in each run."""
    script = "import json, sys, eo_pipeline.dagster; print(json.dumps([*sys.modules]))"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert not NOT_FOR_NOTHING & set(json.loads(done.stdout))


def test_a_launch_with_nothing_new_loads_once_and_imports_no_spark(
    bench: Bench, tmp_path: Path
) -> None:
    """Found before: six loads, each with the schemas of all components, and pyspark and numpy."""
    bench.topic.write(10)
    bench.pipeline().run()
    write_project(tmp_path, json.dumps(bench.config), name="events")
    home = tmp_path / "home"
    home.mkdir()
    there = os.pathsep.join([str(tmp_path), str(Path(__file__).parents[2])])
    done = subprocess.run(
        [sys.executable, "-P", "-c", LAUNCH],
        cwd=tmp_path,
        env={**os.environ, "DAGSTER_HOME": str(home), "PYTHONPATH": there},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "Nothing to read: version" in done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["loads"] == 1
    assert not NOT_FOR_NOTHING & set(told["modules"])
    assert told["frozen"], "the collector goes through all that is imported, and at the end again"


@pytest.mark.usefixtures("one_run")
@pytest.mark.filterwarnings("error::dagster.BetaWarning", "error::dagster.PreviewWarning")
def test_what_a_run_loads_is_what_everybody_sees(
    package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    of_a_run = _snap(definitions.load_pipelines(package))
    monkeypatch.setattr(definitions, "is_of_one_run", lambda: False)
    monkeypatch.setattr(definitions, "_LOADED", {})
    of_a_server = _snap(definitions.load_pipelines(package))
    assert of_a_run == of_a_server


def _snap(loaded: dg.Definitions) -> object:
    snap = RepositorySnap.from_def(loaded.get_repository_def())
    # for the page on which people look for a component
    kept = {k: v for k, v in (snap.metadata or {}).items() if k != "plugin_component_types_json"}
    told = json.loads(serialize_value(snap))
    return {**told, "metadata": sorted(kept)}


@pytest.mark.usefixtures("one_run")
def test_a_run_loads_a_folder_once_and_each_fleet_by_itself(
    package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = builds(monkeypatch)
    first = definitions.load_pipelines(package)
    assert definitions.load_pipelines(package) is first
    assert len(found) == 1
    fleet = definitions.load_pipelines(package, fleet=Fleet(name="sales"))
    assert fleet is not first
    assert len(found) == 2


def test_who_stays_loads_what_is_there_now(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = builds(monkeypatch)
    assert definitions.load_pipelines(package) is not definitions.load_pipelines(package)
    assert len(found) == 2


_STATE = """\
import dagster as dg
from dagster.components.utils.defs_state import DefsStateConfig
from dagster_shared.serdes.objects.models.defs_state_info import DefsStateManagementType


class Stated(dg.StateBackedComponent):
    @property
    def defs_state_config(self):
        return DefsStateConfig(
            key="stated",
            management_type=DefsStateManagementType.LOCAL_FILESYSTEM,
            refresh_if_dev=False,
        )

    def write_state_to_path(self, path): ...

    def build_defs_from_state(self, context, state_path):
        return dg.Definitions()


@dg.component_instance
def load(context):
    return Stated()
"""


@pytest.mark.usefixtures("one_run")
def test_a_component_with_state_is_asked_at_each_load(
    package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = package / "defs" / "stated"
    place.mkdir()
    (place / "component.py").write_text(_STATE)
    found = builds(monkeypatch)
    assert definitions.load_pipelines(package) is not definitions.load_pipelines(package)
    assert len(found) == 2


def test_the_resource_is_dagsters_own_when_something_of_it_is_asked_for() -> None:
    seen = []

    @dg.op(required_resource_keys={"spark"})
    def looks(context) -> None:  # type: ignore[no-untyped-def]  # Dagster reads it
        spark = context.resources.spark
        assert "_resource" not in vars(spark)
        seen.append(spark.spark_config)
        assert isinstance(spark._resource, SparkResource)

    @dg.job(resource_defs={"spark": spark_definition(SparkSettings())})
    def job() -> None:
        looks()

    assert job.execute_in_process().success
    assert seen == [{}]
