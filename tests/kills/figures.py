"""The sums of every run of the program, in one JSON file; a further run is added to it."""

from __future__ import annotations

import fcntl
import json
import os
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from tests.kills.life import Sums

#: What a scenario is said to have shown, worst first.
FOUND = ("lost", "doubled", "wrong", "stuck")


@dataclass
class Scenario(Sums):
    """All lives of a run, or of all runs, on one store in one mode."""

    lives: int = 0

    def add(self, sums: Sums) -> None:
        """One more life, or those of another run."""
        self.lives += sums.lives if isinstance(sums, Scenario) else 1
        for name in ("operations", "records", "looks", "rows"):
            setattr(self, name, getattr(self, name) + getattr(sums, name))
        for name in ("kills", "faults", "odd", "found"):
            getattr(self, name).update(getattr(sums, name))
        self.not_tried += sums.not_tried

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        made = cls()
        for name, value in values.items():
            setattr(made, name, Counter(value) if isinstance(value, dict) else value)
        return made


@dataclass
class Run:
    """One call of the program."""

    seed: int
    machine: Mapping[str, str]
    minutes: float = 0.0
    scenarios: dict[str, Scenario] = field(default_factory=dict)

    def add(self, name: str, sums: Sums) -> None:
        self.scenarios.setdefault(name, Scenario()).add(sums)

    def found(self, among: Iterable[str]) -> Counter[str]:
        """What was wrong in these scenarios."""
        total: Counter[str] = Counter()
        for name in among:
            if name in self.scenarios:
                total.update(self.scenarios[name].found)
        return +total

    def to_json(self) -> dict[str, Any]:
        told = {name: vars(scenario) for name, scenario in self.scenarios.items()}
        return {
            "seed": self.seed,
            "minutes": round(self.minutes, 1),
            "machine": dict(self.machine),
            "scenarios": told,
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        told = {name: Scenario.from_json(each) for name, each in values["scenarios"].items()}
        return cls(values["seed"], values["machine"], values["minutes"], told)


def read(file: Path) -> list[Run]:
    """All runs that were kept; none where there is no file."""
    return [Run.from_json(each) for each in json.loads(file.read_text())] if file.exists() else []


def keep(file: Path, runs: Iterable[Run]) -> None:
    """Write them all, whole or not at all."""
    fresh = file.with_suffix(".new")
    fresh.write_text(json.dumps([run.to_json() for run in runs], indent=1) + "\n")
    os.replace(fresh, file)


def add(file: Path, run: Run) -> None:
    """Keep ``run`` among the others, in the place of what was kept of it before."""
    with file.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        own = (run.seed, run.machine["date"])
        others = [each for each in read(file) if (each.seed, each.machine["date"]) != own]
        keep(file, [*others, run])
    file.with_suffix(".lock").unlink(missing_ok=True)


def together(runs: Iterable[Run]) -> dict[str, Scenario]:
    """The sums over all runs, by scenario."""
    total: dict[str, Scenario] = {}
    for run in runs:
        for name, scenario in run.scenarios.items():
            total.setdefault(name, Scenario()).add(scenario)
    return total
