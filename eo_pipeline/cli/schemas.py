"""`eo schema`: which schemas of a registry a pipeline's columns were of, and what comes next."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from eo_pipeline.cli.options import AsJson, Files, Name
from eo_pipeline.cli.output import Output, instant
from eo_pipeline.cli.selection import choose
from eo_pipeline.pipeline import Pipeline
from eo_pipeline.run.readers import reader_changes
from eo_pipeline.source.schema_changes import Policy


class What(StrEnum):
    """Looking back, or ahead."""

    HISTORY = "history"
    DIFF = "diff"


_MEANS = {
    Policy.EVOLVE: "the table follows",
    Policy.RESCUE: "the column stays; what does not fit goes into _unknown_fields",
    Policy.QUARANTINE: "the column stays; records that need it are bad",
    Policy.FREEZE: "the run is refused",
}


def schema(
    what: Annotated[
        What, typer.Argument(help="What was; or what the next run would change: diff.")
    ] = What.HISTORY,
    files: Files = None,
    name: Name = None,
    as_json: AsJson = False,
) -> None:
    """The schemas of a registry that the table's columns were of, from the ledger alone.

    `eo schema diff` asks the registry, and says what the next run would change in the table, by
    kind and policy. --json of the history has the schemas' texts.
    """
    output = Output(as_json)
    pipeline = choose(files, name).pipeline
    if what is What.DIFF:
        _show_next(output, pipeline, as_json=as_json)
    else:
        _show_history(output, pipeline, as_json=as_json)


def _show_history(output: Output, pipeline: Pipeline, *, as_json: bool) -> None:
    changes = list(reader_changes(pipeline.history()))
    if as_json:
        read = [change.to_json() for change in changes]
        output.document({"pipeline": pipeline.name, "schemas": read})
    elif not changes:
        output.say(f"{pipeline.name}: no checkpoint was read with a schema of a registry")
    rows = [
        (str(c.entry.version), c.schema, instant(c.entry.committed_at), str(c)) for c in changes
    ]
    output.table(("since version", "schema", "committed", "changed"), rows)


def _show_next(output: Output, pipeline: Pipeline, *, as_json: bool) -> None:
    reader = pipeline.plan_run().reader
    if as_json:
        found = reader.to_json() if reader else None
        output.document({"pipeline": pipeline.name, "columns": found})
    elif reader is None:
        output.say(f"{pipeline.name}: there is no registry; the document says what the columns are")
    elif not reader.decided:
        output.say(f"{pipeline.name}: {reader}; the next run changes nothing")
    else:
        compared = f"schema {reader.schema} of {reader.subject}, compared with {reader.before}"
        output.say(f"{pipeline.name}: {compared}, which the columns are of")
    rows = [
        (str(each.change), each.policy.value, _MEANS[each.policy])
        for each in (reader.decided if reader else ())
    ]
    output.table(("changed", "policy", "means"), rows)
