"""What a run does, step by step, until it has something to commit: steps 1 to 6.

A step is one moment at which somebody else could notice: one read or one write of the sink or of
the staging area. Between any two steps every other run may act, for as long as it likes: a run
that sleeps is a run that is not scheduled, and a run never scheduled again is one that crashed.

Every step yields ``(what happens, world after it, the run after it)``; the run is ``None`` when
it ended. The first move of a step is the one without a fault.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from tests.explorer.model import (
    NO_ENTRY,
    NOWHERE,
    Entry,
    EntryId,
    Folder,
    Operation,
    Run,
    State,
    Step,
    blame,
    entry_at,
    holds,
    live_branch,
)
from tests.explorer.rules import Offsets, Scenario
from tests.explorer.staging import folder_of, remove_folder, report, spend_refusal, witness

Move = tuple[str, State, Run | None]
Moves = Iterator[Move]


# --- 1 recover ---------------------------------------------------------------------------------


def read_head(state: State, run: Run, scenario: Scenario) -> Moves:
    """Without a restore no witness can disagree: then nobody looks, and there are fewer states."""
    if scenario.bounds.restores:
        fresh = run._replace(step=Step.LIST_WITNESSES, head=state.head, heard=state.reported)
    else:
        fresh = run._replace(step=Step.SETTLE, head=state.head)
    yield "1 reads the head", state, fresh


def list_witnesses(state: State, run: Run, _: Scenario) -> Moves:
    names = tuple(sorted(state.witnesses))
    yield "1 lists the witnesses", state, run._replace(step=Step.CHECK_WITNESSES, listed=names)


def check_witnesses(state: State, run: Run, scenario: Scenario) -> Moves:
    """Look each one up at its version. Comparing with the head that was read before would take
    another run's commit in between for a ledger that went backwards.
    """
    rules, names = scenario.rules, run.listed
    clashes = [name for name in names if not holds(state.ledger, name)]
    if not rules.check_every_witness:
        clashes = [name for name in clashes if name.version == names[-1].version]
    if not rules.look_up_witness:
        clashes += [name for name in names if name.version > run.head.id.version]
    if not clashes or not rules.refuse_when_behind:
        yield from stand_on_head(state, run, scenario)
    elif run.operation is Operation.ADOPT:
        yield from plan_adopt(state, run, scenario)
    else:
        if state.budget.restores == scenario.bounds.restores:
            fault = "false alarm: LedgerBehindError, and nothing was restored"
            state = blame(state, scenario, fault)
        yield "1 ends: LedgerBehindError", state, None


def stand_on_head(state: State, run: Run, scenario: Scenario) -> Moves:
    """The head is good. Witness it, for whatever this run does next follows from it."""
    if run.operation is Operation.ADOPT:
        yield "1 ends: nothing to adopt", state, None
        return
    if run.heard == state.reported != NOWHERE and not holds(state.ledger, run.heard):
        fault = f"unnoticed: version {run.heard.version} was reported, now it is gone"
        state = blame(state, scenario, fault)
    if scenario.rules.witness_head:
        state = witness(state, run.head.id)
    state = report(state, run.head)
    yield (
        "1 accepts and witnesses the head",
        state,
        Run(Step.SETTLE, run.operation, run.head, tables=run.tables),
    )


def settle(state: State, run: Run, scenario: Scenario) -> Moves:
    """Found manifests first, then folders, then this run's own plan."""
    manifests = [folder for folder in state.folders if may_commit(folder, run, scenario)]
    for folder in sorted(manifests):
        found = run._replace(step=Step.LOOK_UP, entry=folder.entry, found=True)
        yield "1 found a manifest", state, found
    if manifests:
        return
    dead = [folder for folder in state.folders if is_dead(state, folder, run, scenario)]
    if dead and scenario.deletes_folders:
        doomed = run._replace(step=Step.DELETE_FOLDER, entry=min(dead).entry)
        yield "1 decides to delete a folder", state, doomed
        return
    yield from plan(state, run, scenario)


def may_commit(folder: Folder, run: Run, scenario: Scenario) -> bool:
    if folder.refused or not folder.manifest:
        return False
    if scenario.rules.commit_only_children:
        return folder.entry.parent == run.head.id
    return folder.entry.id.version == run.head.id.version + 1


def is_dead(state: State, folder: Folder, run: Run, scenario: Scenario) -> bool:
    """May this folder be deleted? Only on positive evidence that the run's witness covers."""
    rules = scenario.rules
    wanted = folder.entry.id
    entry = entry_at(state.ledger, wanted.version)
    if entry is None:
        return not rules.absent_is_alive
    if rules.judge_only_witnessed and wanted.version > run.head.id.version:
        return False
    return entry.id != wanted or scenario.copies_rows or not rules.keep_committed_files


def delete_folder(state: State, run: Run, scenario: Scenario) -> Moves:
    gone = remove_folder(state, run.entry, scenario)
    yield "1 deletes a folder", gone, run._replace(step=Step.SETTLE, entry=NO_ENTRY)


# --- 2 plan, 5 stage, 6 pre-commit -------------------------------------------------------------


