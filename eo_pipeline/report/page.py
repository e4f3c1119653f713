"""The page: one file of HTML that asks for nothing else, drawn in SVG."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from eo_pipeline.ledger.entry import LedgerEntry, Operation
from eo_pipeline.ledger.spending import Spent
from eo_pipeline.report.figures import (
    GAP,
    PANEL,
    PHASES,
    Axis,
    Panel,
    bars,
    edge,
    lane_y,
    line,
    phases_of,
    records_per_second,
    seconds_of,
    short,
)
from eo_pipeline.report.tree import Node, tree
from eo_pipeline.run.status import Status
from eo_pipeline.staging.failures import Failures

_TEMPLATE = "page.html.jinja"

#: Times below the axis, at most.
_TICKS = 8

_WORDS = {
    Operation.REWIND: "rewind to {}",
    Operation.REPLAY: "replay of {}",
}


@dataclass(frozen=True)
class Mark:
    """A version in the picture of the history."""

    node: Node
    x: float
    y: float
    edge: str
    #: from a replay to the checkpoint whose rows it replaced
    reach: str

    @property
    def kind(self) -> str:
        return self.node.entry.operation.value


def page(
    entries: Sequence[LedgerEntry],
    *,
    pipeline: str,
    reads: str,
    writes: str,
    status: Status | None,
    failures: Sequence[Failures] = (),
    trouble: str = "",
    now: datetime | None = None,
) -> str:
    """The page about ``entries``, oldest first, which end with the head.

    Args:
        entries: the newest of a ledger, or all.
        pipeline: its name.
        reads: the topics, in words.
        writes: the table, in words.
        status: where the pipeline stands; None if it could not be asked.
        failures: runs that failed.
        trouble: why not.
        now: when the page was made; now if absent.
    """
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"instant": _instant, "duration": _duration, "short": short}
    environment.filters |= {"said": _said, "number": lambda value: f"{value:,}"}
    made = now or datetime.now(UTC)
    return environment.get_template(_TEMPLATE).render(
        pipeline=pipeline,
        reads=reads,
        writes=writes,
        status=status,
        trouble=trouble,
        failures=sorted(failures, key=lambda each: each.last, reverse=True),
        made=made,
        head=entries[-1] if entries else None,
        costs=_costs(entries),
        **_picture(entries, status, made),
    )


def _picture(
    entries: Sequence[LedgerEntry], status: Status | None, made: datetime
) -> Mapping[str, Any]:
    nodes = tree(entries)
    lags = [_lag(entry) for entry in entries]
    if status is not None and entries:  # and what waits now
        lags.append(float(status.lag))
    axis = Axis(len(lags) or 1)
    positions = {node.entry.version: index for index, node in enumerate(nodes)}
    marks = [_mark(axis, positions, nodes, node) for node in nodes]
    lowest = max((node.lane for node in nodes), default=0)
    panels: list[Panel] = []

    def top() -> float:
        return panels[-1].bottom + GAP if panels else lane_y(lowest) + 22 + GAP

    panels.append(bars(axis, top(), "Records per second", [_speed(node) for node in nodes]))
    panels.append(bars(axis, top(), "Seconds by phase", [phases_of(e) for e in entries]))
    panels.append(line(axis, top(), "Offsets that still waited (lag)", lags))
    rows = [float(entry.counts.rows_total) for entry in entries]
    panels.append(line(axis, top(), "Rows in the table", rows))
    return {
        "axis": axis,
        "nodes": nodes,
        "marks": marks,
        "panels": panels,
        "panel": PANEL,
        "phases": PHASES,
        "height": panels[-1].bottom + 40,
        "ticks": _ticks(axis, entries),
        "operations": sorted({entry.operation.value for entry in entries}),
        "seconds_of": seconds_of,
        "speed_of": records_per_second,
        "phases_of": phases_of,
        "age": None if status is None or status.age is None else status.age,
        "asked": status is not None,
        "span": _span(entries, made),
    }


def _mark(axis: Axis, positions: Mapping[int, int], nodes: Sequence[Node], node: Node) -> Mark:
    return Mark(
        node,
        axis.x(positions[node.entry.version]),
        lane_y(node.lane),
        edge(axis, positions, nodes, node),
        _reach(axis, positions, nodes, node),
    )


def _reach(axis: Axis, positions: Mapping[int, int], nodes: Sequence[Node], node: Node) -> str:
    version, target = node.entry.version, node.entry.target
    if node.entry.operation is not Operation.REPLAY or target is None or target not in positions:
        return ""
    x0, x1 = axis.x(positions[version]), axis.x(positions[target])
    y0, y1 = lane_y(node.lane) - 6, lane_y(nodes[positions[target]].lane) - 6
    height = min(26.0, 8 + (x0 - x1) / 8)
    return f"M{x0},{y0}C{x0},{y0 - height} {x1},{y1 - height} {x1},{y1}"


def _lag(entry: LedgerEntry) -> float | None:
    """What waited when it was planned; not of a replay, which reads nothing new."""
    lag = entry.counts.costs.lag if entry.counts.costs else None
    return None if lag is None else float(lag)


def _speed(node: Node) -> dict[str, float]:
    return {node.entry.operation.value: records_per_second(node.entry)}


def _ticks(axis: Axis, entries: Sequence[LedgerEntry]) -> list[tuple[float, str, str]]:
    """Where versions and times are written: as many as there is room for."""
    every = max(1, -(-len(entries) // min(_TICKS, max(1, int(axis.width // 120)))))
    return [
        (axis.x(index), str(entry.version), _clock(entry, entries))
        for index, entry in enumerate(entries)
        if index % every == 0
    ]


def _clock(entry: LedgerEntry, entries: Sequence[LedgerEntry]) -> str:
    at, first = (each.committed_at or each.started_at for each in (entry, entries[0]))
    last = entries[-1].committed_at or entries[-1].started_at
    one_day = last - first < timedelta(days=1)
    return f"{at.astimezone(UTC):{'%H:%M:%S' if one_day else '%m-%d %H:%M'}}"


def _span(entries: Sequence[LedgerEntry], made: datetime) -> str:
    if not entries:
        return ""
    first, last = (each.committed_at or each.started_at for each in (entries[0], entries[-1]))
    return f"{_instant(first)} – {_instant(last)}, made {_instant(made)}"


def _costs(entries: Sequence[LedgerEntry]) -> Mapping[str, Spent]:
    sums: defaultdict[str, Spent] = defaultdict(Spent)
    total = Spent()
    for entry in entries:
        sums[entry.operation.value].add(entry)
        total.add(entry)
    return {**sums, "total": total}


def _said(entry: LedgerEntry) -> str:
    """What was done, in words."""
    said = _WORDS.get(entry.operation, entry.operation.value.replace("_", " "))
    origin = entry.details.get("forked_from")
    if entry.operation is Operation.FORK and isinstance(origin, Mapping):
        return f"fork of {origin.get('pipeline')} at version {origin.get('version')}"
    return said.format(entry.target)


def _instant(moment: datetime | None) -> str:
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC" if moment else "–"


def _duration(spent: timedelta | float | None) -> str:
    if spent is None:
        return "–"
    seconds = spent.total_seconds() if isinstance(spent, timedelta) else spent
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours < 48 else f"{hours // 24} d {hours % 24} h"
