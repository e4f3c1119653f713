"""`eo metrics`: what Prometheus is told, of pipelines that others run."""

from __future__ import annotations

import signal
import subprocess
import sys
import urllib.request
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.cli.shell import Shell, eo
from tests.cli.test_watch import two_pipelines
from tests.support.servers import wait_until

__all__ = ["eo"]

METRICS = [sys.executable, "-m", "eo_pipeline.cli", "metrics", "--port", "0", "--every", "0.2"]

Samples = Mapping[tuple[str, str, str], float]


def parsed(text: str) -> Samples:
    """Values by name, pipeline, and kind or operation, as Prometheus' own parser reads them."""
    return {
        (
            sample.name,
            sample.labels["pipeline"],
            sample.labels.get("operation", sample.labels.get("kind", "")),
        ): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def scraped(url: str) -> Samples:
    with urllib.request.urlopen(url, timeout=30) as answer:
        return parsed(answer.read().decode())


@pytest.mark.core
def test_a_scrape_tells_of_every_pipeline_also_while_others_run_it(eo: Shell) -> None:
    (eo.folder / "pipelines").mkdir()
    two_pipelines(eo)
    process = subprocess.Popen(METRICS, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        url = process.stdout.readline().strip()
        assert url.startswith("http://127.0.0.1:")
        wait_until(lambda: scraped(url).get(("eo_look_errors_total", "away", KIND), 0) > 0)
        wait_until(lambda: scraped(url)["eo_up", "events", ""] == 1)
        first = scraped(url)
        assert first["eo_lag_records", "events", ""] == 7
        assert first["eo_table_rows", "events", ""] == 30
        assert first["eo_records_read_total", "events", ""] == 30
        assert first["eo_bytes_read_total", "events", ""] > 30 * len('{"id": 0}')
        assert first["eo_checkpoints_total", "events", "forward"] == 1
        assert first["eo_up", "away", ""] == 0
        assert ("eo_lag_records", "away", "") not in first

        assert eo("run", "-p", "events").code == 0
        assert eo("replay", "1", "-p", "events", "--yes").code == 0
        wait_until(lambda: scraped(url).get(("eo_checkpoints_total", "events", "replay")) == 1)
        later = scraped(url)
        assert later["eo_lag_records", "events", ""] == 0
        assert later["eo_table_rows", "events", ""] == 37
        # what was read twice is counted twice: it is work that was done
        assert later["eo_records_read_total", "events", ""] == 67
        assert later["eo_rows_written_total", "events", ""] == 67
        age = (
            datetime.now(UTC).timestamp() - later["eo_last_commit_timestamp_seconds", "events", ""]
        )
        assert 0 <= age < 600
        assert later["eo_last_checkpoint_seconds", "events", ""] > 0
    finally:
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in err
    assert err.count("away: ") == 1, "a reason is told once, and not at every look"


KIND = "SourceUnavailableError"


def test_a_file_for_the_node_exporter_is_written_by_one_look(eo: Shell, tmp_path: Path) -> None:
    (eo.folder / "pipelines").mkdir()
    two_pipelines(eo)
    file = tmp_path / "eo.prom"
    assert eo("metrics", "--textfile", str(file)).code == 0
    found = parsed(file.read_text())
    assert found["eo_lag_records", "events", ""] == 7
    assert found["eo_look_errors_total", "away", KIND] == 1


def test_a_port_that_is_taken_is_told(eo: Shell) -> None:
    eo.document()
    with subprocess.Popen(METRICS, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        port = process.stdout.readline().strip().removesuffix("/metrics").rpartition(":")[2]
        told = eo("metrics", "--port", port)
        process.terminate()
    assert told.code == 2
    assert f"cannot listen on 127.0.0.1:{port}" in told.err
