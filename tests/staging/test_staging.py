"""Staging folders: what a manifest promises, and what survives which crash."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from eo_pipeline.errors import ManifestDamagedError, RefusedError, SetupError
from eo_pipeline.ledger.entry import Counts, EntryId, LedgerEntry, Operation
from eo_pipeline.ledger.offsets import OffsetRange, TopicPartition
from eo_pipeline.staging.attempt import MANIFEST, Attempt, StagingArea
from eo_pipeline.staging.manifest import Manifest
from eo_pipeline.staging.rows import StagedFile, StagedOutput, StagedTable
from tests.support.stores import Bucket

START = LedgerEntry(
    pipeline="p",
    ledger_id="l",
    version=0,
    transaction_id="start",
    parent=None,
    operation=Operation.START,
    offsets={TopicPartition("t", 0): 0},
    topic_ids={"t": "uuid"},
)


def staged_attempt(tmp_path: Path, rows: int = 3) -> tuple[StagingArea, Attempt, Manifest]:
    """An attempt at version 1 with one Parquet file, its manifest not yet written."""
    area = StagingArea(tmp_path, "p")
    entry = START.child(Operation.FORWARD, "run", {TopicPartition("t", 0): rows})
    attempt = area.begin(entry)
    attempt.rows_folder().mkdir()
    table = pa.table({"x": pa.array(range(rows), pa.int64())})
    pq.write_table(table, attempt.rows_folder() / "part-0.parquet")
    output = StagedOutput(rows=attempt.collect(attempt.rows_folder(), lambda: pa.schema([])))
    return area, attempt, Manifest(entry.with_counts(Counts(rows=rows)), output)


def test_a_manifest_comes_back_as_it_was_written(tmp_path: Path) -> None:
    _, attempt, manifest = staged_attempt(tmp_path)
    attempt.write_manifest(manifest)
    assert attempt.manifest() == manifest


def test_without_its_manifest_a_folder_promises_nothing(tmp_path: Path) -> None:
    area, attempt, _ = staged_attempt(tmp_path)
    (found,) = area.attempts(START.ledger_id)
    assert found == attempt
    assert found.manifest() is None


def test_a_half_written_manifest_is_never_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever dies while he writes it has promised nothing: it gets its name when it is whole."""

    def dies(*_: object) -> Path:
        raise KeyboardInterrupt

    _, attempt, manifest = staged_attempt(tmp_path)
    (attempt.folder / f".{MANIFEST}.123").write_text('{"format": 1, "ent')
    assert attempt.manifest() is None
    with monkeypatch.context() as killed:
        killed.setattr(Path, "replace", dies)
        with pytest.raises(KeyboardInterrupt):
            attempt.write_manifest(manifest)
    assert attempt.manifest() is None
    attempt.write_manifest(manifest)
    assert attempt.manifest() is not None


def test_a_manifest_of_a_newer_format_is_an_error_in_words(tmp_path: Path) -> None:
    _, attempt, manifest = staged_attempt(tmp_path)
    attempt.write_manifest(manifest)
    path = attempt.folder / MANIFEST
    path.write_text(json.dumps({**json.loads(path.read_text()), "format": 99}))
    with pytest.raises(SetupError, match="format 99"):
        attempt.manifest()


def test_rows_come_back_from_the_files_the_manifest_names_and_from_no_other(
    tmp_path: Path,
) -> None:
    _, attempt, manifest = staged_attempt(tmp_path)
    attempt.write_manifest(manifest)
    pq.write_table(pa.table({"x": [99]}), attempt.rows_folder() / "stray.parquet")
    found = attempt.manifest()
    assert found is not None
    assert found.output.rows is not None
    assert [b.to_pydict() for b in found.output.rows.batches()] == [{"x": [0, 1, 2]}]


def test_a_file_of_the_wrong_size_or_missing_is_refused_before_it_is_read(tmp_path: Path) -> None:
    _, attempt, manifest = staged_attempt(tmp_path)
    file = attempt.rows_folder() / "part-0.parquet"
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(RefusedError, match=r"has .* bytes, the manifest says"):
        manifest.output.verify(manifest.entry)
    file.unlink()
    with pytest.raises(RefusedError, match="is missing"):
        manifest.output.verify(manifest.entry)


def test_a_file_that_gives_other_rows_than_promised_is_refused_when_read(tmp_path: Path) -> None:
    """Scenario: it is swapped after it was looked at. Outcome: whoever reads it is told."""
    _, attempt, manifest = staged_attempt(tmp_path)
    manifest.output.verify(manifest.entry)
    rows = manifest.output.rows
    assert rows is not None
    pq.write_table(pa.table({"x": [1, 2]}), attempt.rows_folder() / "part-0.parquet")
    with pytest.raises(RefusedError, match="has 2 rows, the manifest says 3"):
        list(rows.batches())
    (attempt.rows_folder() / "part-0.parquet").write_bytes(b"no Parquet")
    with pytest.raises(RefusedError, match=r"part-0\.parquet cannot be read"):
        list(rows.batches())


