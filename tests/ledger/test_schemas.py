"""Which schemas entries were read with: written, read again, handed on from entry to entry."""

from __future__ import annotations

import json
from typing import Any

from eo_pipeline.ledger.entry import Counts, LedgerEntry, Operation
from eo_pipeline.ledger.schemas import (
    HeldSchema,
    KnownSchemas,
    ReadWith,
    WrittenWith,
    digest,
    written_with,
)

FIRST, SECOND = '{"type":"record","name":"A"}', '{"type":"record","name":"B"}'


def start() -> LedgerEntry:
    return LedgerEntry(
        pipeline="p",
        ledger_id="l",
        version=0,
        transaction_id="t0",
        parent=None,
        operation=Operation.START,
        offsets={},
    )


def read(parent: LedgerEntry, schemas: ReadWith | None) -> LedgerEntry:
    child = parent.child(Operation.FORWARD, "run", {})
    return child.with_counts(Counts(schemas=schemas))


def stored(entry: LedgerEntry) -> LedgerEntry:
    """As a store gives it back."""
    return LedgerEntry.from_json(json.loads(json.dumps(entry.to_json())))


def test_an_entry_is_read_as_it_was_written() -> None:
    entry = read(start(), ReadWith("2", ("1", "2"), ("9",), {"1": FIRST, "2": SECOND}))
    again = stored(entry)
    assert again == entry
    assert again.counts.schemas == entry.counts.schemas
    assert not again.is_altered
    after = stored(again.child(Operation.REWIND, "run", {}))
    assert after.identity.schemas == entry.known_schemas


def test_a_text_that_was_changed_where_it_is_kept_is_noticed() -> None:
    raw: dict[str, Any] = read(start(), ReadWith("1", ("1",), (), {"1": FIRST})).to_json()
    raw["counts"]["schemas"]["texts"]["1"] = SECOND
    assert LedgerEntry.from_json(raw).is_altered


def test_each_entry_knows_where_the_texts_of_those_below_it_are() -> None:
    first = read(start(), ReadWith("1", ("1",), (), {"1": FIRST}))
    nothing = first.child(Operation.ACCEPT_LOSS, "run", {})
    second = read(nothing, ReadWith("2", ("1", "2"), (), {"2": SECOND}))
    head = second.child(Operation.REWIND, "run", {})
    assert head.identity.schemas == KnownSchemas(
        {"1": HeldSchema(1, digest(FIRST)), "2": HeldSchema(3, digest(SECOND))}, ("1", "2"), "2"
    )
    assert read(head, None).known_schemas == head.identity.schemas


def test_a_checkpoint_without_records_leaves_what_was_last_read_with() -> None:
    first = read(start(), ReadWith("1", ("1",), (), {"1": FIRST}))
    assert read(first, ReadWith("1")).known_schemas.last == ("1",)


def test_an_entry_of_a_pipeline_without_a_registry_says_nothing_of_schemas() -> None:
    written = read(start(), None).to_json()
    assert "schemas" not in written["counts"]
    assert "schemas" not in written["identity"]


def test_the_digest_of_a_schema_is_that_of_what_it_says() -> None:
    assert digest('{"name": "A", "type": "record"}') == digest(FIRST)
    assert digest(FIRST) != digest(SECOND)


def test_each_text_is_held_with_its_type_and_one_without_is_avro() -> None:
    first = read(start(), ReadWith("1", ("1",), (), {"1": FIRST}))
    second = read(first, ReadWith("2", ("2",), (), {"2": SECOND}).all_of("PROTOBUF"))
    assert first.counts.schemas is not None
    assert first.counts.schemas.types == {}
    known = stored(second).known_schemas
    assert {key: held.type for key, held in known.held.items()} == {"1": "AVRO", "2": "PROTOBUF"}
    assert (known.only("PROTOBUF").reader, known.only("PROTOBUF").last) == ("2", ("2",))
    assert (known.only("AVRO").reader, known.only("AVRO").last) == ("", ())
    written = second.to_json()
    written["identity"]["schemas"]["held"]["1"].pop("type")  # as before there were others
    assert LedgerEntry.from_json(written).known_schemas == known


def written(parent: LedgerEntry, **columns: str) -> LedgerEntry:
    child = parent.child(Operation.FORWARD, "run", {})
    counted = written_with(child.identity.written, child.version, columns, {"value": "7"})
    return child.with_counts(Counts(rows=1, written=counted))


def test_columns_are_held_by_the_entry_that_was_first_written_with_them() -> None:
    first = stored(written(start(), id="bigint"))
    assert first.counts.written == WrittenWith(1, {"id": "bigint"}, {"value": "7"})
    second = stored(written(first, id="bigint"))
    assert second.counts.written == WrittenWith(1, registered={"value": "7"})
    nothing = stored(second.child(Operation.REWIND, "run", {}))
    third = stored(written(nothing, id="bigint", name="text"))
    assert third.counts.written == WrittenWith(4, {"id": "bigint", "name": "text"}, {"value": "7"})
    assert third.last_written is not None
    assert third.last_written.since == 4
    assert not third.is_altered


def test_an_entry_of_an_earlier_release_says_nothing_of_it_and_is_the_same() -> None:
    raw = start().to_json()
    assert "written" not in raw["identity"]
    assert "written" not in raw["counts"]
    entry = LedgerEntry.from_json(raw)
    assert not entry.is_altered
    assert stored(written(entry, id="bigint")).counts.written is not None
