"""What is explored: the rules of the protocol, how much may happen, and upon which sink."""

from __future__ import annotations

from dataclasses import dataclass

#: Next offset to read, per Kafka partition.
Offsets = tuple[int, ...]


@dataclass(frozen=True)
class Rules:
    """The rules of the protocol. All hold by default; a test breaks one and must see it matter."""

    # commit
    one_transaction: bool = True  # rows and ledger entry become visible together
    tables_together: bool = True  # ... and those of all tables
    refuse_left_tables: bool = True  # rows of a table that left the document are not left out
    compare_and_swap: bool = True  # an entry lands only upon its parent
    parent_transaction_id: bool = True  # ... and the parent is a version AND a transaction id
    fenced_is_final: bool = True  # a fenced entry is not moved to the new head
    verify_files: bool = True  # files named in a manifest are looked for before publishing
    # outcome
    same_id_after_unknown: bool = True  # an unknown outcome is tried again with the same id
    unknown_keeps_folder: bool = True  # "not found" is not "aborted"
    look_up_by_version: bool = True  # own transaction is looked up at its version, not at the head
    look_again_before_refused: bool = True  # a refusal counts only if the entry is not there
    unknown_stays_unknown: bool = True  # no later failure turns it into "nothing landed"
    # recovery
    commit_only_children: bool = True  # a manifest's parent must be the head, id included
    mark_refused: bool = True  # a refused manifest is marked, so that nobody meets it again
    refusal_keeps_folder: bool = True
    absent_is_alive: bool = True  # a folder is deleted only if the ledger holds another id there
    keep_committed_files: bool = True  # ... in a lake sink; a copying sink deletes its own too
    # planning
    ranges_from_head: bool = True  # not from a mirror of the ledger
    aim_at_live_branch: bool = True
    replay_keeps_number: bool = True
    # restored backups
    refuse_when_behind: bool = True  # a witness that the ledger does not hold stops the run
    check_every_witness: bool = True  # not only the newest
    look_up_witness: bool = True  # a witness is looked up, not compared with an older read
    witness_before_report: bool = True  # nobody hears of a commit before its witness is written
    witness_head: bool = True  # the head found at the start is witnessed before anything is done
    judge_only_witnessed: bool = True  # no folder is judged by an entry above the witnessed head
    adopt_writes_entry: bool = True  # adopt makes a new head, it does not just forget
    adopt_overrules_listed: bool = True  # ... and overrules the witnesses it saw, no later one


@dataclass(frozen=True)
class Bounds:
    """How much may happen at most. Everything is counted down in :class:`Budget`."""

    log: Offsets = (2,)  # Kafka's end offsets grow to this
    cap: int = 1  # records per partition and checkpoint
    at_once: int = 2  # run processes alive at the same time
    runs: int = 3  # run processes in all
    rewinds: int = 0  # how many of them may be a rewind
    replays: int = 0
    adopts: int = 0
    refusals: int = 0
    lost_replies: int = 0
    restores: int = 0
    leaves: int = 0  # a table leaves the pipeline's document; later runs do not know it
    sweeps: int = 0  # somebody deletes staged files: a vacuum, a person


@dataclass(frozen=True)
class Scenario:
    """What is explored: a kind of sink, the bounds and the rules."""

    bounds: Bounds = Bounds()
    rules: Rules = Rules()
    tables: int = 1  # that the document names at first; each record is a row of each
    copies_rows: bool = True  # False: a lake sink, whose committed files are the table
    small_batches: bool = False  # rows go from memory into the commit: no folder, no manifest
    unique_key: bool = False  # the table refuses a record it already holds
    deletes_folders: bool = True  # recovery removes what can never be committed
    empty_ledger: bool = False  # begin before version 0
    runs_survive_restore: bool = True
    crashes: bool = True  # False where every run has a slot: never scheduled again is a crash
    overlook: tuple[str, ...] = ()  # faults not to stop at, to see what comes of them
