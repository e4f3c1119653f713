"""How ``make test`` deals the suite out to processes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.parallel import LONGEST, group_of

ROOT = Path(__file__).parents[2]
FILES = ("test_branch.py", "test_chain.py", "test_entry.py")


@pytest.mark.slow
def test_the_tests_of_a_file_run_in_one_process_and_the_files_in_several() -> None:
    """Seen from outside: a scheduler may lose its groups without a word."""
    makefile = (ROOT / "Makefile").read_text()
    (text,) = re.findall(r"^IN_PARALLEL := (.*)$", makefile, re.MULTILINE)
    options = text.replace("$(WORKERS)", "2").split()
    files = [f"tests/ledger/{name}" for name in FILES]
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", *options, *files],
        env={name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout
    processes: dict[str, set[str]] = {}
    for process, file in re.findall(r"^\[(gw\d+)\].* (\S+\.py)::", ran.stdout, re.MULTILINE):
        processes.setdefault(file, set()).add(process)
    assert sorted(processes) == sorted(files)
    assert {file: len(found) for file, found in processes.items()} == dict.fromkeys(files, 1)
    assert len(set.union(*processes.values())) > 1


def test_the_files_that_begin_first_are_there_each_once() -> None:
    assert [name for name in LONGEST if not (ROOT / "tests" / name).is_file()] == []
    assert len({*LONGEST}) == len(LONGEST)


def test_what_starts_the_demo_on_its_usual_ports_runs_in_one_process() -> None:
    demo = [f"tests/demo/test_{name}.py::test_it" for name in ("make_run", "make_dev")]
    assert {*map(group_of, demo)} == {"demo"}
    assert (
        group_of("tests/ledger/test_chain.py::TestIt::test_it[a::b]")
        == "tests/ledger/test_chain.py"
    )