def plan(state: State, run: Run, scenario: Scenario) -> Moves:
    if run.head.id == NOWHERE:
        start = tuple(0 for _ in state.log)
        yield "2 plans the start", state, own(run, make_entry(state, run, Operation.START, start))
    elif run.operation is Operation.REWIND:
        yield from plan_rewind(state, run, scenario)
    elif run.operation is Operation.REPLAY:
        yield from plan_replay(state, run, scenario)
    else:
        yield from plan_forward(state, run, scenario)


def plan_forward(state: State, run: Run, scenario: Scenario) -> Moves:
    """The run may see any end that Kafka's log has had or will have, nearest the bound first.

    Seeing nothing new ends the run, which is the same as never being scheduled again.
    """
    start = run.head.offsets if scenario.rules.ranges_from_head else state.mirror
    cap = scenario.bounds.cap
    spans = [
        range(max(first, min(first + cap, last)), first - 1, -1)
        for first, last in zip(start, state.log, strict=True)
    ]
    for end in product(*spans):
        if end != start:
            entry = make_entry(state, run, Operation.FORWARD, end)._replace(start=start, end=end)
            yield from stage(state, own(run, entry), scenario)
    if start == state.log:
        yield "2 ends: nothing new", state, None


def plan_rewind(state: State, run: Run, scenario: Scenario) -> Moves:
    for target in targets(state, run, scenario):
        offsets = state.ledger[target].offsets
        entry = make_entry(state, run, Operation.REWIND, offsets)._replace(target=target)
        yield "2 plans a rewind", state, own(run, entry)


def plan_replay(state: State, run: Run, scenario: Scenario) -> Moves:
    for target in targets(state, run, scenario):
        past = state.ledger[target]
        if past.operation is Operation.FORWARD:
            entry = make_entry(state, run, Operation.REPLAY, run.head.offsets)
            entry = entry._replace(start=past.start, end=past.end, target=target)
            yield from stage(state, own(run, entry), scenario)


def targets(state: State, run: Run, scenario: Scenario) -> tuple[int, ...]:
    """Versions to go back to, newest last; the ledger up to the head this run stands on."""
    past = state.ledger[: run.head.id.version + 1]
    if scenario.rules.aim_at_live_branch:
        return live_branch(past)
    return tuple(range(len(past)))


def plan_adopt(state: State, run: Run, scenario: Scenario) -> Moves:
    if not scenario.rules.adopt_writes_entry:
        witnesses = state.witnesses & {entry.id for entry in state.ledger}
        forgot = state._replace(witnesses=witnesses, reported=NOWHERE)
        yield "2 forgets the witnesses", forgot, None
        return
    offsets = run.head.offsets or tuple(0 for _ in state.log)
    overruled = tuple(name for name in run.listed if not holds(state.ledger, name))
    adopt = own(run, make_entry(state, run, Operation.ADOPT, offsets))
    yield "2 plans an adopt", state, adopt._replace(listed=overruled, heard=NOWHERE)


def stage(state: State, run: Run, scenario: Scenario) -> Moves:
    """The folder appears, without a manifest. Its rows may be such that the store refuses them."""
    if scenario.small_batches:
        yield "2-5 plans, keeps the rows in memory", state, run
        return
    staged = run._replace(step=Step.PRE_COMMIT)
    folders = state.folders | {Folder(run.entry)}
    yield "2-5 plans and stages", state._replace(folders=folders), staged
    if state.budget.refusals:
        folders = state.folders | {Folder(run.entry, sound=False)}
        spent = spend_refusal(state)._replace(folders=folders)
        yield "2-5 plans and stages rows the store will refuse", spent, staged


def pre_commit(state: State, run: Run, _: Scenario) -> Moves:
    folder = folder_of(state, run.entry)
    if folder is None:
        yield "6 ends: its folder is gone", state, None
        return
    folders = (state.folders - {folder}) | {folder._replace(manifest=True)}
    yield "6 writes the manifest", state._replace(folders=folders), run._replace(step=Step.LOOK_UP)


def own(run: Run, entry: Entry) -> Run:
    return run._replace(step=Step.LOOK_UP, entry=entry, found=False, unknown=False)


def make_entry(state: State, run: Run, operation: Operation, offsets: Offsets) -> Entry:
    version = run.head.id.version + 1
    entry = Entry(EntryId(version, unused_id(state, run)), run.head.id, operation, offsets)
    return entry._replace(tables=run.tables)


def unused_id(state: State, run: Run) -> str:
    """A transaction id nobody in this world knows: as good as a new UUID, and finitely many."""
    entries = [*state.ledger, *state.in_doubt, *(folder.entry for folder in state.folders)]
    known = {*state.witnesses, state.reported}
    for other in (*state.runs, run):
        entries += (other.head, other.entry)
        known |= {other.earlier, other.heard, *other.listed}
    known |= {entry.id for entry in entries} | {entry.parent for entry in entries}
    taken = {name for _, name in known}
    return next(name for name in (f"t{n}" for n in range(len(taken) + 1)) if name not in taken)
