"""Takes the pictures of the documentation: ``python docs/screenshots.py [NAME ...]``.

Starts the demo in a folder of its own (``make dev``: real servers, a feeder, the Dagster UI), waits
for a few checkpoints, drives the UI in headless Chromium and writes docs/images/NAME.png, reduced
to a palette. With ``--ui URL`` it uses a UI that runs already.

A picture is a function below that drives a :class:`Ui`, under its file's name. It waits for what it
shows: the UI fills its pages step by step.

Needs the development packages and a Chromium; CHROMIUM names it if it is not /usr/bin/chromium.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import Page, sync_playwright

ROOT = Path(__file__).parents[1]
IMAGES = ROOT / "docs" / "images"
CHROMIUM = os.environ.get("CHROMIUM", "/usr/bin/chromium")

BYTES_MAX = 150_000
CHECKPOINTS_MIN = 6
WAIT_S = 300.0
#: For fade-ins, after everything that was waited for is there.
SETTLE_MS = 1_500

LAUNCH = """
mutation ($execution: ExecutionParams!) {
  launchRun(executionParams: $execution) {
    __typename ... on LaunchRunSuccess { run { runId } } ... on PythonError { message }
  }
}
"""
STATUS = "query ($run: ID!) { runOrError(runId: $run) { ... on Run { status } } }"


@dataclass
class Ui:
    """The Dagster UI in a browser, and the verbs that pictures need."""

    url: str
    page: Page

    def open(self, path: str) -> None:
        self.page.goto(f"{self.url}{path}")

    def see(self, text: str | re.Pattern[str]) -> None:
        """Wait until ``text`` is on the page."""
        self.page.get_by_text(text).first.wait_for()

    def press(self, name: str) -> None:
        """The first button with ``name`` in its text."""
        self.page.get_by_role("button", name=name).first.click()

    def query(self, graphql: str, **variables: object) -> dict[str, Any]:
        """Ask Dagster itself, where the page does not tell."""
        body = json.dumps({"query": graphql, "variables": variables}).encode()
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"{self.url}/graphql", body, headers)
        with urllib.request.urlopen(request, timeout=60) as answer:
            data: dict[str, Any] = json.load(answer)["data"]
        return data

    def launch(self, job: str, config: dict[str, object]) -> None:
        """Run a job of the demo's to its end."""
        selector = {
            "pipelineName": job,
            "repositoryLocationName": "eo-pipeline",
            "repositoryName": "__repository__",
        }
        execution = {"selector": selector, "runConfigData": config}
        launched = self.query(LAUNCH, execution=execution)["launchRun"]
        status = "QUEUED"
        while status != "SUCCESS":
            if status in ("FAILURE", "CANCELED"):
                raise SystemExit(f"the run of {job} ended: {launched}")
            time.sleep(1)
            status = self.query(STATUS, run=launched["run"]["runId"])["runOrError"]["status"]

    def checkpoints(self) -> list[str]:
        """The checkpoints that can be picked, oldest first."""
        found = self.query(
            '{assetNodeOrError(assetKey: {path: ["flights_checkpoints"]})'
            "{... on AssetNode {partitionKeys}}}"
        )
        return list(found["assetNodeOrError"]["partitionKeys"])


def lineage(ui: Ui) -> None:
    """The topics, the tables, their offsets and checkpoints."""
    ui.open("/locations/eo-pipeline/asset-groups/flights/lineage")
    ui.see("flights_offsets")
    ui.page.get_by_text("Loading...").first.wait_for(state="hidden")


def offsets(ui: Ui) -> None:
    """The offset asset, every checkpoint's numbers as plots."""
    ui.open("/assets/flights_offsets")
    ui.press("Plots")
    ui.see("records_per_second")
    ui.page.locator("canvas").nth(3).wait_for()
    ui.page.get_by_text("lag_before", exact=True).first.evaluate("title => title.scrollIntoView()")


def checkpoints(ui: Ui) -> None:
    """Every checkpoint is a partition, with what it read."""
    ui.open("/assets/flights_checkpoints?view=partitions")
    ui.see("Partitions Selected")
    ui.page.get_by_text(ui.checkpoints()[1], exact=True).first.click()
    ui.see("transaction_id")


def replay(ui: Ui) -> None:
    """The dialog behind Materialize, with three checkpoints selected."""
    ui.open("/assets/flights_checkpoints?view=partitions")
    ui.see("Partitions Selected")
    ui.press("Materialize")
    ui.page.get_by_text("Select a partition").click()
    for version in ui.checkpoints()[1:4]:
        ui.page.locator("[role=menu]").get_by_text(version, exact=True).first.click()
    ui.page.get_by_text("Launch runs to materialize").click()  # closes the list
    ui.see("3 partitions")


