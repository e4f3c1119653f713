"""The end of ``make run``: what happened, what the table holds, whether it is right."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich import box
from rich.table import Table
from rich.text import Text

from demo.materialize import Watch
from demo.observe import Checkpoint, Observer, Rows
from demo.run_result import RunResult
from demo.screen import Screen
from demo.servers import Servers
from demo.state import State
from demo.verify import Check

_ROWS_SHOWN = 5


@dataclass(frozen=True)
class Summary:
    """All that is told. ``watch`` holds the checkpoints of this run, as the ledger has them."""

    state: State
    servers: Servers
    observer: Observer
    result: RunResult
    watch: Watch
    checks: Sequence[Check]
    seconds: float

    @property
    def with_rows(self) -> Sequence[Checkpoint]:
        return [checkpoint for checkpoint in self.watch.seen if checkpoint.records]


def show(screen: Screen, summary: Summary) -> None:
    """Print it all."""
    if summary.with_rows:
        screen.show(checkpoints_table(summary.with_rows))
    screen.show(rows_table(summary.observer.first_rows(_ROWS_SHOWN)))
    screen.show(checks_list(summary.checks))
    screen.show(headline(summary))
    screen.show(whereabouts(summary))


def headline(summary: Summary) -> Text:
    """The result in a line or two."""
    if not summary.with_rows:
        spark = "was" if summary.result.spark_started else "was not"
        return Text(f"Nothing new in Kafka: no checkpoint was made, Spark {spark} started.", "bold")
    made = summary.with_rows
    records = sum(checkpoint.records for checkpoint in made)
    seconds = (made[-1].committed_at - summary.watch.began).total_seconds()
    checkpoints = "1 checkpoint" if len(made) == 1 else f"{len(made)} checkpoints"
    return Text(
        f"{records:,} records in {checkpoints} and {seconds:.1f} s, Spark's start included: "
        f"{records / seconds:,.0f} records/s. {summary.seconds:.0f} s in all.",
        "bold",
    )


def checkpoints_table(checkpoints: Sequence[Checkpoint]) -> Table:
    """One line a checkpoint."""
    table = _table("Checkpoints of this run", "version")
    for title in ("records", "rows", "seconds", "records/s", "rows in all"):
        table.add_column(title, justify="right")
    for each in checkpoints:
        table.add_row(
            str(each.version),
            f"{each.records:,}",
            f"{each.rows:,}",
            "recovered" if each.recovered else f"{each.seconds:.1f}",
            "" if each.recovered else f"{each.records_per_second:,.0f}",
            f"{each.rows_total:,}",
        )
    return table


def rows_table(rows: Rows) -> Table:
    """The first rows, with the coordinates each came from."""
    table = _table("The first flights")
    for position, title in enumerate(rows.titles):
        numbers = all(isinstance(row[position], int) for row in rows.values)
        table.add_column(title, justify="right" if numbers else "left", no_wrap=True)
    for row in rows.values:
        table.add_row(*("" if value is None else str(value) for value in row))
    return table


def _table(title: str, *columns: str) -> Table:
    table = Table(*columns, title=title, box=box.SIMPLE_HEAD, title_justify="left")
    table.title_style = "bold"
    return table


def checks_list(checks: Sequence[Check]) -> Text:
    """A line a check, ticked or crossed."""
    text = Text()
    text.append("Independent checks, by a separate Kafka consumer and database connection", "bold")
    for check in checks:
        mark, style = ("✔", "green") if check.passed else ("✘", "bold red")
        text.append(f"\n{mark} ", style).append(check.text, "" if check.passed else "red")
    return text


def whereabouts(summary: Summary) -> Table:
    """Where to look, and what no longer runs."""
    grid = Table.grid(padding=(0, 2))
    dsn = summary.servers.postgres.dsn
    run, registry = summary.result.run_id, summary.servers.registry
    kafka = summary.servers.kafka.bootstrap_servers
    if registry:
        rows = [
            ("Table", f"flights, and its ledger eo_ledger, in {dsn}"),
            ("Kafka", f"topic flights at {kafka}"),
        ]
    else:
        rows = [
            ("Tables", f"flights and planes, and their ledger eo_ledger, in {dsn}"),
            ("Kafka", f"topics flights and planes at {kafka}"),
        ]
    if registry:
        rows += [
            ("Registry", f"subject flights-value at {registry.url}"),
            ("Run", f"{run}, of demo/flights-avro.yaml as eo run does it"),
        ]
    else:
        rows += [
            ("Run", f"{run} in Dagster's instance {summary.state.dagster}"),
            ("Next", "make dev starts both servers again, with the Dagster UI and new flights"),
        ]
    for name, where in rows:
        grid.add_row(Text(name, "bold"), where)
    grid.add_row("", "The servers end with this command; their data stays in .eo.")
    return grid
