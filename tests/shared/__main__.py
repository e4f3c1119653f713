"""The keeper: starts servers when they are asked for; ends them when nobody is connected.

python -m tests.shared              prints its socket; ends with the first run that connects
python -m tests.shared --up         goes on by itself, until an hour after the last run
python -m tests.shared --down       ends that one
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection, Listener
from pathlib import Path
from typing import Any

from eo_pipeline.embedded.server import EmbeddedServer
from eo_pipeline.errors import SetupError
from tests.shared import ROOT, STANDING, STATE, Keeper, standing

#: How long a keeper waits for a first connection, and one that stands by for a further run.
_FIRST_S = 60.0
_IDLE_S = 3600.0


# imports within: a run of pure tests starts nothing, and waits for nothing
def kafka(folder: Path) -> EmbeddedServer:
    from tests.support.servers import kafka_in

    return kafka_in(folder)


def postgres(folder: Path) -> EmbeddedServer:
    from tests.support.servers import postgres_in

    return postgres_in(folder)


def spark(folder: Path) -> EmbeddedServer:
    from eo_pipeline.embedded.spark import EmbeddedSpark
    from tests.support.engine import spark_jars

    return EmbeddedSpark(folder, jars=spark_jars(), memory="3g")


SERVERS: dict[str, Callable[[Path], EmbeddedServer]] = {
    each.__name__: each for each in (kafka, postgres, spark)
}


class Servers:
    """Those that were asked for, each in a folder of its own."""

    def __init__(self, folder: Path, stack: contextlib.ExitStack) -> None:
        self._folder = folder
        self._stack = stack
        self._started: dict[str, EmbeddedServer] = {}
        self._starting = {name: threading.Lock() for name in SERVERS}
        self._connected = 0
        self._changed = threading.Condition()

    def answer(self, name: str) -> tuple[EmbeddedServer | None, Any]:
        """The server and its process id, or None and why it could not be started."""
        with self._starting[name]:
            server = self._started.get(name)
            if server is None or not server.alive:
                try:
                    server = SERVERS[name](self._folder / name)
                    self._stack.enter_context(server)
                except SetupError as error:
                    return None, str(error)
                self._started[name] = server
        described = copy.copy(server)
        described._process = None
        return described, server.pid

    def serve(self, connection: Connection[Any, Any]) -> None:
        """Answer one process until it ends."""
        with self._connection(), contextlib.suppress(EOFError, OSError):
            while True:
                connection.send(self.answer(connection.recv()))

    @contextlib.contextmanager
    def _connection(self) -> Iterator[None]:
        with self._changed:
            self._connected += 1
            self._changed.notify_all()
        try:
            yield
        finally:
            with self._changed:
                self._connected -= 1
                self._changed.notify_all()

    def wait(self, idle_s: float) -> None:
        """Return once nobody has been connected for ``idle_s``, at first for a minute."""
        with self._changed:
            self._changed.wait_for(lambda: self._connected > 0, max(_FIRST_S, idle_s))
            deadline = time.monotonic() + idle_s
            while self._connected or time.monotonic() < deadline:
                if self._connected:
                    deadline = time.monotonic() + idle_s
                self._changed.wait(1.0)


def keep(idle_s: float) -> None:
    """Own the servers until nobody needs them."""
    os.environ["SPARK_CONF_DIR"] = str(ROOT / "tests" / "spark_conf")
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: sys.exit(0))
    # not below pytest's folder, which it closes to other users: as root, PostgreSQL is one
    with contextlib.ExitStack() as stack:
        folder = Path(
            stack.enter_context(
                tempfile.TemporaryDirectory(prefix="eo-servers-", ignore_cleanup_errors=True)
            )
        )
        folder.chmod(0o711)
        listener = stack.enter_context(Listener(str(folder / "socket"), "AF_UNIX"))
        servers = Servers(folder, stack)

        def accept() -> None:
            with contextlib.suppress(OSError):  # closed
                while True:
                    arguments = (listener.accept(),)
                    threading.Thread(target=servers.serve, args=arguments, daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        print(listener.address, flush=True)  # noqa: T201 - for the process that started this one
        servers.wait(idle_s)


def up() -> None:
    """Start all servers of a keeper that stands by, and that keeper if there is none."""
    address = standing()
    try:
        keeper = Keeper(address or "")
    except OSError:
        with (STATE / "test-servers.log").open("ab") as log:
            started = subprocess.Popen(
                [sys.executable, "-m", "tests.shared", "--idle-s", str(_IDLE_S)],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                cwd=ROOT,
                start_new_session=True,
            )
        assert started.stdout is not None
        STANDING.write_text(f"{started.stdout.readline().strip()} {started.pid}")
        keeper = Keeper(standing() or "")
    for name in SERVERS:
        keeper.server(name)


def down() -> None:
    """End the keeper that stands by."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        os.kill(int(STANDING.read_text().split()[1]), signal.SIGTERM)
        STANDING.unlink()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tests.shared", description=__doc__)
    parser.add_argument("--up", action="store_true")
    parser.add_argument("--down", action="store_true")
    parser.add_argument("--idle-s", type=float, default=0.0)
    options = parser.parse_args()
    if options.up:
        up()
    elif options.down:
        down()
    else:
        keep(options.idle_s)
