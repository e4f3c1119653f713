"""Views of ledger entries, plans and states: rows of a table, lines and JSON."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from rich.text import Text

from eo_pipeline.cli.output import Cell, Output, counted, duration, instant, number
from eo_pipeline.ledger.entry import Costs, Counts, LedgerEntry, Operation
from eo_pipeline.ledger.history import live_branch
from eo_pipeline.ledger.offsets import OffsetRange, TopicPartition
from eo_pipeline.ledger.schemas import ReadWith, WrittenWith
from eo_pipeline.operations.change_plan import RereadingPlan
from eo_pipeline.operations.status import RunPlan, Status
from eo_pipeline.runs.report import CheckpointReport

#: Maximum number of ranges in a line, before they are only counted, and of rows in a table.
_SHORT = 2
_ROWS_MAX = 100

#: Text of a target in a line.
_TOWARDS = {Operation.REWIND: " to {}", Operation.REPLAY: " of {}"}

#: Characters of a run id in a table; the JSON has the whole id.
_RUN_ID = 12

ENTRY_COLUMNS = (
    *("version", "kind", "target", "state", "committed"),
    *("rows", "records", "ranges", "run id"),
)
STATUS_COLUMNS = ("pipeline", "version", "kind", "lag", "rows", "committed", "age", "run id")
RANGE_COLUMNS = ("topic", "partition", "from", "to", "offsets")


def with_state(entries: Sequence[LedgerEntry]) -> Iterator[tuple[LedgerEntry, bool]]:
    """Yield each entry with True if it is live; ``entries`` end with the head."""
    live = {entry.version for entry in live_branch(entries)}
    return ((entry, entry.version in live) for entry in entries)


def entry_row(entry: LedgerEntry, live: bool) -> list[Cell]:
    """Return the cells below :data:`ENTRY_COLUMNS`."""
    return [
        str(entry.version),
        entry.operation.value,
        "" if entry.target is None else str(entry.target),
        Text("live", "green") if live else Text("dead", "dim"),
        instant(entry.committed_at),
        number(entry.counts.rows),
        number(entry.counts.records),
        short_ranges(entry.ranges),
        entry.run_id[:_RUN_ID],
    ]


def entry_line(entry: LedgerEntry) -> str:
    """Return an entry as a line. An entry just committed has no time yet: the sink's clock
    sets it.
    """
    counts, holes = entry.counts, entry.offsets_without_record
    parts = [
        *([instant(entry.committed_at)] if entry.committed_at else []),
        f"version {entry.version}",
        entry.operation.value + _TOWARDS.get(entry.operation, "").format(entry.target),
        *([counted(counts.rows, "row"), counted(counts.records, "record")] if entry.ranges else []),
        *([f"{counted(holes, 'offset')} without a record"] if holes else []),
        *([counted(counts.dead_letters, "dead letter")] if counts.dead_letters else []),
        *([_unknown(counts)] if counts.unknown else []),
        *([short_ranges(entry.ranges)] if entry.ranges else []),
    ]
    return "  ".join(parts)


def _schemas(read: ReadWith) -> str:
    """Format as ``read as 7, written with 5, 7``, plus the ids without a schema."""
    written = f"read as {read.reader}, written with {', '.join(read.writers) or 'none'}"
    return f"{written}; unknown: {', '.join(read.unknown)}" if read.unknown else written


def _cost(costs: Costs) -> str:
    """Format as ``cpu 1.2 s, spark cpu 5.0 s, plan 0.2 s, stage 3.0 s; 12,345 bytes staged``."""
    of_spark = costs.spark_cpu_ms
    spent = {
        "cpu": costs.cpu_ms,
        **({} if of_spark is None else {"spark cpu": of_spark}),
        **costs.phases_ms,
    }
    times = ", ".join(f"{name} {duration(ms / 1_000)}" for name, ms in spent.items())
    return f"{times}; {number(costs.bytes_out)} bytes staged"


def _written(written: WrittenWith) -> str:
    """Format as ``as the columns of version 3, registered: value 7``."""
    numbers = ", ".join(f"{part} {key}" for part, key in sorted(written.registered.items()))
    columns = f"as the columns of version {written.since}"
    return f"{columns}, registered: {numbers}" if numbers else columns


def _unknown(counts: Counts) -> str:
    """Format as ``2 records with unknown fields (colour, size)``, for each of several tables: one
    may take the fields that another does not know.
    """
    if of_tables := {name: table for name, table in counts.tables.items() if table.unknown}:
        return "; ".join(f"{name}: {_unknown(table)}" for name, table in of_tables.items())
    names = ", ".join(counts.unknown_fields)
    return f"{counted(counts.unknown or 0, 'record')} with unknown fields ({names})"


def entry_json(entry: LedgerEntry, live: bool) -> dict[str, Any]:
    """Return the entry's JSON with ``live``."""
    return {**entry.to_json(), "live": live}


