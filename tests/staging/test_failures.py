"""Runs that failed, counted beside a pipeline's promises."""

from __future__ import annotations

from pathlib import Path

from eo_pipeline.staging.attempt import StagingArea


def test_failures_are_counted_by_kind_and_forgotten_on_request(tmp_path: Path) -> None:
    area = StagingArea(tmp_path, "p")
    assert area.failures.all() == []
    area.failures.forget()
    area.failures.add("SparkJobError", "r1", "it failed")
    area.failures.add("FencedError", "r2", "too late")
    area.failures.add("SparkJobError", "r3", "it failed again")
    found = [(each.kind, each.count, each.run_id) for each in area.failures.all()]
    assert found == [("FencedError", 1, "r2"), ("SparkJobError", 2, "r3")]
    assert area.attempts("l") == []
    assert area.witnesses.all() == []
    area.failures.forget()
    assert area.failures.all() == []


def test_a_note_that_was_cut_is_none_and_is_written_anew(tmp_path: Path) -> None:
    area = StagingArea(tmp_path, "p")
    area.failures.add("SparkJobError", "r1", "it failed")
    [note] = tmp_path.rglob("*.json")
    note.write_text(note.read_text()[:20])
    assert area.failures.all() == []
    area.failures.add("SparkJobError", "r2", "it failed")
    assert [each.count for each in area.failures.all()] == [1]


def test_a_pipeline_without_a_ledger_has_its_own(tmp_path: Path) -> None:
    StagingArea(tmp_path, "one").failures.add("SparkJobError", "r", "it failed")
    assert StagingArea(tmp_path, "two").failures.all() == []
