"""What an audit proves, and what it cannot, in sentences for its report. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from eo_pipeline.audit.judge import Evidence
from eo_pipeline.audit.report import CheckpointAudit
from eo_pipeline.ledger.entry import START_VERSION

_VALUES = "What the columns of {checkpoints} checkpoints hold: {reason}."
_DEAD_LETTERS = "What the dead letters of {checkpoints} checkpoints hold: {reason}."
_MALICE = (
    "That nobody chose values by their checksum: it is made for accidents, 64 bits of a hash that "
    "is no secret."
)
_NO_LINEAGE = (
    "That each row came from its own record: lineage is off (lineage: false), so that only the "
    "number of rows of each checkpoint was compared with the ledger's count."
)
_UPSERT = (
    "That no row is absent: rows replace each other by key here, and a replaced row looks like a "
    "missing one. That no row is there twice and none is foreign was compared."
)
_TRANSFORM = (
    "Which of two changed, where rows differ: the table, or the transform or source settings since "
    "the rows were written. A transform that gives other rows each time (random numbers, the time, "
    "another table) differs too. If it was changed on purpose, a replay brings the table up to it."
)
_ALL_AS_COUNTED = (
    "In all checkpoints that differ the table holds as many rows as the ledger counted: rather the "
    "transform or the source settings changed than the table."
)


#: Columns that a report names.
COLUMNS_NAMED = 20

_AS_COMMITTED = (
    "Where rows differ from the records in Kafka they hold what was committed, to the last value: "
    "the transform, the source settings or Kafka changed since, and not the table."
)


def proves(evidence: Evidence, audited: Sequence[CheckpointAudit]) -> Iterator[str]:
    """What was compared: any difference there is named among the findings."""
    snapshot, coverage = evidence.snapshot, evidence.coverage
    since, head = snapshot.since, snapshot.head.version
    yield f"That versions {since} to {head} of the ledger follow each other."
    offsets = sum(coverage.readable.values())
    if offsets and audited:
        yield (
            f"How many records Kafka holds in {offsets} offsets that {len(audited)} checkpoints "
            "read, against the ledger's count."
        )
    if snapshot.rows is not None and audited:
        rows = snapshot.rows
        yield f"How many rows each checkpoint has, {rows} in all, against the ledger's count."
    if evidence.expected and offsets and audited:
        absent = "missing, " if evidence.keeps_every_row else ""
        yield (
            "Each row against the record it came from, by topic, partition, offset and checkpoint: "
            f"that none is {absent}there too often, or foreign, as today's transform makes rows."
        )
    yield from _by_checksum(evidence)


def _by_checksum(evidence: Evidence) -> Iterator[str]:
    rows, letters = evidence.values.rows, evidence.values.letters
    if compared := rows.as_committed | rows.changed:
        columns = ", ".join(rows.columns[:COLUMNS_NAMED])
        more = len(rows.columns) - COLUMNS_NAMED
        yield (
            f"What the rows of {len(compared)} checkpoints hold, value by value, against what was "
            f"committed, whatever Kafka holds: {columns}{f' and {more} more' if more > 0 else ''}."
        )
    if compared := letters.as_committed | letters.changed:
        yield f"What the dead letters of {len(compared)} checkpoints hold, in the same way."


def cannot_prove(
    evidence: Evidence, audited: Sequence[CheckpointAudit], last: int | None
) -> Iterator[str]:
    """What would look the same if it were otherwise."""
    snapshot, coverage = evidence.snapshot, evidence.coverage
    if last is not None:
        yield f"Anything of checkpoints before version {snapshot.since}: {last} were asked for."
    elif snapshot.since > START_VERSION:
        yield f"Anything of checkpoints before version {snapshot.since}: the ledger was pruned."
    if snapshot.refused is not None:
        yield f"Anything of the rows: {snapshot.refused}"
    for cause, offsets in sorted(coverage.causes.items()):
        yield f"Which rows {offsets} offsets made, which Kafka cannot show again: {cause}."
    if snapshot.refused is None:
        yield from _of_values(evidence)
        yield from _of_rows(evidence, audited)


def _of_values(evidence: Evidence) -> Iterator[str]:
    for proofs, text in ((evidence.values.rows, _VALUES), (evidence.values.letters, _DEAD_LETTERS)):
        for reason, checkpoints in sorted(proofs.unknown.items()):
            yield text.format(checkpoints=checkpoints, reason=reason)
    if evidence.values.rows.as_committed:
        yield _MALICE


def _of_rows(evidence: Evidence, audited: Sequence[CheckpointAudit]) -> Iterator[str]:
    if not evidence.keeps_every_row:
        yield _UPSERT
    if not evidence.expected:
        yield _NO_LINEAGE
        return
    yield _TRANSFORM
    differing = [each for each in audited if each.differs]
    by_record = [each for each in differing if each.missing or each.duplicated or each.foreign]
    if by_record and all(each.as_committed for each in by_record):
        yield _AS_COMMITTED
    elif differing and all(each.rows_found == each.rows_counted for each in differing):
        yield _ALL_AS_COUNTED
