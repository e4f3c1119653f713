"""HTML report of a ledger as a tree: the live branch is its trunk, undone versions its branches."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from eo_pipeline.ledger.entry import LedgerEntry, Operation
from eo_pipeline.ledger.history import Spent, live_branch
from eo_pipeline.operations.status import Status
from eo_pipeline.staging.failures import Failures

#: Lane of the live branch.
TRUNK = 0


@dataclass(frozen=True)
class Node:
    """One version. ``grew_from`` is its parent version; None if the parent is not shown."""

    entry: LedgerEntry
    lane: int
    live: bool
    grew_from: int | None


def tree(entries: Sequence[LedgerEntry]) -> list[Node]:
    """Return a node for each of ``entries``, oldest first.

    Args:
        entries: consecutive entries of a ledger, oldest first, the last one the head.
    """
    shown = {entry.version for entry in entries}
    grew_from = {entry.version: _parent_of(entry, shown) for entry in entries}
    lanes = _lanes(entries, grew_from)
    live = {entry.version for entry in live_branch(entries)}
    return [
        Node(entry, lanes[entry.version], entry.version in live, grew_from[entry.version])
        for entry in entries
    ]


def _parent_of(entry: LedgerEntry, shown: set[int]) -> int | None:
    before = entry.version - 1
    if entry.operation is Operation.REWIND and entry.target is not None:
        before = entry.target
    return before if before in shown else None


def _lanes(entries: Sequence[LedgerEntry], grew_from: dict[int, int | None]) -> dict[int, int]:
    """Assign a lane to each branch while its lines need one; lanes are reused."""
    lanes = {entry.version: TRUNK for entry in entries}
    taken: list[int] = []  # the last version of each lane below the trunk
    for branch in _branches(entries):
        root = grew_from[branch[0]]
        first = branch[0] if root is None else root + 1
        free = next((n for n, last in enumerate(taken) if last < first), len(taken))
        taken[free : free + 1] = [branch[-1]]
        lanes |= dict.fromkeys(branch, free + 1)
    return lanes


def _branches(entries: Sequence[LedgerEntry]) -> list[list[int]]:
    """Return the versions undone by each rewind, oldest first."""
    branches, live = [], list[int]()
    for entry in entries:
        if entry.operation is Operation.REWIND and entry.target is not None:
            target = entry.target
            abandoned = [version for version in live if version > target]
            live = [version for version in live if version <= target]
            if abandoned:
                branches.append(abandoned)
        live.append(entry.version)
    return branches


#: Sizes in units of the picture: pixels at its natural size.
PANEL = 96.0
GAP = 34.0
LANE = 24.0
LEFT = 86.0
RIGHT = 18.0
WIDTH_MIN = 1146.0
#: Room for the charts' titles, however few the versions.
TITLES_WIDTH = 520
STEP_MIN, STEP_MAX = 9.0, 46.0

#: Phases in their order; time that the ledger does not attribute belongs to the commit.
PHASES = ("recover", "plan", "stage", "commit")


@dataclass(frozen=True)
class Bar:
    """A rectangle; ``kind`` determines its colour."""

    x: float
    y: float
    width: float
    height: float
    kind: str


@dataclass(frozen=True)
class Panel:
    """One chart: title, top edge, maximum as text, and shapes."""

    title: str
    top: float
    most: str
    bars: tuple[Bar, ...] = ()
    line: str = ""
    area: str = ""

    @property
    def bottom(self) -> float:
        return self.top + PANEL


@dataclass(frozen=True)
class Axis:
    """Horizontal axis of versions."""

    count: int

    @property
    def step(self) -> float:
        room = (WIDTH_MIN - LEFT - RIGHT) / max(1, self.count)
        return min(STEP_MAX, max(STEP_MIN, room))

    @property
    def width(self) -> float:
        return max(TITLES_WIDTH, LEFT + RIGHT + self.step * self.count)

    def x(self, index: int) -> float:
        """Return the centre of the version at ``index``."""
        return round(LEFT + self.step * (index + 0.5), 1)


def phases_of(entry: LedgerEntry) -> dict[str, float]:
    """Return seconds by phase. The commit gets the rest of the time until the store's timestamp; an
    entry of an earlier release, or one without rows, has no other phase.
    """
    recorded = entry.counts.costs.phases_ms if entry.counts.costs else {}
    seconds = {phase: recorded.get(phase, 0) / 1_000 for phase in PHASES[:-1]}
    # the total excludes planning and recovery
    total = seconds_of(entry) or 0.0
    return {**seconds, PHASES[-1]: max(0.0, total - seconds["stage"])}


def seconds_of(entry: LedgerEntry) -> float | None:
    """Return the seconds from plan to commit, by two clocks; None without a commit time."""
    if entry.committed_at is None:
        return None
    return max(0.0, (entry.committed_at - entry.started_at).total_seconds())


def records_per_second(entry: LedgerEntry) -> float:
    """Return records per second; 0 if nothing was read."""
    spent = seconds_of(entry)
    return entry.counts.records / spent if spent else 0.0


def bars(axis: Axis, top: float, title: str, stacks: Sequence[dict[str, float]]) -> Panel:
    """Return a chart with a stacked bar for each version."""
    maximum = max((sum(stack.values()) for stack in stacks), default=0.0) or 1.0
    width = round(axis.step * 0.72, 1)
    shapes = []
    for index, stack in enumerate(stacks):
        bottom = top + PANEL
        for kind, value in stack.items():
            height = PANEL * value / maximum
            if height > 0:
                bottom -= height
                x = axis.x(index) - width / 2
                shapes.append(Bar(round(x, 1), round(bottom, 1), width, round(height, 1), kind))
    return Panel(title, top, short(maximum), tuple(shapes))


def line(axis: Axis, top: float, title: str, values: Sequence[float | None]) -> Panel:
    """Return a chart with a step line over the versions, with gaps for unknown values."""
    maximum = max((value for value in values if value is not None), default=0.0) or 1.0
    half = axis.step / 2
    strokes, areas = [], []
    for index, value in enumerate(values):
        if value is None:
            continue
        x, y = axis.x(index), round(top + PANEL * (1 - value / maximum), 1)
        joined = index and values[index - 1] is not None
        strokes.append(f"{'L' if joined else 'M'}{x - half:.1f},{y}H{x + half:.1f}")
        areas.append(f"M{x - half:.1f},{top + PANEL}V{y}H{x + half:.1f}V{top + PANEL}Z")
    return Panel(title, top, short(maximum), (), " ".join(strokes), " ".join(areas))


def edge(axis: Axis, positions: Mapping[int, int], nodes: Sequence[Node], node: Node) -> str:
    """Return the path from the parent of ``node``; empty if the parent is not shown."""
    if node.grew_from is None:
        return ""
    origin = nodes[positions[node.grew_from]]
    x0, y0 = axis.x(positions[node.grew_from]), lane_y(origin.lane)
    x1, y1 = axis.x(positions[node.entry.version]), lane_y(node.lane)
    if y0 == y1:
        return f"M{x0},{y0}H{x1}"
    bend = min(axis.step, x1 - x0)
    if y1 > y0:  # changes to its own lane at once
        return f"M{x0},{y0}C{x0 + bend / 2},{y0} {x0 + bend / 2},{y1} {x0 + bend},{y1}H{x1}"
    return f"M{x0},{y0}H{x1 - bend}C{x1 - bend / 2},{y0} {x1 - bend / 2},{y1} {x1},{y1}"


def lane_y(lane: int) -> float:
    """Return the centre of a lane."""
    return 46.0 + LANE * lane


def short(value: float) -> str:
    """Format as ``1,230``, ``45 k``, ``3.2 M``; below ten with a decimal."""
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e4)):
        if value >= size:
            scaled = value / (1e3 if unit == "k" else size)
            return f"{scaled:,.{0 if scaled >= 100 or unit == 'k' else 1}f} {unit}"
    if value >= 10 or math.isclose(value, round(value)):
        return f"{value:,.0f}"
    return f"{value:.2g}"


_TEMPLATE = "page.html.jinja"

#: Maximum number of labels below the axis.
_TICKS = 8

_OPERATION_TEXTS = {
    Operation.REWIND: "rewind to {}",
    Operation.REPLAY: "replay of {}",
}


@dataclass(frozen=True)
class Mark:
    """A version in the history chart."""

    node: Node
    x: float
    y: float
    edge: str
    #: path from a replay to the checkpoint whose rows it replaced
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
    """Return the HTML page about ``entries``.

    Args:
        entries: the newest of a ledger, or all, oldest first.
        pipeline: its name.
        reads: the topics, as text.
        writes: the table, as text.
        status: the pipeline's status; None if it is unavailable.
        failures: failed runs.
        trouble: the reason why the status is unavailable.
        now: creation time of the page; by default the current time.
    """
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"instant": _instant, "duration": _duration, "short": short}
    environment.filters |= {"said": _operation_text, "number": lambda value: f"{value:,}"}
    created_at = now or datetime.now(UTC)
    return environment.get_template(_TEMPLATE).render(
        pipeline=pipeline,
        reads=reads,
        writes=writes,
        status=status,
        trouble=trouble,
        failures=sorted(failures, key=lambda failure: failure.last, reverse=True),
        made=created_at,
        head=entries[-1] if entries else None,
        costs=_costs(entries),
        **_picture(entries, status, created_at),
    )


def _picture(
    entries: Sequence[LedgerEntry], status: Status | None, created_at: datetime
) -> Mapping[str, Any]:
    nodes = tree(entries)
    lags = [_lag_before(entry) for entry in entries]
    if status is not None and entries:  # and the current lag
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
    panels.append(
        line(axis, top(), "Unread offsets (lag) before each version; last value: now", lags)
    )
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
        "empty_offsets": sum(entry.offsets_without_record for entry in entries),
        "replayed": sum(e.counts.rows for e in entries if e.operation is Operation.REPLAY),
        "phases_of": phases_of,
        "age": None if status is None or status.age is None else status.age,
        "asked": status is not None,
        "span": _span(entries, created_at),
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


def _lag_before(entry: LedgerEntry) -> float | None:
    """Return the lag at planning; None for a replay, which reads nothing new."""
    return None if entry.lag_before is None else float(entry.lag_before)


def _speed(node: Node) -> dict[str, float]:
    return {node.entry.operation.value: records_per_second(node.entry)}


def _ticks(axis: Axis, entries: Sequence[LedgerEntry]) -> list[tuple[float, str, str]]:
    """Return position, version and time of each label: as many as fit."""
    interval = max(1, -(-len(entries) // min(_TICKS, max(1, int(axis.width // 120)))))
    return [
        (axis.x(index), str(entry.version), _clock(entry, entries))
        for index, entry in enumerate(entries)
        if index % interval == 0
    ]


def _clock(entry: LedgerEntry, entries: Sequence[LedgerEntry]) -> str:
    at, first = (e.committed_at or e.started_at for e in (entry, entries[0]))
    last = entries[-1].committed_at or entries[-1].started_at
    one_day = last - first < timedelta(days=1)
    return f"{at.astimezone(UTC):{'%H:%M:%S' if one_day else '%m-%d %H:%M'}}"


def _span(entries: Sequence[LedgerEntry], created_at: datetime) -> str:
    if not entries:
        return ""
    first, last = (entry.committed_at or entry.started_at for entry in (entries[0], entries[-1]))
    return f"{_instant(first)} – {_instant(last)}, page created {_instant(created_at)}"


def _costs(entries: Sequence[LedgerEntry]) -> Mapping[str, Spent]:
    sums: defaultdict[str, Spent] = defaultdict(Spent)
    total = Spent()
    for entry in entries:
        sums[entry.operation.value].add(entry)
        total.add(entry)
    return {**sums, "total": total}


def _operation_text(entry: LedgerEntry) -> str:
    """Return the operation as text."""
    template = _OPERATION_TEXTS.get(entry.operation, entry.operation.value.replace("_", " "))
    origin = entry.details.get("forked_from")
    if entry.operation is Operation.FORK and isinstance(origin, Mapping):
        return f"fork of {origin.get('pipeline')} at version {origin.get('version')}"
    return template.format(entry.target)


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
