"""Which curves there are, and over which sizes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from benchmarks.growth import ledger


class Shape(NamedTuple):
    """What a curve is, for the page: ``over`` what it is drawn; one picture for each unit."""

    title: str
    over: str
    text: str
    sizes: Sequence[int]


LEDGER = Shape(
    "A ledger's length",
    "versions",
    "Checkpoints of one row each, without Kafka and Spark, by the ledger's versions: a run that "
    "finds nothing new (connect, recover, compare), and a commit; medians of nine.",
    (10, 100, 1_000, 10_000),
)

RUNS = {
    "partitions": Shape(
        "Partitions",
        "partitions",
        "A warm run into Delta: 8,000 new records, or one for each partition where there are more.",
        (8, 100, 1_000, 10_000),
    ),
    "records": Shape(
        "Records of a run",
        "million records",
        "A warm run into Delta: seconds for each million records of 200 bytes, and peak memory of "
        "the process and of Spark's server.",
        (1, 2, 5, 10, 20),
    ),
    "columns": Shape(
        "Columns",
        "columns",
        "A warm run of 50,000 records into Delta: microseconds for each record.",
        (1, 10, 50, 100, 200),
    ),
    "bytes": Shape(
        "Bytes of a record",
        "bytes",
        "A warm run of 200 MB into Delta: two columns, most of it one text.",
        (100, 1_000, 1_200, 10_000, 100_000),
    ),
}

#: On a cluster, whose executors have a core each.
DRIVER = {
    "executors": Shape(
        "Executors",
        "executors",
        "A warm checkpoint of 600,000 records of 200 bytes in 16 partitions, into Delta in a "
        "bucket: what it costs the pipeline's process and Spark's driver.",
        (1, 2, 4, 8),
    ),
    "files": Shape(
        "Staged files",
        "files",
        "A warm checkpoint of 80,000 records of 200 bytes in 1,000 partitions, by two executors "
        "that say they have so many cores: a file for each.",
        (1, 10, 100, 1_000),
    ),
}

_SHAPES = {**RUNS, **DRIVER}

KEYS = (*(f"ledger-{sink}" for sink in ledger.SINKS), *_SHAPES)


def shape_of(key: str) -> Shape:
    """Of one of :data:`KEYS`."""
    return _SHAPES.get(key, LEDGER)


def title_of(key: str) -> str:
    """The heading of one of :data:`KEYS`."""
    return (
        _SHAPES[key].title if key in _SHAPES else f"{LEDGER.title}: {key.removeprefix('ledger-')}"
    )


@dataclass
class Curve:
    """Lines over one size: ``lines[name][size]`` is a figure in what the name says."""

    key: str
    when: str
    commit: str
    #: What it was measured on: curves are measured on different days, and machines.
    machine: dict[str, str] = field(default_factory=dict)
    lines: dict[str, dict[str, float]] = field(default_factory=dict)

    def add(self, line: str, size: float, figure: float) -> None:
        """One more point; the same size anew takes the old one's place."""
        self.lines.setdefault(line, {})[f"{size:g}"] = float(f"{figure:.4g}")

    def points(self, line: str) -> Iterator[tuple[float, float]]:
        """By size."""
        yield from sorted((float(size), figure) for size, figure in self.lines[line].items())

    def sizes(self) -> Sequence[float]:
        """That any line has a point of."""
        return sorted({float(size) for line in self.lines.values() for size in line})
