"""``eo replay --preview``: how many rows a replay would change, and which."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from eo_pipeline.cli.output import Output, number
from eo_pipeline.cli.views import show_change
from eo_pipeline.pipeline import Pipeline
from eo_pipeline.run.replay import ReplayPlan

if TYPE_CHECKING:
    from eo_pipeline.audit import ReplayPreview, RowExample

#: Rows that are shown of each kind.
_EXAMPLES_MAX = 3

_COLUMNS = ("version", "rows", "rows then", "changed", "added", "removed", "dead letters")

Preview = Annotated[
    bool,
    typer.Option(
        "--preview", help="Only say how many rows it would change, by reading and transforming."
    ),
]
Key = Annotated[
    list[str] | None,
    typer.Option("--key", help="A column that says which row is which; may be repeated."),
]


def show_preview(
    output: Output, pipeline: Pipeline, plan: ReplayPlan, key: Sequence[str]
) -> ReplayPreview:
    """Show the plan, then what it would change; with ``--json`` one document of both."""
    show_change(output, plan)
    with output.busy(f"preview {plan.pipeline}"), output.nothing_else_on_stdout():
        found = pipeline.preview_replay(plan, key=key)
    if output.as_json:
        output.document(plan.to_json() | {"preview": found.to_json()})
        return found
    output.say()
    output.table(_COLUMNS, [_row(each) for each in found.to_json()["checkpoints"]])
    output.say(str(found), "bold")
    rows = found.rows
    for column, count in sorted(rows.columns.items(), key=lambda each: -each[1]):
        output.say(f"{column} changes in {number(count)} of {number(rows.told)}")
    if rows.changed > rows.told:
        output.say(
            f"of {number(rows.changed - rows.told)} changed rows the columns are not told: several "
            "rows of one key changed"
        )
    for column, reason in found.left_out.items():
        output.say(f"{column} is not compared: {reason}")
    for kind in ("changed", "added", "removed"):
        some = [each for each in rows.examples if each.kind == kind]
        for example in some[:_EXAMPLES_MAX]:
            output.say(_in_words(example, keyed=bool(found.key)))
    output.say("Nothing was changed: --preview")
    return found


def _row(each: dict[str, object]) -> list[str]:
    names = ("before", "after", "changed", "added", "removed")
    figures = [number(count) for n in names if isinstance(count := each[n], int)]
    then, now = each["dead_letters"] if isinstance(each["dead_letters"], list) else (0, 0)
    letters = f"{number(then)} -> {number(now)}" if then != now else number(now)
    return [str(each["version"]), *figures, letters]


def _in_words(example: RowExample, *, keyed: bool) -> str:
    """``changed  id 7: delayed false -> true``."""
    known = ", ".join(f"{name} {value}" for name, value in example.key.items())
    if example.before is not None and example.after is not None:
        pairs = zip(example.before.items(), example.after.values(), strict=True)
        changes = ", ".join(f"{name} {_shown(was)} -> {_shown(now)}" for (name, was), now in pairs)
        return f"changed  {known}: {changes}"
    values = example.after or example.before or {}
    rest = ", ".join(f"{n} {_shown(v)}" for n, v in values.items() if n not in example.key)
    return f"{example.kind:<7}  {known}: {rest}" if keyed else f"{example.kind:<7}  {known}"


def _shown(value: str | None) -> str:
    return "null" if value is None else value
