"""Audit step 4: findings and repairs derived from the counts. Pure, no I/O."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby

from eo_pipeline.audit.checksums import ChecksumResults, Values
from eo_pipeline.audit.compare import RowKind, Tallies, Tally
from eo_pipeline.audit.ranges import Coverage, ReadRange
from eo_pipeline.audit.report import (
    EXAMPLES_MAX,
    CheckpointAudit,
    Example,
    Finding,
    FindingKind,
    Holes,
    Repair,
    delete_condition,
)
from eo_pipeline.audit.snapshot import Snapshot
from eo_pipeline.ledger.entry import START_VERSION
from eo_pipeline.ledger.history import Checkpoint
from eo_pipeline.ledger.marks import Mark


@dataclass(frozen=True)
class RecordCounts:
    """Kafka records of one checkpoint: ``found`` now, None if none of them can be read.

    ``fewer`` and ``more`` compare with the count at commit; ``beyond`` is the part of that count
    above one record per offset, which is impossible. All are 0 if a part of the ranges is gone.
    ``holes`` is the reason for fewer records than offsets.
    """

    found: int | None
    fewer: int
    more: int
    holes: Holes
    beyond: int = 0

    @property
    def as_counted(self) -> bool:
        """True if exactly the counted records can be read again."""
        readable = self.found is not None and self.holes is not Holes.UNKNOWN
        return readable and not (self.fewer or self.more or self.beyond)


def records_of(
    checkpoint: Checkpoint,
    coverage: Coverage,
    tallies: Iterable[Tally],
    compacted: Collection[str],
) -> RecordCounts:
    """Compare the checkpoint's records with the ledger's count of them."""
    version = checkpoint.version
    if not coverage.readable[version]:
        return RecordCounts(None, 0, 0, Holes.UNKNOWN)
    present = sum(tally.records for tally in tallies)
    if coverage.gone[version]:
        return RecordCounts(present, 0, 0, Holes.UNKNOWN)
    offsets = coverage.readable[version]
    beyond = max(0, checkpoint.counts.records - offsets)
    fewer = max(0, checkpoint.counts.records - beyond - present)
    more = max(0, present - checkpoint.counts.records)
    holes = _holes(offsets - present, fewer, coverage.topics[version], compacted)
    return RecordCounts(present, fewer, more, holes, beyond)


def _holes(absent: int, fewer: int, topics: set[str], compacted: Collection[str]) -> Holes:
    if not absent:
        return Holes.NONE
    if not fewer:
        # there were no more when it was read; for a compacted topic the reason is unknown
        return Holes.MARKERS
    return Holes.COMPACTION if topics & set(compacted) else Holes.LOSS


_TEXTS = {
    RowKind.MISSING: "rows are missing: Kafka holds their records and today's transform makes them",
    RowKind.DUPLICATED: "rows are too many: their records are in the table already",
    RowKind.DROPPED: "rows came from records that today's transform leaves out",
    RowKind.BAD: "rows came from records that are bad ones by today's source settings",
    RowKind.TOMBSTONE: "rows came from records without a value, which are skipped",
    RowKind.NO_RECORD: "rows say they came from offsets at which Kafka holds no record",
    RowKind.OUTSIDE: "rows say they came from offsets that their checkpoint did not read",
    RowKind.NO_CHECKPOINT: "rows name a record and no checkpoint",
    RowKind.GONE: "rows came from ranges that Kafka no longer holds",
    RowKind.COMPACTED: "rows came from records that compaction has removed since",
    RowKind.UNTRACED: "rows do not say which record they came from; they were only counted",
    RowKind.NOT_OURS: "rows carry neither checkpoint nor record: another writer's",
}
_STRAY = "rows carry a checkpoint that is not live: it was rewound, or never committed"
_REPLACED = "rows are absent; rows with the same key may have replaced them"
_LOST = "records are no longer in Kafka, although retention and compaction cannot explain it"
_ROWS_OF_LOST = "rows came from records that Kafka has lost"
_ALTERED = (
    "offsets hold other records than those that were read: the log was truncated and has grown "
    "again. The table's rows of these offsets came from records that are gone; the records now "
    "at these offsets were not read"
)
_CUT_OFF = (
    "offsets that were read are beyond the log's end: the log was truncated. Kafka has lost their "
    "records, and may hold others below; accept the loss, or restore the log (a mirror, a backup)"
)
_COMPACTED = "records were removed by compaction since they were read"
_MORE_RECORDS = "records are in Kafka beyond those that were counted when their ranges were read"
_BEYOND = "records were counted beyond one for each offset that was read"
_DEAD_LETTERS = (
    "is the difference between the bad records that the ledger counted and those in Kafka by "
    "today's source settings"
)
_SKIPPED = (
    "is the difference between the skipped records that the ledger counted and those in Kafka by "
    "today's source settings"
)
_CHANGED = "checkpoints have as many rows as were committed, but with different values"
_LETTERS_COUNT = "is the difference between the dead letters committed and those in the table"
_LETTERS_CHANGED = (
    "checkpoints have as many dead letters as were committed, but with different values"
)
_MISCOUNTED = "is the difference between the rows that the ledger counted and those in the table"

#: Kinds that a checksum can prove although Kafka cannot.
_PROVED_BY_VALUES = (RowKind.GONE, RowKind.COMPACTED, RowKind.UNTRACED)
_FOREIGN = frozenset(
    {
        *(RowKind.DROPPED, RowKind.BAD, RowKind.TOMBSTONE),
        *(RowKind.NO_RECORD, RowKind.OUTSIDE, RowKind.NO_CHECKPOINT),
    }
)
_KINDS = {
    RowKind.MISSING: FindingKind.MISSING,
    RowKind.DUPLICATED: FindingKind.DUPLICATED,
    RowKind.GONE: FindingKind.UNPROVED,
    RowKind.COMPACTED: FindingKind.UNPROVED,
    RowKind.UNTRACED: FindingKind.UNPROVED,
    RowKind.NOT_OURS: FindingKind.NOT_OURS,
    **dict.fromkeys(_FOREIGN, FindingKind.FOREIGN),
}


@dataclass(frozen=True)
class Evidence:
    """Input of the judgement.

    ``expected``: the transform was applied, and its rows compared. ``keeps_every_row``: False for a
    sink that upserts. ``compacted`` are topics. ``altered`` ranges hold other records than the run
    read, ``cut_off`` ones lie beyond the log's end.
    """

    snapshot: Snapshot
    coverage: Coverage
    tallies: Tallies
    compacted: frozenset[str]
    expected: bool
    keeps_every_row: bool
    values: Values = field(default_factory=Values)
    altered: Collection[ReadRange] = ()
    cut_off: Collection[ReadRange] = ()

    @cached_property
    def unaccepted(self) -> Mapping[str, Counter[int]]:
        """Number of offsets lost without an accepted loss, by finding and checkpoint: replaced by
        other records, or beyond the log's end. For a partition with an accepted end the ledger has
        no offset until the log reaches it again.
        """
        head = self.snapshot.head
        marks = head.identity.marks
        lost: dict[str, Counter[int]] = {_ALTERED: Counter(), _CUT_OFF: Counter()}
        for version, r in self.altered:
            if r.end > marks.get(r.topic_partition, Mark()).since:
                lost[_ALTERED][version] += r.span
        for version, r in self.cut_off:
            if r.topic_partition in head.offsets:
                lost[_CUT_OFF][version] += r.span
        return lost


@dataclass
class _Gathered:
    counted: bool = True
    count: int = 0
    checkpoints: set[int] = field(default_factory=set)
    examples: list[Example] = field(default_factory=list)


class Findings:
    """Differences, gathered by kind and reason."""

    def __init__(self) -> None:
        self._gathered: dict[tuple[FindingKind, str], _Gathered] = defaultdict(_Gathered)

    def add(
        self,
        kind: FindingKind,
        text: str,
        count: int,
        checkpoint: int | None = None,
        examples: Iterable[Example] = (),
    ) -> None:
        if count:
            gathered = self._gathered[kind, text]
            gathered.count += count
            gathered.checkpoints |= set() if checkpoint is None else {checkpoint}
            gathered.examples = sorted([*gathered.examples, *examples], key=_order)[:EXAMPLES_MAX]

    def say(self, kind: FindingKind, text: str, checkpoint: int | None = None) -> None:
        """Add a whole sentence, shown without a count."""
        self.add(kind, text, 1, checkpoint)
        self._gathered[kind, text].counted = False

    def all(self) -> Iterator[Finding]:
        """Yield the findings in the order of :class:`FindingKind`."""
        order = list(FindingKind)
        for (kind, text), gathered in sorted(
            self._gathered.items(), key=lambda item: (order.index(item[0][0]), item[0][1])
        ):
            numbers = tuple(sorted(gathered.checkpoints))
            message = f"{gathered.count} {text}{_where(numbers)}" if gathered.counted else text
            yield Finding(
                kind, message, gathered.count, numbers[:EXAMPLES_MAX], tuple(gathered.examples)
            )


def _order(example: Example) -> tuple[int, str, int, int]:
    """Sort key of examples: checkpoint, then offset; missing values come first."""
    numbers = (example.checkpoint, example.partition, example.offset)
    checkpoint, partition, offset = (-1 if number is None else number for number in numbers)
    return checkpoint, example.topic or "", partition, offset


def _where(checkpoints: tuple[int, ...]) -> str:
    if not checkpoints:
        return ""
    listed = ", ".join(map(str, checkpoints[:EXAMPLES_MAX]))
    more = len(checkpoints) - EXAMPLES_MAX
    return f" (checkpoint {listed}{f' and {more} more' if more > 0 else ''})"


def judge(evidence: Evidence, findings: Findings) -> list[CheckpointAudit]:
    """Judge every live checkpoint, oldest first; differences are added to ``findings``."""
    audited = [_checkpoint(c, evidence, findings) for c in evidence.snapshot.checkpoints]
    live = {checkpoint.version for checkpoint in evidence.snapshot.checkpoints}
    for number, kinds in evidence.tallies.items():
        if number not in live:
            _stray(number, kinds, findings)
    for text, lost in evidence.unaccepted.items():
        for version, offsets in lost.items():
            findings.add(FindingKind.LOST, text, offsets, version)
    return audited


def _stray(number: int | None, kinds: Mapping[RowKind, Tally], findings: Findings) -> None:
    """Add the rows without a live checkpoint."""
    for kind, tally in kinds.items():
        if number is None:
            findings.add(_KINDS[kind], _TEXTS[kind], tally.found, None, tally.examples)
        else:
            findings.add(FindingKind.FOREIGN, _STRAY, tally.found, number, tally.examples)


def _checkpoint(checkpoint: Checkpoint, evidence: Evidence, findings: Findings) -> CheckpointAudit:
    kinds = dict(evidence.tallies.get(checkpoint.version, {}))
    records = records_of(checkpoint, evidence.coverage, kinds.values(), evidence.compacted)
    counts = _CheckpointCounts(checkpoint, evidence, kinds, records)
    for kind, text, difference, examples in counts.differences():
        findings.add(kind, text, difference, checkpoint.version, examples)
    return counts.audited()


class _CheckpointCounts:
    """Counts of one checkpoint, and the differences among them."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        evidence: Evidence,
        kinds: dict[RowKind, Tally],
        records: RecordCounts,
    ) -> None:
        self._checkpoint = checkpoint
        self._evidence = evidence
        self._kinds = kinds
        self._records = records
        self._read_back = evidence.snapshot.rows is not None
        self._found = sum(tally.found for tally in kinds.values())

    def differences(self) -> Iterator[tuple[FindingKind, str, int, list[Example]]]:
        if self._read_back:
            yield from self._rows()
            yield FindingKind.MISCOUNTED, _MISCOUNTED, self._unexplained(), []
        yield FindingKind.CHANGED, _CHANGED, int(self._changed), []
        for text, count in self._dead_letters().items():
            yield FindingKind.DEAD_LETTERS, text, count, []
        if self._records.holes is Holes.LOSS:
            yield FindingKind.LOST, _LOST, self._records.fewer, []
        elif self._records.holes is Holes.COMPACTION:
            yield FindingKind.COMPACTED, _COMPACTED, self._records.fewer, []
        for text, count in self._miscounted_records().items():
            yield FindingKind.MISCOUNTED, text, count, []

    def _miscounted_records(self) -> dict[str, int]:
        """Return the differences between the ledger's counts of records and Kafka's."""
        counts, records = self._checkpoint.counts, self._records
        differing = {_BEYOND: records.beyond, _MORE_RECORDS: records.more}
        if records.as_counted:
            bad = sum(tally.bad for tally in self._kinds.values())
            skipped = sum(tally.skipped for tally in self._kinds.values())
            more = counts.dead_letters - bad
            # rows that the sink cannot store are found only if rows are expected and compared
            differing[_DEAD_LETTERS] = abs(more) if self._read_back else max(0, -more)
            differing[_SKIPPED] = abs(counts.tombstones - skipped)
        return differing

    @property
    def _as_committed(self) -> bool | None:
        return _verdict(self._evidence.values.rows, self._checkpoint.version)

    @property
    def _changed(self) -> bool:
        """True if only values differ: with fewer or more rows the checksum differs anyway."""
        return self._as_committed is False and self._found == self._checkpoint.counts.rows

    def _dead_letters(self) -> dict[str, int]:
        """Return the differences between the dead letters and the committed ones."""
        letters, counts = self._evidence.values.letters, self._checkpoint.counts
        present = letters.found.get(self._checkpoint.version)
        if present is None:
            return {}
        if more := abs(present - counts.dead_letters):
            return {_LETTERS_COUNT: more}
        return {_LETTERS_CHANGED: int(_verdict(letters, self._checkpoint.version) is False)}

    def _rows(self) -> Iterator[tuple[FindingKind, str, int, list[Example]]]:
        for kind, tally in self._kinds.items():
            if kind is RowKind.FINE or (kind in _PROVED_BY_VALUES and self._as_committed):
                continue
            if kind is RowKind.MISSING and self._absence_proves_nothing():
                if not self._evidence.keeps_every_row:
                    yield FindingKind.UNPROVED, _REPLACED, tally.expected - tally.found, []
            elif kind is RowKind.NO_RECORD and self._kafka_lost_them():
                if not self._as_committed:
                    yield FindingKind.UNPROVED, _ROWS_OF_LOST, tally.found, tally.examples
            else:
                yield _KINDS[kind], _TEXTS[kind], _differing(kind, tally), tally.examples

    def _absence_proves_nothing(self) -> bool:
        """Return whether an absent row proves nothing: newer rows replace older ones, or none of
        the checkpoint's rows has lineage.
        """
        untraced = self._kinds.get(RowKind.UNTRACED, Tally()).found
        return not self._evidence.keeps_every_row or 0 < untraced == self._found

    def _kafka_lost_them(self) -> bool:
        """Return whether Kafka lost as many records of this checkpoint as there are rows without
        one.
        """
        without = self._kinds.get(RowKind.NO_RECORD, Tally()).keys
        return self._records.holes is Holes.LOSS and without <= self._records.fewer

    def _count(self, *wanted: RowKind) -> int:
        kinds = {kind: tally for kind, tally in self._kinds.items() if kind in wanted}
        return sum(_differing(kind, tally) for kind, tally in kinds.items())

    @property
    def _missing(self) -> int:
        return 0 if self._absence_proves_nothing() else self._count(RowKind.MISSING)

    @property
    def _foreign(self) -> int:
        lost = self._kafka_lost_them()
        return self._count(*(_FOREIGN - {RowKind.NO_RECORD} if lost else _FOREIGN))

    def _unexplained(self) -> int:
        """Return the row difference of table and ledger that no single row explains: in ranges that
        Kafka no longer holds, or if every row agrees with Kafka.
        """
        duplicated = self._count(RowKind.DUPLICATED)
        explained = self._missing or duplicated or self._foreign
        if explained and not self._evidence.coverage.gone[self._checkpoint.version]:
            return 0
        repaired = self._found + self._missing - duplicated - self._foreign
        more = repaired - self._checkpoint.counts.rows
        return abs(more) if self._evidence.keeps_every_row else max(0, more)

    def _differs(self) -> bool:
        return bool(
            self._missing
            or self._count(RowKind.DUPLICATED)
            or self._foreign
            or (self._read_back and self._unexplained())
            or self._records.holes is Holes.LOSS
            or any(self._miscounted_records().values())
            or self._changed
            or any(self._dead_letters().values())
            or any(lost[self._checkpoint.version] for lost in self._evidence.unaccepted.values())
        )

    def audited(self) -> CheckpointAudit:
        version, counts = self._checkpoint.version, self._checkpoint.counts
        tallies, compared = self._kinds.values(), self._records.found is not None
        unproved = 0 if self._as_committed else self._count(*_PROVED_BY_VALUES)
        proved = self._evidence.expected and compared
        return CheckpointAudit(
            version=version,
            written_by=self._checkpoint.written.version,
            offsets=sum(r.span for r in self._checkpoint.entry.ranges),
            unreadable=self._evidence.coverage.gone[version],
            records_counted=counts.records,
            records=self._records.found,
            holes=self._records.holes,
            dead_letters_counted=counts.dead_letters,
            dead_letters=sum(t.bad for t in tallies) if compared else None,
            rows_counted=counts.rows,
            rows_expected=sum(t.expected for t in tallies) if proved else None,
            rows_found=self._found if self._read_back else None,
            missing=self._missing if self._read_back else 0,
            duplicated=self._count(RowKind.DUPLICATED),
            foreign=self._foreign,
            unproved=unproved,
            differs=self._differs(),
            as_committed=self._as_committed,
            dead_letters_found=self._evidence.values.letters.found.get(version),
        )


