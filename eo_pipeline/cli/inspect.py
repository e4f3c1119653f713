"""Read-only commands: status, checkpoints, show, diff, plan, schema, json-schema."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from enum import StrEnum
from itertools import islice
from typing import Annotated, Any

import typer

from eo_pipeline.cli.options import AsJson, Files, Name, Version, choose, documents, load
from eo_pipeline.cli.output import Output, error_json, exit_code, instant, note, number
from eo_pipeline.cli.views import (
    ENTRY_COLUMNS,
    STATUS_COLUMNS,
    entry_json,
    entry_line,
    entry_row,
    show_entry,
    show_obstacles,
    show_run_plan,
    status_row,
    with_state,
)
from eo_pipeline.config.documents import Document
from eo_pipeline.errors import EoPipelineError, LedgerBehindError, UnknownCheckpointError
from eo_pipeline.formats.history import (
    NextReader,
    ReaderChange,
    WrittenChange,
    next_columns,
    reader_changes,
    written_changes,
)
from eo_pipeline.formats.parts import KEY, VALUE
from eo_pipeline.formats.schema_diff import Policy
from eo_pipeline.ledger.entry import START_VERSION, LedgerEntry
from eo_pipeline.ledger.history import live_branch
from eo_pipeline.ledger.offsets import TopicPartition
from eo_pipeline.operations.change_plan import refuse_unkept
from eo_pipeline.operations.status import Status
from eo_pipeline.pipeline import Pipeline
from eo_pipeline.pipeline_schema import document_schema

#: Maximum number of entries per poll of `--follow`.
_PER_POLL = 1_000

_Count = Annotated[int, typer.Option("--last", "-n", min=1, help="Show only the newest N.")]
_Follow = Annotated[
    bool,
    typer.Option("--follow", help="Keep running and print new versions as they are committed."),
]
_Every = Annotated[float, typer.Option(min=0.05, help="Polling interval of --follow, in seconds.")]


def status(files: Files = None, name: Name = None, as_json: AsJson = False) -> None:
    """Show the state of each pipeline: version, lag, rows, the last commit and its age."""
    output = Output(as_json)
    results = [_status_or_error(document) for document in documents(files, name)]
    statuses = [result for result in results if isinstance(result, Status)]
    failed = [result for result in results if not isinstance(result, Status)]
    if as_json:
        output.document(
            [f.to_json() if isinstance(f, Status) else _failed_json(*f) for f in results]
        )
    elif statuses:
        output.table(STATUS_COLUMNS, [status_row(state) for state in statuses])
    for state in statuses:
        show_obstacles(output, state)
    for pipeline, error in failed:
        if not as_json:
            note(f"{pipeline}: {error}")
    if failed:
        raise typer.Exit(exit_code(failed[0][1]))


def _status_or_error(document: Document) -> Status | tuple[str, EoPipelineError]:
    """Return the status, or the error: one unreachable pipeline must not hide the others."""
    try:
        return load(document).status()
    except EoPipelineError as error:
        return document.name, error


def _failed_json(name: str, error: EoPipelineError) -> dict[str, Any]:
    return {"pipeline": name, **error_json(error)}


def checkpoints(
    count: _Count = 20,
    follow: _Follow = False,
    every: _Every = 2.0,
    files: Files = None,
    name: Name = None,
    as_json: AsJson = False,
) -> None:
    """List the ledger: every version with its kind, ranges and rows, newest last.

    With --follow and --json each version is one JSON line.
    """
    output = Output(as_json)
    pipeline = choose(files, name).pipeline
    entries = list(with_state(pipeline.newest(count)))
    if follow:
        for entry, live in entries:
            _print_entry(output, entry, live)
        _follow(output, pipeline, entries[-1][0] if entries else None, every)
    if as_json:
        output.document(
            {
                "pipeline": pipeline.name,
                "checkpoints": [entry_json(entry, live) for entry, live in entries],
            }
        )
        return
    output.table(ENTRY_COLUMNS, [entry_row(entry, live) for entry, live in entries])


def _print_entry(output: Output, entry: LedgerEntry, live: bool) -> None:
    if output.as_json:
        output.line(entry_json(entry, live))
    output.say(entry_line(entry) + ("" if live else "  (dead)"))


def _follow(output: Output, pipeline: Pipeline, newest: LedgerEntry | None, every: float) -> None:
    """Print new entries until interrupted, also across outages of the store."""
    while True:
        try:
            entries = pipeline.following(newest.id if newest else None, _PER_POLL)
        except EoPipelineError as error:
            if not error.retryable:
                raise
            note(str(error))
            entries = []
        if entries is None:
            raise LedgerBehindError(
                f"Pipeline {pipeline.name!r}: the ledger no longer holds version "
                f"{newest.version if newest else START_VERSION}; it was replaced by an older one. "
                "`eo doctor` says more."
            )
        for entry in entries:
            _print_entry(output, entry, live=True)
            newest = entry
        time.sleep(every)


def show(version: Version, files: Files = None, name: Name = None, as_json: AsJson = False) -> None:
    """Show one version in full: counts, ranges, offsets, topic ids, remarks."""
    output = Output(as_json)
    pipeline = choose(files, name).pipeline
    history = _history_from(pipeline, version)
    live = history[0] in live_branch(history)
    if as_json:
        output.document(entry_json(history[0], live))
    else:
        show_entry(output, history[0], live)


def _history_from(pipeline: Pipeline, version: int) -> list[LedgerEntry]:
    """Return the ledger from exactly ``version`` to the head."""
    history = pipeline.history(version)
    if history:
        refuse_unkept(history[-1], version)
    if not history or history[0].version != version:
        raise UnknownCheckpointError(
            f"Pipeline {pipeline.name!r} has no version {version}. `eo checkpoints` lists them."
        )
    return history


def diff(
    first: Version,
    second: Version,
    files: Files = None,
    name: Name = None,
    as_json: AsJson = False,
) -> None:
    """Compare two versions: offsets, rows, topics, and the operations between them."""
    output = Output(as_json)
    pipeline = choose(files, name).pipeline
    low, high = sorted((first, second))
    history = _history_from(pipeline, low)
    if history[-1].version < high:
        _history_from(pipeline, high)
    between = list(islice(history, high - low + 1))
    live = {entry.version for entry in live_branch(history)}
    if as_json:
        output.document(_diff_json(between, live))
        return
    _show_diff(output, between, live)


def _moved(old: LedgerEntry, new: LedgerEntry) -> dict[TopicPartition, tuple[int | None, ...]]:
    """Return both offsets of the partitions where they differ; None: no offset in that version."""
    both = sorted(old.offsets.keys() | new.offsets.keys())
    offsets = {tp: (old.offsets.get(tp), new.offsets.get(tp)) for tp in both}
    return {tp: pair for tp, pair in offsets.items() if pair[0] != pair[1]}


def _new_topics(old: LedgerEntry, new: LedgerEntry) -> dict[str, list[str | None]]:
    both = sorted(old.topic_ids.keys() | new.topic_ids.keys())
    pairs = {topic: [old.topic_ids.get(topic), new.topic_ids.get(topic)] for topic in both}
    return {topic: pair for topic, pair in pairs.items() if pair[0] != pair[1]}


def _diff_json(between: Sequence[LedgerEntry], live: set[int]) -> dict[str, Any]:
    old, new = between[0], between[-1]
    offsets: dict[str, dict[str, Any]] = {}
    for tp, pair in _moved(old, new).items():
        offsets.setdefault(tp.topic, {})[str(tp.partition)] = list(pair)
    return {
        "pipeline": old.pipeline,
        "from": old.version,
        "to": new.version,
        "offsets": offsets,
        "topic_ids": _new_topics(old, new),
        "rows_total": [old.counts.rows_total, new.counts.rows_total],
        "between": [
            {
                "version": entry.version,
                "operation": entry.operation.value,
                "target": entry.target,
                "live": entry.version in live,
                "rows": entry.counts.rows,
                "records": entry.counts.records,
            }
            for entry in between[1:]
        ],
    }


def _show_diff(output: Output, between: Sequence[LedgerEntry], live: set[int]) -> None:
    old, new = between[0], between[-1]
    output.table(
        ("topic", "partition", f"at {old.version}", f"at {new.version}", "moved"),
        [
            (tp.topic, str(tp.partition), _or_dash(a), _or_dash(b), f"{(b or 0) - (a or 0):+,}")
            for tp, (a, b) in _moved(old, new).items()
        ],
    )
    for topic, (before, after) in _new_topics(old, new).items():
        output.say(f"topic {topic} was {before}, is {after}")
    output.say(
        f"rows {number(old.counts.rows_total)} -> {number(new.counts.rows_total)} "
        f"({new.counts.rows_total - old.counts.rows_total:+,})\n"
    )
    rows = [entry_row(entry, entry.version in live) for entry in between[1:]]
    output.table(ENTRY_COLUMNS, rows)


def _or_dash(offset: int | None) -> str:
    return "-" if offset is None else number(offset)


def plan(files: Files = None, name: Name = None, as_json: AsJson = False) -> None:
    """Show what the next run would read. Changes nothing, starts no Spark."""
    output = Output(as_json)
    run_plan = choose(files, name).pipeline.plan_run()
    if as_json:
        output.document(run_plan.to_json())
    else:
        show_run_plan(output, run_plan)


class SchemaView(StrEnum):
    """Direction of `eo schema`: the past, or the next run."""

    HISTORY = "history"
    DIFF = "diff"


_POLICY_EFFECTS = {
    Policy.EVOLVE: "the table follows; a run is refused if its store cannot",
    Policy.RESCUE: "the column stays; what does not fit goes into _unknown_fields",
    Policy.QUARANTINE: "the column stays; records that need it are bad",
    Policy.FREEZE: "the run is refused",
}


def schema(
    what: Annotated[
        SchemaView,
        typer.Argument(help="The history, or what the next run would change: diff."),
    ] = SchemaView.HISTORY,
    files: Files = None,
    name: Name = None,
    as_json: AsJson = False,
) -> None:
    """Show the schema history recorded in the ledger.

    `eo schema diff` queries the registry and shows what the next run would change in the table, by
    kind and policy. --json of the history has the schemas' texts and the columns' types.
    """
    output = Output(as_json)
    pipeline = choose(files, name).pipeline
    if what is SchemaView.DIFF:
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
    changes_by_table: dict[str, Sequence[ReaderChange | WrittenChange]]
    changes_by_table = {"value": values, "key": keys, "table": written}
    rows = [
        (str(c.entry.version), column_source, c.schema, instant(c.entry.committed_at), str(c))
        for column_source, changes in changes_by_table.items()
        for c in changes
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
            _describe_next(output, pipeline.name, reader)
    rows = [
        (str(decision.change), decision.policy.value, _POLICY_EFFECTS[decision.policy])
        for reader in readers
        for decision in reader.decided
    ]
    output.table(("changed", "policy", "means"), rows)


def _describe_next(output: Output, name: str, reader: NextReader) -> None:
    if not reader.decided:
        output.say(f"{name}: {reader}; the next run changes nothing")
        return
    whose = "the key's columns" if reader.part == KEY else "the columns"
    compared = f"schema {reader.schema} of {reader.subject}, compared with {reader.before}"
    output.say(f"{name}: {compared}, the present schema of {whose}")


def json_schema() -> None:
    """Print the JSON Schema of a pipeline's document, for editors.

    With YAML in VS Code, first line of the document: # yaml-language-server: $schema=eo.schema.json
    """
    typer.echo(json.dumps(document_schema(), indent=2, ensure_ascii=False))
