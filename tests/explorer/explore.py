"""Go through the states: all of them breadth first, or some of them by seeded random walks."""

from __future__ import annotations

import gc
import random
from collections.abc import Iterator
from dataclasses import dataclass, field

from tests.explorer.events import STEPS, steps, successors
from tests.explorer.model import (
    NOWHERE,
    Entry,
    Operation,
    Run,
    State,
    Step,
    accepts,
    contradicts,
    initial,
    land,
    violation,
)
from tests.explorer.rules import Scenario

#: Steps after which a run that is alone and meets no fault must long have ended.
ALONE_STEPS_MAX = 120

#: A walk asks :class:`Alone` after so many events: it costs more than all else.
ALONE_EVERY = 10

#: How often a walk picks among the runs' steps rather than among everything that can happen.
WORK = 0.8


@dataclass(frozen=True)
class Violation:
    """What was found, the events that lead there and, for a walk, the seed that repeats it."""

    what: str
    trace: tuple[str, ...]
    state: State
    seed: int | None = None

    def __str__(self) -> str:
        origin = "" if self.seed is None else f" (seed {self.seed})"
        lines = "\n".join(f"  {number:2}. {event}" for number, event in enumerate(self.trace, 1))
        return f"{self.what}{origin}\n{lines}\n{picture(self.state)}"


@dataclass
class Exploration:
    """The outcome: how much was seen and, if there is one, the first violation."""

    states: int = 0
    moves: int = 0
    alone: int = 0
    events: set[str] = field(default_factory=set)
    found: Violation | None = None


Events = tuple[str, ...]


@dataclass
class Alone:
    """Does a fresh run succeed with everybody else dead? Remembers the worlds it has asked."""

    scenario: Scenario
    asked: set[State] = field(default_factory=set)

    def problem(self, state: State) -> tuple[str, Events]:
        """Why a fresh run would not bring every record into the table, or an empty string."""
        budget = state.budget._replace(
            runs=0, rewinds=0, replays=0, adopts=0, refusals=0, lost_replies=0, sweeps=0
        )
        world = state._replace(runs=(), budget=budget)
        for settled in self.settlements(world):
            if settled not in self.asked:
                self.asked.add(settled)
                problem, events = self.outcome(settled)
                if problem:
                    return problem, events
        return "", ()

    def settlements(self, world: State) -> Iterator[State]:
        """The server has decided what hung: nothing of it landed, or one of it did."""
        nothing = world._replace(in_doubt=frozenset())
        yield nothing
        for entry in sorted(world.in_doubt):
            if accepts(world.ledger, entry, self.scenario.rules):
                yield land(nothing, entry, self.scenario.rules)

    def outcome(self, world: State) -> tuple[str, Events]:
        after, problem, events = self.run(world, Operation.FORWARD)
        if not problem and self.is_behind(after):
            after, problem, more = self.run(after, Operation.ADOPT)
            events += more
            if not problem:
                after, problem, more = self.run(after, Operation.FORWARD)
                events += more
        if not problem and after.head.offsets != after.log:
            problem = "no progress: a fresh run ended and records are left"
        return problem, events

    def is_behind(self, state: State) -> bool:
        restored = state.budget.restores < self.scenario.bounds.restores
        return restored and contradicts(state.ledger, state.witnesses) != NOWHERE

    def run(self, world: State, operation: Operation) -> tuple[State, str, Events]:
        """One run from start to end, always taking the move without a fault."""
        run: Run | None = Run(Step.READ_HEAD, operation, tables=world.tables)
        events: list[str] = []
        for _ in range(ALONE_STEPS_MAX):
            if run is None:
                return world, "", tuple(events)
            event, world, run = next(STEPS[run.step](world, run, self.scenario))
            events.append(f"alone: [{operation}] {event}")
            problem = violation(world, self.scenario)
            if problem:
                return world, problem, tuple(events)
        return world, "no progress: a fresh run goes round in circles", tuple(events[:20])


def explore(scenario: Scenario, *, states_max: int = 2_000_000) -> Exploration:
    """Every reachable state, breadth first: the trace of a violation is a shortest one."""
    gc.disable()  # millions of tuples without one cycle: looking for cycles costs a fifth
    try:
        return all_states(scenario, states_max)
    finally:
        gc.enable()


