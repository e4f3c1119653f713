"""The part of docs/benchmarks.md about growth; every figure comes from the file beside it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure as Picture

from benchmarks.growth.curves import KEYS, LEDGER, Curve, shape_of, title_of
from benchmarks.suite.report import row_of, with_part
from benchmarks.suite.results import write_figures

PART = "growth"
#: What the page says of a machine; the file has the versions of all programs.
_MACHINE = ("cores", "processor", "memory", "system")


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
    ledgers = [curve for curve in curves if shape_of(curve.key) is LEDGER]
    if ledgers:
        yield from _ledgers(ledgers)
    for curve in curves:
        if curve not in ledgers:
            yield from _table(curve)


def _table(curve: Curve) -> Iterator[str]:
    shape = shape_of(curve.key)
    yield f"\n### {title_of(curve.key)}\n"
    yield f"{shape.text} {_origin(curve)}. [Picture](images/{_picture(curve)}).\n"
    yield f"| {shape.over} | {' | '.join(curve.lines)} |"
    yield f"|---:|{'---:|' * len(curve.lines)}"
    for size in curve.sizes():
        cells = (line.get(f"{size:g}") for line in curve.lines.values())
        yield f"| {size:,.0f} | {' | '.join(map(_shown, cells))} |"


def _ledgers(curves: list[Curve]) -> Iterator[str]:
    """Return one table: a row for each store and line, a column for each length."""
    sizes = sorted({size for curve in curves for size in curve.sizes()})
    days = dict.fromkeys(curve.when.partition(" ")[0] for curve in curves)
    yield f"\n### {LEDGER.title}\n"
    yield f"{LEDGER.text} {', '.join(days)}.\n"
    yield f"| store | ms | {' | '.join(f'{size:,.0f}' for size in sizes)} |"
    yield f"|---|---|{'---:|' * len(sizes)}"
    for curve in curves:
        name = f"[{_store(curve)}](images/{_picture(curve)})"
        for line, figures in curve.lines.items():
            if line == "recover":  # a part of "nothing new"
                continue
            cells = (_shown(figures.get(f"{size:g}")) for size in sizes)
            yield row_of(name, line, *cells)
            name = ""


def _store(curve: Curve) -> str:
    return curve.key.removeprefix("ledger-")


def _origin(curve: Curve) -> str:
    processor = curve.machine.get("processor", "unknown processor")
    return f"{curve.when}, commit {curve.commit}, {processor}"


def _machines(curves: list[Curve]) -> Iterator[str]:
    """Each that a curve was measured on, once."""
    for told in dict.fromkeys(tuple(curve.machine.items()) for curve in curves):
        yield "- " + ", ".join(f"{name} {value}" for name, value in told if name in _MACHINE)


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
