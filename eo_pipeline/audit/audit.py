"""Audit of one pipeline, from snapshot to report; the package's docstring describes the steps."""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from itertools import islice

from eo_pipeline.audit.checksums import ValueReader, Values, not_compared
from eo_pipeline.audit.compare import BY_TRANSFORM, Comparison, RowKind, Tallies
from eo_pipeline.audit.judge import (
    LEDGER_FIRST,
    Evidence,
    Findings,
    cannot_prove,
    judge,
    proves,
    repairs,
)
from eo_pipeline.audit.ranges import Coverage, RangePiece, block_size, range_pieces, write_ranges
from eo_pipeline.audit.report import (
    CHECKPOINTS_LISTED_MAX,
    EXAMPLES_MAX,
    AuditReport,
    CheckpointAudit,
    FindingKind,
)
from eo_pipeline.audit.snapshot import READS_MAX, Snapshot, take_snapshot
from eo_pipeline.errors import (
    LOSSES_NAMED,
    ConfigError,
    GoingBackError,
    LedgerDamagedError,
    RefusedError,
    SparkJobError,
)
from eo_pipeline.kafka.marks import altered_ranges
from eo_pipeline.kafka.partitions import Cluster
from eo_pipeline.ledger.entry import REFUSED, LedgerEntry
from eo_pipeline.ledger.offsets import OffsetRange
from eo_pipeline.operations.change_plan import look_again, unverified_head
from eo_pipeline.operations.replay import check_replay
from eo_pipeline.progress import current
from eo_pipeline.runs.checkpoint import RunContext
from eo_pipeline.staging.scratch import Scratch, scratch
from eo_pipeline.storage.paths import Place

log = logging.getLogger(__name__)

#: Checkpoints compared again in one job; each adds a read to the plan.
ONE_BY_ONE = 16

#: Maximum number of reads of Kafka if records are deleted meanwhile.
_KAFKA_READS_MAX = 3