def _verdict(proofs: ChecksumResults, version: int) -> bool | None:
    if version in proofs.changed:
        return False
    return True if version in proofs.as_committed else None


def _differing(kind: RowKind, tally: Tally) -> int:
    """Return the number of rows by which ``tally`` differs from the expectation."""
    if kind is RowKind.MISSING:
        return tally.expected - tally.found
    if kind is RowKind.DUPLICATED:
        return tally.found - tally.expected
    return tally.found


_VALUES = "What the columns of {checkpoints} checkpoints hold: {reason}."
_DEAD_LETTERS_UNKNOWN = "What the dead letters of {checkpoints} checkpoints hold: {reason}."
_MALICE = (
    "That nobody forged values to fit a checksum: it detects accidents, not attacks (64 bits of a "
    "public hash)."
)
_NO_LINEAGE = (
    "That each row came from its own record: lineage is off (lineage: false), so that only the "
    "number of rows of each checkpoint was compared with the ledger's count."
)
_UPSERT = (
    "That no row is absent: rows replace each other by key here, and a replaced row looks like a "
    "missing one. Duplicate and foreign rows were looked for."
)
_TRANSFORM = (
    "What changed where rows differ: the table, or the transform or source settings since "
    "the rows were written. A transform that gives other rows each time (random numbers, the time, "
    "another table) differs too. If the change was intended, a replay updates the table."
)
_ALL_AS_COUNTED = (
    "In all differing checkpoints the table has as many rows as the ledger counted: probably the "
    "transform or the source settings changed, not the table."
)


