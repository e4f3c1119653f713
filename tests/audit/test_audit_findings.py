"""The pure parts of an audit: which ranges can be read, what counts mean, what is repaired how."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eo_pipeline.audit.compare import RowKind, Tallies, Tally
from eo_pipeline.audit.judge import Evidence, Findings, judge, repairs
from eo_pipeline.audit.ranges import Coverage, Region, block_size, range_pieces, write_ranges
from eo_pipeline.audit.report import CheckpointAudit, Example, FindingKind, Holes
from eo_pipeline.audit.snapshot import Snapshot
from eo_pipeline.kafka.partitions import Bounds, Cluster
from eo_pipeline.kafka.source import KafkaSource
from eo_pipeline.ledger.entry import Counts, EntryId, LedgerEntry, Operation
from eo_pipeline.ledger.history import Checkpoint
from eo_pipeline.ledger.offsets import OffsetRange, TopicPartition
from eo_pipeline.staging.scratch import ABANDONED_S, scratch

SOURCE = KafkaSource(bootstrap_servers="nowhere:1", topics=("t", "u"), value_format="raw")


def checkpoint(
    version: int, *ranges: OffsetRange, records: int = 10, rows: int = 10, **counts: Any
) -> Checkpoint:
    entry = LedgerEntry(
        pipeline="p",
        ledger_id="l",
        version=version,
        transaction_id=f"t{version}",
        parent=EntryId(version - 1, f"t{version - 1}"),
        operation=Operation.FORWARD,
        offsets={},
        ranges=ranges,
        topic_ids={"t": "T", "u": "U"},
        counts=Counts(records=records, rows=rows, **counts),
    )
    return Checkpoint(entry, entry)


def cluster(beginning: int = 0, end: int = 1000, **topic_ids: str) -> Cluster:
    """Topics t and u with one partition each."""
    bounds = {TopicPartition(topic, 0): Bounds(beginning, end) for topic in ("t", "u")}
    return Cluster(bounds, {"t": "T", "u": "U", **topic_ids})


def cut(found: list[Checkpoint], now: Cluster) -> list[tuple[int, int, int, bool]]:
    """(checkpoint, start, end, readable), in order."""
    return sorted(
        (p.checkpoint, p.range.start, p.range.end, p.cause is None)
        for p in range_pieces(found, now, SOURCE)
    )


def test_what_kafka_no_longer_holds_is_cut_off_on_both_sides() -> None:
    found = [checkpoint(1, OffsetRange("t", 0, 0, 40)), checkpoint(2, OffsetRange("t", 0, 40, 90))]
    assert cut(found, cluster(30, 80)) == [
        (1, 0, 30, False),
        (1, 30, 40, True),
        (2, 40, 80, True),
        (2, 80, 90, False),
    ]


def test_a_log_that_ends_too_early_is_cut_off_and_an_open_transaction_cuts_nothing() -> None:
    tp = TopicPartition("t", 0)
    one = [checkpoint(1, OffsetRange("t", 0, 0, 40))]
    waiting = replace(cluster(end=20), bounds={tp: Bounds(0, 20, high=30)})
    assert cut(one, waiting) == [(1, 0, 20, True), (1, 20, 30, False), (1, 30, 40, False)]
    beyond = [each.range for each in range_pieces(one, waiting, SOURCE) if each.is_cut_off]
    assert beyond == [OffsetRange("t", 0, 30, 40)]


@pytest.mark.parametrize("accepted", [False, True])
def test_a_truncated_log_fails_until_the_loss_is_accepted(accepted: bool) -> None:
    """What is accepted is put aside with its offset until the log reaches it again."""
    gone: Tallies = {1: {RowKind.FINE: Tally(8, 8, 8, 8), RowKind.GONE: Tally(keys=2, found=2)}}
    offsets = {} if accepted else {TopicPartition("t", 0): 10}
    said, (audited,) = judged(gone, checkpoint(1, TEN), now=cluster(end=8), offsets=offsets)
    assert said == ({} if accepted else {FindingKind.LOST: 2}) | {FindingKind.UNPROVED: 2}
    assert audited.differs is not accepted


def test_a_recreated_vanished_or_unsubscribed_topic_cannot_be_read_at_all() -> None:
    one = [checkpoint(1, OffsetRange("t", 0, 0, 40))]
    assert cut(one, cluster(t="another")) == [(1, 0, 40, False)]
    assert cut([checkpoint(1, OffsetRange("t", 9, 0, 40))], cluster()) == [(1, 0, 40, False)]
    assert cut([checkpoint(1, OffsetRange("gone", 0, 0, 40))], cluster()) == [(1, 0, 40, False)]


def test_offsets_read_twice_belong_to_the_newer_checkpoint() -> None:
    """After a truncated log: the older checkpoint's records are no longer what is there."""
    found = [checkpoint(1, OffsetRange("t", 0, 0, 80)), checkpoint(2, OffsetRange("t", 0, 50, 90))]
    assert cut(found, cluster()) == [(1, 0, 50, True), (1, 50, 80, False), (2, 50, 90, True)]


