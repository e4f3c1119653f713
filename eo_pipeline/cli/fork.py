"""`eo fork`: a new pipeline that starts at a version of an existing one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from eo_pipeline.cli.options import (
    AcceptCompacted,
    AsJson,
    DryRun,
    Files,
    Name,
    Reason,
    Yes,
    choose,
    load,
    pairs,
    user,
    version_or_time,
)
from eo_pipeline.cli.output import Output, approve
from eo_pipeline.cli.views import show_change
from eo_pipeline.config.documents import Document
from eo_pipeline.errors import ConfigError
from eo_pipeline.operations.fork import ForkPlan

_At = Annotated[str, typer.Option("--at", help="A version, or a time: 2026-01-31T12:00Z.")]
_NewName = Annotated[str, typer.Option("--name", help="The new pipeline's name.")]
_Table = Annotated[
    str | None, typer.Option("--table", help="The new pipeline's table: --sink table=...")
]
_Sink = Annotated[
    list[str] | None,
    typer.Option("--sink", help="key=value: override a field of the sink's configuration."),
]
_Write = Annotated[
    Path | None, typer.Option("--write", help="Write the new pipeline's document to this file.")
]


def fork(
    at: _At,
    new_name: _NewName,
    table: _Table = None,
    sink: _Sink = None,
    write: _Write = None,
    reason: Reason = "",
    accept_compacted: AcceptCompacted = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    files: Files = None,
    name: Name = None,
    as_json: AsJson = False,
) -> None:
    """Create a new pipeline that starts at a version, with its own table; the old one stays.

    The new sink is the old one with --table and --sink changed.
    """
    output = Output(as_json)
    chosen = choose(files, name)
    is_apart = chosen.pipeline.sink.is_of_one_pipeline
    forked = _forked(chosen.document, new_name, table, sink, is_apart=is_apart)
    load(forked)  # reports a wrong name or sink as an error of this document
    _writable(write)
    plan = chosen.pipeline.plan_fork(
        version_or_time(at),
        forked.name,
        forked.filled(forked.fields["sink"]),
        accept_compacted=accept_compacted,
    )
    if dry_run and as_json:
        output.document(plan.to_json())
    show_change(output, plan)
    if dry_run:
        output.say("Nothing was changed: --dry-run")
        return
    approve(output, f"Fork {plan.pipeline} as {new_name}?", yes=yes)
    plan.apply(reason=reason, asked_by=user())
    if write is not None:
        write.write_text(forked.text())
    _show_result(output, plan, write)


def _forked(
    document: Document, name: str, table: str | None, sink: list[str] | None, *, is_apart: bool
) -> Document:
    """Return the document of the new pipeline, with the old one's templates; ``is_apart`` if its
    name alone makes its rows other ones.
    """
    changes: dict[str, Any] = pairs(sink, "--sink")
    if table is not None:
        changes["table"] = table
    if not changes and not is_apart:
        raise ConfigError(
            "a fork needs its own target: give --table, or --sink with the field that sets "
            "the target (path, topic, prefix)"
        )
    old = document.fields.get("sink")
    merged = {**(old if isinstance(old, Mapping) else {}), **changes}
    if merged == old and not is_apart:
        raise ConfigError("a fork needs its own target, not that of the original pipeline")
    return document.changed(name=name, sink=merged)


def _writable(path: Path | None) -> None:
    if path is None:
        return
    if path.exists():
        raise ConfigError(f"{path} exists already; --write takes a new file")
    if not path.absolute().parent.is_dir():
        raise ConfigError(f"the folder of {path} does not exist")


def _show_result(output: Output, plan: ForkPlan, written: Path | None) -> None:
    if output.as_json:
        path = str(written) if written else None
        output.document({**plan.to_json(), "fork": plan.fork, "document": path})
    output.say(f"{plan.fork} begins where {plan.pipeline} stood at version {plan.target.version}")
    if written is not None:
        output.say(f"Its document is {written}; run it: eo run -f {written}")
    else:
        output.say(f"Its document is that of {plan.pipeline} with the new name and sink.")
