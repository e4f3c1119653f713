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

from eo_pipeline._process import process_is_ours, sent_again, this_process_ends
from eo_pipeline.cli.output import (
    EPILOG,
    ExitCode,
    Output,
    causes,
    end_by_signal,
    error_json,
    exit_code,
    interrupted_code,
    note,
    telling,
)
from eo_pipeline.errors import EoPipelineError
from eo_pipeline.runs.interruption import notes
from eo_pipeline.spark.class_archive import lacking

#: Whether JSON was asked for; an error must know it also where the options could not be read.
_AS_JSON = "eo.json"
_VERBOSE = "eo.verbose"
_VERBOSE_OPTIONS = frozenset({"-v", "--verbose"})


#: Commands by their names, and the module of each: imported when it is called, since imports are
#: most of a command that finds nothing to do.
_HOMES = {
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
}


class _Commands(TyperGroup):
    """A group whose errors are one sentence, or one JSON object, and an exit code."""

    def list_commands(self, ctx: Any) -> list[str]:
        for name in _HOMES:
            self.get_command(ctx, name)
        return list(_HOMES)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in _HOMES:
            self.list_commands(ctx)  # which of them was meant
        elif cmd_name not in self.commands:
            self.add_command(_command(cmd_name))
        return super().get_command(ctx, cmd_name)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        ctx.meta[_AS_JSON] = "--json" in args
        ctx.meta[_VERBOSE] = not _VERBOSE_OPTIONS.isdisjoint(args)
        # before or after the command, as people write it
        return super().parse_args(ctx, [each for each in args if each not in _VERBOSE_OPTIONS])

    def invoke(self, ctx: Any) -> Any:
        with telling(verbose=ctx.meta[_VERBOSE]):
            ended = self._invoke(ctx, as_json=ctx.meta[_AS_JSON], verbose=ctx.meta[_VERBOSE])
            if process_is_ours() and lacking():  # it is through, and has said all
                from eo_pipeline.spark.server.archive_maker import renew

                renew(lacking())
            return ended

    def _invoke(self, ctx: Any, *, as_json: bool, verbose: bool) -> Any:
        try:
            return super().invoke(ctx)
        except EoPipelineError as error:
            _tell(error, as_json)
            for cause in causes(error) if verbose else ():
                note(cause)
            raise typer.Exit(exit_code(error)) from error
        except KeyboardInterrupt as interruption:
            _tell_what_stands(interruption, as_json)
            raise typer.Exit(interrupted_code(interruption)) from interruption
        except typer.TyperException as error:
            if not as_json:
                raise  # typer shows the usage
            usage = {"kind": "UsageError", "message": error.format_message(), "retryable": False}
            Output(as_json=True).line({"error": usage})
            raise typer.Exit(ExitCode.USAGE) from error


def _command(name: str) -> Any:
    """What typer makes of the function ``name`` of its module, or of the module's own commands."""
    module = import_module(f"eo_pipeline.cli.{_HOMES[name]}")
    made = typer.Typer()
    if hasattr(module, "app"):
        made.add_typer(module.app, name=name, epilog=EPILOG)
    else:
        made.command(name, epilog=EPILOG)(getattr(module, name.replace("-", "_")))
    made.callback()(lambda: None)  # so that one command is a group of one
    return cast(TyperGroup, get_command(made)).commands[name]


def _tell_what_stands(interruption: KeyboardInterrupt, as_json: bool) -> None:
    """What a run left behind; a command that only looks has nothing to say."""
    for sentence in notes(interruption):
        if as_json:
            told = {"kind": "Interrupted", "message": sentence, "retryable": True}
            Output(as_json=True).line({"error": told})
        else:
            note(sentence)


def _tell(error: EoPipelineError, as_json: bool) -> None:
    if as_json:
        Output(as_json=True).line(error_json(error))
    else:
        note(str(error))


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


def _show_version(asked: bool) -> None:
    if asked:
        python = ".".join(map(str, sys.version_info[:3]))
        versions = {name: version(name) for name in ("eo-pipeline", "pyspark", "confluent-kafka")}
        named = ", ".join(f"{name} {number}" for name, number in versions.items())
        Output().say(f"{named}, Python {python}")
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
    """The script ``eo``."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # as nohup leaves SIGHUP
            signal.signal(number, end_by_signal)
    this_process_ends(is_ours=True)
    try:
        with sent_again():
            app(prog_name="eo")
    finally:
        # all is said: whoever signals again ends what is left, and is shown no traceback of it
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, signal.SIG_DFL)
