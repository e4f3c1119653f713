"""A ledger that somebody changed by hand: said, with the version, and never walked over."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from eo_pipeline.audit.report import FindingKind
from eo_pipeline.crashpoints import CrashPoint, reaching
from eo_pipeline.errors import (
    ConfigError,
    LedgerBehindError,
    LedgerDamagedError,
    NothingToDoError,
)
from eo_pipeline.pipeline import Pipeline
from eo_pipeline.testing import CrashRequested, raise_at
from tests.support.engine import Bench, staged_attempts


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


@pytest.mark.core(only=["5"])
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


@pytest.mark.core
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
    assert any("first restore the ledger" in str(each) for each in report.repairs), report.repairs


def test_the_audit_names_a_version_that_was_changed(filled: Bench) -> None:
    change_offset(filled, 6)
    report = filled.pipeline().audit()
    told = [each.text for each in report.findings if each.kind is FindingKind.LEDGER]
    assert any("version 6 was changed" in text for text in told), told
    change_offset(filled, 3)
    report = filled.pipeline().audit()
    told = [each.text for each in report.findings if each.kind is FindingKind.LEDGER]
    assert any("version 3 was changed" in text for text in told), told


@pytest.mark.core
def test_a_table_that_is_newer_than_its_ledger_is_not_adopted(filled: Bench) -> None:
    """Found before: adopted, and everything that was in the table already was read once more."""
    for version in (6, 5):
        lose_entry(filled, version)
    pipeline = filled.pipeline()
    with pytest.raises(LedgerBehindError, match="version 6"):
        pipeline.run()
    with pytest.raises(LedgerDamagedError, match="version 5 is missing"):
        pipeline.plan_adopt()


@pytest.mark.core
def test_a_ledger_that_was_dropped_is_not_begun_anew_over_the_rows(filled: Bench) -> None:
    filled.table.execute("drop table eo_ledger")
    shutil.rmtree(filled.config["staging"])
    with pytest.raises(LedgerDamagedError, match="the ledger is empty, and the store holds rows"):
        filled.pipeline().run()
    assert count(filled) == 600


def test_what_rows_go_into_is_told_by_every_entry(filled: Bench) -> None:
    start, _, *later = filled.pipeline().history()
    assert dict(start.identity.sink) == {"mode": "append"}
    told = {"mode": "append", "kind": "PostgreSQL", "ledger": start.ledger_id}
    assert [dict(entry.identity.sink) for entry in later] == [told] * 5


@pytest.mark.core
def test_a_mode_that_was_changed_is_refused_before_anything_is_read(filled: Bench) -> None:
    upserts = {"mode": "upsert", "key": ["id"], "sequence_by": ["_eo_checkpoint"]}
    changed = filled.pipeline(sink=upserts)
    for act in (changed.run, changed.status, lambda: changed.plan_rewind(1)):
        with pytest.raises(ConfigError, match="written with mode append"):
            act()


def test_pipelines_of_one_name_into_two_stores_share_a_staging_folder(
    bench: Bench, tmp_path: Path
) -> None:
    """Found before: the second was told that its store came from an older backup, and following the
    advice it deleted the first one's promise.
    """
    bench.topic.write(40, partitions=range(4))
    console = Pipeline.from_config(
        {**bench.config, "sink": {"type": "console", "ledger": str(tmp_path / "ledger")}}
    )
    console.run(max_checkpoints=1)
    bench.topic.write(40, partitions=range(4))
    with reaching(raise_at(CrashPoint.PRE_COMMITTED)), pytest.raises(CrashRequested):
        console.run()
    (promised,) = staged_attempts(bench)

    bench.pipeline().run()
    bench.table.assert_holds_once(bench.topic.written)
    assert staged_attempts(bench) == [promised]
    with pytest.raises(NothingToDoError):
        bench.pipeline().adopt("as the message says")
    kept = console.run().checkpoints[0]
    assert kept.recovered
    assert promised.endswith(kept.entry.transaction_id)
    assert staged_attempts(bench) == []
