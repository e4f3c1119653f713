"""What was measured, on what: one JSON file, written anew after every measurement."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

from eo_pipeline.storage.paths import replace_file


def write_figures(file: Path, told: Mapping[str, Any]) -> None:
    """As JSON that a person can read; whole or not at all."""
    replace_file(file, json.dumps(told, indent=1, ensure_ascii=False) + "\n")


@dataclass(frozen=True)
class Measurement:
    """One run of one peer.

    ``seconds`` is None if there is no figure; ``fault`` then says why. A figure counts only if the
    output was exact, which is what no fault means.
    """

    scenario: str
    peer: str
    store: str
    mode: str
    round: int
    records: int
    seconds: float | None
    fault: str = ""


@dataclass
class Results:
    """The newest figures of each scenario, of one run or of several, and the newest run's
    ``machine``. ``scenarios`` and ``peers`` hold what the page says about them.
    """

    machine: Mapping[str, str] = field(default_factory=dict)
    scenarios: dict[str, Mapping[str, str]] = field(default_factory=dict)
    peers: dict[str, Mapping[str, str]] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    measurements: list[Measurement] = field(default_factory=list)

    @classmethod
    def read(cls, file: Path) -> Self:
        """As :meth:`write` left them."""
        held = json.loads(file.read_text())
        held["measurements"] = [Measurement(**each) for each in held["measurements"]]
        return cls(**held)

    def begin(self, scenario: str, told: Mapping[str, str]) -> None:
        """Have ``scenario`` measured anew, by this run; its older figures go."""
        self.scenarios[scenario] = told
        self.measurements = [each for each in self.measurements if each.scenario != scenario]

    def write(self, file: Path) -> None:
        """Whole or not at all."""
        write_figures(file, asdict(self))

    def seconds(self, scenario: str, peer: str, mode: str) -> Sequence[float]:
        """The figures of one case, a round each."""
        return [
            each.seconds
            for each in self.measurements
            if (each.scenario, each.peer, each.mode) == (scenario, peer, mode)
            and each.seconds is not None
        ]

    def faults(self, scenario: str, peer: str, mode: str) -> Sequence[str]:
        """Why a case has fewer figures than rounds."""
        return [
            each.fault
            for each in self.measurements
            if (each.scenario, each.peer, each.mode) == (scenario, peer, mode) and each.fault
        ]