ranges = st.lists(st.tuples(st.integers(0, 60), st.integers(1, 30)), min_size=1, max_size=6)


@given(ranges, st.integers(0, 50), st.integers(0, 50))
def test_parts_keep_every_offset_and_what_is_readable_is_disjoint(
    spans: list[tuple[int, int]], beginning: int, length: int
) -> None:
    found = [
        checkpoint(i + 1, OffsetRange("t", 0, start, start + span))
        for i, (start, span) in enumerate(spans)
    ]
    now = cluster(beginning, beginning + length)
    seen = list(range_pieces(found, now, SOURCE))
    for each in found:
        kept = [o for p in seen if p.checkpoint == each.version for o in _offsets(p.range)]
        assert sorted(kept) == [o for r in each.entry.ranges for o in _offsets(r)]
    readable = [o for p in seen if p.cause is None for o in _offsets(p.range)]
    assert len(readable) == len(set(readable))
    assert all(beginning <= o < beginning + length for o in readable)


def _offsets(r: OffsetRange) -> list[int]:
    return list(range(r.start, r.end))


def test_the_file_of_ranges_finds_each_offset_in_its_block_and_stays_small(tmp_path: Path) -> None:
    starts = [0, 7, 8, 500, 501]
    found = [
        checkpoint(i + 1, OffsetRange("t", 0, start, end))
        for i, (start, end) in enumerate(zip(starts, [*starts[1:], 900], strict=True))
    ]
    block, coverage = block_size(found), Coverage()
    counted = coverage.counted(range_pieces(found, cluster(end=800), SOURCE))
    write_ranges(counted, tmp_path / "r.parquet", block, {"t"})

    rows = pq.read_table(tmp_path / "r.parquet").to_pylist()
    assert len(rows) <= 3 * len(found) + 1
    for offset in range(900):
        holding = [
            row["checkpoint"]
            for row in rows
            if row["block"] == offset // block and row["start"] <= offset < row["end"]
        ]
        assert holding == [max(i + 1 for i, start in enumerate(starts) if start <= offset)]
    assert {row["region"] for row in rows} == {Region.COMPACTED, Region.GONE}
    assert coverage.spans == (OffsetRange("t", 0, 0, 800),)
    assert (coverage.gone[5], coverage.readable[5]) == (100, 299)


def judged(
    tallies: Tallies,
    *found: Checkpoint,
    now: Cluster | None = None,
    compacted: frozenset[str] = frozenset(),
    keeps_every_row: bool = True,
    offsets: dict[TopicPartition, int] | None = None,
) -> tuple[dict[FindingKind, int], list[CheckpointAudit]]:
    coverage = Coverage()
    held = list(coverage.counted(range_pieces(found, now or cluster(), SOURCE)))
    head = replace(found[-1].entry, offsets=offsets or {})
    snapshot = Snapshot(head, 0, found, (), (), head.version, rows=10)
    findings = Findings()
    cut_off = [(part.checkpoint, part.range) for part in held if part.is_cut_off]
    evidence = Evidence(
        *(snapshot, coverage, tallies, compacted, True, keeps_every_row), cut_off=cut_off
    )
    audited = judge(evidence, findings)
    return {each.kind: each.count for each in findings.all()}, audited


TEN = OffsetRange("t", 0, 0, 10)
FINE = Tally(keys=10, expected=10, found=10, records=10)


def test_a_row_that_is_missing_explains_that_the_ledger_counted_one_more() -> None:
    kinds = {
        RowKind.FINE: Tally(9, 9, 9, 9),
        RowKind.MISSING: Tally(keys=1, expected=1, found=0, records=1),
    }
    said, (audited,) = judged({1: kinds}, checkpoint(1, TEN))
    assert said == {FindingKind.MISSING: 1}
    assert (audited.missing, audited.rows_found, audited.rows_expected) == (1, 9, 10)


