"""What an audit proves, and what it cannot, in sentences for its report. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from eo_pipeline.audit.judge import Evidence
from eo_pipeline.audit.report import CheckpointAudit

_VALUES = (
    "What the other columns hold: rows are compared by the record they came from, not by value."
)
_DEAD_LETTERS = "What the dead-letter table holds: bad records were only counted, in Kafka."
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


def cannot_prove(
    evidence: Evidence, audited: Sequence[CheckpointAudit], last: int | None
) -> Iterator[str]:
    """What would look the same if it were otherwise."""
    snapshot, coverage = evidence.snapshot, evidence.coverage
    if last is not None:
        yield f"Anything of checkpoints before version {snapshot.since}: {last} were asked for."
    if snapshot.refused is not None:
        yield f"Anything of the rows: {snapshot.refused}"
    for cause, offsets in sorted(coverage.causes.items()):
        yield f"Which rows {offsets} offsets made, which Kafka cannot show again: {cause}."
    if snapshot.refused is None:
        yield _VALUES
        yield from _of_rows(evidence, audited)
    yield _DEAD_LETTERS


def _of_rows(evidence: Evidence, audited: Sequence[CheckpointAudit]) -> Iterator[str]:
    if not evidence.keeps_every_row:
        yield _UPSERT
    if not evidence.expected:
        yield _NO_LINEAGE
        return
    yield _TRANSFORM
    differing = [each for each in audited if each.differs]
    if differing and all(each.rows_found == each.rows_counted for each in differing):
        yield _ALL_AS_COUNTED
