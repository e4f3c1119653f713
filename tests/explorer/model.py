"""The world of the protocol as one hashable value, and what must be true of it.

Kafka is a log per partition that only grows. The sink is a ledger and the rows of a table, both
changed by one transaction. Beside it lies the staging area with its folders and witnesses. Runs
(:mod:`tests.explorer.recover`, :mod:`tests.explorer.commit`) move in between. Nothing here does
I/O, waits or reads a clock.

Rows are kept as :class:`Slice`, one per range that was published: the records of a range always
appear, vanish and are replaced together.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum, StrEnum
from functools import lru_cache
from typing import NamedTuple

from tests.explorer.rules import Offsets, Rules, Scenario


class Operation(StrEnum):
    """What a ledger entry did, in the words of ``eo_pipeline.ledger.entry``."""

    START = "start"
    FORWARD = "forward"
    REWIND = "rewind"
    REPLAY = "replay"
    ADOPT = "adopt"


class EntryId(NamedTuple):
    """Identity of an entry: a number alone would match again after a restored backup."""

    version: int
    transaction_id: str


#: Parent of the first entry, and of nothing else.
NOWHERE = EntryId(-1, "")


class Entry(NamedTuple):
    """A ledger entry; ``start`` and ``end`` are the ranges its rows come from."""

    id: EntryId
    parent: EntryId
    operation: Operation
    offsets: Offsets
    start: Offsets = ()
    end: Offsets = ()
    target: int = -1
    tables: int = 1  # that it fills


NO_ENTRY = Entry(NOWHERE, NOWHERE, Operation.START, ())


class Slice(NamedTuple):
    """Rows of one range in the table. ``checkpoint`` is the number they carry."""

    checkpoint: int
    transaction_id: str
    start: Offsets
    end: Offsets
    table: int = 0


class Folder(NamedTuple):
    """A staging folder ``<version>-<transaction id>``; gone from the state once deleted."""

    entry: Entry
    manifest: bool = False
    refused: bool = False
    sound: bool = True  # False: the store will always refuse these rows
    files: bool = True  # False: somebody deleted them, the manifest is still there


class Step(IntEnum):
    """Where a run is. Numbers in the comments are those of the life of one checkpoint."""

    READ_HEAD = 0  # 1
    LIST_WITNESSES = 1  # 1
    CHECK_WITNESSES = 2  # 1
    SETTLE = 3  # 1, then 2 to 5 in one go
    DELETE_FOLDER = 4  # 1
    PRE_COMMIT = 5  # 6
    LOOK_UP = 6  # 7
    SEND_ROWS = 7  # 7
    COMMIT = 8  # 7
    COMMIT_ENTRY = 9  # 7, only where one_transaction is broken
    UNKNOWN = 10  # 7
    FENCED = 11  # 7
    REFUSED = 12  # 7
    COMMITTED = 13  # 8
    REPORTED = 14  # 8
    CLEAN = 15  # 8


class Run(NamedTuple):
    """A run process. ``entry`` is what it publishes, its own or (``found``) a dead run's."""

    step: Step
    operation: Operation = Operation.FORWARD
    head: Entry = NO_ENTRY
    entry: Entry = NO_ENTRY
    found: bool = False
    unknown: bool = False  # a COMMIT of this entry was sent and not answered
    earlier: EntryId = NOWHERE  # id it used before (same_id_after_unknown broken)
    listed: tuple[EntryId, ...] = ()  # the witnesses it found; an adopt overrules them
    heard: EntryId = NOWHERE  # a ghost: what had been reported when it began
    tables: int = 1  # that its document names


class Budget(NamedTuple):
    """What may still happen."""

    runs: int
    rewinds: int
    replays: int
    adopts: int
    refusals: int
    lost_replies: int
    restores: int
    leaves: int
    sweeps: int


class State(NamedTuple):
    """Everything. ``reported`` and ``fault`` are ghosts: nobody in the protocol reads them."""

    log: Offsets
    ledger: tuple[Entry, ...]
    table: tuple[Slice, ...]
    in_doubt: frozenset[Entry]  # COMMIT was sent, its reply lost; may land or vanish
    folders: frozenset[Folder]
    witnesses: frozenset[EntryId]
    runs: tuple[Run, ...]
    budget: Budget
    mirror: Offsets  # where an outside copy of the offsets stands (ranges_from_head broken)
    reported: EntryId = NOWHERE  # newest version the world outside was told of
    fault: str = ""  # a step that must not happen
    tables: int = 1  # that the document names now

    @property
    def head(self) -> Entry:
        return self.ledger[-1] if self.ledger else NO_ENTRY


def initial(scenario: Scenario) -> State:
    """An empty log, and a ledger with its first entry unless the scenario wants it empty."""
    b = scenario.bounds
    start = tuple(0 for _ in b.log)
    first = Entry(EntryId(0, "t0"), NOWHERE, Operation.START, start)
    budget = Budget(*(getattr(b, name) for name in Budget._fields))
    ledger = () if scenario.empty_ledger else (first,)
    nothing: frozenset[Folder] = frozenset()
    state = State(b.log, ledger, (), frozenset(), nothing, frozenset(), (), budget, start)
    return state._replace(tables=scenario.tables)


# --- ledger ------------------------------------------------------------------------------------


def entry_at(ledger: tuple[Entry, ...], version: int) -> Entry | None:
    return ledger[version] if 0 <= version < len(ledger) else None


def holds(ledger: tuple[Entry, ...], wanted: EntryId) -> bool:
    entry = entry_at(ledger, wanted.version)
    return entry is not None and entry.id == wanted


