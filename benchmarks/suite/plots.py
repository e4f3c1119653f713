"""Bars with the noise on them, as SVG: the same file for the same figures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import matplotlib as mpl
from matplotlib.figure import Figure as Picture

from benchmarks.suite.results import Results

if TYPE_CHECKING:
    from benchmarks.suite.report import Case

_OURS, _THEIRS = "#1f77b4", "#b0b7bf"


def name(size: str, scenario: str) -> str:
    """The picture's file."""
    return f"bench-{size}-{scenario}.svg"


def draw(
    results: Results,
    size: str,
    folder: Path,
    cases: Callable[[Results, str], Sequence[Case]],
) -> None:
    """A picture for each scenario that has figures."""
    for scenario in results.scenarios:
        found = [case for case in cases(results, scenario) if case.figure]
        if found:
            title = results.scenarios[scenario]["title"]
            _bars(found, title, folder / name(size, scenario))


def _bars(found: Sequence[Case], title: str, file: Path) -> None:
    mpl.rcParams.update({"svg.hashsalt": "bench", "font.size": 9})
    picture = Picture(figsize=(8, 0.9 + 0.3 * len(found)), layout="constrained")
    axes = picture.subplots()
    for place, case in enumerate(found):
        figure = case.figure
        assert figure is not None
        noise = [[figure.median - figure.least], [figure.most - figure.median]]
        colour = _OURS if case.is_ours else _THEIRS
        axes.barh(place, figure.median, xerr=noise, color=colour, ecolor="#444444", capsize=2)
    axes.set_yticks(range(len(found)), [f"{case.peer} ({case.mode})" for case in found])
    axes.invert_yaxis()
    axes.set_xlabel("seconds, median; the line is from the quickest round to the slowest")
    axes.set_title(title, loc="left")
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    picture.savefig(file, metadata={"Date": None})
