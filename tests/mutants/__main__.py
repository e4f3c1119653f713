"""Break each rule once, in a copy, and see it noticed by the first tier of the suite.

python -m tests.mutants                 all mutants but those that only a slow test notices
python -m tests.mutants NAME ...        these
python -m tests.mutants --slow          all, for which the second tier's servers are needed
python -m tests.mutants --list          names and rules; nothing is run
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests import shared
from tests.mutants import ROOT, Mutant
from tests.mutants.all import MUTANTS
from tests.support import tiers

#: Seconds that one test may take, with the start of its servers: a mutant may wait for ever.
_TEST_S = 300

_FIRST_TIER = "not slow and not chaos"


def main(names: Sequence[str], *, slow: bool) -> int:
    """Return the exit code: 0 if every mutant was noticed."""
    chosen = [each for each in MUTANTS if each.name in names or (not names and _is_run(each, slow))]
    if unknown := sorted({*names} - {each.name for each in chosen}):
        sys.exit(f"There is no mutant {', '.join(unknown)}. --list shows their names.")
    started, failed = time.monotonic(), 0
    with tempfile.TemporaryDirectory(prefix="eo-mutants-") as folder, _servers():
        copy = _copied(Path(folder))
        _refuse_failing(copy, chosen)
        for each in chosen:
            noticed = _is_noticed(each, copy)
            failed += not noticed
    for each in MUTANTS if not names and not slow else ():
        if each.only_slow:
            _say(f"not run   {each.name}: {each.only_slow}; {each.tests[0]} notices it")
    minutes = (time.monotonic() - started) / 60
    _say(f"{len(chosen) - failed} passed, {failed} failed in {minutes:.1f} minutes")
    return int(failed > 0)


def _is_run(mutant: Mutant, slow: bool) -> bool:
    return slow or not mutant.only_slow


@contextlib.contextmanager
def _servers() -> Iterator[None]:
    """One Kafka, one PostgreSQL and one Spark for all runs, each started when it is first used."""
    with contextlib.closing(shared.connect()):
        yield


def _copied(folder: Path) -> Path:
    """A copy of the checkout, with its own code and with this one's jars and servers."""
    copy = folder / "copy"
    shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(".*", "__pycache__"))
    (copy / ".eo").symlink_to(ROOT / ".eo")
    return copy


def _refuse_failing(copy: Path, chosen: Sequence[Mutant]) -> None:
    """A test that fails anyway notices nothing. This run also compiles the copy and starts what
    servers are needed.
    """
    for slow in (False, True):
        tests = {test for each in chosen if bool(each.only_slow) is slow for test in each.tests}
        if tests:
            code, seconds, said = _pytest(copy, sorted(tests), slow=slow, compiles=True)
            if code != 0:
                sys.exit(f"The tests fail without any mutant:\n{said}")
            _say(f"the copy as it is: its tests pass in {seconds:.0f} s")


def _is_noticed(mutant: Mutant, copy: Path) -> bool:
    """Apply ``mutant``, run its tests, put the file back, and say what happened."""
    path = copy / mutant.file
    source, stat = path.read_text(), path.stat()
    path.write_text(mutant.applied(source))
    try:
        code, seconds, said = _pytest(copy, mutant.tests, slow=bool(mutant.only_slow))
    finally:
        path.write_text(source)
        # so that what was compiled of it fits again
        os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    # 1: tests failed; anything else but 0 says that pytest could not run them
    if code == 1:
        why = next(line for line in said.splitlines() if line.startswith(("FAILED", "ERROR")))
        _say(f"noticed   {mutant.name} in {seconds:.1f} s by {why.partition(' ')[2]}")
    elif code == 0:
        tests = ", ".join(mutant.tests)
        _say(f"SURVIVED  {mutant.name} in {seconds:.1f} s: {mutant.rule} Nothing fails of {tests}")
    else:
        _say(f"NOT RUN   {mutant.name}: pytest ended with {code}:\n{said}")
    return code == 1


def _pytest(
    copy: Path, tests: Sequence[str], *, slow: bool, compiles: bool = False
) -> tuple[int, float, str]:
    """The exit code, seconds, and what was said."""
    options = ["-x", "-q", "--tb=no", "-p", "no:cacheprovider", f"--timeout={_TEST_S}"]
    environment = {**os.environ, "PYTHONPATH": str(copy)}
    if not compiles:  # of a mutant nothing is kept
        environment["PYTHONDONTWRITEBYTECODE"] = "1"
    if not slow:
        environment[tiers.VARIABLE] = "core"
    marks = "not chaos" if slow else _FIRST_TIER
    started = time.monotonic()
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", *options, "-m", marks, *tests],
        cwd=copy,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    return ran.returncode, time.monotonic() - started, f"{ran.stdout}{ran.stderr}"


def _say(text: str) -> None:
    print(text, flush=True)  # noqa: T201 - what it was started for


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--slow", action="store_true")
    parser.add_argument("--list", action="store_true")
    options = parser.parse_args()
    if options.list:
        for each in MUTANTS:
            _say(f"{each.name}: {each.rule}{' (only slow)' if each.only_slow else ''}")
    else:
        sys.exit(main(options.names, slow=options.slow))
