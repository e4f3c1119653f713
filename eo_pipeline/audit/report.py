"""What an audit found: values only, for people and programs to look at."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from eo_pipeline.ledger.entry import CHECKPOINT_COLUMN, LedgerEntry

#: The most examples a finding names.
EXAMPLES_MAX = 20

#: The most checkpoints a report lists; beyond it those that differ come first.
CHECKPOINTS_LISTED_MAX = 1_000


class FindingKind(StrEnum):
    """What is wrong, or (the last four) only worth saying."""

    LEDGER = "ledger"  # entries do not follow each other
    UNSETTLED = "unsettled"  # the ledger kept going back while the table was read
    MISSING = "missing"  # fewer rows of a record than the transform makes
    DUPLICATED = "duplicated"  # more rows of a record than the transform makes
    FOREIGN = "foreign"  # rows that no record of their checkpoint accounts for
    CHANGED = "changed"  # other values than those that were committed
    DEAD_LETTERS = "dead_letters"  # the dead letters are not those that were committed
    MISCOUNTED = "miscounted"  # the ledger counted another number of rows or records
    LOST = "lost"  # Kafka lost records it should still hold
    UNPROVED = "unproved"  # there is nothing left to compare with
    COMPACTED = "compacted"  # compaction took records since they were read
    ACCEPTED_LOSS = "accepted_loss"  # a hole that somebody accepted, once and for all
    NOT_OURS = "not_ours"  # rows without lineage, of another writer

    @property
    def is_failure(self) -> bool:
        return self not in _REMARKS


_REMARKS = frozenset(
    {
        FindingKind.UNPROVED,
        FindingKind.COMPACTED,
        FindingKind.ACCEPTED_LOSS,
        FindingKind.NOT_OURS,
    }
)


class Holes(StrEnum):
    """Why a checkpoint's ranges hold fewer records than offsets."""

    NONE = "none"
    MARKERS = "markers"  # of transactions, or aborted records: there were no more when it was read
    COMPACTION = "compaction"
    LOSS = "loss"
    UNKNOWN = "unknown"  # Kafka could not be asked for all of it


@dataclass(frozen=True, order=True)
class Example:
    """One record that differs: rows ``expected`` by today's transform, and ``found``.

    A coordinate is None if the row has none.
    """

    topic: str | None
    partition: int | None
    offset: int | None
    checkpoint: int | None
    expected: int
    found: int

    def __str__(self) -> str:
        where = f"{self.topic}[{self.partition}] offset {self.offset}"
        return (
            f"{where}, checkpoint {self.checkpoint}: expected {self.expected}, found {self.found}"
        )


@dataclass(frozen=True)
class Finding:
    """One kind of difference, for one reason, in all checkpoints together.

    ``count`` is rows, or records for LOST and COMPACTED, or entries for LEDGER and ACCEPTED_LOSS.
    ``checkpoints`` (the first :data:`EXAMPLES_MAX`) and ``examples`` are bounded.
    """

    kind: FindingKind
    text: str
    count: int = 0
    checkpoints: tuple[int, ...] = ()
    examples: tuple[Example, ...] = ()

    def __str__(self) -> str:
        shown = "".join(f"\n  {example}" for example in self.examples)
        return f"{self.kind.upper()}: {self.text}{shown}"


@dataclass(frozen=True)
class CheckpointAudit:
    """One live checkpoint: what the ledger counted, and what is there now.

    ``written_by`` is the version that wrote its rows last: itself or a replay. ``offsets`` is the
    span of its ranges, ``unreadable`` the part of it that Kafka no longer holds. Records, dead
    letters and expected rows are those of the rest; None where they could not be counted.
    ``as_committed`` is True if a checksum proves that its rows hold what was committed, False if
    they do not, None if there is none to tell; ``dead_letters_found`` are those that are there now.
    """

    version: int
    written_by: int
    offsets: int
    unreadable: int
    records_counted: int
    records: int | None
    holes: Holes
    dead_letters_counted: int
    dead_letters: int | None
    rows_counted: int
    rows_expected: int | None
    rows_found: int | None
    missing: int = 0
    duplicated: int = 0
    foreign: int = 0
    unproved: int = 0
    differs: bool = False
    as_committed: bool | None = None
    dead_letters_found: int | None = None