#: Columns that a report names.
COLUMNS_NAMED = 20

_AS_COMMITTED = (
    "Where rows differ from the records in Kafka they hold what was committed, to the last value: "
    "the transform, the source settings or Kafka changed since, and not the table."
)


def proves(evidence: Evidence, audited: Sequence[CheckpointAudit]) -> Iterator[str]:
    """Yield the comparisons made; all their differences are among the findings."""
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
            f"none is {absent}duplicated or foreign, according to today's transform."
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
    """Yield the statements that the audit cannot prove."""
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
    for proofs, text in (
        (evidence.values.rows, _VALUES),
        (evidence.values.letters, _DEAD_LETTERS_UNKNOWN),
    ):
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
    differing = [c for c in audited if c.differs]
    by_record = [c for c in differing if c.missing or c.duplicated or c.foreign]
    if by_record and all(c.as_committed for c in by_record):
        yield _AS_COMMITTED
    elif differing and all(c.rows_found == c.rows_counted for c in differing):
        yield _ALL_AS_COUNTED


#: Maximum number of repairs of each kind; each replay is planned separately.
REPAIRS_MAX = 50

#: Returns the reason why these checkpoints cannot be replayed, None if they can.
Check = Callable[[Collection[int]], str | None]

#: Repair of a damaged ledger, which is no evidence of the rightful rows.
LEDGER_FIRST = Repair(
    None,
    None,
    refused="first restore the ledger versions named above as they were committed, from a "
    "backup of the same moment as the table, and audit again. Until then delete no rows and replay "
    "nothing: only the ledger can tell which rows belong in the table",
)

