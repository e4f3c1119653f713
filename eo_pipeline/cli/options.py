"""Options that several commands share, and what their texts mean."""

from __future__ import annotations

import getpass
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from eo_pipeline.errors import ConfigError

Files = Annotated[
    list[Path] | None,
    typer.Option(
        "--file",
        "-f",
        help="A pipeline document, or a folder of them; may be repeated. Default: EO_PIPELINES, "
        "else pipelines/, pipeline.yaml, or the project's defs.yaml files.",
    ),
]
Name = Annotated[
    str | None, typer.Option("--pipeline", "-p", help="The pipeline's name, if there are several.")
]
AsJson = Annotated[bool, typer.Option("--json", help="JSON on stdout, and nothing else.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do it without asking.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only show what would change.")]
Reason = Annotated[str, typer.Option("--reason", help="Why; kept in the ledger.")]
AcceptCompacted = Annotated[
    bool,
    typer.Option(
        "--accept-compacted", help="Go on although compaction may have taken some records."
    ),
]
Version = Annotated[int, typer.Argument(min=0, help="A version of the ledger.")]
RunId = Annotated[
    str | None, typer.Option("--run-id", help="Stored with what is committed; made up if absent.")
]


def version_or_time(text: str) -> int | datetime:
    """``7``, or a moment with its time zone: ``2026-01-31T12:00Z``.

    Raises:
        ConfigError: neither of the two.
    """
    if text.isascii() and text.isdigit():
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ConfigError(
            f"{text!r} is neither a version nor a time such as 2026-01-31T12:00Z"
        ) from None
    if moment.tzinfo is None:
        raise ConfigError(f"{text} names no time zone; add one, Z for UTC")
    return moment


def pairs(given: Iterable[str] | None, option: str) -> dict[str, str]:
    """``["key=value", ...]`` as a mapping.

    Raises:
        ConfigError: one of them has no ``=``. What it holds is not shown: it may be a secret.
    """
    found = {}
    for text in given or ():
        key, equals, value = text.partition("=")
        if not key or not equals:
            raise ConfigError(f"{option} takes key=value")
        found[key] = value
    return found


def user() -> str:
    """Who asks, for the ledger; empty if the system does not know."""
    try:
        return getpass.getuser()
    except (KeyError, OSError, ImportError):  # which one depends on Python's version
        return ""
