"""A run's last steps: 7 commit, 8 report. The same for the owner and for a run that found the
manifest. Every way a commit can end is a step of its own: one outcome, one verb.
"""

from __future__ import annotations

from tests.explorer.model import (
    NOWHERE,
    Entry,
    EntryId,
    Operation,
    Run,
    State,
    Step,
    accepts,
    blame,
    entry_at,
    holds,
    land,
    land_entry,
    publish,
)
from tests.explorer.recover import Moves, unused_id
from tests.explorer.rules import Rules, Scenario
from tests.explorer.staging import (
    folder_of,
    remove_folder,
    report,
    spend_refusal,
    spend_reply,
    witness,
)

#: Operations that bring rows, and so can be refused.
WITH_ROWS = (Operation.FORWARD, Operation.REPLAY)

#: What the real sink would accept, whatever rule is broken.
EXACT = Rules()


# --- 7 commit ----------------------------------------------------------------------------------


def look_up(state: State, run: Run, scenario: Scenario) -> Moves:
    if knows_itself(state, run, scenario):
        yield "7 looks itself up: ALREADY_COMMITTED", state, run._replace(step=Step.COMMITTED)
    else:
        yield "7 looks itself up: not there", state, run._replace(step=Step.SEND_ROWS)


def knows_itself(state: State, run: Run, scenario: Scenario) -> bool:
    if scenario.rules.look_up_by_version:
        return holds(state.ledger, run.entry.id)
    return state.head.id == run.entry.id


def send_rows(state: State, run: Run, scenario: Scenario) -> Moves:
    refused = run._replace(step=Step.REFUSED)
    reason = why_refused(state, run, scenario)
    if reason:
        yield reason, state, refused
        return
    yield "7 sends the rows", state, run._replace(step=Step.COMMIT)
    if state.budget.refusals and run.entry.operation in WITH_ROWS:
        yield "7 refused, this once", spend_refusal(state), refused
    if run.unknown and state.budget.lost_replies:
        yield from fail(spend_reply(state), run, scenario, "7 ends: SinkUnavailableError")


def why_refused(state: State, run: Run, scenario: Scenario) -> str:
    if run.entry.operation not in WITH_ROWS:
        return ""
    if scenario.rules.refuse_left_tables and run.tables < run.entry.tables:
        return "7 refused: staged for a table that has left"
    if scenario.unique_key and collides(state, run.entry, scenario):
        return "7 refused: the table holds these records"
    if scenario.small_batches:
        return ""
    folder = folder_of(state, run.entry)
    if folder is None or not folder.files:
        must_exist = scenario.copies_rows or scenario.rules.verify_files
        if must_exist:
            return "7 refused: staged files are missing"
    return "" if folder is None or folder.sound else "7 refused, as always"


def collides(state: State, entry: Entry, scenario: Scenario) -> bool:
    """Would a unique key over the records' coordinates be violated?"""
    *others, rows = sorted(
        (rows for rows in publish(state.table, entry, scenario.rules) if not rows.table),
        key=lambda rows: rows.transaction_id == entry.id.transaction_id,
    )
    spans = list(zip(rows.start, rows.end, strict=True))
    return any(
        max(start, first) < min(end, last)
        for other in others
        for (start, end), first, last in zip(spans, other.start, other.end, strict=True)
    )


def commit(state: State, run: Run, scenario: Scenario) -> Moves:
    """COMMIT is sent. Its reply may get lost, and then it may land now, later or never."""
    entry, rules = run.entry, scenario.rules
    if not accepts(state.ledger, entry, rules):
        yield from not_accepted(state, run, scenario)
        return
    if not rules.one_transaction:
        rows_only = state._replace(table=publish(state.table, entry, rules))
        yield "7 commits the rows alone", rows_only, run._replace(step=Step.COMMIT_ENTRY)
        return
    if not rules.tables_together:
        first = land(state, entry, rules, tables=1)
        yield "7 commits one table with the entry", first, run._replace(step=Step.COMMITTED)
        return
    landed = land(state, entry, rules, min(run.tables, entry.tables))
    yield "7 COMMITTED", landed, run._replace(step=Step.COMMITTED)
    if state.budget.lost_replies:
        unknown = run._replace(step=Step.UNKNOWN, unknown=True)
        yield "7 committed, reply lost", spend_reply(landed), unknown
        hanging = state._replace(in_doubt=state.in_doubt | {entry})
        yield "7 COMMIT hangs, reply lost", spend_reply(hanging), unknown


def not_accepted(state: State, run: Run, scenario: Scenario) -> Moves:
    if knows_itself(state, run, scenario):
        yield "7 not accepted: ALREADY_COMMITTED", state, run._replace(step=Step.COMMITTED)
        return
    collided = run.entry.operation in WITH_ROWS and collides(state, run.entry, scenario)
    if scenario.unique_key and collided:  # the rows hit their key before the ledger hits its own
        yield "7 refused: the table holds these records", state, run._replace(step=Step.REFUSED)
        return
    yield from fenced(state, run, scenario)


def commit_entry(state: State, run: Run, _: Scenario) -> Moves:
    """Only where ``one_transaction`` is broken: the ledger follows in its own transaction."""
    yield "7 commits the entry", land_entry(state, run.entry), run._replace(step=Step.COMMITTED)


