"""`eo schema`: which schemas a pipeline's columns were read and written with, and what is next."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated

import typer

from eo_pipeline.cli.options import AsJson, Files, Name
from eo_pipeline.cli.output import Output, instant
from eo_pipeline.cli.selection import choose
from eo_pipeline.pipeline import Pipeline
from eo_pipeline.run.readers import (
    NextReader,
    ReaderChange,
    WrittenChange,
    next_columns,
    reader_changes,
    written_changes,
)
from eo_pipeline.source.parts import KEY, VALUE
from eo_pipeline.source.schema_changes import Policy


class What(StrEnum):
    """Looking back, or ahead."""

    HISTORY = "history"
    DIFF = "diff"


_MEANS = {
    Policy.EVOLVE: "the table follows; a run is refused if its store cannot",
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
    """What the table's columns were of, and were written as, from the ledger alone.

    `eo schema diff` asks the registry, and says what the next run would change in the table, by
    kind and policy. --json of the history has the schemas' texts and the columns' types.
    """
    output = Output(as_json)
    pipeline = choose(files, name).pipeline
    if what is What.DIFF:
        _show_next(output, pipeline, as_json=as_json)
    else:
        _show_history(output, pipeline, as_json=as_json)


def _show_history(output: Output, pipeline: Pipeline, *, as_json: bool) -> None:
    history = list(pipeline.history())
    values, keys = (list(reader_changes(history, part)) for part in (VALUE, KEY))
    written = list(written_changes(history))
    if as_json:
        document = {"schemas": [change.to_json() for change in values]}
        if keys:
            document["key_schemas"] = [change.to_json() for change in keys]
        document["written"] = [change.to_json() for change in written]
        output.document({"pipeline": pipeline.name, **document})
    elif not (values or keys):
        output.say(f"{pipeline.name}: no checkpoint was read with a schema of a registry")
    told: dict[str, Sequence[ReaderChange | WrittenChange]]
    told = {"value": values, "key": keys, "table": written}
    rows = [
        (str(c.entry.version), of, c.schema, instant(c.entry.committed_at), str(c))
        for of, found in told.items()
        for c in found
    ]
    rows.sort(key=lambda row: int(row[0]))
    output.table(("since version", "of", "schema", "committed", "changed"), rows)


def _show_next(output: Output, pipeline: Pipeline, *, as_json: bool) -> None:
    readers = pipeline.plan_run().readers
    if as_json:
        output.document({"pipeline": pipeline.name, "columns": None, **next_columns(readers)})
    elif not readers:
        output.say(f"{pipeline.name}: there is no registry; the document says what the columns are")
    else:
        for reader in readers:
            _say_next(output, pipeline.name, reader)
    rows = [
        (str(each.change), each.policy.value, _MEANS[each.policy])
        for reader in readers
        for each in reader.decided
    ]
    output.table(("changed", "policy", "means"), rows)


def _say_next(output: Output, name: str, reader: NextReader) -> None:
    if not reader.decided:
        output.say(f"{name}: {reader}; the next run changes nothing")
        return
    whose = "the key's columns" if reader.part == KEY else "the columns"
    compared = f"schema {reader.schema} of {reader.subject}, compared with {reader.before}"
    output.say(f"{name}: {compared}, which {whose} are of")
