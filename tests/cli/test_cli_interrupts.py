"""Ctrl-C and SIGTERM in whatever `eo` does: it ends soon, says what stands, and leaves nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import psutil
import psycopg
import pytest

from tests.cli.shell import Shell, eo
from tests.support.engine import Bench, spark_has_begun, spark_is_free
from tests.support.servers import is_gone, wait_until

__all__ = ["eo"]

FOR_EVER = "tests.runs.transforms:endless"


class Command:
    """``eo`` with these arguments, in a process of its own."""

    def __init__(self, *arguments: str, without: Sequence[str] = ()) -> None:
        self._said: list[str] = []
        environment = {k: v for k, v in os.environ.items() if k not in without}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "eo_pipeline.cli", *arguments],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def _listen(self) -> None:
        assert self.process.stderr is not None
        self._said.extend(self.process.stderr)

    def until(self, condition: Callable[[], bool]) -> None:
        wait_until(lambda: condition() or self.process.poll() is not None)
        assert self.process.poll() is None, self._said

    def says(self, words: str) -> bool:
        return any(words in line for line in self._said)

    def ended_by(self, *numbers: signal.Signals) -> tuple[int, str]:
        """The exit code, as a shell has it, and the last line."""
        for number in numbers:
            self.process.send_signal(number)
            time.sleep(0.3)  # one after the other, as a person does
        code = self.process.wait(240)
        self._listener.join(120)
        assert not self.says("Traceback"), self._said
        # a second signal may come when Python has taken its handlers down
        return 128 - code if code < 0 else code, self._said[-1]


@pytest.fixture
def filled(eo: Shell) -> Bench:
    """Versions 1 and 2 in the table, and records of version 3 in Kafka."""
    eo.document()
    for _ in range(2):
        eo.bench.topic.write(100, partitions=range(4))
        assert eo("run").code == 0
    eo.bench.topic.write(20)
    return eo.bench


def nothing_has_changed(eo: Shell) -> None:
    assert eo.versions() == [0, 1, 2]
    eo.document()
    assert eo("run").code == 0
    eo.bench.table.assert_holds_once(eo.bench.topic.written)


STANDS = "events: interrupted; version 2 stands; nothing of version 3 is visible\n"


@pytest.mark.parametrize(
    ("numbers", "code"),
    [((signal.SIGTERM,), 143), ((signal.SIGINT, signal.SIGINT), 130)],
)
def test_while_a_spark_of_its_own_starts(
    eo: Shell, filled: Bench, numbers: Sequence[signal.Signals], code: int
) -> None:
    command = Command("run", without=["SPARK_REMOTE"])
    command.until(lambda: command.says("Spark is starting"))
    command.until(lambda: bool(psutil.Process(command.process.pid).children()))
    children = psutil.Process(command.process.pid).children(recursive=True)

    assert command.ended_by(*numbers) == (code, STANDS)

    wait_until(lambda: all(is_gone(child.pid) for child in children))
    nothing_has_changed(eo)


def test_twice_while_spark_works(eo: Shell, filled: Bench) -> None:
    eo.document(transform=FOR_EVER)
    command = Command("run")
    command.until(lambda: spark_has_begun(filled))

    assert command.ended_by(signal.SIGINT, signal.SIGINT) == (130, STANDS)

    spark_is_free(filled)
    nothing_has_changed(eo)


def test_while_a_replay_works(eo: Shell, filled: Bench) -> None:
    eo.document(transform=FOR_EVER)
    command = Command("replay", "1", "2", "--yes")
    command.until(lambda: spark_has_begun(filled))

    assert command.ended_by(signal.SIGTERM) == (143, STANDS)

    spark_is_free(filled)
    nothing_has_changed(eo)


def test_while_an_audit_works(eo: Shell, filled: Bench) -> None:
    eo.document(transform=FOR_EVER)
    command = Command("audit")
    command.until(lambda: command.says("reading 200 offsets"))
    time.sleep(2)  # the line comes before the job

    code, _ = command.ended_by(signal.SIGINT)

    assert code == 130
    spark_is_free(filled)
    nothing_has_changed(eo)


#: How many wait for a lock here.
WAITING = """
select count(*) from pg_locks join pg_database on pg_database.oid = database
where not granted and datname = current_database()
"""


@contextmanager
def locked(bench: Bench) -> Iterator[None]:
    """Somebody else holds the table."""
    with psycopg.connect(bench.table.dsn) as connection:
        connection.execute(f"lock table {bench.table.name} in access exclusive mode")
        yield


def test_inside_the_transaction_of_a_rewind(eo: Shell, filled: Bench) -> None:
    with locked(filled):
        command = Command("rewind", "1", "--yes")
        command.until(lambda: command.says("version 3: committing (rewind)"))
        # the line comes before the statement that waits
        wait_until(lambda: filled.table.query(WAITING) != [(0,)])

        assert command.ended_by(signal.SIGINT) == (130, STANDS)
    nothing_has_changed(eo)


_INTERRUPTED_AT_ITS_END = """
import atexit, os, signal, sys
from eo_pipeline.cli import main
atexit.register(lambda: os.kill(os.getpid(), signal.SIGINT))
sys.argv = ["eo", "--version"]
main()
"""


def test_once_more_when_all_is_said_shows_no_traceback() -> None:
    """Found before: of a Spark Connect session that was being given back."""
    done = subprocess.run(
        [sys.executable, "-c", _INTERRUPTED_AT_ITS_END],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == -signal.SIGINT
    assert done.stdout.startswith("eo")
    assert done.stderr == ""
