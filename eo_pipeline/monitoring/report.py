"""The ledger as a tree: what stands is its trunk, what a rewind left behind its branches. Pure."""

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

#: The lane of what stands.
TRUNK = 0


@dataclass(frozen=True)
class Node:
    """One version. ``grew_from`` is the version whose state it began with, None for the first that
    is shown, or for one that grew from a version which is not shown.
    """

    entry: LedgerEntry
    lane: int
    live: bool
    grew_from: int | None


def tree(entries: Sequence[LedgerEntry]) -> list[Node]:
    """A node for each of ``entries``, oldest first.

    Args:
        entries: a stretch of one ledger without a gap, oldest first, that ends at the head.
    """
    shown = {entry.version for entry in entries}
    grew_from = {entry.version: _grew_from(entry, shown) for entry in entries}
    lanes = _lanes(entries, grew_from)
    live = {entry.version for entry in live_branch(entries)}
    return [
        Node(entry, lanes[entry.version], entry.version in live, grew_from[entry.version])
        for entry in entries
    ]


def _grew_from(entry: LedgerEntry, shown: set[int]) -> int | None:
    before = entry.version - 1
    if entry.operation is Operation.REWIND and entry.target is not None:
        before = entry.target
    return before if before in shown else None


def _lanes(entries: Sequence[LedgerEntry], grew_from: dict[int, int | None]) -> dict[int, int]:
    """Each branch has a lane of its own for as long as its lines need it; lanes are used again."""
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
    """The versions that one rewind left behind, oldest first, for each rewind that did."""
    found, live = [], list[int]()
    for entry in entries:
        if entry.operation is Operation.REWIND and entry.target is not None:
            target = entry.target
            left = [version for version in live if version > target]
            live = [version for version in live if version <= target]
            if left:
                found.append(left)
        live.append(entry.version)
    return found


#: In units of the picture, which are pixels at its natural size.
PANEL = 96.0
GAP = 34.0
LANE = 24.0
LEFT = 86.0
RIGHT = 18.0
WIDTH_MIN = 1146.0
STEP_MIN, STEP_MAX = 9.0, 46.0

#: Phases in the order in which they happen; what the ledger does not name is the commit's.
PHASES = ("recover", "plan", "stage", "commit")


@dataclass(frozen=True)
class Bar:
    """A rectangle; ``kind`` says which colour."""

    x: float
    y: float
    width: float
    height: float
    kind: str


@dataclass(frozen=True)
class Panel:
    """One chart: its title, its top, its highest value in words, and its shapes."""

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
    """Where versions stand, left to right."""

    count: int

    @property
    def step(self) -> float:
        room = (WIDTH_MIN - LEFT - RIGHT) / max(1, self.count)
        return min(STEP_MAX, max(STEP_MIN, room))

    @property
    def width(self) -> float:
        return LEFT + RIGHT + self.step * self.count

    def x(self, index: int) -> float:
        """The middle of the version at ``index``."""
        return round(LEFT + self.step * (index + 0.5), 1)


def phases_of(entry: LedgerEntry) -> dict[str, float]:
    """Seconds by phase. The commit's are what is left of the time until the store's clock said
    so; an entry of an earlier release, or one without rows, has no other.
    """
    named = entry.counts.costs.phases_ms if entry.counts.costs else {}
    found = {phase: named.get(phase, 0) / 1_000 for phase in PHASES[:-1]}
    # planned and recovered before it began
    whole = seconds_of(entry) or 0.0
    return {**found, PHASES[-1]: max(0.0, whole - found["stage"])}


def seconds_of(entry: LedgerEntry) -> float | None:
    """From plan to commit, by two clocks; None if one of them does not tell."""
    if entry.committed_at is None:
        return None
    return max(0.0, (entry.committed_at - entry.started_at).total_seconds())


def records_per_second(entry: LedgerEntry) -> float:
    """0 where nothing was read."""
    spent = seconds_of(entry)
    return entry.counts.records / spent if spent else 0.0


def bars(axis: Axis, top: float, title: str, stacks: Sequence[dict[str, float]]) -> Panel:
    """A bar for each version, of parts on top of each other."""
    most = max((sum(stack.values()) for stack in stacks), default=0.0) or 1.0
    width = round(axis.step * 0.72, 1)
    found = []
    for index, stack in enumerate(stacks):
        bottom = top + PANEL
        for kind, value in stack.items():
            height = PANEL * value / most
            if height > 0:
                bottom -= height
                x = axis.x(index) - width / 2
                found.append(Bar(round(x, 1), round(bottom, 1), width, round(height, 1), kind))
    return Panel(title, top, short(most), tuple(found))


def line(axis: Axis, top: float, title: str, values: Sequence[float | None]) -> Panel:
    """A step for each version; where a value is not known, the line has a gap."""
    most = max((value for value in values if value is not None), default=0.0) or 1.0
    half = axis.step / 2
    strokes, areas = [], []
    for index, value in enumerate(values):
        if value is None:
            continue
        x, y = axis.x(index), round(top + PANEL * (1 - value / most), 1)
        joined = index and values[index - 1] is not None
        strokes.append(f"{'L' if joined else 'M'}{x - half:.1f},{y}H{x + half:.1f}")
        areas.append(f"M{x - half:.1f},{top + PANEL}V{y}H{x + half:.1f}V{top + PANEL}Z")
    return Panel(title, top, short(most), (), " ".join(strokes), " ".join(areas))


def edge(axis: Axis, positions: Mapping[int, int], nodes: Sequence[Node], node: Node) -> str:
    """The line from the version that ``node`` grew from; empty if that is not shown."""
    if node.grew_from is None:
        return ""
    before = nodes[positions[node.grew_from]]
    x0, y0 = axis.x(positions[node.grew_from]), lane_y(before.lane)
    x1, y1 = axis.x(positions[node.entry.version]), lane_y(node.lane)
    if y0 == y1:
        return f"M{x0},{y0}H{x1}"
    bend = min(axis.step, x1 - x0)
    if y1 > y0:  # into its own lane at once
        return f"M{x0},{y0}C{x0 + bend / 2},{y0} {x0 + bend / 2},{y1} {x0 + bend},{y1}H{x1}"
    return f"M{x0},{y0}H{x1 - bend}C{x1 - bend / 2},{y0} {x1 - bend / 2},{y1} {x1},{y1}"


def lane_y(lane: int) -> float:
    """The middle of a lane."""
    return 46.0 + LANE * lane


def short(value: float) -> str:
    """``1,230``, ``45 k``, ``3.2 M``; below ten with a decimal."""
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e4)):
        if value >= size:
            scaled = value / (1e3 if unit == "k" else size)
            return f"{scaled:,.{0 if scaled >= 100 or unit == 'k' else 1}f} {unit}"
    if value >= 10 or math.isclose(value, round(value)):
        return f"{value:,.0f}"
    return f"{value:.2g}"


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
