"""Medians, noise and ratios of what was measured."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Figure:
    """The rounds of one case, in seconds."""

    median: float
    least: float
    most: float
    rounds: int

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Figure:
        """Of at least one round."""
        return cls(statistics.median(seconds), min(seconds), max(seconds), len(seconds))

    @property
    def spread(self) -> float:
        """The distance of the slowest round from the quickest, as a share of the median."""
        return (self.most - self.least) / self.median

    def ratio(self, other: Figure) -> float:
        """How many times as long as ``other`` this took: below 1 is faster."""
        return self.median / other.median


def paired_ratio(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """The median over the rounds of ours / theirs: a round's two shared the machine's mood."""
    return statistics.median(a / b for a, b in zip(ours, theirs, strict=True))
