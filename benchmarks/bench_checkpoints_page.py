"""How long Dagster's UI takes to show many checkpoints, in a real browser.

Fills a Dagster instance of its own (SQLite, as on a laptop) with checkpoints of the flights
pipeline, each a partition with its materialization, as a run would report them; then opens the
pages in headless Chromium and waits for what a person would wait for. No Kafka, no PostgreSQL.

    python -m benchmarks.bench_checkpoints_page [CHECKPOINTS [FOLDER]]

FOLDER keeps the filled instance, for another look. CHROMIUM names the browser if it is not
/usr/bin/chromium.
"""

from __future__ import annotations

import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import dagster as dg
from playwright.sync_api import Page, sync_playwright

from eo_pipeline.dagster import mirror
from eo_pipeline.dagster.naming import Automation, DagsterPipeline
from eo_pipeline.embedded.ports import HOST, free_port
from eo_pipeline.ledger.entry import Counts, LedgerEntry, Operation
from eo_pipeline.ledger.offsets import OffsetRange, TopicPartition
from eo_pipeline.pipeline import Pipeline

ROOT = Path(__file__).parents[1]
CHROMIUM = os.environ.get("CHROMIUM", "/usr/bin/chromium")
KAFKA_PARTITIONS = 8
REPEATS = 3
WAIT_MS = 120_000


def flights() -> DagsterPipeline:
    """The pipeline whose page is opened, as far as its events need it."""
    config = {
        "name": "flights",
        "source": {
            "bootstrap_servers": "127.0.0.1:1",
            "topics": ["flights"],
            "value_format": "raw",
        },
        "sink": {"type": "postgres", "dsn": "postgresql://127.0.0.1:1/x", "table": "flights"},
    }
    return DagsterPipeline(Pipeline.from_config(config), Automation())


def ledger(checkpoints: int) -> Iterator[LedgerEntry]:
    """Version 1 to ``checkpoints``, each a thousand offsets of every Kafka partition."""
    tps = [TopicPartition("flights", n) for n in range(KAFKA_PARTITIONS)]
    entry = LedgerEntry("flights", "l", 0, "t0", None, Operation.START, dict.fromkeys(tps, 0))
    for version in range(1, checkpoints + 1):
        start, end = (version - 1) * 1_000, version * 1_000
        rows = 1_000 * KAFKA_PARTITIONS
        entry = replace(
            entry.child(Operation.FORWARD, "run", dict.fromkeys(tps, end)),
            ranges=tuple(OffsetRange(*tp, start, end) for tp in tps),
            counts=Counts(records=rows, rows=rows, rows_total=rows * version),
            committed_at=datetime.now(UTC),
        )
        yield entry


def fill(instance: dg.DagsterInstance, checkpoints: int) -> None:
    """The keys and events of ``checkpoints``."""
    declared = flights()
    keys = [str(version) for version in range(1, checkpoints + 1)]
    instance.add_dynamic_partitions(declared.partitions, keys)
    for entry in ledger(checkpoints):
        for event in mirror.of_entry(declared, entry):
            if event.key == declared.checkpoints:
                instance.report_runless_asset_event(event.materialization())


def seconds_to_follow(instance: dg.DagsterInstance, checkpoints: int) -> float:
    """What one more checkpoint costs a forward step: its key. Median of many, s."""
    declared = flights()
    entries = list(ledger(checkpoints + 20))[-20:]
    return statistics.median(
        timed(lambda entry=entry: mirror.update_keys(declared, instance, entry))
        for entry in entries
    )


def timed(work: Callable[[], object]) -> float:
    """Seconds that ``work`` takes."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


@contextmanager
def webserver(home: Path) -> Iterator[str]:
    """Dagster's web server, without its daemon; its address."""
    port = free_port(3000)
    # no sensor runs here, and what the definitions name is not there
    nowhere = {"EO_KAFKA_BOOTSTRAP": f"{HOST}:1", "EO_PG_DSN": f"postgresql://{HOST}:1/x"}
    command = ["dagster_webserver", "-w", "workspace.yaml", "-h", HOST, "-p", str(port)]
    with (home / "webserver.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", *command],
            cwd=ROOT,
            env={**os.environ, **nowhere, "DAGSTER_HOME": str(home)},
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        try:
            wait_for(f"http://{HOST}:{port}")
            yield f"http://{HOST}:{port}"
        finally:
            os.killpg(process.pid, signal.SIGINT)
            process.wait(30)


def wait_for(url: str) -> None:
    """Until the UI answers."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        try:
            urllib.request.urlopen(f"{url}/server_info", timeout=5).close()
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            time.sleep(0.3)
        else:
            return
    raise TimeoutError(f"{url} does not answer")


def measure(page: Page, url: str, checkpoints: int) -> dict[str, float]:
    """Seconds from a click, or from the address, to what it was for."""
    newest = str(checkpoints)

    def open_page() -> None:
        page.goto(f"{url}/assets/flights_checkpoints?view=partitions")
        page.get_by_text(re.compile(r"^Materialized \([1-9]")).first.wait_for()

    def find_one() -> None:
        page.get_by_placeholder("Filter by name").fill(newest)
        page.get_by_text(newest, exact=True).first.click()
        page.get_by_text("transaction_id").first.wait_for()

    def open_dialog() -> None:
        page.get_by_role("button", name="Materialize").first.click()
        page.get_by_role("button", name="Launch 1 run").wait_for()

    def select_all() -> None:
        page.get_by_text("All", exact=True).first.click()
        page.get_by_text(re.compile(r"^\d[\d,.]+[kK]? partitions$")).first.wait_for()

    steps = {
        "page": open_page,
        "one checkpoint": find_one,
        "dialog": open_dialog,
        "select all": select_all,
    }
    return {name: timed(step) for name, step in steps.items()}


def say(line: str) -> None:
    """Tell at once how far it is."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main(checkpoints: int, home: Path) -> None:
    """Fill what is not filled yet, open, print."""
    (home / "dagster.yaml").write_text((ROOT / "dagster_defs" / "dagster.yaml").read_text())
    with dg.DagsterInstance.from_config(str(home)) as instance:
        if not instance.get_dynamic_partitions(flights().partitions):
            filled = timed(lambda: fill(instance, checkpoints))
            say(f"{checkpoints:,} checkpoints filled in {filled:.0f} s")
    with webserver(home) as url, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        for _ in range(REPEATS):
            page = browser.new_page(viewport={"width": 1300, "height": 820})
            page.set_default_timeout(WAIT_MS)
            took = measure(page, url, checkpoints)
            say(", ".join(f"{name} {seconds:.2f} s" for name, seconds in took.items()))
            page.close()
        browser.close()
    with dg.DagsterInstance.from_config(str(home)) as instance:
        each = seconds_to_follow(instance, checkpoints)
        say(f"one more key {1_000 * each:.1f} ms")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        wanted = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
        main(wanted, Path(sys.argv[2] if len(sys.argv) > 2 else folder))