def live_branch(ledger: Iterable[Entry]) -> tuple[int, ...]:
    """Versions a rewind or replay may aim at: after 3 = rewind(to 1), version 2 is dead."""
    live: tuple[int, ...] = ()
    for entry in ledger:
        if entry.operation is Operation.REWIND:
            live = tuple(version for version in live if version <= entry.target)
        live += (entry.id.version,)
    return live


def accepts(ledger: tuple[Entry, ...], entry: Entry, rules: Rules) -> bool:
    """The sink's compare-and-swap."""
    head = ledger[-1].id if ledger else NOWHERE
    if not rules.compare_and_swap:
        return True
    if not rules.parent_transaction_id:
        return head.version == entry.parent.version
    return head == entry.parent


def publish(
    table: tuple[Slice, ...], entry: Entry, rules: Rules, tables: int | None = None
) -> tuple[Slice, ...]:
    """The rows of all tables after ``entry``'s transaction; ``tables``: of the first ones alone."""
    number = entry.id.version
    if entry.operation is Operation.REWIND:
        return tuple(rows for rows in table if rows.checkpoint <= entry.target)
    if entry.operation is Operation.REPLAY:
        table = tuple(rows for rows in table if rows.checkpoint != entry.target)
        number = entry.target if rules.replay_keeps_number else number
    if entry.operation in (Operation.FORWARD, Operation.REPLAY):
        filled = range(entry.tables if tables is None else tables)
        rows = Slice(number, entry.id.transaction_id, entry.start, entry.end)
        table = tuple(sorted((*table, *(rows._replace(table=number) for number in filled))))
    return table


def land(state: State, entry: Entry, rules: Rules, tables: int | None = None) -> State:
    """The sink commits ``entry``: rows and ledger in one transaction."""
    state = state._replace(table=publish(state.table, entry, rules, tables))
    return land_entry(state, entry)


def land_entry(state: State, entry: Entry) -> State:
    """The ledger alone. An adopt settles what the world outside was told before it."""
    ledger = (*state.ledger, entry)
    if entry.operation is Operation.ADOPT and not holds(ledger, state.reported):
        state = state._replace(reported=NOWHERE)
    return state._replace(ledger=ledger, in_doubt=state.in_doubt - {entry})


def restore(state: State, entries: int, scenario: Scenario) -> State:
    """The database comes back with only its first ``entries`` ledger entries, and their rows."""
    ledger = state.ledger[:entries]
    budget = state.budget._replace(restores=state.budget.restores - 1)
    runs = state.runs if scenario.runs_survive_restore else ()
    table = table_of(ledger, scenario.rules)
    return state._replace(
        ledger=ledger, table=table, in_doubt=frozenset(), budget=budget, runs=runs
    )


def contradicts(ledger: tuple[Entry, ...], witnesses: Iterable[EntryId]) -> EntryId:
    """The newest witness of a version that the ledger does not hold, or :data:`NOWHERE`."""
    return max((seen for seen in witnesses if not holds(ledger, seen)), default=NOWHERE)


# --- what must be true --------------------------------------------------------------------------


@lru_cache(maxsize=100_000)
def table_of(ledger: tuple[Entry, ...], rules: Rules) -> tuple[Slice, ...]:
    """The rows that belong to a ledger."""
    table: tuple[Slice, ...] = ()
    for entry in ledger:
        table = publish(table, entry, rules)
    return table


@lru_cache(maxsize=100_000)
def sink_violation(ledger: tuple[Entry, ...], table: tuple[Slice, ...], rules: Rules) -> str:
    """What is wrong with ledger and rows, as any reader could see it at this moment."""
    if table != table_of(ledger, rules):
        return "half visible: the rows are not those of the ledger"
    for partition, offset in enumerate(ledger[-1].offsets if ledger else ()):
        # the first table is always in the document
        first = tuple(rows for rows in table if not rows.table)
        found = partition_violation(partition, offset, first)
        if found:
            return found
    parents = (NOWHERE, *(entry.id for entry in ledger))
    for version, (entry, parent) in enumerate(zip(ledger, parents, strict=False)):
        if entry.id.version != version or entry.parent != parent:
            return f"broken ledger: version {version} does not follow its parent"
    return ""


def partition_violation(partition: int, offset: int, table: tuple[Slice, ...]) -> str:
    """Every record below the ledger's offset must be in the table once, and no other."""
    reached = 0
    for start, end in sorted((rows.start[partition], rows.end[partition]) for rows in table):
        if start < min(end, reached):
            return f"duplicate: record ({partition}, {start}) is in the table twice"
        if reached < start < end:
            return f"loss: record ({partition}, {reached}) is not in the table"
        reached = max(reached, end)
    if reached < offset:
        return f"loss: record ({partition}, {reached}) is not in the table"
    if reached > offset:
        return f"early: record ({partition}, {offset}) is in the table and will be read again"
    return ""


def blame(state: State, scenario: Scenario, fault: str) -> State:
    """Note that a step did what no step may do."""
    return state if fault.startswith(scenario.overlook) else state._replace(fault=fault)


def violation(state: State, scenario: Scenario) -> str:
    """Why this state must not be, or an empty string."""
    if state.fault:
        return state.fault
    found = sink_violation(state.ledger, state.table, scenario.rules)
    if found or scenario.copies_rows:
        return found
    staged = {folder.entry.id.transaction_id for folder in state.folders if folder.files}
    for rows in state.table:
        if rows.transaction_id not in staged:
            return f"live files deleted: checkpoint {rows.checkpoint} of the lake table"
    return ""
