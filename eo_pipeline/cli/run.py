"""Commands that change the table or the ledger: run, rewind, replay, accept-loss, adopt,
set-aside, reset.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from eo_pipeline._process import this_process_repeats
from eo_pipeline.cli.options import (
    AcceptCompacted,
    AsJson,
    DryRun,
    Files,
    Name,
    Reason,
    RunId,
    Version,
    Yes,
    choose,
    seconds,
    user,
    version_or_time,
)
from eo_pipeline.cli.output import (
    Output,
    approve,
    counted,
    note,
    number,
    reason_for,
    show_error,
)
from eo_pipeline.cli.views import (
    entry_line,
    report_json,
    report_line,
    show_change,
    show_losses,
)
from eo_pipeline.errors import ConfigError, EoPipelineError
from eo_pipeline.operations.change_plan import ChangePlan, ChangeReport, RereadingPlan
from eo_pipeline.operations.replay import ReplayPlan
from eo_pipeline.pipeline import Pipeline
from eo_pipeline.runs.report import CheckpointReport, RunReport

if TYPE_CHECKING:
    from eo_pipeline.audit import ReplayPreview, RowExample

#: Maximum number of example rows per kind.
_EXAMPLES_MAX = 3

_COLUMNS = ("version", "rows", "rows then", "changed", "added", "removed", "dead letters")

Preview = Annotated[
    bool,
    typer.Option(
        "--preview",
        help="Read and transform, report how many rows would change, and change nothing.",
    ),
]
Key = Annotated[
    list[str] | None,
    typer.Option("--key", help="Key column used to match rows; may be repeated."),
]


def show_preview(
    output: Output, pipeline: Pipeline, plan: ReplayPlan, key: Sequence[str]
) -> ReplayPreview:
    """Show the plan and its preview; with ``--json`` one document of both."""
    show_change(output, plan)
    with output.busy(f"preview {plan.pipeline}"), output.nothing_else_on_stdout():
        preview = pipeline.preview_replay(plan, key=key)
    if output.as_json:
        output.document(plan.to_json() | {"preview": preview.to_json()})
        return preview
    output.say()
    shown = preview.to_json()["checkpoints"]
    of_tables = any("table" in checkpoint for checkpoint in shown)
    titles = (_COLUMNS[0], "table", *_COLUMNS[1:]) if of_tables else _COLUMNS
    output.table(titles, [_row(checkpoint) for checkpoint in shown])
    output.say(str(preview), "bold")
    rows = preview.rows
    for column, count in sorted(rows.columns.items(), key=lambda item: -item[1]):
        output.say(f"{column} changes in {number(count)} of {number(rows.told)}")
    if rows.changed > rows.told:
        output.say(
            f"{number(rows.changed - rows.told)} changed rows are not in these counts: several "
            "rows with the same key changed"
        )
    for column, reason in preview.left_out.items():
        output.say(f"{column} is not compared: {reason}")
    for kind in ("changed", "added", "removed"):
        examples = [example for example in rows.examples if example.kind == kind]
        for example in examples[:_EXAMPLES_MAX]:
            output.say(_example_line(example, keyed=bool(preview.key)))
    output.say("Nothing was changed: --preview")
    return preview


def _row(fields: dict[str, object]) -> list[str]:
    names = ("before", "after", "changed", "added", "removed")
    figures = [number(count) for n in names if isinstance(count := fields[n], int)]
    then, now = fields["dead_letters"] if isinstance(fields["dead_letters"], list) else (0, 0)
    letters = f"{number(then)} -> {number(now)}" if then != now else number(now)
    of_table = [str(fields["table"])] if "table" in fields else []
    return [str(fields["version"]), *of_table, *figures, letters]


def _example_line(example: RowExample, *, keyed: bool) -> str:
    """Format as ``changed  id 7: delayed false -> true``."""
    identity = ", ".join(f"{name} {value}" for name, value in example.key.items())
    if example.before is not None and example.after is not None:
        pairs = zip(example.before.items(), example.after.values(), strict=True)
        changes = ", ".join(f"{name} {_shown(was)} -> {_shown(now)}" for (name, was), now in pairs)
        return f"changed  {identity}: {changes}"
    values = example.after or example.before or {}
    rest = ", ".join(f"{n} {_shown(v)}" for n, v in values.items() if n not in example.key)
    return f"{example.kind:<7}  {identity}: {rest}" if keyed else f"{example.kind:<7}  {identity}"


def _shown(value: str | None) -> str:
    return "null" if value is None else value


_To = Annotated[str, typer.Argument(help="A version, or a time: 2026-01-31T12:00Z.")]
_MaxCheckpoints = Annotated[
    int | None, typer.Option(min=1, help="Stop after this many checkpoints.")
]
_Last = Annotated[int | None, typer.Argument(min=0, help="Replay all from VERSION to this one.")]
_Only = Annotated[
    list[int] | None, typer.Option("--also", min=0, help="One more version; may be repeated.")
]
_Topics = Annotated[
    list[str] | None, typer.Option("--topic", help="Only the losses of this topic; repeatable.")
]


_Every = Annotated[
    str | None,
    typer.Option("--every", help="Stay and run again, from start to start: 45s, 1m, 2h."),
]


def run(
    every: _Every = None,
    max_checkpoints: _MaxCheckpoints = None,
    run_id: RunId = None,
    files: Files = None,
    name: Name = None,
    as_json: AsJson = False,
) -> None:
    """Bring the table up to the end offsets Kafka has now; a line for each checkpoint.

    With --json one line {"checkpoint": ...} each, and {"run": ...} at the end. With --every it
    stays until it is interrupted: a temporary failure is shown and tried again at the next
    interval, and nothing is printed for a run that finds nothing new.
    """
    output = Output(as_json)
    interval_s = None if every is None else _interval_s(every)
    pipeline = choose(files, name).pipeline
    version = None

    def run_once() -> None:
        nonlocal version
        with _reporting(output, f"run {pipeline.name}", None) as on_checkpoint:
            done = pipeline.run(
                run_id=run_id, on_checkpoint=on_checkpoint, max_checkpoints=max_checkpoints
            )
        if done.head.version != version:
            _show_run(output, done)
        version = done.head.version

    if interval_s is None:
        run_once()
    else:
        _repeat(run_once, interval_s, as_json=as_json)


def _interval_s(text: str) -> float:
    if interval_s := seconds(text):
        return interval_s
    raise ConfigError("--every takes 45s, 1m, 2h")


def _repeat(run_once: Callable[[], None], interval_s: float, *, as_json: bool) -> NoReturn:
    """Run at once, and again ``interval_s`` after each start, also after a temporary failure."""
    this_process_repeats()
    while True:
        started = time.monotonic()
        try:
            run_once()
        except EoPipelineError as error:
            if not error.retryable:
                raise
            show_error(error, as_json=as_json)
        time.sleep(max(0.0, started + interval_s - time.monotonic()))


def _show_run(output: Output, done: RunReport) -> None:
    if output.as_json:
        summary = {
            "pipeline": done.pipeline,
            "run_id": done.run_id,
            "version": done.head.version,
            "checkpoints": len(done.checkpoints),
            "records": done.records,
            "rows": done.rows,
            "rows_total": done.head.counts.rows_total,
            "lag": done.lag,
        }
        output.line({"run": summary})
    output.say(
        f"{done.pipeline} is at version {done.head.version}: {counted(done.rows, 'row')} more, "
        f"{number(done.head.counts.rows_total)} in all, lag {number(done.lag)}"
    )


@contextmanager
def _reporting(
    output: Output, title: str, total: int | None
) -> Iterator[Callable[[CheckpointReport], None]]:
    """Print each checkpoint as it is committed, and advance the bar.

    Args:
        total: number of records; a run learns it from its first checkpoint.
    """
    with output.progress(title, total) as progress, output.nothing_else_on_stdout():
        task = progress.task_ids[0]

        def report_checkpoint(report: CheckpointReport) -> None:
            if output.as_json:
                output.line({"checkpoint": report_json(report)})
            output.say(report_line(report))
            if total is None and report.lag_before is not None:
                done = progress.tasks[0].completed
                progress.update(task, total=done + report.lag_before)
            spans = sum(r.span for r in report.entry.ranges)
            progress.advance(task, report.entry.counts.records if total else spans)

        yield report_checkpoint


def rewind(
    to: _To,
    reason: Reason = "",
    accept_compacted: AcceptCompacted = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    files: Files = None,
    name: Name = None,
    as_json: AsJson = False,
) -> None:
    """Remove the rows of all checkpoints after a version, or a time, from the table.

    One transaction. The next run reads again from there.
    """
    output = Output(as_json)
    pipeline = choose(files, name).pipeline
    recover_first(pipeline, dry_run)
    plan = pipeline.plan_rewind(version_or_time(to), accept_compacted=accept_compacted)
    if _show_plan(output, plan, dry_run):
        return
    approve(output, f"Rewind {plan.pipeline} to version {plan.target.version}?", yes=yes)
    _show_result(output, plan.apply(reason=reason, asked_by=user()))


def replay(
    version: Version,
    last: _Last = None,
    also: _Only = None,
    reason: Reason = "",
    accept_compacted: AcceptCompacted = False,
    dry_run: DryRun = False,
    preview: Preview = False,
    key: Key = None,
    yes: Yes = False,
    files: Files = None,
    name: Name = None,
    as_json: AsJson = False,
) -> None:
    """Re-read the ranges of checkpoints with the current transform and replace their rows.

    One transaction each: readers see the old rows or the new ones. With --json one line
    {"checkpoint": ...} each, and {"replay": ...} at the end. --preview says how many rows would
    change, and which, and changes nothing.
    """
    output = Output(as_json)
    pipeline = choose(files, name).pipeline
    recover_first(pipeline, dry_run or preview)
    plan = _plan_replay(pipeline, version, last, also, accept_compacted=accept_compacted)
    if preview:
        show_preview(output, pipeline, plan, key or ())
        return
    apply_replay(output, plan, "replay", reason=reason, dry_run=dry_run, yes=yes)


def apply_replay(
    output: Output, plan: ReplayPlan, verb: str, *, reason: str, dry_run: bool, yes: bool
) -> ChangeReport | None:
    """Show the plan and, if approved, apply it and report; return None for a dry run."""
    if _show_plan(output, plan, dry_run):
        return None
    amount = counted(len(plan.checkpoints), "checkpoint")
    approve(output, f"{verb.capitalize()} {amount} of {plan.pipeline}?", yes=yes)
    with _reporting(output, f"{verb} {plan.pipeline}", plan.records) as on_checkpoint:
        report = plan.apply(reason=reason, asked_by=user(), on_checkpoint=on_checkpoint)
    if output.as_json:
        output.line({verb: report.to_json()})
    output.say(f"{plan.pipeline} is at version {report.entries[-1].version}")
    return report


def recover_first(pipeline: Pipeline, dry_run: bool) -> None:
    """Commit the staged batches of a run that died, and report them. A plan made before that would
    be of an outdated ledger. A dry run changes nothing, so it skips this.
    """
    if not dry_run:
        pipeline.recover(on_checkpoint=lambda report: note(report_line(report)))


def _plan_replay(
    pipeline: Pipeline,
    version: int,
    last: int | None,
    also: list[int] | None,
    *,
    accept_compacted: bool,
) -> ReplayPlan:
    if not also:
        return pipeline.plan_replay(version, last, accept_compacted=accept_compacted)
    stretch = pipeline.plan_replay(version, last, accept_compacted=accept_compacted)
    versions = {*(checkpoint.version for checkpoint in stretch.checkpoints), *also}
    return pipeline.plan_replay(versions=versions, accept_compacted=accept_compacted)


def _show_plan(output: Output, plan: ChangePlan, dry_run: bool) -> bool:
    """Show the plan; return True for a dry run."""
    if dry_run and output.as_json:
        output.document(plan.to_json())
    if isinstance(plan, RereadingPlan):
        show_change(output, plan)
    else:
        output.say(str(plan), "bold")
    if dry_run:
        output.say("Nothing was changed: --dry-run")
    return dry_run


def _show_result(output: Output, report: ChangeReport) -> None:
    if output.as_json:
        output.document(report.to_json())
    for entry in report.entries:
        output.say(entry_line(entry))
    output.say(f"{report.plan.pipeline} is at version {report.entries[-1].version}")


def accept_loss(
    reason: Reason = "",
    topics: _Topics = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    files: Files = None,
    name: Name = None,
    as_json: AsJson = False,
) -> None:
    """Skip records that Kafka no longer has. The gap is recorded in the ledger."""
    output = Output(as_json)
    pipeline = choose(files, name).pipeline
    recover_first(pipeline, dry_run)
    plan = pipeline.plan_accept_loss(topics or None)
    show_losses(output, plan.losses)
    if _show_plan(output, plan, dry_run):
        return
    reason = reason_for(output, reason)
    approve(output, f"Let {pipeline.name} go on without these records?", yes=yes)
    [entry] = plan.apply(reason=reason, asked_by=user()).entries
    if as_json:
        output.document(entry.to_json())
    output.say(entry_line(entry))


def adopt(
    reason: Reason = "",
    dry_run: DryRun = False,
    yes: Yes = False,
    files: Files = None,
    name: Name = None,
    as_json: AsJson = False,
) -> None:
    """Accept the sink's current state as head after a restore or failover."""
    output = Output(as_json)
    pipeline = choose(files, name).pipeline
    plan = pipeline.plan_adopt()
    if _show_plan(output, plan, dry_run):
        return
    reason = reason_for(output, reason)
    approve(output, f"Let {pipeline.name} go on from what the sink holds now?", yes=yes)
    entry = next(iter(plan.apply(reason=reason, asked_by=user()).entries), None)
    if as_json:
        output.document(entry.to_json() if entry else None)
    output.say(entry_line(entry) if entry else "the next run starts anew")


