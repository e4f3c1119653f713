"""The ``eo`` command group: lazy loading of commands, error output and exit codes."""

from __future__ import annotations

import signal
import sys
from importlib import import_module
from importlib.metadata import version
from typing import Annotated, Any, cast

import typer
from typer.core import TyperGroup
from typer.main import get_command

from eo_pipeline._process import sent_again, this_process_ends
from eo_pipeline.cli.output import (
    EPILOG,
    ExitCode,
    Output,
    end_by_signal,
    engine_log,
    exit_code,
    interrupted_code,
    note,
    show_error,
)
from eo_pipeline.errors import EoPipelineError
from eo_pipeline.runs.interruption import notes

#: Key of --json in the context, known to errors even if the options could not be parsed.
_AS_JSON = "eo.json"
_VERBOSE = "eo.verbose"
_VERBOSE_OPTIONS = frozenset({"-v", "--verbose"})


#: Module of each command, imported when the command is called: imports take most of the time of a
#: command without work.
_MODULES = {
    "status": "inspect",
    "watch": "monitor",
    "metrics": "monitor",
    "costs": "monitor",
    "report": "monitor",
    "checkpoints": "inspect",
    "show": "inspect",
    "as-of": "as_of",
    "diff": "inspect",
    "plan": "inspect",
    "schema": "inspect",
    "run": "run",
    "rewind": "run",
    "replay": "run",
    "fork": "fork",
    "accept-loss": "run",
    "adopt": "run",
    "set-aside": "run",
    "reset": "run",
    "audit": "audit",
    "maintain": "audit",
    "dead-letters": "dead_letters",
    "doctor": "doctor",
    "init": "init",
    "json-schema": "inspect",
    "spark": "spark",
    "demo": "demo",
}


class _Commands(TyperGroup):
    """A group whose errors are one sentence, or one JSON object, and an exit code."""

    def list_commands(self, ctx: Any) -> list[str]:
        for name in _MODULES:
            self.get_command(ctx, name)
        return list(_MODULES)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in _MODULES:
            self.list_commands(ctx)  # so that typer can suggest a name
        elif cmd_name not in self.commands:
            self.add_command(_command(cmd_name))
        return super().get_command(ctx, cmd_name)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        ctx.meta[_AS_JSON] = "--json" in args
        ctx.meta[_VERBOSE] = not _VERBOSE_OPTIONS.isdisjoint(args)
        # allowed before and after the command
        return super().parse_args(ctx, [arg for arg in args if arg not in _VERBOSE_OPTIONS])

    def invoke(self, ctx: Any) -> Any:
        with engine_log(verbose=ctx.meta[_VERBOSE]):
            return self._invoke(ctx, as_json=ctx.meta[_AS_JSON])

    def _invoke(self, ctx: Any, *, as_json: bool) -> Any:
        try:
            return super().invoke(ctx)
        except EoPipelineError as error:
            show_error(error, as_json=as_json)
            raise typer.Exit(exit_code(error)) from error
        except KeyboardInterrupt as interruption:
            _print_notes(interruption, as_json)
            raise typer.Exit(interrupted_code(interruption)) from interruption
        except typer.TyperException as error:
            if not as_json:
                raise  # typer shows the usage
            usage = {"kind": "UsageError", "message": error.format_message(), "retryable": False}
            Output(as_json=True).line({"error": usage})
            raise typer.Exit(ExitCode.USAGE) from error


def _command(name: str) -> Any:
    """Return typer's command for the function ``name`` of its module, or for the module's
    own app.
    """
    module = import_module(f"eo_pipeline.cli.{_MODULES[name]}")
    group = typer.Typer()
    if hasattr(module, "app"):
        group.add_typer(module.app, name=name, epilog=EPILOG)
    else:
        group.command(name, epilog=EPILOG)(getattr(module, name.replace("-", "_")))
    group.callback()(lambda: None)  # typer makes no group of a single command without a callback
    return cast(TyperGroup, get_command(group)).commands[name]


def _print_notes(interruption: KeyboardInterrupt, as_json: bool) -> None:
    """Print the notes about unfinished work of an interrupted run; other commands have none."""
    for sentence in notes(interruption):
        if as_json:
            error = {"kind": "Interrupted", "message": sentence, "retryable": True}
            Output(as_json=True).line({"error": error})
        else:
            note(sentence)


app = typer.Typer(
    cls=_Commands,
    name="eo",
    help="Exactly-once pipelines from Kafka through Spark into a table: inspect, run and rewind "
    "them.",
    epilog=EPILOG,
    no_args_is_help=True,
    # a traceback with values could show a secret
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(requested: bool) -> None:
    if requested:
        python = ".".join(map(str, sys.version_info[:3]))
        versions = {name: version(name) for name in ("eo-pipeline", "pyspark", "confluent-kafka")}
        text = ", ".join(f"{name} {number}" for name, number in versions.items())
        Output().say(f"{text}, Python {python}")
        raise typer.Exit


@app.callback()
def _of_all_commands(
    show_version: Annotated[
        bool,
        typer.Option(
            "--version",
            callback=_show_version,
            is_eager=True,
            help="Show version information and exit.",
        ),
    ] = False,
    verbose: Annotated[
        bool,
        typer.Option(
            "--verbose",
            "-v",
            help="With any command: verbose logging on stderr, with timestamps and error causes.",
        ),
    ] = False,
) -> None: ...


def main() -> None:
    """Entry point of the script ``eo``."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # as nohup leaves SIGHUP
            signal.signal(number, end_by_signal)
    this_process_ends(is_ours=True)
    try:
        with sent_again():
            app(prog_name="eo")
    finally:
        # the output is complete: a further signal ends the process without a traceback
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, signal.SIG_DFL)