def short_ranges(ranges: Sequence[OffsetRange]) -> str:
    """Format as ``orders[0] 0-100``; many ranges as the number of partitions and offsets."""
    if len(ranges) <= _SHORT:
        return ", ".join(f"{r.topic_partition} {r.start}-{r.end}" for r in ranges)
    topics = ", ".join(sorted({r.topic for r in ranges}))
    span = sum(r.span for r in ranges)
    return f"{topics}: {counted(span, 'offset')} in {counted(len(ranges), 'partition')}"


def status_row(status: Status) -> list[Cell]:
    """Return the cells below :data:`STATUS_COLUMNS`."""
    head = status.head
    lag = Text(number(status.lag), "yellow" if status.lag else "")
    if head is None:
        return [status.pipeline, "-", "never ran", lag, "0", "-", "-", ""]
    return [
        status.pipeline,
        str(head.version),
        head.operation.value,
        lag,
        number(head.counts.rows_total),
        instant(head.committed_at),
        duration(status.age),
        head.run_id[:_RUN_ID],
    ]


def show_entry(output: Output, entry: LedgerEntry, live: bool) -> None:
    """Print all fields of an entry."""
    counts = entry.counts
    fields: list[tuple[str, str]] = [
        ("pipeline", entry.pipeline),
        ("version", f"{entry.version} ({'live' if live else 'dead: undone by a rewind'})"),
        ("kind", entry.operation.value),
        *([("target", str(entry.target))] if entry.target is not None else []),
        ("committed", instant(entry.committed_at)),
        ("started", instant(entry.started_at)),
        ("rows", f"{number(counts.rows)}, {number(counts.rows_total)} in all"),
        ("records", f"{number(counts.records)}, {number(counts.bytes)} bytes"),
        ("dead letters", number(counts.dead_letters)),
        ("tombstones", number(counts.tombstones)),
        *([("rest", f"{number(counts.rest)}, that no table takes")] if counts.rest else []),
        *([("unknown fields", _unknown(counts))] if counts.unknown else []),
        *([("cost", _cost(counts.costs))] if counts.costs else []),
        *([("schemas", _schemas(counts.schemas))] if counts.schemas else []),
        *([("key schemas", _schemas(counts.key_schemas))] if counts.key_schemas else []),
        *([("written", _written(counts.written))] if counts.written else []),
        ("run id", entry.run_id),
        ("transaction", entry.transaction_id),
        ("parent", f"{entry.parent.version} {entry.parent.transaction_id}" if entry.parent else ""),
        ("ledger", entry.ledger_id),
        *((f"topic id {topic}", uuid) for topic, uuid in entry.topic_ids.items()),
        *((key, str(value)) for key, value in entry.details.items()),
    ]
    width = max(len(name) for name, _ in fields)
    for name, value in fields:
        output.say(f"{name:<{width}}  {value}")
    if counts.tables:
        output.say("\ntables")
        show_tables(output, counts.tables)
    if entry.ranges:
        output.say("\nread")
        show_ranges(output, entry.ranges)
    output.say("\nstands at")
    show_offsets(output, entry.offsets.items())


