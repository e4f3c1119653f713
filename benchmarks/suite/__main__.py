"""``python -m benchmarks.suite``: what ``make bench`` and ``make bench-quick`` call."""

from __future__ import annotations

import argparse
import signal
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from pathlib import Path

from benchmarks.suite import machine
from benchmarks.suite.catalogue import TITLES, scenarios, who
from benchmarks.suite.errors import PeerMissingError
from benchmarks.suite.peers.peer import Peer
from benchmarks.suite.report import OURS, publish, ratios
from benchmarks.suite.results import Measurement, Results
from benchmarks.suite.room import ROOT, STATE, Room
from benchmarks.suite.scenarios import Scenario, say
from benchmarks.suite.workloads.all import WORKLOADS
from benchmarks.suite.workloads.plain import PLAIN, RAW

PAGE = ROOT / "docs" / "benchmarks.md"


@dataclass(frozen=True)
class Size:
    """How much is measured; ``minutes`` is the most that all of it may take."""

    name: str
    records: int
    rounds: int
    steps: int
    minutes: float
    step_s: float

    @property
    def file(self) -> Path:
        """The results, beside the page."""
        return PAGE.parent / f"benchmarks-{self.name}.json"


FULL = Size("full", 2_000_000, rounds=3, steps=7, minutes=480, step_s=240)
QUICK = Size("quick", 300_000, rounds=3, steps=5, minutes=9.3, step_s=60)

#: What a quick run takes first, one after the other, until its time is over; of the workloads one
#: a day.
QUICKLY = ("cold", "small", "warm", "TODAY", "small-200", "small-cold", "cold", "raw", "warm")


def quickly(today: date) -> Sequence[str]:
    """The scenarios of a quick run, in their order."""
    turn = WORKLOADS[today.toordinal() % len(WORKLOADS)].key
    of_today = [f"{turn}-{mode}" for mode in ("cold", "warm")]
    return [key for each in QUICKLY for key in (of_today if each == "TODAY" else [each])]


def main() -> None:
    """Measure, and write the page after every round."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.suite", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer records, under ten minutes")
    parser.add_argument("--records", type=int)
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--minutes", type=float, help="the most that all of it may take")
    parser.add_argument("--only", nargs="+", help="scenarios, or workloads, by key")
    parser.add_argument("--peers", nargs="+", default=[], help="those with these words in the name")
    parser.add_argument("--results", type=Path, help="where to write; the page is left alone")
    parser.add_argument("--install", action="store_true", help="only what is needed, no figures")
    parser.add_argument("--page", action="store_true", help="write the page anew, measure nothing")
    asked = parser.parse_args()
    if asked.page:
        publish(PAGE)
        return
    size = QUICK if asked.quick else FULL
    size = replace(
        size,
        records=asked.records or size.records,
        rounds=asked.rounds or size.rounds,
        minutes=asked.minutes or size.minutes,
    )
    # so that servers and peers are ended, as by Ctrl-C
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with Room(STATE / "bench", size.minutes * 60, size.step_s) as room:
        suite = Suite(room, size, asked.results)
        suite.prepare(asked.only, asked.peers)
        if not asked.install:
            suite.run()
            sys.exit(suite.verdict())


class Suite:
    """One run of all."""

    def __init__(self, room: Room, size: Size, file: Path | None) -> None:
        self._room = room
        self._size = size
        self._file = file or size.file
        self._page = file is None
        self._begun: list[str] = []
        # the page keeps what other runs measured
        self.results = Results.read(size.file) if self._page and size.file.exists() else Results()
        self.results.machine = machine.described(room)
        self.results.missing.clear()

    def prepare(self, only: Sequence[str] | None, words: Sequence[str]) -> None:
        """Choose, and install what is chosen."""
        every = scenarios(self._room, self._size.records, self._size.steps, self._note)
        order = [scenario.key for scenario in every] * self._size.rounds
        if self._size.name == QUICK.name:
            order = [*quickly(datetime.now(UTC).date())]
        if only:
            chosen = [each.key for each in every if {each.key, each.group} & {*only}]
            # a quick run leaves out what is not of today, unless somebody asks for it
            order = [key for key in order if key in chosen]
            order += [key for key in chosen if key not in order] * self._size.rounds
        self._order = order
        self._scenarios = [scenario for scenario in every if scenario.key in order]
        for scenario in self._scenarios:
            wanted = [
                peer
                for peer in scenario.peers
                if not words or any(word.lower() in peer.name.lower() for word in words)
            ]
            scenario.peers = [peer for peer in wanted if self._installed(peer)]

    def run(self) -> None:
        """Every scenario, then every scenario again; until the time is over."""
        known = {scenario.key: scenario for scenario in self._scenarios}
        done: Counter[str] = Counter()
        for key in self._order:
            if done[key] < self._size.rounds:
                self._round(known[key], done[key])
                done[key] += 1
        for line in ratios(self.results, self._begun):
            say(line)
        say(f"{self._file}: {len(self.results.measurements)} measurements")

    def verdict(self) -> int:
        """1 if one of our own runs failed or was not exact."""
        ran = [each for each in self.results.measurements if each.scenario in self._begun]
        faults = [each for each in ran if each.fault]
        for each in faults:
            say(f"{each.scenario}: {each.peer} ({each.mode}): {each.fault}")
        return int(any(each.peer.startswith(OURS) for each in faults))

    def _round(self, scenario: Scenario, number: int) -> None:
        if not scenario.peers or self._room.left < scenario.least:
            return
        title, _ = TITLES[scenario.key]
        say(f"{title}, round {number + 1}; {self._room.left:.0f} s left")
        scenario.round(number)
        self.results.write(self._file)
        if self._page:
            publish(PAGE)

    def _note(self, entry: Measurement) -> None:
        if entry.scenario not in self._begun:
            self._begun.append(entry.scenario)
            title, text = TITLES[entry.scenario]
            day, commit = self.results.machine["date"].split()[0], self.results.machine["commit"]
            self.results.begin(
                entry.scenario, {"title": title, "text": text, "day": day, "commit": commit}
            )
        self.results.measurements.append(entry)
        self.results.write(self._file)

    def _installed(self, peer: Peer) -> bool:
        """Whether it is here; if not, the page says why."""
        name = peer.name
        # one that lacks a format's jars can do all the rest
        if peer.workload.key not in (PLAIN.key, RAW.key):
            name = f"{name}, {peer.workload.key}"
        if name in self.results.missing:
            return False
        try:
            peer.install()
        except PeerMissingError as error:
            self.results.missing[name] = str(error)
            say(f"missing: {name}: {error}")
            return False
        self.results.peers[peer.name] = who(peer)
        return True


if __name__ == "__main__":
    main()
