"""``python -m benchmarks.suite``: what ``make bench`` and ``make bench-quick`` call."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.suite import machine
from benchmarks.suite.catalogue import TITLES, scenarios, who
from benchmarks.suite.errors import PeerMissingError
from benchmarks.suite.peers.peer import Peer
from benchmarks.suite.report import publish
from benchmarks.suite.results import Measurement, Results
from benchmarks.suite.room import ROOT, STATE, Room
from benchmarks.suite.scenarios import Scenario, say

PAGE = ROOT / "docs" / "benchmarks.md"


@dataclass(frozen=True)
class Size:
    """How much is measured; ``minutes`` is the most that all of it may take."""

    name: str
    records: int
    rounds: int
    steps: int
    repeats: int
    minutes: float
    step_s: float

    @property
    def file(self) -> Path:
        """The results, beside the page."""
        return PAGE.parent / f"benchmarks-{self.name}.json"


FULL = Size("full", 2_000_000, rounds=3, steps=7, repeats=1, minutes=100, step_s=240)
QUICK = Size("quick", 300_000, rounds=3, steps=5, repeats=1, minutes=9.3, step_s=60)


def main() -> None:
    """Measure, and write the page after every round."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.suite", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer records, under ten minutes")
    parser.add_argument("--records", type=int)
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--minutes", type=float, help="the most that all of it may take")
    parser.add_argument("--only", nargs="+", help="scenarios, by key")
    parser.add_argument("--peers", nargs="+", default=[], help="those with these words in the name")
    parser.add_argument("--results", type=Path, help="where to write; the page is left alone")
    parser.add_argument("--page", action="store_true", help="write the page anew, measure nothing")
    asked = parser.parse_args()
    if asked.page:
        publish(PAGE)
        return
    size = QUICK if asked.quick else FULL
    size = Size(
        size.name,
        asked.records or size.records,
        asked.rounds or size.rounds,
        size.steps,
        size.repeats,
        asked.minutes or size.minutes,
        size.step_s,
    )
    with Room(STATE / "bench", size.minutes * 60, size.step_s) as room:
        Suite(room, size, asked.results).run(asked.only, asked.peers)


class Suite:
    """One run of all."""

    def __init__(self, room: Room, size: Size, file: Path | None) -> None:
        self._room = room
        self._size = size
        self._file = file or size.file
        self._page = file is None
        self.results = Results(
            machine=machine.described(room),
            asked={"size": size.name, "records": size.records, "rounds": size.rounds},
        )

    def run(self, only: Sequence[str] | None, words: Sequence[str]) -> None:
        """Every scenario, then every scenario again."""
        found = [
            scenario
            for scenario in scenarios(self._room, self._size.records, self._size.steps, self._note)
            if not only or scenario.key in only
        ]
        for scenario in found:
            wanted = [
                peer
                for peer in scenario.peers
                if not words or any(word.lower() in peer.name.lower() for word in words)
            ]
            scenario.peers = [peer for peer in wanted if self._installed(peer)]
        for number in range(self._size.rounds):
            for scenario in found:
                self._round(scenario, number)
        say(f"{self._file}: {len(self.results.measurements)} measurements")

    def _round(self, scenario: Scenario, number: int) -> None:
        if not scenario.peers or self._room.left < 40:
            return
        title, _ = TITLES[scenario.key]
        say(f"{title}, round {number + 1}; {self._room.left:.0f} s left")
        scenario.round(number)
        self.results.write(self._file)
        if self._page:
            publish(PAGE)

    def _note(self, entry: Measurement) -> None:
        title, text = TITLES[entry.scenario]
        self.results.scenarios.setdefault(entry.scenario, {"title": title, "text": text})
        self.results.measurements.append(entry)
        self.results.write(self._file)

    def _installed(self, peer: Peer) -> bool:
        """Whether it is here; if not, the page says why."""
        if peer.name in self.results.missing:
            return False
        try:
            peer.install()
        except PeerMissingError as error:
            self.results.missing[peer.name] = str(error)
            say(f"missing: {peer.name}: {error}")
            return False
        self.results.peers[peer.name] = who(peer)
        return True


if __name__ == "__main__":
    main()
