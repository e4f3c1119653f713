"""``python -m tests.kills``: what ``make correctness`` calls."""

from __future__ import annotations

import argparse
import itertools
import signal
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import psycopg
import pymysql
import redis
from confluent_kafka import KafkaException

from eo_pipeline.errors import SetupError
from tests.kills import figures
from tests.kills.figures import Run
from tests.kills.life import Life, Sums
from tests.kills.machine import described
from tests.kills.plan import steps
from tests.kills.report import publish, summary
from tests.kills.world import CONTROLS, SCENARIOS, SCENARIOS_AND_CONTROLS, STATE, World

HISTORIES = STATE / "kills"
#: Steps of a life; it ends earlier when the time is over.
STEPS = 24
#: What a life still does when its time is over: everything is read to the end and compared.
_END_S = 60.0

#: Beyond the time that was asked for: a last life that takes long, servers that start and end.
_GRACE_S = 420.0

#: How far apart two seeds begin: short runs of consecutive seeds together get to every store.
_STRIDE = 11

#: A machine on which so often something is missing is no place for it.
_NOT_TRIED_MAX = 40

#: What of the world around a life may fail: the life then says nothing, neither good nor bad.
TROUBLE = (
    KafkaException,
    OSError,
    SetupError,
    TimeoutError,
    psycopg.Error,
    pymysql.MySQLError,
    redis.RedisError,
)


def main() -> None:
    """Lives, one after the other, until the time is over. 1: something was found."""
    parser = argparse.ArgumentParser(prog="python -m tests.kills", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", nargs="+", default=[], help="scenarios with these words in them")
    parser.add_argument("--life", type=int, help="this one alone: as it was drawn in such a run")
    parser.add_argument("--lanes", type=int, default=4, help="lives at the same time")
    parser.add_argument("--steps", type=int, default=STEPS, help="of a life")
    parser.add_argument("--figures", type=Path, help="add to this file, and to the page beside it")
    parser.add_argument("--page", type=Path, help="write its figures anew; measures nothing")
    asked = parser.parse_args()
    if asked.page:
        publish(asked.page)
        return
    # so that servers are ended, as by Ctrl-C
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # whatever hangs: what was found until then is said
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.alarm(int(asked.minutes * 60 + _GRACE_S))
    run, began = Run(asked.seed, described()), time.monotonic()
    with World() as world:
        lanes = _Lanes(world, run, asked, began)
        try:
            lanes.go()
        except KeyboardInterrupt:
            lanes.end()
            say("ended early")
    if asked.figures and (page := asked.figures.with_suffix(".md")).exists():
        publish(page)
    for line in summary([run]):
        say(line)
    sys.exit(_verdict(run))


class _Lanes:
    """Several lives at the same time, on different stores. They share broker and Spark: who kills
    one of these does it to all.
    """

    def __init__(self, world: World, run: Run, asked: argparse.Namespace, began: float) -> None:
        self._world, self._run, self._asked, self._began = world, run, asked, began
        self._until = self._began + asked.minutes * 60 - _END_S
        self._order = order(chosen(asked.only), asked.seed)
        self._lock = threading.Lock()
        self._busy: set[str] = set()
        self._ended = False

    def end(self) -> None:
        """What lives see from now on, whose servers are ended, counts no more."""
        with self._lock:
            self._ended = True

    def go(self) -> None:
        """Until the time is over, or too much could not be tried."""
        # not waited for where this program is interrupted
        lanes = [threading.Thread(target=self._lane, daemon=True) for _ in range(self._asked.lanes)]
        for lane in lanes:
            lane.start()
        for lane in lanes:
            lane.join()

    def _lane(self) -> None:
        while (drawn := self._next()) is not None:
            number, name = drawn
            sums = _life(self._world, self._run.seed, name, number, self._asked.steps, self._until)
            with self._lock:
                if self._ended:
                    return
                self._busy.discard(name)
                self._run.add(name, sums)
                self._run.minutes = (time.monotonic() - self._began) / 60
                if self._asked.figures:  # what was seen is kept, whatever comes
                    figures.add(self._asked.figures, self._run)

    def _next(self) -> tuple[int, str] | None:
        with self._lock:
            if time.monotonic() > self._until or self._too_little():
                return None
            for number, name in self._order:
                if self._asked.life is not None and number > self._asked.life:
                    return None
                if self._asked.life in (None, number) and name not in self._busy:
                    self._busy.add(name)
                    return number, name
                if len(self._busy) >= len(chosen(self._asked.only)):
                    return None
            return None

    def _too_little(self) -> bool:
        found = sum(len(each.not_tried) for each in self._run.scenarios.values())
        if found > _NOT_TRIED_MAX:
            say("too much could not be tried: this machine lacks something")
        return found > _NOT_TRIED_MAX


def chosen(words: Sequence[str]) -> list[str]:
    """Every scenario; or those, controls too, whose name has one of the ``words``."""
    if not words:
        return [*SCENARIOS_AND_CONTROLS]
    lower = [word.lower() for word in words]
    return [n for n in SCENARIOS_AND_CONTROLS if any(w in n.lower() for w in lower)]


def order(names: Sequence[str], seed: int) -> itertools.chain[tuple[int, str]]:
    """Number and scenario of each life, one scenario after the other; another one begins for
    another seed, so that short runs together get to all.
    """
    turns = itertools.count()
    return itertools.chain((turn, names[(turn + seed * _STRIDE) % len(names)]) for turn in turns)


def _life(world: World, seed: int, name: str, number: int, count: int, until: float) -> Sums:
    said = name.replace(", ", "-").replace(" ", "-")
    folder = HISTORIES / f"seed-{seed}" / f"{number:03d}-{said}"
    began, life, sums = time.monotonic(), None, Sums()
    try:
        target = world.target(name)
        world.heal(target)
        life = Life(world, target, f"{seed}/{name}/{number}", folder)
        sums = life.sums
        life.live(list(steps(life.seed, count, target.able())), until)
    except TROUBLE as error:
        why = f"life {number}: {type(error).__name__}: {str(error).splitlines()[0][:200]}"
        say(f"  could not be tried to its end: {why}")
        sums.not_tried.append(why)
    found = ", ".join(f"{n} {what.upper()}" for what, n in sums.found.items()) or "as it should be"
    odd = f"; odd: {dict(sums.odd)}" if sums.odd else ""
    say(
        f"{number:3d} {name}: {sums.operations} operations, {sum(sums.kills.values())} kills, "
        f"{sum(sums.faults.values())} other faults, {sums.records} records, "
        f"{time.monotonic() - began:.0f} s: {found}{odd}"
    )
    if sums.found and name not in CONTROLS:
        say(f"    {folder}")
        say(f"    again: python -m tests.kills --seed {seed} --life {number}")
    return sums


def _verdict(run: Run) -> int:
    """1 if something was found, 2 if nothing could be tried."""
    if run.found(SCENARIOS):
        return 1
    return 0 if any(each.operations for each in run.scenarios.values()) else 2


def say(line: str) -> None:
    """On standard output, at once."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
