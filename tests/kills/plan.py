"""A life's plan, drawn from a seed before anything happens: the same seed, the same plan.

A moment is given in two ways. At a *named point* of a checkpoint's life the process kills itself:
that is the same in every repetition. A *random moment* is a share of the time that an operation of
its kind took lately: the share is the same again, what the process does at that moment is not.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator
from dataclasses import asdict, dataclass
from typing import Any

from eo_pipeline.crashpoints import CrashPoint

#: How often each, of all; those that a store cannot have are left out of the draw.
FAULTS = {
    "none": 4,
    "kill": 46,
    "kill at a point": 20,
    "freeze": 5,
    "race": 4,
    "kill the store": 9,
    "kill the broker": 4,
    "kill Spark": 1,
    "lose a reply": 5,
    "fill the disk": 2,
    "turn the clock": 3,
}
OPERATIONS = {"run": 70, "rewind": 9, "replay": 12, "fork": 3, "add partitions": 4, "maintain": 6}
#: Which points an operation passes, where that is not all of them.
_POINTS = {
    "rewind": (CrashPoint.ROWS_SENT, CrashPoint.ENTRY_SENT, CrashPoint.COMMITTED),
    "replay": tuple(CrashPoint)[2:8],
    "fork": (CrashPoint.ENTRY_SENT, CrashPoint.COMMITTED),
}
#: What takes rows back, or begins elsewhere.
GOING_BACK = frozenset({"rewind", "replay", "fork"})
PARTITIONS, PARTITIONS_MAX = 3, 8
FORKS_MAX = 2


@dataclass(frozen=True)
class Step:
    """Records are written, an operation begins, a fault hits it, records are written meanwhile."""

    operation: str
    fault: str
    records: int
    meanwhile: int
    #: the moment, as a share of the usual time
    share: float
    #: which checkpoint a rewind, replay or fork aims at, as a share of those there are
    aim: float
    point: CrashPoint
    nth: int
    rev: int
    #: how many a run is to make of what there is to read
    checkpoints: int
    files: bool
    #: whether a run stages the next checkpoint while it commits one
    overlap: bool
    hours: int
    after_the_request: bool

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Abilities:
    """What can be done with a store, and to it."""

    faults: Collection[str]
    operations: Collection[str]


def steps(seed: str, count: int, able: Abilities) -> Iterator[Step]:
    """``count`` steps of the life that ``seed`` names."""
    # of its own, so that a seed's other draws are those that they always were
    chance, overlaps = random.Random(seed), random.Random(f"{seed}/overlap")
    forks, partitions = 0, PARTITIONS
    for number in range(count):
        operation = _draw(chance, OPERATIONS, able.operations)
        if (operation == "fork" and forks == FORKS_MAX) or number < 2:
            operation = "run"
        if operation == "add partitions" and partitions == PARTITIONS_MAX:
            operation = "run"
        forks += operation == "fork"
        partitions += operation == "add partitions"
        fault = _draw(chance, FAULTS, able.faults)
        yield Step(
            operation=operation,
            fault=fault,
            records=chance.randrange(20, 120),
            meanwhile=chance.choice([0, 0, 10, 60]),
            share=chance.random(),
            aim=chance.random(),
            point=chance.choice(_POINTS.get(operation, tuple(CrashPoint))),
            nth=1 if operation in _POINTS else chance.choice([1, 1, 2]),
            rev=chance.randrange(1, 4),
            checkpoints=chance.choice([1, 2, 2, 3]),
            files=chance.random() < 0.6,
            overlap=overlaps.random() < 0.5,
            hours=chance.choice([-24 * 365 * 5, -48, -1, 1, 48, 24 * 365 * 5]),
            after_the_request=chance.random() < 0.7,
        )


def grown_beyond(seed: str) -> int | None:
    """How many records more than were lost a partition of that life gets when its log has been
    truncated at the end; None: it is not.
    """
    return random.Random(f"{seed}/truncated").choice([None, None, 0, 1, 15])


def _draw(chance: random.Random, weights: dict[str, int], among: Collection[str]) -> str:
    names = [name for name in weights if name in among]
    return chance.choices(names, [weights[name] for name in names])[0]
