"""A project that `create-dagster` made, with the wheel in it: docs/first-pipeline.md, step by step.

Nothing of this repository is importable there but what the wheel brings.
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.engine import Bench

ROOT = Path(__file__).parents[2]

_DOCUMENT = """\
type: eo_pipeline.dagster.KafkaPipelineComponent

attributes:
  name: orders
  source:
    bootstrap_servers: "{{{{ env.KAFKA }}}}"
    topics: [{topic}]
    value_schema: "id BIGINT NOT NULL, name STRING"
  transform: shop.orders:clean
  sink: {{type: postgres, dsn: "{{{{ env.ORDERS_DSN }}}}", table: orders}}
"""

_TRANSFORM = """\
from pyspark.sql import DataFrame
from pyspark.sql import functions as F


def clean(df: DataFrame) -> DataFrame:
    return df.withColumn("name", F.upper("name"))
"""

_DOWNSTREAM = """\
import os

import dagster as dg
import psycopg


@dg.asset(deps=["orders"])
def report(context: dg.AssetExecutionContext) -> dg.MaterializeResult:
    with psycopg.connect(os.environ["ORDERS_DSN"]) as connection:
        [rows] = connection.execute("select count(*) from orders").fetchone()
    return dg.MaterializeResult(metadata={"rows": rows})


nightly = dg.define_asset_job("nightly", selection="key:orders+")
"""


@dataclass
class Project:
    """The project ``shop``, and what its owner types there."""

    folder: Path
    environment: dict[str, str]

    def __call__(self, program: str, *arguments: str, fails: bool = False) -> str:
        done = subprocess.run(
            [Path(sys.executable).with_name(program), *arguments],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        said = done.stdout + done.stderr
        assert (done.returncode != 0) == fails, said
        return said

    def write(self, path: str, text: str) -> None:
        file = self.folder / "src" / "shop" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what the wheel brings; nothing is left in the checkout by its making."""
    before = {path.name for path in ROOT.iterdir()}
    made, installed = tmp_path_factory.mktemp("wheel"), tmp_path_factory.mktemp("installed")
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    wheel = [*pip, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(made), "."]
    subprocess.run(wheel, cwd=ROOT, check=True)
    [file] = made.glob("*.whl")
    subprocess.run(
        [*pip, "install", "--no-deps", "--no-index", "--target", str(installed), str(file)],
        check=True,
    )
    assert {path.name for path in ROOT.iterdir()} == before
    return installed


@pytest.fixture
def shop(bench: Bench, wheel: Path, tmp_path: Path) -> Project:
    home = tmp_path / "home"
    home.mkdir()
    folder = tmp_path / "shop"
    foreign = {"PYTHONPATH", "DAGSTER_HOME", "XDG_CONFIG_HOME"}
    environment = {
        **{name: value for name, value in os.environ.items() if name not in foreign},
        "HOME": str(home),
        "DAGSTER_HOME": str(home),
        "DAGSTER_DISABLE_TELEMETRY": "yes",
        # create-dagster would ask the network whether it is the newest
        "DAGSTER_DG_UPDATE_CHECK_ENABLED": "0",
        "PYTHONPATH": os.pathsep.join([str(wheel), str(folder / "src")]),
        "KAFKA": bench.topic.bootstrap_servers,
        "ORDERS_DSN": bench.table.dsn,
    }
    (home / "dagster.yaml").write_text("telemetry: {enabled: false}\n")
    made = Project(tmp_path, environment)
    made("create-dagster", "project", "shop", "--no-uv-sync")
    return Project(folder, environment)


def test_the_first_pipeline_in_a_project_of_ones_own(bench: Bench, shop: Project) -> None:
    where = "import eo_pipeline; print(eo_pipeline.__file__)"
    assert "installed" in shop("python", "-c", where)
    component = "eo_pipeline.dagster.KafkaPipelineComponent"
    assert component in shop("dg", "list", "components", "--json")
    shop("dg", "scaffold", "defs", component, "orders")
    scaffolded = shop.folder / "src" / "shop" / "defs" / "orders" / "defs.yaml"
    assert "name: orders" in scaffolded.read_text()
    assert "All definitions loaded successfully" in shop("dg", "check", "defs")

    shop.write("orders.py", _TRANSFORM)
    shop.write("defs/orders/defs.yaml", _DOCUMENT.format(topic=bench.topic.name))
    shop.write("defs/report.py", _DOWNSTREAM)
    assert "All component YAML validated" in shop("dg", "check", "yaml")
    assert "All definitions loaded successfully" in shop("dg", "check", "defs")

    bench.topic.write(120, partitions=range(4))
    assert "version 0: committing" in shop("dg", "launch", "--assets", "orders")
    assert bench.table.query("select count(*), min(name) from orders") == [(120, "RECORD 0")]

    # what is built on the table follows it, in a job of one's own
    bench.topic.write(30)
    said = shop("dg", "launch", "--job", "nightly")
    assert "RUN_SUCCESS" in said
    assert "Materialized value report" in said
    # the audit takes as long as it takes, and is run by itself
    assert "Audit skipped: this run materializes" in said
    assert "version 2 will read 30 offsets" in said
    assert bench.table.query("select count(*) from orders") == [(150,)]

    # and the same document serves the command line
    assert shop("eo", "status").splitlines()[1].split()[:5] == [
        "orders",
        "2",
        "forward",
        "0",
        "150",
    ]


def test_a_typing_error_is_found_by_check_yaml_and_by_check_defs(shop: Project) -> None:
    document = _DOCUMENT.format(topic="orders").replace("postgres", "postgress")
    shop.write("orders.py", _TRANSFORM)
    shop.write("defs/orders/defs.yaml", document)
    assert "postgress" in shop("dg", "check", "yaml", fails=True)
    assert "postgress" in shop("dg", "check", "defs", fails=True)
