"""What release 0.1.0 wrote is read to equal values, and written the same, for good."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from eo_pipeline.ledger.entry import LedgerEntry
from eo_pipeline.sinks.sql.ledger import INSERTED, entry_of, row_of
from eo_pipeline.staging.attempt import MANIFEST, Attempt
from tests.ledger.golden_values import ENTRIES, GOLDEN, manifest, manifest_without_rows

#: May be absent.
_SINCE_LATER = {"target", "run_id", "committed_at", "details"}


_COUNTED = ("records", "bytes", "rows", "dead_letters", "tombstones", "rows_total")


def golden(name: str) -> Any:
    return json.loads((GOLDEN / name).read_text())


def as_it_was(written: dict[str, Any]) -> dict[str, Any]:
    """What is written now, without what release 0.1.0 did not write."""
    entry = {name: value for name, value in written.items() if name != "identity"}
    return {**entry, "counts": as_counted(entry["counts"])}


def as_counted(written: dict[str, Any]) -> dict[str, Any]:
    """Without counts that release 0.1.0 did not make."""
    assert all(value in (None, []) for name, value in written.items() if name not in _COUNTED)
    return {name: value for name, value in written.items() if name in _COUNTED}


def ordered(value: Any) -> str:
    """As text, so that the order of keys counts too."""
    return json.dumps(value)


@pytest.mark.parametrize(
    ("stored", "entry"),
    list(zip(golden("entries.json"), ENTRIES, strict=True)),
    ids=[entry.operation for entry in ENTRIES],
)
def test_a_stored_entry_is_read_as_it_was_and_written_the_same(
    stored: dict[str, Any], entry: LedgerEntry
) -> None:
    read = LedgerEntry.from_json(stored)
    assert read == entry
    fields = vars(entry).keys() - {"stored"}
    assert all(type(getattr(read, name)) is type(getattr(entry, name)) for name in fields)
    assert [type(tp) for tp in read.offsets] == [type(tp) for tp in entry.offsets]
    assert ordered(as_it_was(read.to_json())) == ordered(stored)
    assert ordered(as_it_was(entry.to_json())) == ordered(stored)
    assert not read.is_altered


def test_the_hash_of_an_entry_is_the_same_for_good() -> None:
    """Ledgers hold it: were it computed otherwise one day, all of them would seem damaged."""
    sealed = [entry.to_json()["identity"]["content"] for entry in ENTRIES]
    assert sealed == golden("hashes.json")
    assert [entry.content_hash for entry in ENTRIES] == sealed


@pytest.mark.parametrize("row", golden("ledger_rows.json"), ids=lambda row: row[6])
def test_a_row_of_a_ledger_table_is_read_as_it_was_and_written_the_same(row: list[Any]) -> None:
    (entry,) = [
        e for e in ENTRIES if (e.version, e.operation) == (row[INSERTED.index("version")], row[6])
    ]
    identity = None  # a column that earlier releases did not have
    read = entry_of([*row, identity, entry.committed_at])
    assert read == entry
    *written, _ = row_of(read, "public.orders")
    counts = INSERTED.index("counts")
    written[counts] = ordered(as_counted(json.loads(written[counts])))
    assert [v.isoformat() if isinstance(v, datetime) else v for v in written] == row


@pytest.mark.parametrize("name", ["manifest", "manifest_without_rows"])
def test_a_stored_manifest_is_read_as_it_was_and_written_the_same(
    name: str, tmp_path: Path
) -> None:
    stored = golden(f"{name}.json")
    (tmp_path / MANIFEST).write_text(json.dumps(stored))
    expected = manifest(tmp_path) if stored["rows"] else manifest_without_rows()
    attempt = Attempt(tmp_path, expected.entry.id, None, tmp_path)
    read = attempt.manifest()
    assert read == expected
    (tmp_path / MANIFEST).unlink()
    attempt.write_manifest(expected)
    written = json.loads((tmp_path / MANIFEST).read_text())
    written["entry"] = as_it_was(written["entry"])
    del written["hash"]
    assert schemas_apart(json.dumps(written)) == schemas_apart(json.dumps(stored))


def schemas_apart(text: str) -> tuple[str, list[pa.Schema]]:
    """A schema's bytes may differ between releases of Arrow; what they say may not."""
    raw = json.loads(text)
    tables = [raw[name] for name in ("rows", "dead_letters") if raw[name]]
    schemas = [pa.ipc.read_schema(pa.py_buffer(bytes.fromhex(t.pop("schema")))) for t in tables]
    return ordered(raw), schemas


@pytest.mark.parametrize("name", sorted(golden("entries.json")[0].keys() - _SINCE_LATER))
def test_an_entry_that_lost_a_field_is_an_error_and_not_read_as_its_default(name: str) -> None:
    stored = golden("entries.json")[1]
    del stored[name]
    with pytest.raises((KeyError, ValueError), match=name):
        LedgerEntry.from_json(stored)


@pytest.mark.parametrize("name", sorted(_SINCE_LATER))
def test_a_field_that_early_ledgers_did_not_have_is_its_default(name: str) -> None:
    stored = golden("entries.json")[0]
    del stored[name]
    assert LedgerEntry.from_json(stored).version == 0


def test_what_a_later_release_adds_is_left_out() -> None:
    stored = golden("entries.json")[1]
    later = {**stored, "future": 1, "counts": {**stored["counts"], "future": [1]}}
    assert LedgerEntry.from_json(later) == ENTRIES[1]


def test_an_entry_read_from_json_shares_nothing_with_it() -> None:
    stored = golden("entries.json")[3]
    read = LedgerEntry.from_json(stored)
    before = ordered(read.to_json())
    stored["counts"]["rows"] = 99
    stored["offsets"]["x"]["2"] = 99
    stored["topic_ids"]["x"] = "other"
    stored["details"]["reason"] = "other"
    assert ordered(read.to_json()) == before
