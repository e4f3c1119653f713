"""What a script sees of a command: its exit code, and where it is found."""

from __future__ import annotations

import importlib
import tomllib
from pathlib import Path
from typing import cast

import pytest
import typer
from typer.core import TyperGroup
from typer.main import get_command
from typer.testing import CliRunner

from eo_pipeline import errors
from eo_pipeline.cli import main
from eo_pipeline.cli.app import app
from eo_pipeline.cli.output import exit_code

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.ConfigError("wrong"), 2),
        (errors.SetupError("no Java"), 2),
        (errors.DataLossError("p", []), 5),
        (errors.SourceUnavailableError("away"), 4),
        (errors.SinkUnavailableError("away"), 4),
        (errors.CommitUnknownError("perhaps"), 4),
        (errors.FencedError("p", 3, None), 4),
        (errors.SparkJobError("failed"), 4),
        (errors.SparkUnavailableError("away"), 4),
        (errors.LedgerBehindError("older"), 1),
        (errors.RangesGoneError("p", "the rewind", []), 1),
        (errors.NothingToDoError("there already"), 1),
        (errors.BadRecordError("bad"), 1),
    ],
)
def test_an_error_ends_with_its_code(error: errors.EoPipelineError, code: int) -> None:
    assert exit_code(error) == code


def test_the_page_lists_every_code_and_every_command() -> None:
    page = (ROOT / "docs" / "cli.md").read_text()
    for code in (0, 1, 2, 3, 4, 5, 130):
        assert f"| {code} |" in page
    commands = cast(TyperGroup, get_command(app))
    names = commands.list_commands(typer.Context(commands))
    assert len(names) == 27
    for name in names:
        assert f"eo {name}" in page


def test_every_command_has_a_page_of_help() -> None:
    commands = cast(TyperGroup, get_command(app))
    for name in commands.list_commands(typer.Context(commands)):
        shown = CliRunner().invoke(app, [name, "--help"])
        assert shown.exit_code == 0
        assert f"eo {name} " in shown.stdout


def test_the_script_eo_is_the_command_line() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    module, _, function = project["scripts"]["eo"].partition(":")
    assert getattr(importlib.import_module(module), function) is main


def test_a_command_that_was_mistyped_is_guessed() -> None:
    assert "Did you mean 'rewind'?" in CliRunner().invoke(app, ["rewnd"]).stderr