def test_table_and_kafka_that_agree_against_the_ledger_are_miscounted() -> None:
    said, (audited,) = judged({1: {RowKind.FINE: FINE}}, checkpoint(1, TEN, rows=12))
    assert said == {FindingKind.MISCOUNTED: 2}
    assert audited.differs


@pytest.mark.parametrize(
    ("counts", "difference"),
    [
        ({"records": 20}, 10),
        ({"records": 8}, 2),
        ({"dead_letters": 1}, 2),
        ({"dead_letters": 3}, 0),
        ({"dead_letters": 3, "tombstones": 4}, 4),
    ],
)
def test_what_the_ledger_counted_is_compared_with_what_is_read_again(
    counts: dict[str, int], difference: int
) -> None:
    """Three of ten records are bad, none is skipped; a miscount is what a replay puts right."""
    kinds = {RowKind.FINE: Tally(keys=10, expected=7, found=7, records=10, bad=3)}
    counted = {"dead_letters": 3, "records": 10} | counts
    said, (audited,) = judged({1: kinds}, checkpoint(1, TEN, rows=7, **counted))
    assert said == ({FindingKind.MISCOUNTED: difference} if difference else {})
    assert audited.differs is bool(difference)


def test_bad_records_that_kafka_no_longer_holds_are_no_miscount() -> None:
    kinds = {
        RowKind.FINE: Tally(keys=5, expected=5, found=5, records=5),
        RowKind.GONE: Tally(5, 0, 2),
    }
    one = checkpoint(1, TEN, rows=7, dead_letters=3)
    said, _ = judged({1: kinds}, one, now=cluster(beginning=5))
    assert said == {FindingKind.UNPROVED: 2}


def test_what_is_gone_from_kafka_is_still_counted_beside_what_is_not() -> None:
    """Of rows 0 to 9 Kafka holds the records of 5 to 9: one row is missing on either side."""
    kinds = {
        RowKind.GONE: Tally(keys=4, found=4),
        RowKind.FINE: Tally(4, 4, 4, 4),
        RowKind.MISSING: Tally(keys=1, expected=1, records=1),
    }
    said, (audited,) = judged({1: kinds}, checkpoint(1, TEN), now=cluster(beginning=5))
    assert said == {FindingKind.MISSING: 1, FindingKind.MISCOUNTED: 1, FindingKind.UNPROVED: 4}
    assert (audited.unreadable, audited.holes) == (5, Holes.UNKNOWN)


@pytest.mark.parametrize(
    ("span", "counted", "compacted", "holes"),
    [
        (10, 10, False, Holes.NONE),
        (13, 10, False, Holes.MARKERS),
        (13, 11, True, Holes.COMPACTION),
        (13, 11, False, Holes.LOSS),
        (13, 9, False, Holes.MARKERS),
    ],
)
def test_holes_are_told_apart(span: int, counted: int, compacted: bool, holes: Holes) -> None:
    topics = frozenset({"t"}) if compacted else frozenset()
    one = checkpoint(1, OffsetRange("t", 0, 0, span), records=counted)
    said, (audited,) = judged({1: {RowKind.FINE: FINE}}, one, compacted=topics)
    assert audited.holes is holes
    assert (FindingKind.LOST in said) is (holes is Holes.LOSS)
    assert (FindingKind.COMPACTED in said) is (holes is Holes.COMPACTION)
    assert (FindingKind.MISCOUNTED in said) is (counted < 10)


def test_rows_of_lost_records_are_unproved_but_not_more_than_were_lost() -> None:
    one = checkpoint(1, TEN)
    for rows, expected in ((2, FindingKind.UNPROVED), (3, FindingKind.FOREIGN)):
        kinds = {
            RowKind.FINE: Tally(8, 8, 8, 8),
            RowKind.NO_RECORD: Tally(keys=rows, found=rows),
        }
        said, _ = judged({1: kinds}, one)
        assert said == {FindingKind.LOST: 2, expected: rows}


def test_rows_of_no_live_checkpoint_are_foreign_and_rows_of_nobody_are_not_ours() -> None:
    tallies: Tallies = {
        1: {RowKind.FINE: FINE},
        5: {RowKind.OUTSIDE: Tally(keys=2, found=2), RowKind.UNTRACED: Tally(keys=1, found=1)},
        None: {RowKind.NOT_OURS: Tally(keys=1, found=7)},
    }
    said, _ = judged(tallies, checkpoint(1, TEN))
    assert said == {FindingKind.FOREIGN: 3, FindingKind.NOT_OURS: 7}
    named = repairs([], tallies, 9, lambda _: None)
    assert [each.condition for each in named] == ["_eo_checkpoint = 1", "_eo_checkpoint = 5"]