def all_states(scenario: Scenario, states_max: int) -> Exploration:
    start, alone, seen = initial(scenario), Alone(scenario), Exploration()
    came_from: dict[State, tuple[State, str] | None] = {start: None}
    level = [start]
    while level:
        deeper: list[State] = []
        for state in level:
            what, then = check(state, alone)
            if what:
                seen.found = Violation(what, trace(came_from, state) + then, state)
                level, deeper = [], []
                break
            for event, after in successors(state, scenario):
                seen.moves += 1
                seen.events.add(event)
                if after not in came_from:
                    came_from[after] = (state, event)
                    deeper.append(after)
        level = deeper
        if len(came_from) > states_max:
            raise RuntimeError(f"more than {states_max} states: choose smaller bounds")
    seen.states, seen.alone = len(came_from), len(alone.asked)
    return seen


def check(state: State, alone: Alone) -> tuple[str, Events]:
    """What is wrong in this state, and what a run alone did to bring it to light."""
    what = violation(state, alone.scenario)
    return (what, ()) if what else alone.problem(state)


def picture(state: State) -> str:
    """The state in a few lines, for the reader of a violation."""

    def brief(entry: Entry) -> str:
        aim = f" to {entry.target}" if entry.target >= 0 else ""
        name, parent = entry.id, entry.parent
        ids = f"{name.version}-{name.transaction_id} after {parent.version}-{parent.transaction_id}"
        return f"{ids} {entry.operation}{aim} {entry.start}..{entry.end} offsets {entry.offsets}"

    lines = [f"ledger    {brief(entry)}" for entry in state.ledger]
    lines += [f"in doubt  {brief(entry)}" for entry in state.in_doubt]
    lines += [f"rows      {tuple(rows)}" for rows in state.table]
    lines += [f"folder    {brief(folder.entry)} {folder[1:]}" for folder in sorted(state.folders)]
    lines += [f"witness   {tuple(name)}" for name in sorted(state.witnesses)]
    lines += [f"run       {run.operation} at {run.step.name}" for run in state.runs]
    return "\n".join(f"    {line}" for line in lines)


def trace(came_from: dict[State, tuple[State, str] | None], state: State) -> tuple[str, ...]:
    events: list[str] = []
    step = came_from[state]
    while step is not None:
        before, event = step
        events.append(describe(before, event, state))
        state, step = before, came_from[before]
    return tuple(reversed(events))


def describe(before: State, event: str, after: State) -> str:
    """The event with the run that did it, as far as it can be told from the two states."""
    mover = next((run for run in before.runs if run not in after.runs), None)
    moved = next((run for run in after.runs if run not in before.runs), None)
    acting = moved if moved is not None and moved.entry.id != NOWHERE else mover
    if acting is None or acting.entry.id == NOWHERE:
        return event if mover is None else f"[{mover.operation}] {event}"
    version, name = acting.entry.id
    return f"[{acting.operation} {version}-{name}] {event}"


def walk(scenario: Scenario, seed: int, *, length: int = 200) -> Exploration:
    """One random walk; the same seed walks the same way."""
    chance = random.Random(seed)
    state, alone, seen = initial(scenario), Alone(scenario), Exploration(states=1)
    events: list[str] = []
    choice: tuple[str, State] | None = ("", state)
    while choice is not None and seen.found is None:
        choice = a_successor(state, scenario, chance) if len(events) < length else None
        if choice is not None:
            events.append(describe(state, *choice))
            state, seen.states = choice[1], seen.states + 1
            seen.events.add(choice[0])
        thorough = choice is None or seen.states % ALONE_EVERY == 0
        what, then = check(state, alone) if thorough else (violation(state, scenario), ())
        if what:
            seen.found = Violation(what, (*events, *then), state, seed)
    seen.alone = len(alone.asked)
    return seen


def a_successor(
    state: State, scenario: Scenario, chance: random.Random
) -> tuple[str, State] | None:
    """Mostly somebody works; now and then something happens. ``None``: nothing is left."""
    working = [choice for choice in steps(state, scenario) if choice[0] != "crash"]
    if working and chance.random() < WORK:
        return chance.choice(working)
    choices = list(successors(state, scenario))
    return chance.choice(choices) if choices else None
