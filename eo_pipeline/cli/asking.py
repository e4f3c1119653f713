"""What a person approves before it is done."""

from __future__ import annotations

import sys

import typer

from eo_pipeline.cli.codes import ExitCode
from eo_pipeline.cli.output import Output
from eo_pipeline.cli.telling import note
from eo_pipeline.errors import ConfigError


def approve(output: Output, question: str, *, yes: bool) -> None:
    """Return if it was approved; the plan was shown before.

    Raises:
        ConfigError: there is nobody to ask.
        typer.Exit: the answer was no.
    """
    if yes:
        return
    if output.as_json or not sys.stdin.isatty():
        raise ConfigError(
            "nobody can be asked here, so nothing was changed. Say --yes to do it, or --dry-run "
            "to see what would change."
        )
    if not typer.confirm(question):
        note("Nothing was changed.")
        raise typer.Exit(ExitCode.FAILED)


def reason_for(output: Output, reason: str) -> str:
    """The reason, asked for on a terminal if it was not given.

    Raises:
        ConfigError: there is none.
    """
    if not reason and not output.as_json and sys.stdin.isatty():
        reason = typer.prompt("Why is that acceptable?")
    if not reason.strip():
        raise ConfigError("--reason is required: the ledger keeps it for whoever asks later.")
    return reason
