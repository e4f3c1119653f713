"""`eo costs`: what pipelines took, by their ledgers."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import psutil
import pytest

from eo_pipeline.ledger.entry import Costs, LedgerEntry
from eo_pipeline.spark.startup import C1_ALONE
from tests.cli.shell import Shell, eo
from tests.support.servers import wait_until

__all__ = ["eo"]


@pytest.mark.core
def test_what_was_read_and_written_is_summed_by_operation_and_by_run(eo: Shell) -> None:
    topic = eo.bench.topic
    topic.write(250)
    for value in (b'{"id": 1}', b'{"id": 2}'):
        topic.write_value(value, key=b"four")
    eo.document(name="events", max_checkpoints=100)
    assert eo("run", "--run-id", "first").code == 0
    assert eo("replay", "1", "--yes").code == 0

    [told] = eo("costs", "--json").json()
    parts = {part["operation"]: part for part in told["parts"]}
    assert list(parts) == ["start", "forward", "replay"]
    forward, replay = parts["forward"], parts["replay"]
    values = sum(len(json.dumps({"id": n, "name": f"record {n}"})) for n in range(250))
    assert (forward["records"], forward["rows"]) == (252, 252)
    assert forward["bytes_in"] == values + 2 * len('{"id": 1}') + 2 * len("four")
    staged = sum(entry.counts.costs.bytes_out for entry in ledger(eo) if entry.counts.costs)
    assert forward["bytes_out"] + replay["bytes_out"] == staged > 0
    assert forward["wall_seconds"] > 0
    assert forward["cpu_seconds"] > 0
    assert forward["cpu_measured_versions"] == forward["versions"]
    assert forward["spark_cpu_seconds"] is None, "others use that server, too"
    assert 0 < replay["records"] < forward["records"]
    assert told["total"]["records"] == forward["records"] + replay["records"]

    shown = eo("costs", "--by", "run")
    runs = [line.split()[1] for line in shown.out.splitlines()[1:4]]
    assert (runs[0], runs[2]) == ("first", "total")
    assert (
        eo("costs", "--by", "day", "--since", "2999-01-01T00:00Z", "--json").json()[0]["parts"]
        == []
    )
    assert eo("costs", "--since", "3").code == 2


def test_each_version_says_what_it_took_and_what_still_waited(eo: Shell) -> None:
    eo.bench.topic.write(250)
    eo.document(name="events")
    assert eo("run").code == 0
    costs = [entry.counts.costs for entry in ledger(eo) if entry.ranges]
    assert [each.lag for each in costs if each] == [150, 50, 0]
    first = costs[0]
    assert isinstance(first, Costs)
    assert set(first.phases_ms) >= {"plan", "stage"}
    assert first.phases_ms["stage"] > 0
    assert first.cpu_ms > 0
    assert first.bytes_out > 100


def test_the_cpu_time_of_a_spark_of_its_own_is_known_and_it_has_one_compiler_for_few_records(
    eo: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    eo.bench.topic.write(20)
    eo.document(name="events", spark={"master": "local[1]", "warm": False})
    monkeypatch.delenv("SPARK_REMOTE")
    monkeypatch.delenv("SPARK_CONF_DIR")  # where the suite's own says the same
    with ThreadPoolExecutor() as pool:
        running = pool.submit(eo.process, "run")
        wait_until(lambda: running.done() or bool(java_of_spark()))
        flags = java_of_spark()
        ran = running.result()
    assert ran.code == 0, ran.err
    assert C1_ALONE in flags
    [entry] = [entry for entry in ledger(eo) if entry.ranges]
    assert entry.counts.costs is not None
    spent = entry.counts.costs.spark_cpu_ms
    assert spent is not None
    assert spent > 500, "a JVM takes longer than that to start"
    assert "≥" not in eo("costs").out.splitlines()[2]


def java_of_spark() -> list[str]:
    """The words that the JVM of a Spark of a child was started with; none if there is no such."""
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            words = process.cmdline()
            if "pyspark-shell" in words and "org.apache.spark.launcher.Main" not in words:
                return words
    return []


def ledger(eo: Shell) -> list[LedgerEntry]:
    return eo.bench.pipeline().history()
