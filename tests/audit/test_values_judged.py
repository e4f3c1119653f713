"""What checksums mean beside what Kafka says. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import pytest

from eo_pipeline.audit.checksums import NOT_MADE, ChecksumResults, Values, ValueSums
from eo_pipeline.audit.compare import RowKind, Tally
from eo_pipeline.audit.judge import Evidence, Findings, cannot_prove, judge, proves
from eo_pipeline.audit.ranges import Coverage, range_pieces
from eo_pipeline.audit.report import CheckpointAudit, FindingKind
from eo_pipeline.audit.snapshot import Snapshot
from eo_pipeline.batch import checksum as checksums
from eo_pipeline.kafka.partitions import Cluster
from eo_pipeline.ledger.entry import Checksum
from tests.audit.test_audit_findings import FINE, SOURCE, TEN, checkpoint, cluster

FORGOTTEN = {RowKind.GONE: Tally(keys=10, found=10)}
AS_COMMITTED = ChecksumResults(as_committed=frozenset({1}), columns=("id", "name"))
CHANGED = ChecksumResults(changed=frozenset({1}), columns=("id", "name"))


def evidence(
    values: Values, kinds: dict[RowKind, Tally], now: Cluster, dead_letters: int = 0
) -> Evidence:
    one = checkpoint(1, TEN, dead_letters=dead_letters)
    coverage = Coverage()
    list(coverage.counted(range_pieces([one], now, SOURCE)))
    snapshot = Snapshot(one.entry, 0, (one,), (), (), 1, rows=10)
    made = Evidence(snapshot, coverage, {1: kinds}, frozenset(), True, True)
    return replace(made, values=values)


def judged(
    values: Values, kinds: dict[RowKind, Tally], now: Cluster, dead_letters: int = 0
) -> tuple[dict[FindingKind, int], CheckpointAudit]:
    findings = Findings()
    (audited,) = judge(evidence(values, kinds, now, dead_letters), findings)
    return {each.kind: each.count for each in findings.all()}, audited


def test_rows_that_kafka_has_forgotten_are_proved_by_their_checksum() -> None:
    said, audited = judged(Values(), FORGOTTEN, cluster(beginning=10))
    assert (said, audited.unproved, audited.as_committed) == ({FindingKind.UNPROVED: 10}, 10, None)
    said, audited = judged(Values(AS_COMMITTED), FORGOTTEN, cluster(beginning=10))
    assert (said, audited.unproved, audited.as_committed) == ({}, 0, True)


def test_as_many_rows_with_another_checksum_hold_other_values() -> None:
    said, audited = judged(Values(CHANGED), {RowKind.FINE: FINE}, cluster())
    assert (said, audited.differs) == ({FindingKind.CHANGED: 1}, True)


def test_a_row_that_is_missing_explains_another_checksum() -> None:
    kinds = {RowKind.FINE: Tally(9, 9, 9, 9), RowKind.MISSING: Tally(keys=1, expected=1, records=1)}
    said, _ = judged(Values(CHANGED), kinds, cluster())
    assert said == {FindingKind.MISSING: 1}


@pytest.mark.parametrize(
    ("letters", "found"),
    [
        (ChecksumResults(), {}),
        (ChecksumResults(found={1: 3}), {}),
        (ChecksumResults(as_committed=frozenset({1}), found={1: 3}), {}),
        (ChecksumResults(changed=frozenset({1}), found={1: 3}), {FindingKind.DEAD_LETTERS: 1}),
        (ChecksumResults(changed=frozenset({1}), found={1: 1}), {FindingKind.DEAD_LETTERS: 2}),
        (ChecksumResults(found={1: 5}), {FindingKind.DEAD_LETTERS: 2}),
    ],
)
def test_dead_letters_are_counted_and_compared(
    letters: ChecksumResults, found: dict[FindingKind, int]
) -> None:
    said, audited = judged(Values(letters=letters), FORGOTTEN, cluster(beginning=10), 3)
    assert said == {FindingKind.UNPROVED: 10, **found}
    assert audited.differs is bool(found)


def test_a_report_says_what_checksums_prove_and_what_not() -> None:
    of_both = Values(AS_COMMITTED, ChecksumResults(unknown={NOT_MADE: 2}))
    given = evidence(of_both, {RowKind.FINE: FINE}, cluster())
    audited = judge(given, Findings())
    (proved,) = [said for said in proves(given, audited) if "value by value" in said]
    assert "1 checkpoints" in proved
    assert "id, name" in proved
    unproved = list(cannot_prove(given, audited, None))
    assert f"What the dead letters of 2 checkpoints hold: {NOT_MADE}." in unproved
    assert any("64 bits" in said for said in unproved)


def test_rows_as_they_were_committed_were_not_changed_but_the_transform() -> None:
    kinds = {RowKind.FINE: Tally(9, 9, 9, 9), RowKind.DROPPED: Tally(keys=1, found=1, records=1)}
    given = evidence(Values(AS_COMMITTED), kinds, cluster())
    said = list(cannot_prove(given, judge(given, Findings()), None))
    assert any("to the last value" in each for each in said)


def test_rows_hold_what_was_committed_if_their_checksum_is_the_one_that_was_made_then() -> None:
    def checksum(digest: str, algorithm: str = checksums.ALGORITHM) -> Checksum:
        return Checksum(algorithm, digest, {"id": "long"})

    of_none = checksums.digest(checksums.NO_ROWS)
    asked = {
        1: checksum(of_none),
        2: checksum(checksums.digest(checksums.Sums(1, 2, 3))),
        3: None,
        4: checksum(of_none, "of a later release"),
    }
    proofs = ValueSums(cast(Any, None), "p", asked).proofs()
    assert (proofs.as_committed, proofs.changed) == (frozenset({1}), frozenset({2}))
    assert sorted(proofs.unknown.values()) == [1, 1]
    assert NOT_MADE in proofs.unknown
