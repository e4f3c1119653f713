"""docs/first-pipeline.md from an empty environment: its commands, in its order, no others."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from eo_pipeline.embedded.guard import GuardedProcess
from tests.support.programs import path_without_java
from tests.support.servers import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "first-pipeline.md").read_text()

#: Its one command that goes on, for another terminal.
IN_ANOTHER_TERMINAL = ". .venv/bin/activate && eo demo up"

#: Of servers of this run, which may have other ports.
ADDRESSES = ("export KAFKA=", "export ORDERS_DSN=")

#: What no newcomer should have to read: Spark's, Ivy's and Dagster's.
NOISE = ("WARN ", "log4j", "resolution report", "PreviewWarning", "Traceback", "DEPRECATION")

_END = "-- ended with"


def blocks() -> Iterator[tuple[str, str]]:
    """The page's blocks of code, each with the file of the project that was named last."""
    parts = re.split(r"(?ms)^```\w+\n(.*?)^```", PAGE)
    file = ""
    for prose, code in zip(parts[::2], parts[1::2], strict=False):
        file = [file, *re.findall(r"`(src/shop/\S+)`", prose)][-1]
        yield file, code


def commands(text: str) -> list[str]:
    return re.findall(r"(?m)^\$ (.*)", text)


class Terminal:
    """A shell that starts with nothing of this process's environment."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self._folder = folder
        self._shell = subprocess.Popen(
            ["bash", "--noprofile", "--norc"],
            cwd=folder,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def __call__(self, command: str) -> str:
        """What the command prints; it must end well."""
        assert self._shell.stdin is not None
        assert self._shell.stdout is not None
        self._shell.stdin.write(f"{command} </dev/null\necho {_END} $?\n")
        self._shell.stdin.flush()
        printed: list[str] = []
        for line in self._shell.stdout:
            if line.startswith(_END):
                assert line.split()[-1] == "0", f"{command}\n{''.join(printed)}"
                return "".join(printed)
            printed.append(line)
        raise AssertionError(f"{command}: the shell ended\n{''.join(printed)}")

    def close(self) -> None:
        self._shell.kill()
        self._shell.communicate()


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """Of a user with an empty home and no Java, but what pip has downloaded before."""
    home, programs = tmp_path / "home", path_without_java(tmp_path / "programs")
    home.mkdir()
    (programs / "python3").unlink(missing_ok=True)  # of a virtual environment, perhaps
    (programs / "python3").symlink_to(Path(sys.base_prefix) / "bin" / "python3.11")
    downloads = subprocess.run(
        [sys.executable, "-m", "pip", "cache", "dir"], capture_output=True, text=True, check=True
    ).stdout.strip()
    return {
        "HOME": str(home),
        "XDG_CACHE_HOME": str(home / ".cache"),
        "PATH": str(programs),
        "PIP_CACHE_DIR": downloads,
        "DAGSTER_DISABLE_TELEMETRY": "yes",
        # create-dagster would ask the network whether it is the newest
        "DAGSTER_DG_UPDATE_CHECK_ENABLED": "0",
    }


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "srv of mine"
    made.mkdir()
    return made


@pytest.fixture
def terminal(folder: Path, environment: dict[str, str]) -> Iterator[Terminal]:
    made = Terminal(folder, environment)
    yield made
    made.close()


def test_the_pages_commands_in_its_order(
    folder: Path, environment: dict[str, str], terminal: Terminal
) -> None:
    printed: dict[str, str] = {}
    demo: GuardedProcess | None = None
    shown = folder / "demo.log"
    try:
        for file, text in blocks():
            if not commands(text):
                (folder / "shop" / file).write_text(text)
            for command in commands(text):
                if command == IN_ANOTHER_TERMINAL:
                    demo = _demo(folder, environment, shown)
                    continue
                if command.startswith("EO="):
                    command = f"EO='{ROOT}'"
                if command.startswith(ADDRESSES):
                    name = command.partition("=")[0]
                    command = next(x for x in shown.read_text().splitlines() if x.startswith(name))
                printed[command] = terminal(command)
        with psycopg.connect(re.findall(r"ORDERS_DSN=(\S+)", shown.read_text())[0]) as connection:
            counted = connection.execute(
                "select count(*), count(distinct id), max(id) from orders"
            ).fetchone()
    finally:
        if demo is not None:
            demo.terminate()
    assert counted == (10_800, 10_800, 10_800)
    assert printed["eo status"].splitlines()[1].split()[:5] == [
        "orders",
        "1",
        "forward",
        "0",
        "10,000",
    ]
    assert "best_customers" in printed["dg launch --job nightly"]
    assert "Nothing was changed" in printed["eo rewind 1 --dry-run"]
    assert "passed" in printed["eo audit"].splitlines()[-1]
    noise = [
        (command, line)
        for command, said in printed.items()
        for line in said.splitlines()
        if any(sign in line for sign in NOISE)
    ]
    assert not noise


def _demo(folder: Path, environment: dict[str, str], log: Path) -> GuardedProcess:
    """The page's other terminal, once it has said where everything is."""
    variables = [f"{name}={value}" for name, value in environment.items()]
    shell = ["bash", "-c", IN_ANOTHER_TERMINAL.replace("&& ", "&& exec ")]
    process = GuardedProcess.start(["env", "-i", "-C", str(folder), *variables, *shell], log=log)
    wait_until(lambda: "Ctrl-C" in log.read_text(), timeout_s=600)
    return process