def test_where_rows_replace_each_other_fewer_are_fine_and_more_are_not() -> None:
    missing = Tally(keys=4, expected=4, found=0, records=4)
    kinds = {RowKind.FINE: Tally(6, 6, 6, 6), RowKind.MISSING: missing}
    said, (audited,) = judged({1: kinds}, checkpoint(1, TEN), keeps_every_row=False)
    assert said == {FindingKind.UNPROVED: 4}
    assert (audited.missing, audited.differs) == (0, False)
    said, _ = judged({1: {RowKind.FINE: FINE}}, checkpoint(1, TEN, rows=9), keeps_every_row=False)
    assert said == {FindingKind.MISCOUNTED: 1}


def test_a_finding_names_twenty_examples_and_counts_all() -> None:
    examples = [Example("t", 0, offset, 1, 1, 0) for offset in range(50)]
    findings = Findings()
    for example in reversed(examples):
        findings.add(FindingKind.MISSING, "rows", 1, 1, [example])
    (finding,) = findings.all()
    assert (finding.count, finding.examples) == (50, tuple(examples[:20]))


@pytest.mark.parametrize(
    ("checkpoints", "said"),
    [
        ([], "3 rows"),
        ([7], "1 rows (checkpoint 7)"),
        ([2, 1], "2 rows (checkpoint 1, 2)"),
        (range(1, 21), f"20 rows (checkpoint {', '.join(map(str, range(1, 21)))})"),
        (range(1, 23), f"22 rows (checkpoint {', '.join(map(str, range(1, 21)))} and 2 more)"),
    ],
)
def test_a_finding_says_where_as_far_as_a_reader_reads(checkpoints: list[int], said: str) -> None:
    findings = Findings()
    for number in checkpoints:
        findings.add(FindingKind.MISSING, "rows", 1, number, [])
    if not checkpoints:
        findings.add(FindingKind.MISSING, "rows", 3, None, [])
    (finding,) = findings.all()
    assert finding.text == said


def test_neighbours_are_one_replay_and_what_cannot_be_replayed_says_why() -> None:
    whole = CheckpointAudit(1, 1, 10, 0, 10, 10, Holes.NONE, 0, 0, 10, 10, 10)
    bad = replace(whole, differs=True)
    audited = [
        replace(bad, version=1),
        replace(bad, version=4),  # 2 and 3 were a rewind and a replay: still a neighbour
        replace(whole, version=5),
        replace(bad, version=6, unreadable=3),
        replace(bad, version=7, holes=Holes.LOSS),
        replace(bad, version=8),
    ]
    asked: list[list[int]] = []

    def check(versions: object) -> str | None:
        assert isinstance(versions, list)
        asked.append(versions)
        return "compaction may have taken records" if versions == [8] else None

    named = repairs(audited, {}, 9, check)
    assert [(each.first, each.last, each.command) for each in named] == [
        (1, 4, "eo replay 1 4"),
        (6, 6, None),
        (7, 7, None),
        (8, 8, None),
    ]
    assert asked == [[1, 4], [8]]
    assert [str(each.refused)[:10] for each in named[1:]] == [
        "Kafka no l",
        "Kafka has ",
        "compaction",
    ]


@pytest.mark.parametrize(
    ("checkpoint", "condition"),
    [
        (None, "_eo_checkpoint IS NULL AND _eo_offset IS NOT NULL"),
        (-1, "_eo_checkpoint < 0"),
        (3, "_eo_checkpoint = 3"),
        (10, "_eo_checkpoint > 9"),
    ],
)
def test_rows_of_no_checkpoint_can_be_deleted_by_a_condition(
    checkpoint: int | None, condition: str
) -> None:
    tallies: Tallies = {checkpoint: {RowKind.OUTSIDE: Tally(keys=1, found=1)}}
    (named,) = repairs([], tallies, 9, lambda _: None)
    assert named.condition == condition
    assert condition in str(named)


def test_what_a_killed_audit_left_is_removed_later_and_a_running_one_is_spared(
    tmp_path: Path,
) -> None:
    with scratch(tmp_path) as killed, scratch(tmp_path) as running:
        long_ago = time.time() - ABANDONED_S - 60
        os.utime(killed.folder, (long_ago, long_ago))
        with scratch(tmp_path) as ours:
            assert sorted(tmp_path.iterdir()) == sorted([running.folder, ours.folder])
        killed.folder.mkdir()  # its own end removes it
    assert list(tmp_path.iterdir()) == []
