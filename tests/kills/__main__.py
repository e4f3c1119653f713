"""``python -m tests.kills``: what ``make correctness`` calls."""

from __future__ import annotations

import argparse
import itertools
import signal
import sys
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
from tests.kills.life import Life
from tests.kills.machine import described
from tests.kills.plan import steps
from tests.kills.report import publish, summary
from tests.kills.world import CONTROLS, SCENARIOS, SCENARIOS_AND_CONTROLS, STATE, World

HISTORIES = STATE / "kills"
#: Steps of a life; it ends earlier when the time is over.
STEPS = 24
#: What a life still does when its time is over: everything is read to the end and compared.
_END_S = 25.0

#: Beyond the time that was asked for: a last life that takes long, servers that start and end.
_GRACE_S = 420.0

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
    run = Run(asked.seed, described())
    try:
        with World() as world:
            _lives(world, run, asked)
    except KeyboardInterrupt:
        say("ended early")
    if asked.figures and run.scenarios:
        figures.keep(asked.figures, [*figures.read(asked.figures), run])
        if (page := asked.figures.with_suffix(".md")).exists():
            publish(page)
    for line in summary([run]):
        say(line)
    sys.exit(_verdict(run))


def _lives(world: World, run: Run, asked: argparse.Namespace) -> None:
    names = chosen(asked.only)
    began = time.monotonic()
    until = began + asked.minutes * 60
    for number, name in order(names, asked.seed):
        if asked.life is not None and number != asked.life:
            if number > asked.life:
                return
            continue
        if time.monotonic() > until - _END_S:
            return
        _life(world, run, name, number, asked.steps, until - _END_S)
        run.minutes = (time.monotonic() - began) / 60
        if sum(len(each.not_tried) for each in run.scenarios.values()) > _NOT_TRIED_MAX:
            say("too much could not be tried: this machine lacks something")
            return


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
    return itertools.chain((turn, names[(turn + seed) % len(names)]) for turn in turns)


def _life(world: World, run: Run, name: str, number: int, count: int, until: float) -> None:
    seed = f"{run.seed}/{name}/{number}"
    said = name.replace(", ", "-").replace(" ", "-")
    folder = HISTORIES / f"seed-{run.seed}" / f"{number:03d}-{said}"
    began, life = time.monotonic(), None
    try:
        target = world.target(name)
        world.heal(target)
        life = Life(world, target, seed, folder)
        life.live(list(steps(seed, count, target.able())), until)
    except TROUBLE as error:
        why = f"life {number}: {type(error).__name__}: {str(error).splitlines()[0][:200]}"
        say(f"  could not be tried to its end: {why}")
        if life is None:
            run.scenarios.setdefault(name, figures.Scenario()).not_tried.append(why)
            return
        life.sums.not_tried.append(why)
    sums = life.sums
    run.add(name, sums)
    found = ", ".join(f"{n} {what.upper()}" for what, n in sums.found.items()) or "as it should be"
    odd = f"; odd: {dict(sums.odd)}" if sums.odd else ""
    say(
        f"{number:3d} {name}: {sums.operations} operations, {sum(sums.kills.values())} kills, "
        f"{sum(sums.faults.values())} other faults, {sums.records} records, "
        f"{time.monotonic() - began:.0f} s: {found}{odd}"
    )
    if sums.found and name not in CONTROLS:
        say(f"    {life.history.file}")
        say(f"    again: python -m tests.kills --seed {run.seed} --life {number}")


def _verdict(run: Run) -> int:
    """1 if something was found, 2 if nothing could be tried."""
    if run.found(SCENARIOS):
        return 1
    return 0 if any(each.lives for each in run.scenarios.values()) else 2


def say(line: str) -> None:
    """On standard output, at once."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