_GONE = (
    "Kafka no longer holds all that they read. Restore the records (a mirror, tiered storage), or "
    "correct the rows by hand"
)
_NOT_REPLAYABLE = (
    "Kafka has lost records they read, and a replay would take these records' rows out of the "
    "table too. Restore the records first"
)


def repairs(
    audited: Sequence[CheckpointAudit], tallies: Tallies, newest: int, check: Check
) -> list[Repair]:
    """Return at most :data:`REPAIRS_MAX` repairs of each kind: replays, then rows to delete by
    hand.
    """
    replays = list(_replays(audited, check))[:REPAIRS_MAX]
    live = {checkpoint.version for checkpoint in audited}
    return (
        replays
        + [
            Repair(None, None, condition=delete_condition(number, newest))
            for number in sorted(_strays(tallies, live), key=lambda n: -1 if n is None else n)
        ][:REPAIRS_MAX]
    )


def _strays(tallies: Tallies, live: set[int]) -> Iterator[int | None]:
    for number, kinds in tallies.items():
        ours = any(tally.found for kind, tally in kinds.items() if kind is not RowKind.NOT_OURS)
        if ours and number not in live:
            yield number


def _replays(audited: Sequence[CheckpointAudit], check: Check) -> Iterator[Repair]:
    """Yield a repair per run of neighbouring live checkpoints with the same hindrance."""
    for hindrance, stretch in groupby(audited, _hindrance):
        if hindrance is None:
            continue
        versions = [checkpoint.version for checkpoint in stretch]
        refusal = hindrance or check(versions)
        first, last = versions[0], versions[-1]
        command = None if refusal else f"eo replay {first} {last}"
        yield Repair(first, last, command, refused=refusal or None)


def _hindrance(checkpoint: CheckpointAudit) -> str | None:
    """Return None without a need for repair, else the reason against a replay; empty if none is
    known.
    """
    if not checkpoint.differs:
        return None
    if checkpoint.holes is Holes.LOSS:
        return _NOT_REPLAYABLE
    return _GONE if checkpoint.unreadable else ""
