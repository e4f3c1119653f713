"""How far a test session is: a line for every file that is through, at a failure, and at least
every half minute, on a terminal and in a log. For `pytest -p tests.support.progress`.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Generator, Iterable
from typing import Any

import pytest

_LINE_EVERY_S = 30.0


class Progress:
    """Counts tests by file as they begin and end, in this process or in those of xdist."""

    def __init__(self, reporter: Any) -> None:
        self._reporter = reporter
        self._left: Counter[str] = Counter()
        self._total = 0
        self._done: dict[str, Counter[str]] = {}
        self._began: dict[str, float] = {}
        self._running: dict[str, float] = {}
        self._said_at = time.monotonic()
        self._over = threading.Event()
        self._writing = threading.Lock()

    # ---- what there is to do ----

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self._expect(item.nodeid for item in session.items)

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: Iterable[str]) -> None:
        self._expect(ids)  # every process has the same

    def _expect(self, ids: Iterable[str]) -> None:
        if not self._total:
            self._left = Counter(map(_file, ids))
            self._total = self._left.total()
            threading.Thread(target=self._keep_talking, daemon=True).start()

    # ---- what has been done ----

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._running[nodeid] = time.monotonic()
        self._began.setdefault(_file(nodeid), time.monotonic())

    @pytest.hookimpl(wrapper=True)
    def pytest_report_teststatus(self) -> Generator[None, Any, Any]:
        category, *_ = yield
        return category, "", ""  # no dots

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        file = _file(report.nodeid)
        done = self._done.setdefault(file, Counter())
        if report.failed:
            done["failed"] += 1
            self._say(f"FAILED {report.nodeid} ({report.when})", red=True)
        elif report.when == "call" or report.skipped:
            done[report.outcome] += 1

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        file = _file(nodeid)
        self._running.pop(nodeid, None)
        self._left[file] -= 1
        if not self._left[file]:
            found = ", ".join(f"{count} {how}" for how, count in self._done[file].items())
            self._say(f"{file}: {found} in {time.monotonic() - self._began[file]:.0f} s")

    def pytest_sessionfinish(self) -> None:
        self._over.set()

    # ---- saying it ----

    def _say(self, text: str, **markup: bool) -> None:
        through = self._total - self._left.total()
        with self._writing:
            self._said_at = time.monotonic()
            self._reporter.write_line(f"[{100 * through // self._total:3}%] {text}", **markup)
            self._reporter.flush()  # a log is read while it grows

    def _keep_talking(self) -> None:
        """A line also while one test takes minutes."""
        while not self._over.wait(1.0):
            now = time.monotonic()
            if now - self._said_at > _LINE_EVERY_S:
                tests = (f"{test} ({now - at:.0f} s)" for test, at in [*self._running.items()])
                self._say("running " + ", ".join(tests))


def _file(nodeid: str) -> str:
    return nodeid.partition("::")[0]


@pytest.hookimpl(trylast=True)  # the reporter is there
def pytest_configure(config: pytest.Config) -> None:
    """Once, where the results come together; with ``-v`` pytest says enough by itself."""
    if not hasattr(config, "workerinput") and config.get_verbosity() <= 0:
        reporter = config.pluginmanager.get_plugin("terminalreporter")
        config.pluginmanager.register(Progress(reporter), "eo-progress")
