"""``python -m demo setup|run|dev|stop``: what the Makefile's targets call."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from demo import flights
from demo.dev import RATE_PER_S, UI_PORT, dev
from demo.preflight import archive, jars_state, prepare
from demo.run import run
from demo.screen import Screen
from demo.state import PROJECT, State, stop
from eo_pipeline.errors import EoPipelineError
from eo_pipeline.spark.class_archive import CACHE_VARIABLE

_INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code: 0, 1 with a sentence why, or 130 after Ctrl-C."""
    options = parser().parse_args(arguments)
    screen = Screen()
    _end_as_by_ctrl_c(signal.SIGTERM, signal.SIGHUP)
    state = State(options.home)
    # whatever has a relative path, such as Spark's warehouse folder, stays with the data
    os.chdir(state.home)
    # what is started from there finds the demo and the definitions, which are not installed
    os.environ["PYTHONPATH"] = str(PROJECT)
    os.environ.setdefault(CACHE_VARIABLE, str(jars_state(state.base) / "cache"))
    try:
        passed = _execute(options, state, screen)
    except EoPipelineError as error:
        screen.problem(str(error))
        return 1
    except KeyboardInterrupt:
        screen.note(
            f"Stopped. All data is kept in {state.folder}; the next command continues with it."
        )
        # that is how `dev` is meant to end
        return 0 if options.command == "dev" else _INTERRUPTED
    return 0 if passed else 1


def parser() -> argparse.ArgumentParser:
    """The command line."""
    top = argparse.ArgumentParser(prog="python -m demo", description=__doc__)
    top.add_argument(
        "--home", type=_folder, default=PROJECT, help="the folder that holds .eo (the project)"
    )
    commands = top.add_subparsers(dest="command", required=True)
    commands.add_parser("setup", help="check this machine, fetch the jars")
    run_once = commands.add_parser("run", help="publish, materialize, check")
    run_once.add_argument("--flights", type=_positive, default=flights.FLIGHTS, metavar="N")
    run_once.add_argument("--format", choices=["json", "avro"], default="json")
    run_on = commands.add_parser("dev", help="servers, a feeder and the Dagster UI")
    run_on.add_argument("--rate", type=_positive, default=RATE_PER_S, metavar="PER_SECOND")
    run_on.add_argument("--ui-port", type=_positive, default=UI_PORT, metavar="PORT")
    commands.add_parser("stop", help="stop the servers and processes")
    return top


def _folder(text: str) -> Path:
    folder = Path(text).absolute()
    if not folder.is_dir():
        raise argparse.ArgumentTypeError(f"no such folder: {text}")
    return folder


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError(text)
    return number


def _execute(options: argparse.Namespace, state: State, screen: Screen) -> bool:
    """Whether everything was as it should be."""
    match options.command:
        case "setup":
            archive(prepare(state.base, screen), screen)
        case "run":
            # each format has servers and data of its own
            if options.format == "avro":
                return run(State(state.home, "avro"), options.flights, screen, avro=True)
            return run(state, options.flights, screen)
        case "dev":
            dev(state, options.rate, options.ui_port, screen)
        case "stop":
            states = (state, State(state.home, "avro"))
            owners = [stop(each, screen.waiting_for) for each in states]
            ended = " and ".join(str(owner) for owner in owners if owner)
            screen.ok(f"Ended {ended}" if ended else "Nothing was running.")
    return True


def _end_as_by_ctrl_c(*signals: signal.Signals) -> None:
    """Whatever asks this process to end lets it end its servers first."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    for number in signals:
        if signal.getsignal(number) is not signal.SIG_IGN:  # as nohup leaves SIGHUP
            signal.signal(number, interrupt)


if __name__ == "__main__":
    sys.exit(main())