def show_tables(output: Output, tables: Mapping[str, Counts]) -> None:
    """Print the counts of each of several tables."""
    columns = ("table", "records", "rows", "rows in all", "dead letters")
    rows = [
        (name, *map(number, (c.records, c.rows, c.rows_total, c.dead_letters)))
        for name, c in tables.items()
    ]
    output.table(columns, rows)


def show_offsets(output: Output, offsets: Iterable[tuple[TopicPartition, int]]) -> None:
    """Print a table of next offsets."""
    rows = [(tp.topic, str(tp.partition), number(offset)) for tp, offset in sorted(offsets)]
    output.table(("topic", "partition", "offset"), rows[:_ROWS_MAX])
    _say_more(output, len(rows))


def show_ranges(output: Output, ranges: Sequence[OffsetRange]) -> None:
    """Print a table of ranges."""
    rows = [
        (r.topic, str(r.partition), number(r.start), number(r.end), number(r.span)) for r in ranges
    ]
    output.table(RANGE_COLUMNS, rows[:_ROWS_MAX])
    _say_more(output, len(rows))


def _say_more(output: Output, rows: int) -> None:
    if rows > _ROWS_MAX:
        output.say(f"... and {number(rows - _ROWS_MAX)} more; --json has all of them")


def show_losses(output: Output, losses: Iterable[object]) -> None:
    """Print the losses in Kafka."""
    for loss in losses:
        output.say(f"lost: {loss}", "red")


def show_obstacles(output: Output, status: Status) -> None:
    """Print the obstacles of the next run."""
    for obstacle in status.blocked:
        output.say(f"blocked: {obstacle}", "red")
    show_losses(output, status.losses)
    for transaction in status.transactions:
        output.say(f"waits: {transaction}", "yellow")


def show_run_plan(output: Output, plan: RunPlan) -> None:
    """Print the ranges that the next run would read."""
    name = plan.status.pipeline
    show_ranges(output, plan.ranges)
    show_obstacles(output, plan.status)
    for reader in plan.readers:
        output.say(f"{name}: {reader}")
    if not plan.ranges:
        output.say(f"{name}: nothing to read")
        return
    first = sum(r.span for r in plan.first)
    output.say(
        f"{name}: {counted(plan.span, 'offset')} in {counted(len(plan.ranges), 'partition')}; the "
        f"first checkpoint reads {number(first)}; {_about(plan.seconds)}"
    )


def show_change(output: Output, plan: RereadingPlan) -> None:
    """Print the changes of a rewind, replay or fork."""
    output.table(
        ("version", "rows", "records", "ranges"),
        [
            (
                str(checkpoint.version),
                number(checkpoint.counts.rows),
                number(checkpoint.entry.counts.records),
                short_ranges(checkpoint.entry.ranges),
            )
            for checkpoint in plan.checkpoints
        ],
    )
    output.say(str(plan), "bold")
    again = "the next run reads again" if plan.operation is Operation.REWIND else "reads"
    output.say(f"{again} {counted(plan.records, 'record')}, {_about(plan.seconds)}")
    for warning in plan.warnings:
        output.say(f"warning: {warning}", "yellow")


def _about(seconds: float | None) -> str:
    return "duration not known yet" if seconds is None else f"about {duration(seconds)}"


def report_line(report: CheckpointReport) -> str:
    """Return a line about a checkpoint just committed."""
    speed = report.records_per_second
    parts = [
        entry_line(report.entry),
        duration(sum(report.seconds.values())),
        *([f"{number(round(speed))} records/s"] if speed else []),
        *([f"lag {number(report.lag_after)}"] if report.lag_after is not None else []),
        *(["recovered from a run that died"] if report.recovered else []),
    ]
    return "  ".join(parts)


def report_json(report: CheckpointReport) -> dict[str, Any]:
    """Return the entry just committed, and the figures of its run."""
    speed = report.records_per_second
    return {
        "entry": report.entry.to_json(),
        "outcome": report.outcome.value,
        "recovered": report.recovered,
        "lag_before": report.lag_before,
        "lag_after": report.lag_after,
        "seconds": {phase: round(spent, 4) for phase, spent in report.seconds.items()},
        "records_per_second": None if speed is None else round(speed),
    }
