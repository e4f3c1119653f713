"""Result of an audit: plain values for people and programs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from eo_pipeline.ledger.entry import CHECKPOINT_COLUMN, LedgerEntry

#: Maximum number of examples of a finding.
EXAMPLES_MAX = 20

#: Maximum number of checkpoints in a report; above it only differing ones are listed.
CHECKPOINTS_LISTED_MAX = 1_000


class FindingKind(StrEnum):
    """Kind of a finding: a failure, or (the last four) a remark."""

    LEDGER = "ledger"  # entries do not follow each other
    UNSETTLED = "unsettled"  # the ledger kept going back while the table was read
    MISSING = "missing"  # fewer rows of a record than the transform makes
    DUPLICATED = "duplicated"  # more rows of a record than the transform makes
    FOREIGN = "foreign"  # rows that no record of their checkpoint accounts for
    CHANGED = "changed"  # other values than those that were committed
    DEAD_LETTERS = "dead_letters"  # the dead letters are not those that were committed
    MISCOUNTED = "miscounted"  # the ledger counted another number of rows or records
    LOST = "lost"  # Kafka lost records it should still hold
    UNPROVED = "unproved"  # no evidence remains
    COMPACTED = "compacted"  # compaction took records since they were read
    ACCEPTED_LOSS = "accepted_loss"  # a hole that was accepted
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
    """Reason why a checkpoint's ranges hold fewer records than offsets."""

    NONE = "none"
    MARKERS = "markers"  # of transactions, or aborted records; no record is absent
    COMPACTION = "compaction"
    LOSS = "loss"
    UNKNOWN = "unknown"  # not all of the range can be read


@dataclass(frozen=True, order=True)
class Example:
    """One differing record: rows ``expected`` by the current transform, and rows ``found``.

    A coordinate is None if the row lacks it.
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
    """Differences of one kind and reason, in all checkpoints together.

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
    """Result of one live checkpoint: the ledger's counts, and the present ones.

    ``written_by`` is the version that wrote its rows last: itself or a replay. ``offsets`` is the
    span of its ranges, ``unreadable`` the part of it that Kafka no longer holds. Records, dead
    letters and expected rows are those of the rest; None if unknown. ``as_committed`` is True if a
    checksum proves that its rows hold the committed values, False if it disproves that, None
    without a checksum; ``dead_letters_found`` is the present number of dead letters.
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
    """Remedy of differences: a ``command``, or a ``condition`` of rows to delete by hand, or else
    the reason ``refused``.

    ``first`` and ``last`` are the live checkpoints concerned; None for rows of none. ``table`` has
    the rows, where a pipeline fills several.
    """

    first: int | None
    last: int | None
    command: str | None = None
    condition: str | None = None
    refused: str | None = None
    table: str | None = None

    def __str__(self) -> str:
        if self.condition is not None:
            of_table = f" of {self.table}" if self.table else ""
            where = f"delete the rows{of_table} where {self.condition}"
            return f"{where}: by hand, once you know where they came from"
        if self.first is None and self.refused is not None:
            return self.refused
        is_single = self.first == self.last
        which = (
            f"checkpoint {self.first}" if is_single else f"checkpoints {self.first} to {self.last}"
        )
        if self.refused is None:
            return f"`{self.command}` writes the rows of {which} again"
        return f"no replay can repair {which}: {self.refused}"


def delete_condition(checkpoint: int | None, newest: int) -> str:
    """Return the SQL condition of the rows whose checkpoint is not live; None: rows without a
    number. Numbers below 0 or above ``newest`` stand for all of those.
    """
    if checkpoint is None:
        return f"{CHECKPOINT_COLUMN} IS NULL AND _eo_offset IS NOT NULL"
    if checkpoint < 0:
        return f"{CHECKPOINT_COLUMN} < 0"
    if checkpoint > newest:
        return f"{CHECKPOINT_COLUMN} > {newest}"
    return f"{CHECKPOINT_COLUMN} = {checkpoint}"


def _repair_json(repair: Repair) -> dict[str, Any]:
    values = {k: v for k, v in asdict(repair).items() if k != "table" or v is not None}
    return {**values, "text": str(repair)}


@dataclass(frozen=True)
class AuditReport:
    """Result of an audit up to ``head``.

    ``last`` is the requested number of live checkpoints, None for all. ``findings`` are failures,
    ``remarks`` are not. ``checkpoints`` has at most :data:`CHECKPOINTS_LISTED_MAX` of them;
    ``totals`` counts all. ``proves`` and ``cannot_prove`` are sentences. ``seconds`` per phase.
    Of a pipeline that fills several tables ``tables`` has the report of each.
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
    tables: Mapping[str, AuditReport] = field(default_factory=dict)

    @property
    def passed(self) -> bool:
        """True if no comparison found a difference."""
        return not self.findings

    def to_json(self) -> dict[str, Any]:
        """Return plain values; seconds are rounded to tenths."""
        return {
            "pipeline": self.pipeline,
            "table": self.table,
            "passed": self.passed,
            "version": self.head.version,
            "transaction_id": self.head.transaction_id,
            "last": self.last,
            "findings": [asdict(finding) for finding in self.findings],
            "remarks": [asdict(remark) for remark in self.remarks],
            "checkpoints": [asdict(checkpoint) for checkpoint in self.checkpoints],
            "totals": dict(self.totals),
            "repairs": [_repair_json(repair) for repair in self.repairs],
            "proves": list(self.proves),
            "cannot_prove": list(self.cannot_prove),
            "seconds": {phase: round(spent, 1) for phase, spent in self.seconds.items()},
            **({"tables": {n: r.to_json() for n, r in self.tables.items()}} if self.tables else {}),
        }

    def __str__(self) -> str:
        checked = f"Audit of {self.pipeline!r} ({self.table}), version {self.head.version}"
        lines = [f"{checked}: {'passed' if self.passed else 'FAILED'}"]
        lines += [str(finding) for finding in (*self.findings, *self.remarks)]
        lines += [f"Repair: {repair}" for repair in self.repairs]
        lines += [f"Proved: {text}" for text in self.proves]
        lines += [f"Not proved: {text}" for text in self.cannot_prove]
        return "\n".join(lines)
