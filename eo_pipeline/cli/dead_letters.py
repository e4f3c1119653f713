"""``eo dead-letters``: inspect and re-read dead letters."""

from __future__ import annotations

from collections import Counter
from itertools import islice
from typing import Annotated

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
)
from eo_pipeline.cli.output import EPILOG, Output, counted, instant, number
from eo_pipeline.cli.run import apply_replay, recover_first
from eo_pipeline.cli.views import short_ranges
from eo_pipeline.errors import RefusedError, UnknownCheckpointError
from eo_pipeline.ledger.history import Checkpoint
from eo_pipeline.operations.replay import DeadLetter
from eo_pipeline.pipeline import Pipeline

#: Maximum number of reasons listed; records of other reasons are only counted.
_REASONS_MAX = 10

#: Maximum number of versions named where the one that was asked for has no dead letters.
_VERSIONS_MAX = 10

_LIST = ("version", "dead letters", "records", "committed", "ranges")
_SHOW = ("version", "topic", "partition", "offset", "error", "value")

_Count = Annotated[int, typer.Option("--first", "-n", min=1, help="Number of records to show.")]
_Of = Annotated[int | None, typer.Argument(min=0, help="Show only records of this version.")]
_Versions = Annotated[list[int] | None, typer.Argument(min=0, help="Re-read only these versions.")]

app = typer.Typer(
    help="Inspect dead letters (records that could not be read) and re-read them.",
    no_args_is_help=True,
)


@app.command("list", epilog=EPILOG)
def list_dead_letters(files: Files = None, name: Name = None, as_json: AsJson = False) -> None:
    """List checkpoints with dead letters, their number and reasons."""
    output = Output(as_json)
    pipeline = choose(files, name).pipeline
    checkpoints = pipeline.dead_letters()
    reasons, unknown = _reasons(pipeline) if checkpoints else (Counter[str](), None)
    if as_json:
        rows = [_checkpoint_json(checkpoint) for checkpoint in checkpoints]
        document = {"pipeline": pipeline.name, "checkpoints": rows, "reasons": dict(reasons)}
        output.document(document | ({"untold": unknown} if unknown else {}))
    if not checkpoints:
        output.say(f"{pipeline.name}: no dead letters")
        return
    output.table(_LIST, [_row(checkpoint) for checkpoint in checkpoints])
    output.say()
    for reason, count in reasons.most_common(_REASONS_MAX):
        output.say(f"{number(count)}  {reason}")
    if more := sum(reasons.values()) - sum(n for _, n in reasons.most_common(_REASONS_MAX)):
        output.say(f"{number(more)}  for other reasons")
    if unknown:
        output.say(unknown)


@app.command(epilog=EPILOG)
def show(
    version: _Of = None,
    count: _Count = 20,
    files: Files = None,
    name: Name = None,
    as_json: AsJson = False,
) -> None:
    """Show the records: position in Kafka, error, and the beginning of the value."""
    output = Output(as_json)
    pipeline = choose(files, name).pipeline
    rows = pipeline.dead_letter_rows(version or 0)
    wanted = (row for row in rows if version is None or row.checkpoint == version)
    letters = list(islice(wanted, count))
    if as_json:
        output.document({"pipeline": pipeline.name, "dead_letters": [r.to_json() for r in letters]})
    elif not letters:
        output.say(f"{pipeline.name}: {_none(pipeline, version)}")
    has_tables = any(letter.table for letter in letters)
    shown = [(*([r.table or ""] if has_tables else []), *_cells(r)) for r in letters]
    if shown:
        output.table(("table", *_SHOW) if has_tables else _SHOW, shown)


@app.command(epilog=EPILOG)
def redrive(
    versions: _Versions = None,
    reason: Reason = "",
    accept_compacted: AcceptCompacted = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    files: Files = None,
    name: Name = None,
    as_json: AsJson = False,
) -> None:
    """Re-read checkpoints with dead letters, with the current schema and transform.

    Records that are valid now are written once; the others become dead letters again. This is a
    replay of these checkpoints: one transaction and one ledger version each.
    """
    output = Output(as_json)
    pipeline = choose(files, name).pipeline
    recover_first(pipeline, dry_run)
    plan = pipeline.plan_redrive(versions or None, accept_compacted=accept_compacted)
    before = sum(checkpoint.counts.dead_letters for checkpoint in plan.checkpoints)
    report = apply_replay(output, plan, "redrive", reason=reason, dry_run=dry_run, yes=yes)
    if report:
        after = sum(entry.counts.dead_letters for entry in report.entries)
        output.say(f"{counted(before, 'dead letter')} read again: {number(after)} still invalid")


def _none(pipeline: Pipeline, version: int | None) -> str:
    """Return why there is nothing to show of ``version``, and which versions have dead letters.

    Raises:
        UnknownCheckpointError: the ledger has no such version.
    """
    others = [checkpoint.version for checkpoint in pipeline.dead_letters()]
    if version is None or not others:
        return "no dead letters"
    head = pipeline.head()
    if head is not None and version > head.version:
        raise UnknownCheckpointError(
            f"Pipeline {pipeline.name!r}: there is no version {version}; the newest is "
            f"{head.version}."
        )
    newest = ", ".join(map(str, others[-_VERSIONS_MAX:]))
    return f"version {version} has no dead letters; the newest versions that have: {newest}"


def _reasons(pipeline: Pipeline) -> tuple[Counter[str], str | None]:
    """Return the number of dead letters by reason; or the reason why it is unknown."""
    try:
        return Counter(row.error for row in pipeline.dead_letter_rows()), None
    except RefusedError as error:
        return Counter(), str(error)


def _cells(letter: DeadLetter) -> tuple[str, ...]:
    place = (str(letter.checkpoint), letter.topic, str(letter.partition), str(letter.offset))
    return (*place, letter.error, letter.value or "")


def _row(checkpoint: Checkpoint) -> tuple[str, ...]:
    counts, entry = checkpoint.counts, checkpoint.entry
    return (
        str(checkpoint.version),
        number(counts.dead_letters),
        number(counts.records),
        instant(checkpoint.written.committed_at),
        short_ranges(entry.ranges),
    )


def _checkpoint_json(checkpoint: Checkpoint) -> dict[str, int]:
    return {
        "version": checkpoint.version,
        "written_by": checkpoint.written.version,
        "dead_letters": checkpoint.counts.dead_letters,
        "records": checkpoint.counts.records,
    }