def resolve_unknown(state: State, run: Run, scenario: Scenario) -> Moves:
    """Try the same transaction id again; delete nothing."""
    rules, again = scenario.rules, run._replace(step=Step.LOOK_UP)
    if not rules.unknown_keeps_folder and not holds(state.ledger, run.entry.id):
        yield (
            "7 not found, so aborted: deletes its folder",
            remove_folder(state, run.entry, scenario),
            None,
        )
        return
    if not rules.same_id_after_unknown:
        new_id = EntryId(run.entry.id.version, unused_id(state, run))
        again = again._replace(entry=run.entry._replace(id=new_id), earlier=run.entry.id)
    yield "7 unknown: tries again", state, again


# --- how a commit ends without having landed -----------------------------------------------------


def fenced(state: State, run: Run, scenario: Scenario) -> Moves:
    if not scenario.rules.fenced_is_final and not run.found:
        parent = state.head.id
        moved = run.entry._replace(id=run.entry.id._replace(version=parent.version + 1))
        again = run._replace(step=Step.COMMIT, entry=moved._replace(parent=parent))
        yield "7 fenced: moves its entry to the new head", state, again
        return
    yield from end_without_landing(state, run, scenario, "7 ends: FencedError")


def refused(state: State, run: Run, scenario: Scenario) -> Moves:
    """Only a refusal of something that is not in the ledger is one."""
    rules = scenario.rules
    if rules.look_again_before_refused:
        there = entry_at(state.ledger, run.entry.id.version)
        if there is not None and there.id == run.entry.id:
            yield "7 looks again: ALREADY_COMMITTED", state, run._replace(step=Step.COMMITTED)
            return
        if there is not None:
            yield from fenced(state, run, scenario)
            return
    settled = mark(state, run, scenario)
    yield from fail(settled, run, scenario, "7 ends: RefusedError")


def fail(state: State, run: Run, scenario: Scenario, outcome: str) -> Moves:
    """A failure says nothing of an earlier COMMIT of the same entry, which may still land."""
    if run.unknown and scenario.rules.unknown_stays_unknown and not run.found:
        yield "7 ends: CommitUnknownError", state, None
    else:
        yield from end_without_landing(state, run, scenario, outcome)


def mark(state: State, run: Run, scenario: Scenario) -> State:
    folder = folder_of(state, run.entry)
    if folder is None:
        return state
    if not scenario.rules.refusal_keeps_folder:
        return remove_folder(state, run.entry, scenario)
    if not scenario.rules.mark_refused:
        return state
    folders = (state.folders - {folder}) | {folder._replace(refused=True)}
    return state._replace(folders=folders)


def end_without_landing(state: State, run: Run, scenario: Scenario, outcome: str) -> Moves:
    """A run that found somebody's manifest begins again; the owner says nothing of its landed."""
    if run.found:
        again = Run(Step.READ_HEAD, run.operation, tables=run.tables)
        yield "7 not this one: begins again", state, again
        return
    in_doubt = {entry.id for entry in state.in_doubt if accepts(state.ledger, entry, EXACT)}
    for name in (run.entry.id, run.earlier):
        if name != NOWHERE and (holds(state.ledger, name) or (run.unknown and name in in_doubt)):
            fault = f"false report: {outcome[8:]} says nothing landed, but {name} did or still may"
            state = blame(state, scenario, fault)
    yield outcome, state, None


# --- 8 report ----------------------------------------------------------------------------------


def committed(state: State, run: Run, scenario: Scenario) -> Moves:
    """The witness comes first: a commit nobody witnessed has had no consequence anywhere."""
    told = report(state, run.entry)
    if scenario.rules.witness_before_report:
        told = witness(told, run.entry.id)
        yield "8 witnesses and reports", told, after_report(told, run, scenario)
    else:
        yield "8 reports", told, run._replace(step=Step.REPORTED)


def reported(state: State, run: Run, scenario: Scenario) -> Moves:
    """Only where ``witness_before_report`` is broken."""
    witnessed = witness(state, run.entry.id)
    yield "8 witnesses", witnessed, after_report(witnessed, run, scenario)


def after_report(state: State, run: Run, scenario: Scenario) -> Run | None:
    adopt = run.entry.operation is Operation.ADOPT
    if adopt or (deletes_own(scenario) and folder_of(state, run.entry)):
        return run._replace(step=Step.CLEAN)
    return go_on(run)


def deletes_own(scenario: Scenario) -> bool:
    """A copying sink holds the rows itself; a lake sink's committed files are the table."""
    return scenario.copies_rows or not scenario.rules.keep_committed_files


def clean(state: State, run: Run, scenario: Scenario) -> Moves:
    """The own folder goes; an adopt removes the witnesses it has overruled."""
    if deletes_own(scenario):
        state = remove_folder(state, run.entry, scenario)
    if run.entry.operation is Operation.ADOPT:
        overruled = set(run.listed)
        if not scenario.rules.adopt_overrules_listed:
            overruled = {name for name in state.witnesses if not holds(state.ledger, name)}
        state = state._replace(witnesses=state.witnesses - overruled)
    yield "8 cleans up", state, go_on(run)


def go_on(run: Run) -> Run | None:
    """A forward run goes through as many checkpoints as it needs, from the entry it knows."""
    if run.entry.operation is run.operation is not Operation.FORWARD and not run.found:
        return None
    return Run(Step.SETTLE, run.operation, run.entry, tables=run.tables)
