"""Entries of the ledger, of which a thread that has no session must know all that it needs."""

from __future__ import annotations

from dataclasses import replace

from eo_pipeline.batch.entry_cache import EntryCache
from eo_pipeline.ledger.entry import LedgerEntry, Operation
from eo_pipeline.ledger.schemas import ReadWith
from eo_pipeline.testing import child_of, first_entry


def read_with(parent: LedgerEntry, key: str) -> LedgerEntry:
    """A child that was the first to meet the schema ``key``."""
    entry = child_of(parent)
    read = ReadWith(reader=key, writers=(key,), texts={key: f'"the text of {key}"'})
    return entry.with_counts(replace(entry.counts, schemas=read))


def test_of_what_was_gathered_the_ledger_is_not_asked_again_nor_of_what_is_only_promised() -> None:
    start = first_entry("p")
    first = read_with(start, "7")
    second = read_with(first, "8")
    promised = read_with(second, "9")
    in_the_ledger, asked = [start, first, second], list[int]()

    def ask(version: int) -> LedgerEntry | None:
        asked.append(version)
        return in_the_ledger[version] if version < len(in_the_ledger) else None

    entries = EntryCache(ask)
    entries.gather(promised)
    assert sorted(asked) == [1, 2]
    asked.clear()
    known = promised.child(Operation.FORWARD, "run", promised.offsets).identity.schemas
    texts = {
        key: known.text("p", key, lambda n: e.counts.schemas if (e := entries(n)) else None)
        for key in known.held
    }
    assert texts == {key: f'"the text of {key}"' for key in ("7", "8", "9")}
    assert asked == []