@dataclass
class Audit:
    """Audit of one pipeline. ``staging`` is its staging folder, in which temporary files are
    removed again. ``progress`` receives messages.
    """

    steps: RunContext
    staging: Place
    progress: Callable[[str], None]
    _seconds: dict[str, float] = field(init=False, default_factory=dict)

    def run(self, last: int | None = None) -> AuditReport:
        """See :meth:`eo_pipeline.pipeline.Pipeline.audit`."""
        if last is not None and last < 1:
            raise ConfigError(
                f"an audit of the last {last} checkpoints looks at nothing; 1 or more"
            )
        with suppress(LedgerDamagedError):  # the audit finds and locates the damage itself
            self.steps.recovery.refuse_older_ledger(self.steps.session.head())
        with scratch(self.staging) as files:
            with self._timed("sink"):
                snapshot = take_snapshot(
                    self.steps.session,
                    lambda: unverified_head(self.steps.session),
                    last,
                    files.folder / "rows.parquet",
                    self.say,
                )
            with self._timed("values"):
                values = self._values(snapshot, files)
            with self._timed("kafka"):
                evidence = self._evidence(snapshot, files)
        return self._report(replace(evidence, values=values), last)

    def say(self, text: str) -> None:
        """Tell what is being done."""
        current().says(f"{self.steps.pipeline}: {text}")
        self.progress(text)

    def _values(self, snapshot: Snapshot, files: Scratch) -> Values:
        """Compare the rows' values with their checksums; without a settled snapshot or a readable
        table, return no result.
        """
        if not snapshot.settled or snapshot.refused is not None:
            return Values()
        if snapshot.is_damaged:
            return not_compared(snapshot.checkpoints, "the ledger is not what was committed")
        steps = self.steps
        self.say("reading what the table's rows hold")
        reader = ValueReader(steps.session, steps.spark, steps.pipeline, files)
        keeps = steps.sink.keeps_every_row
        values = reader.values(snapshot.checkpoints, keeps_every_row=keeps)
        _, went_back = look_again(steps.session, snapshot.head)
        reason = "the ledger went back while they were read; run the audit again"
        return not_compared(snapshot.checkpoints, reason) if went_back else values

    def _evidence(self, snapshot: Snapshot, files: Scratch) -> Evidence:
        for attempt in range(1, _KAFKA_READS_MAX + 1):
            cluster = self.steps.admin.cluster()
            try:
                return self._read(snapshot, cluster, files)
            except SparkJobError:
                # only records deleted meanwhile justify a retry
                if attempt == _KAFKA_READS_MAX or not _deleted(cluster, self.steps.admin.cluster()):
                    raise
        raise AssertionError("unreachable")

    def _read(self, snapshot: Snapshot, cluster: Cluster, files: Scratch) -> Evidence:
        source = self.steps.source
        topics = {r.topic for c in snapshot.checkpoints for r in c.entry.ranges}
        compacted = self.steps.admin.compacted(topics & cluster.topic_ids.keys())
        coverage, block = Coverage(), block_size(snapshot.checkpoints)
        altered = altered_ranges(snapshot.checkpoints, cluster, self.steps.admin.logs)
        held = [*range_pieces(snapshot.checkpoints, cluster, source, altered)]
        counted = coverage.counted(held)
        write_ranges(counted, files.folder / "ranges.parquet", block, compacted)
        expected = self.steps.lineage and snapshot.rows is not None
        tallies: Tallies = {}
        if snapshot.settled and (snapshot.rows or snapshot.checkpoints):
            compare = self._compare(snapshot, cluster, files, block, expected=expected)
            tallies = self._tallies(compare, snapshot, coverage, held)
        keeps = self.steps.sink.keeps_every_row
        return Evidence(
            *(snapshot, coverage, tallies, frozenset(compacted), expected, keeps),
            altered=altered,
            cut_off=[(piece.checkpoint, piece.range) for piece in held if piece.is_cut_off],
        )

    def _compare(
        self, snapshot: Snapshot, cluster: Cluster, files: Scratch, block: int, *, expected: bool
    ) -> Comparison:
        resolvers = self.steps.resolvers
        return Comparison(
            spark=self.steps.spark(),
            stager=self.steps.stager_of_one_table(),
            pipeline=self.steps.pipeline,
            topic_ids={**snapshot.head.topic_ids, **cluster.topic_ids},
            rows=files.seen(files.folder / "rows.parquet"),
            ranges=files.seen(files.folder / "ranges.parquet"),
            block=block,
            head=snapshot.head.version,
            newest=snapshot.newest,
            expected=expected,
            schemas=resolvers.for_audit(snapshot.head, snapshot.checkpoints) if resolvers else None,
            refused=[
                record
                for checkpoint in snapshot.checkpoints
                for record in checkpoint.written.details.get(REFUSED, ())
            ],
        )

    def _tallies(
        self,
        compare: Comparison,
        snapshot: Snapshot,
        coverage: Coverage,
        held: Sequence[RangePiece],
    ) -> Tallies:
        """Compare all checkpoints at once, then differing ones one by one, as their own runs read
        them.
        """
        offsets = sum(coverage.readable.values())
        self.say(f"reading {offsets:,} offsets of {len(snapshot.checkpoints):,} checkpoints again")
        tallies = compare.everything(coverage.spans)
        # with a registry the columns too may differ between checkpoints
        kinds_to_repeat = BY_TRANSFORM | {RowKind.BAD} if self.steps.resolvers else BY_TRANSFORM
        differing = {
            n for n, kinds in tallies.items() if n is not None and kinds_to_repeat & {*kinds}
        }
        remaining = iter(sorted(_spans(held, differing).items()))
        while group := dict(islice(remaining, ONE_BY_ONE)):
            self.say(f"comparing checkpoints {min(group)} to {max(group)} one by one")
            tallies.update(compare.one_by_one(group))
        return tallies

    def _report(self, evidence: Evidence, last: int | None) -> AuditReport:
        findings, snapshot = Findings(), evidence.snapshot
        _judge_ledger(snapshot, findings)
        audited = judge(evidence, findings) if snapshot.settled else []
        all_findings = list(findings.all())

        def check(versions: Collection[int]) -> str | None:
            return _refused(self.steps, snapshot, versions)

        return AuditReport(
            pipeline=self.steps.pipeline,
            table=self.steps.sink.table_name,
            head=snapshot.head,
            last=last,
            findings=tuple(finding for finding in all_findings if finding.kind.is_failure),
            remarks=tuple(finding for finding in all_findings if not finding.kind.is_failure),
            checkpoints=_listed(audited),
            totals=_totals(audited),
            repairs=(LEDGER_FIRST,)
            if snapshot.is_damaged
            else tuple(repairs(audited, evidence.tallies, snapshot.newest, check)),
            proves=tuple(proves(evidence, audited)),
            cannot_prove=tuple(cannot_prove(evidence, audited, last)),
            seconds=dict(self._seconds),
        )

    @contextmanager
    def _timed(self, phase: str) -> Iterator[None]:
        started = time.perf_counter()
        yield
        self._seconds[phase] = time.perf_counter() - started


