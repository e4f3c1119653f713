"""The staging area beside the sink: folders, manifests and witnesses, and what is told outside."""

from __future__ import annotations

from tests.explorer.model import (
    NOWHERE,
    Entry,
    EntryId,
    Folder,
    State,
    Step,
    blame,
    contradicts,
    holds,
)
from tests.explorer.rules import Scenario


def folder_of(state: State, entry: Entry) -> Folder | None:
    return next((folder for folder in state.folders if folder.entry == entry), None)


def remove_folder(state: State, entry: Entry, scenario: Scenario) -> State:
    folder = folder_of(state, entry)
    if folder is None:
        return state
    if still_wanted(state, folder):
        fault = f"wanted folder deleted: {entry.id} could still be committed"
        state = blame(state, scenario, fault)
    return state._replace(folders=state.folders - {folder})


def witness(state: State, seen: EntryId) -> State:
    """Create the empty file that names a version seen committed. Of those the ledger holds only
    the newest matters.
    """
    if seen == NOWHERE:
        return state
    witnesses = state.witnesses | {seen}
    held = [name for name in witnesses if holds(state.ledger, name)]
    kept = witnesses.difference(held) | ({max(held)} if held else set())
    return state._replace(witnesses=frozenset(kept))


def report(state: State, entry: Entry) -> State:
    """The world outside is told of ``entry``: materializations, metrics, the mirror.

    What a run tells of a version that a restore has taken away meanwhile is nobody's fault; a
    version that was told and is gone stays in mind until an adopt.
    """
    state = state._replace(mirror=entry.offsets or state.mirror)
    lost = state.reported != NOWHERE and not holds(state.ledger, state.reported)
    older = entry.id.version <= state.reported.version
    if lost or older or not holds(state.ledger, entry.id):
        return state
    return state._replace(reported=entry.id)


def spend_refusal(state: State) -> State:
    return state._replace(budget=state.budget._replace(refusals=state.budget.refusals - 1))


def spend_reply(state: State) -> State:
    return state._replace(budget=state.budget._replace(lost_replies=state.budget.lost_replies - 1))


def still_wanted(state: State, folder: Folder) -> bool:
    """True while this folder may still be committed, by its run or by one that finds it."""
    entry = folder.entry
    if entry.parent != state.head.id or contradicts(state.ledger, state.witnesses) != NOWHERE:
        return False
    owned = any(run.entry == entry and run.step >= Step.PRE_COMMIT for run in state.runs)
    return owned or (folder.manifest and not folder.refused)
