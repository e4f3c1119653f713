"""Dagster as people run it, web server, daemon and code location, and a real browser before it."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from playwright.sync_api import Error, Locator, Page, sync_playwright

from eo_pipeline.dagster.definitions import pipeline_definitions
from eo_pipeline.dagster.naming import Automation
from eo_pipeline.embedded.ports import free_port
from eo_pipeline.pipeline import Pipeline
from tests.support.servers import wait_until

ROOT = Path(__file__).parents[2]
VARIABLE = "EO_TEST_SITE"
LOCATION = "tests.dagster.site"

#: Where Debian, Ubuntu, Fedora and Alpine put it; CHROMIUM names another.
CHROMIUMS = ("chromium", "chromium-browser", "google-chrome")

#: What a machine may be busy with other things; no test waits that long.
WAIT_S = 120.0

_INSTANCE = """
telemetry: {enabled: false}
nux: {enabled: false}
concurrency: {pools: {default_limit: 1, granularity: op}}
run_coordinator:
  module: dagster.core.run_coordinator
  class: QueuedRunCoordinator
  config: {dequeue_interval_seconds: 1}
"""
_LOADED = "{ repositoriesOrError { ... on RepositoryConnection { nodes { name } } } }"


@dg.definitions
def defs() -> dg.Definitions:
    """What the file says that :data:`VARIABLE` names, read anew by every run; with the executor
    that a pipeline's definitions ask for beside them.
    """
    told = json.loads(Path(os.environ[VARIABLE]).read_text())
    declared = pipeline_definitions(
        Pipeline.from_config(told["pipeline"]), Automation(**told["automation"])
    )
    return dg.Definitions.merge(declared, dg.Definitions(executor=dg.in_process_executor))


@dataclass
class Site:
    """``dagster dev`` in a folder of its own."""

    folder: Path
    port: int = field(default_factory=free_port)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def declare(self, pipeline: dict[str, Any], **automation: Any) -> None:
        """What the next run does; the sensors go on with what was declared first."""
        told = {"pipeline": pipeline, "automation": automation}
        (self.folder / "declared.json").write_text(json.dumps(told))

    def ask(self, query: str, **variables: Any) -> Any:
        """Dagster itself, where a test only waits for what the page is to show."""
        body = json.dumps({"query": query, "variables": variables}).encode()
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"{self.url}/graphql", body, headers)
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)["data"]

    def answers(self) -> bool:
        try:
            return bool(self.ask(_LOADED)["repositoriesOrError"]["nodes"])
        except (urllib.error.URLError, ConnectionError, KeyError):
            return False

    @contextmanager
    def running(self) -> Iterator[None]:
        """Until the end of the block; nothing stays behind."""
        home = self.folder / "home"
        home.mkdir()
        (home / "dagster.yaml").write_text(_INSTANCE)
        program = str(Path(sys.executable).with_name("dagster"))
        command = [program, "dev", "-m", LOCATION, "-h", "127.0.0.1", "-p", str(self.port)]
        settings = {"DAGSTER_HOME": str(home), VARIABLE: str(self.folder / "declared.json")}
        with (self.folder / "log").open("w") as log:
            process = subprocess.Popen(
                command,
                cwd=ROOT,
                env={**os.environ, **settings},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
            try:
                wait_until(self.answers, WAIT_S)
                yield
            finally:
                process.send_signal(signal.SIGINT)
                process.wait(120)


def chromium() -> str:
    """The browser's program. None is a failed set-up, not a reason to leave tests out."""
    named = [os.environ["CHROMIUM"]] if "CHROMIUM" in os.environ else CHROMIUMS
    found = next((path for name in named if (path := shutil.which(name))), None)
    if found is None:
        missing = pytest.fail if os.environ.get("CI") else pytest.skip
        missing(f"none of {', '.join(named)} is there: `sh tests/install_chromium.sh`")
    return found


@contextmanager
def browsing(site: Site) -> Iterator[Browser]:
    """A page of headless Chromium before ``site``."""
    quiet = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-sync"]
    with sync_playwright() as playwright:
        program = playwright.chromium.launch(executable_path=chromium(), args=quiet)
        page = program.new_page(viewport={"width": 1400, "height": 900})
        page.set_default_timeout(1_000 * WAIT_S)
        try:
            yield Browser(site, page)
        finally:
            program.close()


@dataclass
class Browser:
    """What a person does before the page, and sees there."""

    site: Site
    page: Page

    def open(self, path: str) -> None:
        self.page.goto(f"{self.site.url}{path}")

    def sees(self, text: str | re.Pattern[str]) -> Locator:
        """Waits until ``text`` is on the page."""
        found = self.page.get_by_text(text).first
        try:
            found.wait_for()
        except Error as error:
            shown = self.page.locator("body").inner_text()
            pytest.fail(f"{text!r} is not on {self.page.url} ({error}), but:\n{shown[:3_000]}")
        return found

    def button(self, words: str) -> Locator:
        """The button that shows exactly these words, whatever picture is beside them."""
        shown = re.compile(rf"^\s*{re.escape(words)}\s*$")
        return self.page.get_by_role("button").filter(has_text=shown).first

    def press(self, words: str) -> None:
        self.button(words).click()
