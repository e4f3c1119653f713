"""Numbers over versions as shapes: where each bar and line lies. Pure; the page gives them colour.

All panels share one axis, the versions, so that a slow checkpoint is found above and below.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from eo_pipeline.ledger.entry import LedgerEntry
from eo_pipeline.report.tree import Node

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