@dataclass(frozen=True)
class Repair:
    """What would put the differences right: a ``command``, or a ``condition`` for rows to delete
    by hand, or neither, and then ``refused`` says why not.

    ``first`` and ``last`` are the live checkpoints concerned; None for rows that belong to none.
    """

    first: int | None
    last: int | None
    command: str | None = None
    condition: str | None = None
    refused: str | None = None

    def __str__(self) -> str:
        if self.condition is not None:
            where = f"delete the rows where {self.condition}"
            return f"{where}: by hand, once you know where they came from"
        if self.first is None and self.refused is not None:
            return self.refused
        one = self.first == self.last
        which = f"checkpoint {self.first}" if one else f"checkpoints {self.first} to {self.last}"
        if self.refused is None:
            return f"`{self.command}` writes the rows of {which} again"
        return f"no replay can repair {which}: {self.refused}"


def delete_condition(checkpoint: int | None, newest: int) -> str:
    """The rows with a number that is no live checkpoint, as a SQL condition; None: no number,
    and numbers below 0 or above ``newest`` stand for all of those.
    """
    if checkpoint is None:
        return f"{CHECKPOINT_COLUMN} IS NULL AND _eo_offset IS NOT NULL"
    if checkpoint < 0:
        return f"{CHECKPOINT_COLUMN} < 0"
    if checkpoint > newest:
        return f"{CHECKPOINT_COLUMN} > {newest}"
    return f"{CHECKPOINT_COLUMN} = {checkpoint}"


@dataclass(frozen=True)
class AuditReport:
    """What an audit saw, up to ``head``.

    ``last`` is how many live checkpoints were looked at, None for all. ``findings`` are failures,
    ``remarks`` are not. ``checkpoints`` has at most :data:`CHECKPOINTS_LISTED_MAX` of them;
    ``totals`` counts all. ``proves`` and ``cannot_prove`` are sentences. ``seconds`` per phase.
    """

    pipeline: str
    table: str
    head: LedgerEntry
    last: int | None
    findings: tuple[Finding, ...]
    remarks: tuple[Finding, ...]
    checkpoints: tuple[CheckpointAudit, ...]
    totals: Mapping[str, int]
    repairs: tuple[Repair, ...]
    proves: tuple[str, ...]
    cannot_prove: tuple[str, ...]
    seconds: Mapping[str, float]

    @property
    def passed(self) -> bool:
        """True if nothing that could be compared differs."""
        return not self.findings

    def to_json(self) -> dict[str, Any]:
        """Plain values; seconds are rounded to tenths."""
        return {
            "pipeline": self.pipeline,
            "table": self.table,
            "passed": self.passed,
            "version": self.head.version,
            "transaction_id": self.head.transaction_id,
            "last": self.last,
            "findings": [asdict(each) for each in self.findings],
            "remarks": [asdict(each) for each in self.remarks],
            "checkpoints": [asdict(each) for each in self.checkpoints],
            "totals": dict(self.totals),
            "repairs": [{**asdict(each), "text": str(each)} for each in self.repairs],
            "proves": list(self.proves),
            "cannot_prove": list(self.cannot_prove),
            "seconds": {phase: round(spent, 1) for phase, spent in self.seconds.items()},
        }

    def __str__(self) -> str:
        checked = f"Audit of {self.pipeline!r} ({self.table}), version {self.head.version}"
        lines = [f"{checked}: {'passed' if self.passed else 'FAILED'}"]
        lines += [str(each) for each in (*self.findings, *self.remarks)]
        lines += [f"Repair: {each}" for each in self.repairs]
        lines += [f"Proved: {each}" for each in self.proves]
        lines += [f"Not proved: {each}" for each in self.cannot_prove]
        return "\n".join(lines)