def test_a_refusal_is_remembered_and_deletes_nothing(tmp_path: Path) -> None:
    area, attempt, manifest = staged_attempt(tmp_path)
    attempt.write_manifest(manifest)
    attempt.refuse("check constraint")
    (found,) = area.attempts(START.ledger_id)
    assert found.is_refused
    manifest.output.verify(manifest.entry)


def test_refusing_an_attempt_that_somebody_else_tidied_up_is_no_error(tmp_path: Path) -> None:
    area, attempt, _ = staged_attempt(tmp_path)
    attempt.delete()
    attempt.refuse("too late")
    assert area.attempts(START.ledger_id) == []


def test_deleting_twice_is_no_error(tmp_path: Path) -> None:
    _, attempt, _ = staged_attempt(tmp_path)
    attempt.delete()
    attempt.delete()
    assert not attempt.folder.exists()


def test_two_attempts_at_one_version_have_folders_of_their_own(tmp_path: Path) -> None:
    area = StagingArea(tmp_path, "p")
    for version, transaction_id in ((2, "bb"), (1, "aa"), (2, "cc")):
        parent = EntryId(version - 1, "parent")
        entry = replace(START, version=version, transaction_id=transaction_id, parent=parent)
        area.begin(entry)
    assert [a.id for a in area.attempts(START.ledger_id)] == [
        EntryId(1, "aa"),
        EntryId(2, "bb"),
        EntryId(2, "cc"),
    ]


def test_a_witness_takes_its_parents_place_and_no_other(tmp_path: Path) -> None:
    area = StagingArea(tmp_path, "p")
    first = START.child(Operation.FORWARD, "run", {})
    sibling = START.child(Operation.FORWARD, "zombie", {})
    second = first.child(Operation.FORWARD, "run", {})
    for entry in (START, first, second):
        area.witnesses.remember(entry)
    assert area.witnesses.entry_ids() == [second.id]
    area.witnesses.remember(sibling)
    assert area.witnesses.entry_ids() == [sibling.id, second.id]
    area.witnesses.forget(area.witnesses.all())
    assert area.witnesses.entry_ids() == []


def test_a_ledger_entry_survives_json(tmp_path: Path) -> None:
    entry = START.child(Operation.FORWARD, "run-é", {TopicPartition("t", 0): 7})
    full = LedgerEntry.from_json(json.loads(json.dumps(entry.to_json())))
    assert full == entry
    assert full.is_child_of(START)
    assert not full.is_child_of(None)


def test_a_ledger_entry_of_a_later_release_with_more_counts_is_still_readable() -> None:
    raw = START.to_json()
    raw["counts"] = {**raw["counts"], "future": 1}
    assert LedgerEntry.from_json(raw) == START


def test_an_entry_that_skips_a_version_cannot_be_made() -> None:
    with pytest.raises(ValueError, match="cannot follow"):
        LedgerEntry.from_json({**START.to_json(), "version": 2, "parent": [0, "start"]})


def test_in_memory_rows_are_handed_out_in_batches() -> None:
    table = StagedTable.in_memory(pa.table({"x": range(120_000)}))
    assert [b.num_rows for b in table.batches()] == [50_000, 50_000, 20_000]


