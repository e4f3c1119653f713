"""Goes on where an earlier session on the same sources stopped.

Every test that passed is noted in ``.eo/passed``, below the name of the sources' state. With
``--resume`` those are left out; without it all run, and are noted.
"""

from __future__ import annotations

import hashlib
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PASSED = ROOT / ".eo" / "passed"


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("shares of the suite")
    group.addoption("--resume", action="store_true", help="leave out what passed on these sources")
    group.addoption("--within", type=float, metavar="S", help="skip tests that would begin later")
    group.addoption("--touched", metavar="REV", help="the rooms of files changed since REV")


def _git(*words: str) -> str:
    return subprocess.run(
        ["git", *words], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout


def sources() -> str | None:
    """Return a name for the state of the checkout, or None where git does not know it."""
    try:
        state = [_git("rev-parse", "HEAD"), _git("diff", "HEAD")]
        new = _git("ls-files", "--others", "--exclude-standard").splitlines()
    except (OSError, subprocess.CalledProcessError):
        return None
    state += [hashlib.sha256((ROOT / name).read_bytes()).hexdigest() for name in new]
    return hashlib.sha256("\0".join(state).encode()).hexdigest()[:16]


def is_of_a_room(test: str, changed: str) -> bool:
    """Whether the tests of the file ``test`` are those of the room that ``changed`` is in: the
    same folder below ``tests`` as below the package, or the folder that holds a changed test. What
    lies in no room, or helps all tests, is everybody's.
    """
    folder = Path(changed).parent
    if folder.parts[:1] not in {("eo_pipeline",), ("tests",)} or Path(changed).suffix != ".py":
        return False
    return Path(test).is_relative_to(Path("tests", *folder.parts[1:]))


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    left_out: set[str] = set()
    if config.getoption("--resume"):
        left_out |= {*passed()}
    if revision := config.getoption("--touched"):
        changed = _git("diff", "--name-only", revision).splitlines()
        files = {item.nodeid.partition("::")[0] for item in items}
        kept = {file for file in files if any(is_of_a_room(file, each) for each in changed)}
        left_out |= {item.nodeid for item in items if item.nodeid.partition("::")[0] not in kept}
    if left_out:
        config.hook.pytest_deselected(items=[item for item in items if item.nodeid in left_out])
        items[:] = [item for item in items if item.nodeid not in left_out]


def passed() -> Iterator[str]:
    """Yield the tests that passed on these sources."""
    state = sources()
    if state is not None and (PASSED / state).exists():
        yield from (PASSED / state).read_text().splitlines()


class Notes:
    """Writes down what passes, where the results come together."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("a")
        self._failed: set[str] = set()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if not report.passed:
            self._failed.add(report.nodeid)
        elif report.when == "teardown" and report.nodeid not in self._failed:
            self._file.write(f"{report.nodeid}\\n")
            self._file.flush()  # a session may be killed


class Until:
    """Skips what would begin after a time."""

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds

    def pytest_runtest_setup(self) -> None:
        if time.monotonic() > self._end:
            pytest.skip("the time for this share is over")


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput") and (state := sources()) is not None:
        config.pluginmanager.register(Notes(PASSED / state), "eo-notes")
    if (seconds := config.getoption("--within")) is not None:
        config.pluginmanager.register(Until(seconds), "eo-until")


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Nothing left to do is a success."""
    shares = session.config.getoption("--resume") or session.config.getoption("--touched")
    if shares and session.exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED:
        session.exitstatus = pytest.ExitCode.OK