def set_aside(
    dry_run: DryRun = False,
    yes: Yes = False,
    files: Files = None,
    name: Name = None,
    as_json: AsJson = False,
) -> None:
    """Discard an unreadable (truncated or empty) staged batch; the next run re-reads its offsets.
    The file is kept under another name.
    """
    output = Output(as_json)
    plan = choose(files, name).pipeline.plan_set_aside()
    output.say(str(plan), "bold")
    for damage in plan.damages:
        output.say(str(damage))
    if dry_run:
        output.say("Nothing was changed: --dry-run")
    else:
        approve(output, f"Set it aside in {plan.pipeline}?", yes=yes)
        for path in plan.apply():
            output.say(f"kept as {path}")
    if as_json:
        output.document(plan.to_json())


def reset(
    dry_run: DryRun = False,
    yes: Yes = False,
    files: Files = None,
    name: Name = None,
    as_json: AsJson = False,
) -> None:
    """For development: drop the rows, the ledger and the staging of a pipeline. No undo."""
    output = Output(as_json)
    plan = choose(files, name).pipeline.plan_reset()
    output.say(str(plan), "bold")
    if dry_run:
        output.say("Nothing was changed: --dry-run")
    else:
        approve(output, f"Drop all that {plan.pipeline} has?", yes=yes)
        plan.apply()
        output.say(f"{plan.pipeline} is empty; its next run starts anew")
    if as_json:
        output.document(plan.to_json())