def _spans(held: Sequence[RangePiece], wanted: Collection[int]) -> dict[int, list[OffsetRange]]:
    """Return the ranges of the ``wanted`` checkpoints that Kafka still holds, separately
    for each.
    """
    spans: dict[int, list[OffsetRange]] = defaultdict(list)
    for piece in held:
        if piece.cause is None and piece.checkpoint in wanted:
            spans[piece.checkpoint].append(piece.range)
    return spans


def _deleted(before: Cluster, after: Cluster) -> bool:
    """Return whether Kafka lost records: retention passed, or a topic was deleted."""
    shrunk = (
        tp not in after.bounds or after.bounds[tp].beginning > bounds.beginning
        for tp, bounds in before.bounds.items()
    )
    return before.topic_ids != after.topic_ids or any(shrunk)


def _judge_ledger(snapshot: Snapshot, findings: Findings) -> None:
    for text in snapshot.contiguity_errors[:EXAMPLES_MAX]:
        findings.say(FindingKind.LEDGER, text)
    more = len(snapshot.contiguity_errors) - EXAMPLES_MAX
    if more > 0:
        findings.say(FindingKind.LEDGER, f"... and {more} more")
    for entry in snapshot.holes:
        findings.say(FindingKind.ACCEPTED_LOSS, _accepted(entry), entry.version)
    if not snapshot.settled:
        findings.say(
            FindingKind.UNSETTLED,
            f"the ledger went back {READS_MAX} times while the table was read, so that its rows "
            "were not judged; run the audit again when the rewinds and replays are done",
        )


def _accepted(entry: LedgerEntry) -> str:
    """Return the holes of an accepted loss, and the reason."""
    holes = [str(hole["text"]) for hole in entry.details.get("holes", [])]
    listed = "; ".join(holes[:LOSSES_NAMED])
    more = f"; and {len(holes) - LOSSES_NAMED} more" if len(holes) > LOSSES_NAMED else ""
    reason = entry.details.get("reason") or "no reason given"
    return f"version {entry.version} accepted a loss ({reason}): {listed}{more}"


def _refused(steps: RunContext, snapshot: Snapshot, versions: Collection[int]) -> str | None:
    """Return the reason why a replay of these checkpoints is refused, by the replay's own checks;
    None if it is not.
    """
    try:
        check_replay(steps, snapshot.head, versions)
    except (GoingBackError, RefusedError) as error:
        return str(error)
    return None


def _listed(audited: Sequence[CheckpointAudit]) -> tuple[CheckpointAudit, ...]:
    if len(audited) <= CHECKPOINTS_LISTED_MAX:
        return tuple(audited)
    return tuple(checkpoint for checkpoint in audited if checkpoint.differs)[
        :CHECKPOINTS_LISTED_MAX
    ]


#: Counts of a checkpoint that are summed up; unknown ones add nothing.
_SUMMED = (
    *("offsets", "unreadable", "records_counted", "records", "dead_letters_counted"),
    *("dead_letters", "rows_counted", "rows_expected", "rows_found"),
    *("missing", "duplicated", "foreign", "unproved", "as_committed", "differs"),
)


def _totals(audited: Sequence[CheckpointAudit]) -> dict[str, int]:
    sums = {name: sum(getattr(c, name) or 0 for c in audited) for name in _SUMMED}
    return {"checkpoints": len(audited), **sums}
