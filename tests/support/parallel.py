"""Which tests run in one process: those of a file, which share servers and fixtures.

The suite runs in several processes (WORKERS), which share the dearest servers (tests/shared). The
files that take longest come first, so that all end together.

Not by xdist's ``loadgroup``: of its marks pytest 9.2 sees nothing, and every test goes to whichever
process is free.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

#: These files start the demo, which wants its usual ports: one after the other.
_DEMO = ("test_make_run.py", "test_make_dev.py", "test_interrupted.py")


#: What takes longest, the longest first: a minute and more down to half a minute, on two cores.
#: Whatever is not named is shorter, and comes after them.
LONGEST = (
    "dagster/test_in_the_browser.py",
    "runs/test_staging_in_stores.py",
    "spark/test_warm_spark.py",
    "audit/test_audit.py",
    "sinks/kafka/test_kafka_sink_shards.py",
    "audit/test_audit_of_values.py",
    "batch/test_unfit_rows.py",
    "batch/test_counting.py",
    "sinks/kafka/test_kafka_sink_contract.py",
    "kafka/test_logins.py",
    "formats/test_avro_registry.py",
    "spark/test_class_archive.py",
    "dagster/test_going_back.py",
    "dagster/test_terminate.py",
    "cli/test_cli.py",
    "spark/test_spark_connect.py",
    "spark/test_on_a_cluster.py",
    "sinks/delta/test_delta_in_stores.py",
    "operations/test_going_back.py",
    "kafka/test_topics_that_return.py",
    "dagster/test_a_project_of_ones_own.py",
    "dagster/test_processes.py",
    "spark/test_job_failures.py",
    "sinks/mysql/test_mysql_sink.py",
    "sinks/mysql/test_mysql_contract.py",
    "sinks/kafka/test_kafka_sink.py",
    "audit/test_audit_of_every_sink.py",
    "sinks/sql/test_sql_failures.py",
    "runs/test_crash_points.py",
    "dagster/test_runs.py",
    "dagster/test_sensors.py",
    "sinks/postgres/test_postgres_contract.py",
    "embedded/test_embedded_servers.py",
    "runs/test_damaged_ledger.py",
    "runs/test_odd_paths.py",
    "sinks/test_lake_pipeline.py",
    "explorer/test_protocol_explorer.py",
    "sinks/kafka/test_kafka_to_kafka.py",
    "storage/test_backends.py",
    "storage/test_hdfs_store.py",
    "batch/test_checksums.py",
)


def group_of(nodeid: str) -> str:
    """What the test must share a process with: its file, or whatever starts the demo."""
    file = nodeid.partition("::")[0]
    return "demo" if Path(file).name in _DEMO else file


class ByFile(LoadScopeScheduling):  # type: ignore[misc]  # xdist has no types
    """Gives a process whole groups."""

    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByFile:
    return ByFile(config, log)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--part", metavar="K/N", help="of N parts of the suite, the K-th")


@pytest.hookimpl(trylast=True)  # of what is left when marks and files have been chosen
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: _rank(item.path))  # stable: the others as they were
    if config.getoption("--within"):  # as many as the time allows: what is long comes last
        items.sort(key=lambda item: _rank(item.path) < (True, len(LONGEST)))
    if part := config.getoption("--part"):
        groups = list(dict.fromkeys(group_of(item.nodeid) for item in items))
        chosen = {*share_of(groups, part)}
        others = [item for item in items if group_of(item.nodeid) not in chosen]
        config.hook.pytest_deselected(items=others)
        items[:] = [item for item in items if group_of(item.nodeid) in chosen]


def share_of(groups: list[str], part: str) -> list[str]:
    """Return the groups of a part "K/N". They are dealt out in turn, the longest first, so that all
    parts take about the same time.
    """
    which, count = map(int, part.split("/"))
    assert 1 <= which <= count, part
    return groups[which - 1 :: count]


def _rank(path: Path) -> tuple[bool, int]:
    name = path.relative_to(Path(__file__).parents[1]).as_posix()
    # what must go one after the other begins at once
    return path.name not in _DEMO, LONGEST.index(name) if name in LONGEST else len(LONGEST)