def rewind(ui: Ui) -> None:
    """The Launchpad of the rewind job, filled in."""
    ui.open("/locations/eo-pipeline/jobs/flights_rewind/playground")
    ui.page.locator(".CodeMirror").first.click()
    ui.page.keyboard.press("Control+a")
    target = ui.checkpoints()[-3]
    ui.page.keyboard.insert_text(
        f"to: {{version: {target}}}\nreason: wrong airlines since this morning\ndry_run: true\n"
    )
    ui.see("No errors")
    ui.page.mouse.move(640, 600)  # away from the hint that the pointer brings up


def history(ui: Ui) -> None:
    """A rewind in the offset asset's history; this one is done for the picture."""
    target = int(ui.checkpoints()[-3])
    ui.launch(
        "flights_rewind", {"to": {"version": target}, "reason": "wrong airlines since this morning"}
    )
    ui.open("/assets/flights_offsets?view=events")
    ui.see("rewind")


PICTURES: dict[str, Callable[[Ui], None]] = {
    picture.__name__: picture
    for picture in (lineage, offsets, checkpoints, replay, rewind, history)
}


@contextmanager
def demo() -> Iterator[str]:
    """``make dev`` in a folder of its own; the UI's address."""
    with tempfile.TemporaryDirectory() as home:
        command = [sys.executable, "-m", "demo", "--home", home]
        log = Path(home) / "screen.log"
        with log.open("wb") as screen:
            process = subprocess.Popen(
                [*command, "dev", "--rate", "400"], cwd=ROOT, stdout=screen, stderr=screen
            )
        try:
            yield _ui_address(log, process)
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(120)


def _ui_address(log: Path, process: subprocess.Popen[bytes]) -> str:
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline and process.poll() is None:
        found = re.search(r"Dagster UI (http://\S+)", log.read_text())
        if found:
            return found.group(1)
        time.sleep(1)
    raise SystemExit(f"the demo did not start:\n{log.read_text()}")


@contextmanager
def browser(url: str, width: int = 1300, height: int = 820) -> Iterator[Ui]:
    """A page of headless Chromium at ``url``."""
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = chromium.new_page(viewport={"width": width, "height": height})
        page.set_default_timeout(1_000 * WAIT_S)
        yield Ui(url, page)
        chromium.close()


def take(ui: Ui, name: str, folder: Path) -> Path:
    """One picture, small enough for a repository."""
    PICTURES[name](ui)
    ui.page.wait_for_timeout(SETTLE_MS)
    path = folder / f"{name}.png"
    shot = Image.open(io.BytesIO(ui.page.screenshot())).convert("RGB")
    # the UI's few colours survive a palette; dithering would only cost bytes
    image = shot.quantize(256, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    image.save(path, optimize=True)
    if path.stat().st_size > BYTES_MAX:
        raise SystemExit(f"{path} has {path.stat().st_size:,} bytes, more than {BYTES_MAX:,}")
    return path


def wait_for_checkpoints(ui: Ui) -> None:
    """Until there is something to show."""
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        try:
            if len(ui.checkpoints()) >= CHECKPOINTS_MIN:
                return
        except (urllib.error.URLError, TimeoutError):
            sys.stdout.write("the UI does not answer yet\n")
        time.sleep(2)
    raise SystemExit(f"no {CHECKPOINTS_MIN} checkpoints within {WAIT_S:.0f} s")


def main() -> None:
    """Take the pictures that were named, or all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(PICTURES))
    parser.add_argument("--ui", help="the address of a UI that runs already")
    parser.add_argument("--folder", type=Path, default=IMAGES)
    options = parser.parse_args()
    unknown = set(options.names) - PICTURES.keys()
    if unknown:
        parser.error(f"no picture {', '.join(sorted(unknown))}; there are {', '.join(PICTURES)}")
    with _given(options.ui) if options.ui else demo() as url, browser(url) as ui:
        wait_for_checkpoints(ui)
        for name in options.names or PICTURES:
            path = take(ui, name, options.folder)
            sys.stdout.write(f"{path} {path.stat().st_size:,} bytes\n")


@contextmanager
def _given(url: str) -> Iterator[str]:
    yield url.rstrip("/")


if __name__ == "__main__":
    main()
