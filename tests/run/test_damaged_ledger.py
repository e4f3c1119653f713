"""A ledger that somebody changed by hand: said, with the version, and never walked over."""

from __future__ import annotations

import pytest

from eo_pipeline.audit.report import FindingKind
from eo_pipeline.errors import LedgerDamagedError
from tests.engine import Bench


@pytest.fixture
def filled(bench: Bench) -> Bench:
    """Six checkpoints of 100 records, one version each: 1 to 6."""
    bench.topic.write(600, partitions=range(4))
    bench.pipeline(inline_records=10_000).run()
    return bench


def change_offset(bench: Bench, version: int) -> None:
    path = f"'{{{bench.topic.name},0}}'"
    bench.table.execute(
        f"update eo_ledger set offsets = jsonb_set(offsets, {path}, '0') where version = {version}"
    )


def lose_entry(bench: Bench, version: int) -> None:
    """As somebody does who switches the constraints off."""
    bench.table.execute(
        f"set session_replication_role = replica;delete from eo_ledger where version = {version}"
    )


def count(bench: Bench) -> int:
    return int(bench.table.query("select count(*) from events")[0][0])


@pytest.mark.parametrize("version", [6, 5])
def test_offsets_changed_in_the_head_or_its_parent_stop_the_next_run(
    filled: Bench, version: int
) -> None:
    """Found before: the run read from the changed offsets, and every row was there twice."""
    change_offset(filled, version)
    filled.topic.write(10)
    pipeline = filled.pipeline()
    with pytest.raises(LedgerDamagedError, match=f"version {version}") as damage:
        pipeline.run()
    assert damage.value.version == version
    assert not damage.value.retryable
    assert count(filled) == 600
    for look in (pipeline.status, pipeline.plan_run, lambda: pipeline.plan_rewind(1)):
        with pytest.raises(LedgerDamagedError):
            look()


def test_a_changed_head_that_was_given_a_fitting_hash_is_known_by_its_witness(
    filled: Bench,
) -> None:
    change_offset(filled, 6)
    held = filled.pipeline().history(6)[0]
    filled.table.execute(
        f"update eo_ledger set identity = jsonb_set(identity, '{{content}}', "
        f"'\"{held.content_hash}\"') where version = 6"
    )
    with pytest.raises(LedgerDamagedError, match="version 6"):
        filled.pipeline().run()


def test_a_version_that_is_missing_is_not_passed_over_by_going_back(filled: Bench) -> None:
    """Found before: a rewind to the version that is missing went to the one after it."""
    lose_entry(filled, 3)
    pipeline = filled.pipeline()
    for change in (
        lambda: pipeline.plan_rewind(3),
        lambda: pipeline.plan_rewind(2),
        lambda: pipeline.plan_replay(2),
        lambda: pipeline.plan_replay(3),
    ):
        with pytest.raises(LedgerDamagedError, match="version 3"):
            change()
    assert pipeline.plan_rewind(4).target.version == 4


def test_the_heads_parent_that_is_missing_stops_the_next_run(filled: Bench) -> None:
    lose_entry(filled, 5)
    with pytest.raises(LedgerDamagedError, match="version 5"):
        filled.pipeline().run()


def test_the_audit_names_a_version_that_is_missing_and_spares_its_rows(filled: Bench) -> None:
    """Found before: its advice was to delete the rows of that version, which are rightful."""
    lose_entry(filled, 3)
    report = filled.pipeline().audit()
    assert not report.passed
    told = [each.text for each in report.findings if each.kind is FindingKind.LEDGER]
    assert any("version 3" in text for text in told), told
    assert not any(repair.condition for repair in report.repairs), report.repairs
    assert any("first bring the ledger" in str(each) for each in report.repairs), report.repairs


def test_the_audit_names_a_version_that_was_changed(filled: Bench) -> None:
    change_offset(filled, 6)
    report = filled.pipeline().audit()
    told = [each.text for each in report.findings if each.kind is FindingKind.LEDGER]
    assert any("version 6 was changed" in text for text in told), told
    change_offset(filled, 3)
    report = filled.pipeline().audit()
    told = [each.text for each in report.findings if each.kind is FindingKind.LEDGER]
    assert any("version 3 was changed" in text for text in told), told
