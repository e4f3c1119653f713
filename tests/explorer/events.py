"""Everything that can happen next: a run's step, or something around the runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from tests.explorer import commit, recover
from tests.explorer.model import (
    NOWHERE,
    EntryId,
    Operation,
    Run,
    State,
    Step,
    accepts,
    holds,
    land,
    restore,
)
from tests.explorer.rules import Scenario

Successors = Iterator[tuple[str, State]]

STEPS: Mapping[Step, Callable[[State, Run, Scenario], recover.Moves]] = {
    Step.READ_HEAD: recover.read_head,
    Step.LIST_WITNESSES: recover.list_witnesses,
    Step.CHECK_WITNESSES: recover.check_witnesses,
    Step.SETTLE: recover.settle,
    Step.DELETE_FOLDER: recover.delete_folder,
    Step.PRE_COMMIT: recover.pre_commit,
    Step.LOOK_UP: commit.look_up,
    Step.SEND_ROWS: commit.send_rows,
    Step.COMMIT: commit.commit,
    Step.COMMIT_ENTRY: commit.commit_entry,
    Step.UNKNOWN: commit.resolve_unknown,
    Step.REFUSED: commit.refused,
    Step.COMMITTED: commit.committed,
    Step.REPORTED: commit.reported,
    Step.CLEAN: commit.clean,
}

#: The operations a run can be started for, and the budget each one spends beside ``runs``.
STARTS = (
    (Operation.FORWARD, ""),
    (Operation.REWIND, "rewinds"),
    (Operation.REPLAY, "replays"),
    (Operation.ADOPT, "adopts"),
)


NO_WITNESS: frozenset[EntryId] = frozenset()


def successors(state: State, scenario: Scenario) -> Successors:
    """Every state one event away. Alike runs are interchangeable: one of them stands for all."""
    yield from steps(state, scenario)
    yield from starts(state, scenario)
    yield from around(state, scenario)


def steps(state: State, scenario: Scenario) -> Successors:
    for index, run in enumerate(state.runs):
        if index and run == state.runs[index - 1]:
            continue
        others = state.runs[:index] + state.runs[index + 1 :]
        world = state._replace(runs=others)
        for event, after, moved in STEPS[run.step](world, run, scenario):
            yield event, with_run(after, moved, scenario)
        if scenario.crashes:
            yield "crash", world


def with_run(state: State, run: Run | None, scenario: Scenario) -> State:
    """Put the run back, and forget what nobody can ever read again."""
    runs = state.runs if run is None else tuple(sorted((*state.runs, run)))
    mirror = () if scenario.rules.ranges_from_head else state.mirror
    witnesses = state.witnesses if scenario.bounds.restores else NO_WITNESS
    reported = state.reported
    if state.budget.restores == 0 and holds(state.ledger, reported):
        reported = NOWHERE
    return state._replace(runs=runs, mirror=mirror, witnesses=witnesses, reported=reported)


def starts(state: State, scenario: Scenario) -> Successors:
    budget = state.budget
    if not budget.runs or len(state.runs) >= scenario.bounds.at_once:
        return
    for operation, spends in STARTS:
        left = budget._replace(runs=budget.runs - 1)
        if spends:
            if not getattr(budget, spends):
                continue
            left = left._replace(**{spends: getattr(budget, spends) - 1})
        world = state._replace(budget=left)
        run = Run(Step.READ_HEAD, operation, tables=state.tables)
        yield f"start {operation}", with_run(world, run, scenario)


def around(state: State, scenario: Scenario) -> Successors:
    """The server decides what hung, the database comes back from a backup."""
    for entry in sorted(state.in_doubt):
        yield "server aborts", state._replace(in_doubt=state.in_doubt - {entry})
        if accepts(state.ledger, entry, scenario.rules):
            yield "server commits", with_run(land(state, entry, scenario.rules), None, scenario)
    if state.budget.leaves and state.tables > 1:
        budget = state.budget._replace(leaves=state.budget.leaves - 1)
        yield "a table leaves", state._replace(tables=state.tables - 1, budget=budget)
    if state.budget.sweeps:
        yield from sweeps(state)
    if state.budget.restores:
        for entries in range(0 if scenario.empty_ledger else 1, len(state.ledger)):
            yield "restore", with_run(restore(state, entries, scenario), None, scenario)


def sweeps(state: State) -> Successors:
    """Somebody deletes old files that are not committed and that no run is at."""
    budget = state.budget._replace(sweeps=state.budget.sweeps - 1)
    busy = {run.entry for run in state.runs} | state.in_doubt
    for folder in sorted(state.folders):
        if folder.files and folder.entry not in busy and not holds(state.ledger, folder.entry.id):
            folders = (state.folders - {folder}) | {folder._replace(files=False)}
            yield "staged files are swept", state._replace(folders=folders, budget=budget)
