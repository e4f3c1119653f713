"""Servers that all processes of a test run share: one Kafka, one PostgreSQL, one Spark Connect.

    keeper (python -m tests.shared) owns the servers; each starts when it is first asked for
      ^ a Unix socket: the name of a server -> its description
    pytest and its workers; each holds a connection open for as long as it lives

The keeper ends when the last connection is closed, or an hour after it (``make servers-up``).
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from multiprocessing.connection import Client, Connection
from pathlib import Path
from typing import Any

from eo_pipeline.embedded.server import EmbeddedServer

ROOT = Path(__file__).parents[2]

#: Jars are downloaded once for a checkout, not once for a run.
STATE = ROOT / ".eo"

#: The socket and the pid of a keeper that outlives its runs.
STANDING = STATE / "test-servers"

#: In the environment of all processes of a run: the keeper's socket.
VARIABLE = "EO_TEST_KEEPER"


class SharedProcess:
    """The process of a shared server, seen from a test process, which must not end it."""

    def __init__(self, pid: int) -> None:
        self.pid = pid

    @property
    def alive(self) -> bool:
        """True. A server that is gone is an error at once, and not a time-out somewhere else.

        Raises:
            AssertionError: the server has ended.
        """
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            raise AssertionError(f"the shared server (pid {self.pid}) ended: see its log") from None
        except PermissionError:  # another user's: PostgreSQL's, where this one is not root
            pass
        return True

    def kill(self) -> None:
        raise AssertionError("other processes use this server: a test that ends one starts its own")

    terminate = kill


class Keeper:
    """A connection to the process that owns the servers."""

    def __init__(self, address: str) -> None:
        self._connection: Connection[Any, Any] = Client(address, "AF_UNIX")
        self._asking = threading.Lock()

    def server(self, name: str) -> Any:
        """Return the running server ``name``, as an object of its class.

        Raises:
            AssertionError: it could not be started.
        """
        with self._asking:
            self._connection.send(name)
            server, answer = self._connection.recv()
        assert isinstance(server, EmbeddedServer), answer
        server._process = SharedProcess(answer)  # type: ignore[assignment]
        return server

    def close(self) -> None:
        self._connection.close()


def connect() -> Keeper:
    """Connect to the keeper of this run, to one that stands by, or to a new one, which ends with
    this run.
    """
    for address in filter(None, (os.environ.get(VARIABLE), standing())):
        with contextlib.suppress(OSError):
            keeper = Keeper(address)
            break
    else:
        started = subprocess.Popen(
            [sys.executable, "-m", "tests.shared"],
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            start_new_session=True,  # Ctrl-C at the terminal is for pytest
        )
        assert started.stdout is not None
        address = started.stdout.readline().strip()
        keeper = Keeper(address)
    os.environ[VARIABLE] = address
    return keeper


def standing() -> str | None:
    """The socket of a keeper that ``make servers-up`` started, if one was."""
    with contextlib.suppress(FileNotFoundError):
        return STANDING.read_text().split()[0]
    return None
