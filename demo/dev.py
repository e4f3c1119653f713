"""``make dev``: the servers, flights that go on coming, and the Dagster UI with its sensors on."""

from __future__ import annotations

import contextlib
import signal
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

from rich.table import Table
from rich.text import Text

from demo.materialize import DagsterRun, RunFailedError, Watch, prepare_dagster_home
from demo.observe import Observer
from demo.preflight import prepare
from demo.publishing import Publishing
from demo.run import in_words, keep_alive
from demo.screen import Screen
from demo.servers import Servers, running
from demo.state import PROJECT, Owner, State, claimed
from eo_pipeline.embedded.guard import GuardedProcess
from eo_pipeline.embedded.ports import HOST, free_port
from eo_pipeline.errors import SetupError

UI_PORT = 3000
#: Flights a second: a year's flights in two hours.
RATE_PER_S = 50

#: What the command line `eo` is told to work on.
_PIPELINES = PROJECT / "dagster_defs" / "defs" / "flights" / "defs.yaml"
_ARCHIVE = ("spark", "archive", "-f", str(_PIPELINES))
#: Table and offsets side by side, with one button for both.
_ASSETS = "/locations/eo-pipeline/asset-groups/flights"
_LOOK_S = 1.0
_UI_START_S = 300.0
_ANSWER_S = 5.0
#: A tenth of what the others get.
_NICE = 10
#: For the runs in progress to note that they were interrupted.
_GRACE_S = 15.0


def dev(state: State, rate_per_s: int, ui_port: int, screen: Screen) -> None:
    """Run it all until Ctrl-C or ``make stop``.

    Raises:
        EoPipelineError: something is missing, or Dagster ended by itself.
    """
    with claimed(state, "dev", screen.waiting_for) as lock:
        # every few seconds a run: Spark stays warm for them, in a server of its own
        servers = Servers(state, prepare(state.base, screen), warm_spark=True)
        buried = DagsterRun(state, lock, servers, ["--bury-only"])
        with buried, running(servers, screen):
            Observer(servers.postgres.dsn).refuse_one_table()
            buried.wait()
            feeder = Publishing(state, lock, servers, "--rate", str(rate_per_s))
            with (
                feeder,
                DagsterUi(state, lock, servers, ui_port) as ui,
                servers.told_to_shells(_PIPELINES) as shell,
                archiving(state, lock, servers),
            ):
                with screen.step("Starting the Dagster UI") as done:
                    ui.wait_until_it_answers()
                    done(f"Dagster UI {ui.url}")
                Owner.current("dev").at(ui.url).write(state)
                screen.show(whereabouts(servers, ui, rate_per_s, shell))
                watch(servers, feeder, ui, screen)


@contextlib.contextmanager
def archiving(state: State, lock: int, servers: Servers) -> Iterator[None]:
    """Meanwhile Spark's classes are written down for the next start, if they are not yet: by a
    process that gives way to all others, and ends with this one.
    """
    process = GuardedProcess.start(
        ["nice", "-n", str(_NICE), *servers.client("eo_pipeline.cli", *_ARCHIVE)],
        variables=servers.environment,
        log=state.logs / "archive.log",
        keep=[lock],
    )
    try:
        yield
    finally:
        process.terminate()


class DagsterUi:
    """``dagster dev``: web server, daemon and code server, in a session of their own."""

    def __init__(self, state: State, lock: int, servers: Servers, port: int) -> None:
        prepare_dagster_home(state)
        port = free_port(port)
        self.url = f"http://{HOST}:{port}"
        self.log = state.logs / "dagster-dev.log"
        options = ["-w", str(PROJECT / "workspace.yaml"), "-h", HOST, "-p", str(port)]
        self._process = GuardedProcess.start(
            servers.client("dagster", "dev", *options),
            variables=servers.environment,
            log=self.log,
            keep=[lock],
            stop_signal=signal.SIGINT,  # SIGTERM would leave its children behind
            grace_s=_GRACE_S,
        )

    def wait_until_it_answers(self) -> None:
        """Return once the UI can be opened.

        Raises:
            SetupError: it does not come up.
        """
        deadline = time.monotonic() + _UI_START_S
        while not self._answers():
            self.check()
            if time.monotonic() > deadline:
                raise SetupError(f"The Dagster UI did not start; its log is {self.log}")
            time.sleep(0.2)

    def check(self) -> None:
        """Raise RunFailedError if Dagster has ended."""
        if not self._process.alive:
            raise RunFailedError(
                f"Dagster ended with exit code {self._process.wait()}; its log is {self.log}"
            )

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/server_info", timeout=_ANSWER_S) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            return False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.terminate()


def watch(servers: Servers, feeder: Publishing, ui: DagsterUi, screen: Screen) -> None:
    """Show the table grow, and keep everything up, until interrupted."""
    table = Watch(Observer(servers.postgres.dsn))
    with screen.live("Waiting for the first flights") as tell:
        while True:
            keep_alive(servers, feeder, screen)
            feeder.look()
            ui.check()
            for checkpoint in table.look():
                screen.note(in_words(checkpoint))
            tell(f"{feeder.flights:,} flights in Kafka, {table.rows:,} rows in the tables")
            time.sleep(_LOOK_S)


def whereabouts(servers: Servers, ui: DagsterUi, rate_per_s: int, shell: Path) -> Table:
    """Where everything is, and how it ends."""
    grid = Table.grid(padding=(0, 2))
    kafka = servers.kafka.bootstrap_servers
    for name, where in (
        ("UI", f"{ui.url}{_ASSETS}"),
        ("", "press Materialize all, or let the sensors do it"),
        ("Tables", f"flights and planes, and their ledger eo_ledger, in {servers.postgres.dsn}"),
        ("Kafka", f"topics flights (+{rate_per_s} a second) and planes at {kafka}"),
        ("Shell", f"source {shell}, then use the command eo, for example: eo status"),
        ("Stop", "Ctrl-C, or make stop from elsewhere; everything is kept"),
    ):
        grid.add_row(Text(name, "bold"), where)
    return grid
