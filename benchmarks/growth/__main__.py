"""``python -m benchmarks.growth``: what ``make bench-growth`` calls."""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.growth import cluster, ledger, runs
from benchmarks.growth.curves import DRIVER, KEYS, RUNS, Curve, shape_of
from benchmarks.growth.page import publish, read, write
from benchmarks.growth.runs import Point, Runs
from benchmarks.suite import machine

PAGE = Path(__file__).parents[2] / "docs" / "benchmarks.md"
FILE = PAGE.parent / "benchmarks-growth.json"

_MEASURES: Mapping[str, Callable[[Runs, Sequence[int], int], Iterator[Point]]] = {
    "partitions": runs.partitions,
    "records": runs.records,
    "columns": runs.columns,
    "bytes": runs.record_bytes,
}

_COSTS: Mapping[str, Callable[[Sequence[int], int], Iterator[Point]]] = {
    "executors": cluster.executors,
    "files": cluster.files,
}


def main() -> None:
    """Measure, and write the page after every curve."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.growth", description=__doc__)
    parser.add_argument("--only", nargs="+", choices=KEYS, default=KEYS, help="these curves alone")
    parser.add_argument("--sizes", type=int, nargs="+", help="instead of the curves' own")
    parser.add_argument("--rounds", type=int, default=3, help="of each size of runs")
    parser.add_argument("--seconds", type=float, default=240, help="the most for a ledger")
    parser.add_argument("--page", action="store_true", help="write the page anew, measure nothing")
    asked = parser.parse_args()
    if not asked.page:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
        _measure(asked)
    publish(PAGE, FILE)


def _measure(asked: argparse.Namespace) -> None:
    curves = read(FILE)
    with ExitStack() as stack:
        warm: Runs | None = None
        for key in asked.only:
            sizes = asked.sizes or shape_of(key).sizes
            if key in RUNS:
                warm = warm or stack.enter_context(runs.opened())
                found = _MEASURES[key](warm, sizes, asked.rounds)
            elif key in DRIVER:
                found = _COSTS[key](sizes, asked.rounds)
            else:
                found = _of_ledger(key, sizes, asked.seconds)
            curves[key] = _drawn(key, found)
            write(FILE, curves)


def _of_ledger(key: str, sizes: Sequence[int], seconds: float) -> Iterator[Point]:
    with tempfile.TemporaryDirectory(prefix="eo-growth-") as folder:
        sink = key.removeprefix("ledger-")
        yield from ledger.measure(sink, sizes, Path(folder), seconds)


def _drawn(key: str, points: Iterator[Point]) -> Curve:
    when = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    curve = Curve(key, when, machine.commit(), dict(machine.here()))
    for line, size, figure in points:
        sys.stdout.write(f"{key:<16} {size:>8} {line}: {figure:.4g}\n")
        sys.stdout.flush()
        curve.add(line, size, figure)
    return curve


if __name__ == "__main__":
    main()