def test_footers_are_read_side_by_side_when_rows_are_collected_and_when_they_are_verified(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a bucket each is some round trips. None is answered here until all were asked for."""
    files = 4
    area = StagingArea(tmp_path, "p")
    attempt = area.begin(START.child(Operation.FORWARD, "run", {TopicPartition("t", 0): files}))
    attempt.rows_folder().mkdir()
    for number in range(files):
        rows = pa.table({"x": pa.array(range(number + 1), pa.int64())})
        pq.write_table(rows, attempt.rows_folder() / f"part-{number}.parquet")
    together = threading.Barrier(files)

    def asked(place: Path, _: int) -> Path:
        together.wait(60)
        return place

    for module in ("attempt", "rows"):
        monkeypatch.setattr(f"eo_pipeline.staging.{module}.parquet_source", asked)
    staged = attempt.collect(attempt.rows_folder(), lambda: pa.schema([]))
    assert [file.rows for file in staged.files] == [1, 2, 3, 4]
    staged.verify()
    wrong = replace(staged, files=(*staged.files[:-1], replace(staged.files[-1], rows=9)))
    with pytest.raises(RefusedError, match=r"part-3\.parquet has 4 rows, the manifest says 9"):
        wrong.verify()


def test_rows_of_a_file_take_no_more_memory_the_longer_it_is(tmp_path: Path) -> None:
    """Arrow's reader, left to itself, keeps the bytes of all row groups until the last was read."""
    groups, rows, size = 16, 40, 250_000
    schema = pa.schema({"x": pa.binary()})
    with pq.ParquetWriter(tmp_path / "part-0.parquet", schema, use_dictionary=False) as file:
        for _ in range(groups):
            file.write_table(pa.table({"x": [os.urandom(size) for _ in range(rows)]}, schema))
    files = (StagedFile("part-0.parquet", 0, groups * rows),)
    pool = pa.proxy_memory_pool(pa.default_memory_pool())
    before = pa.default_memory_pool()
    pa.set_memory_pool(pool)
    try:
        batches = StagedTable(schema, root=tmp_path, files=files).batches()
        assert sum(batch.num_rows for batch in batches) == groups * rows
    finally:
        pa.set_memory_pool(before)
    assert pool.max_memory() < groups * rows * size / 4


def test_long_rows_are_handed_out_in_smaller_batches(tmp_path: Path) -> None:
    rows, size = 400, 250_000
    table = pa.table({"x": [os.urandom(size) for _ in range(rows)]})
    pq.write_table(table, tmp_path / "part-0.parquet")
    files = (StagedFile("part-0.parquet", 0, rows),)
    staged = StagedTable(table.schema, root=tmp_path, files=files)
    assert max(batch.nbytes for batch in staged.batches()) < 40_000_000 < table.nbytes


def test_ranges_do_not_go_backwards() -> None:
    with pytest.raises(ValueError, match="is not a range"):
        OffsetRange("t", 0, 5, 4)


DAMAGES: dict[str, Callable[[str], str]] = {
    "cut": lambda text: text[: len(text) // 2],
    "emptied": lambda _: "",
    "another file": lambda _: '{"name": "x"}',
    "a list": lambda _: "[1, 2]",
    "no text": lambda _: "\udcff",
    "changed": lambda text: text.replace('"size": ', '"size": 1'),
    "without its entry": lambda text: json.dumps({**json.loads(text), "entry": {}, "hash": "x"}),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_manifest_is_an_error_that_names_it_and_can_be_set_aside(
    tmp_path: Path, damage: str
) -> None:
    area, attempt, manifest = staged_attempt(tmp_path)
    attempt.write_manifest(manifest)
    path = attempt.folder / MANIFEST
    text = DAMAGES[damage](path.read_text())
    path.write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(ManifestDamagedError, match="eo set-aside") as damaged:
        attempt.manifest()
    assert damaged.value.path == str(path)
    aside = attempt.set_aside()
    assert aside.read_bytes() == text.encode(errors="surrogateescape")
    assert attempt.manifest() is None
    assert area.attempts(START.ledger_id) == [attempt]


def test_ledgers_that_share_a_folder_keep_to_their_own_part(tmp_path: Path) -> None:
    area = StagingArea(tmp_path, "p")
    ours = area.begin(START.child(Operation.FORWARD, "run", {}))
    other = replace(START, ledger_id="m")
    theirs = area.begin(other.child(Operation.FORWARD, "run", {}))
    assert area.attempts("l") == area.attempts_at("l") == [ours]
    assert area.attempts("m") == [theirs]


def test_what_an_earlier_release_staged_is_known_by_what_it_promised(tmp_path: Path) -> None:
    area, attempt, manifest = staged_attempt(tmp_path)
    attempt.write_manifest(manifest)
    earlier = tmp_path / "p" / attempt.folder.name
    Path(str(attempt.folder)).rename(earlier)
    (found,) = area.attempts("l")
    assert (found.folder, found.ledger_id) == (earlier, "l")
    assert found.manifest() is not None
    assert area.attempts("m") == []
    (earlier / MANIFEST).unlink()
    (nobodys,) = area.attempts("l")
    assert nobodys.ledger_id is None
    assert area.attempts_at("l") == []


def test_an_attempt_that_was_removed_from_a_bucket_is_not_listed(bucket: Bucket) -> None:
    """Scenario: a store that lists folders for minutes after they were emptied, as SeaweedFS does:
    each run would find, and settle, every attempt of that time.
    """
    area = StagingArea(bucket.storage.place(f"{bucket.uri}/staging"), "p")
    entry = START.child(Operation.FORWARD, "run", {TopicPartition("t", 0): 3})
    attempt = area.begin(entry)
    attempt.runs_in("a session")
    (attempt.rows_folder() / "part-0.parquet").write_text("rows")
    assert area.attempts(START.ledger_id) == [replace(attempt, owner=None)]
    attempt.delete_committed(rows=True)
    assert area.attempts(START.ledger_id) == []
