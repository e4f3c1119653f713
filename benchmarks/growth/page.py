"""The part of docs/benchmarks.md about growth; every figure comes from the file beside it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure as Picture

from benchmarks.growth.curves import KEYS, Curve, shape_of, title_of
from benchmarks.suite.report import with_part
from benchmarks.suite.results import write_figures

PART = "growth"


def read(file: Path) -> dict[str, Curve]:
    """The curves measured so far, by key."""
    if not file.exists():
        return {}
    return {key: Curve(**told) for key, told in json.loads(file.read_text())["curves"].items()}


def write(file: Path, curves: Mapping[str, Curve]) -> None:
    """Whole or not at all."""
    write_figures(file, {"curves": {key: asdict(curve) for key, curve in curves.items()}})


def publish(page: Path, file: Path) -> None:
    """Write the generated part of ``page`` anew, and the pictures."""
    curves = read(file)
    ordered = [curves[key] for key in KEYS if key in curves]
    for curve in ordered:
        _draw(curve, page.parent / "images" / _picture(curve))
    page.write_text(with_part(page.read_text(), PART, "\n".join(_lines(ordered))))


def _picture(curve: Curve) -> str:
    return f"bench-growth-{curve.key}.svg"


def _lines(curves: list[Curve]) -> Iterator[str]:
    yield from _machines(curves)
    texts: set[str] = set()
    for curve in curves:
        shape = shape_of(curve.key)
        text = "" if shape.text in texts else f"{shape.text} "  # stores share one
        texts.add(shape.text)
        yield f"\n### {title_of(curve.key)}\n"
        processor = curve.machine.get("processor", "unknown processor")
        yield f"{text}{curve.when}, commit {curve.commit}, {processor}.\n"
        yield f"![{title_of(curve.key)}](images/{_picture(curve)})\n"
        yield f"| {shape.over} | {' | '.join(curve.lines)} |"
        yield f"|---:|{'---:|' * len(curve.lines)}"
        for size in curve.sizes():
            cells = (line.get(f"{size:g}") for line in curve.lines.values())
            yield f"| {size:,.0f} | {' | '.join(map(_shown, cells))} |"


def _machines(curves: list[Curve]) -> Iterator[str]:
    """Each that a curve was measured on, once."""
    for told in dict.fromkeys(tuple(curve.machine.items()) for curve in curves):
        yield "- " + ", ".join(f"{name} {value}" for name, value in told)


def _shown(figure: float | None) -> str:
    """Three digits that say something."""
    if figure is None:
        return "–"
    return f"{figure:,.0f}" if figure >= 100 else f"{figure:.3g}"


def _draw(curve: Curve, file: Path) -> None:
    mpl.rcParams.update({"svg.hashsalt": "bench", "font.size": 9})
    units: dict[str, list[str]] = {}
    for line in curve.lines:
        units.setdefault(line.rpartition(", ")[2] if ", " in line else line, []).append(line)
    picture = Picture(figsize=(8, 2.8), layout="constrained")
    for axes, lines in zip(
        picture.subplots(1, len(units), squeeze=False)[0], units.values(), strict=True
    ):
        for line in lines:
            sizes, figures = zip(*curve.points(line), strict=True)
            axes.plot(sizes, figures, marker="o", label=line)
        axes.set_xscale("log")
        axes.set_ylim(bottom=0)
        axes.set_xlabel(shape_of(curve.key).over)
        axes.legend(frameon=False)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
    picture.suptitle(title_of(curve.key))
    picture.savefig(file, metadata={"Date": None})
