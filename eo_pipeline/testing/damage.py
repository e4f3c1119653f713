"""What can become of a staged file between the promise and the commit, and of an entry after it."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any

import pyarrow.parquet as pq

from eo_pipeline.ledger.entry import LedgerEntry
from eo_pipeline.places import Place

_PADDING_MAX = 1 << 16


def _missing(path: Place) -> None:
    path.unlink()


def _cut_short(path: Place) -> None:
    path.write_bytes(path.read_bytes()[:-10])


def _unreadable(path: Place) -> None:
    """As long as before, and nothing in it is what it was."""
    path.write_bytes(bytes(len(path.read_bytes())))


def _other_rows(path: Place) -> None:
    """As long as before, whole, and a row shorter: what another attempt might have left."""
    whole = path.read_bytes()
    table = pq.read_table(io.BytesIO(whole), partitioning=None)
    fewer = table.slice(0, table.num_rows - 1)
    for padding in range(_PADDING_MAX):
        held = io.BytesIO()
        with pq.ParquetWriter(held, fewer.schema, store_schema=False) as writer:
            writer.write_table(fewer)
            writer.add_key_value_metadata({"": " " * padding})
        if len(held.getvalue()) == len(whole):
            path.write_bytes(held.getvalue())
            return
    raise ValueError(f"{path} cannot be made {len(whole)} bytes long")


#: By a name for tests: what happens to the file of a path.
DAMAGES: Mapping[str, Callable[[Place], None]] = {
    "missing": _missing,
    "cut short": _cut_short,
    "unreadable": _unreadable,
    "other rows": _other_rows,
}


class _Altered(LedgerEntry):
    def to_json(self) -> dict[str, Any]:
        raw = super().to_json()
        moved = {topic: dict.fromkeys(at, 0) for topic, at in raw["offsets"].items()}
        return {**raw, "offsets": moved}


def altered_where_it_is_kept(entry: LedgerEntry) -> LedgerEntry:
    """``entry``, of which every store will hold other offsets than were committed."""
    made_of = (each.name for each in fields(LedgerEntry) if each.init)
    return _Altered(**{name: getattr(entry, name) for name in made_of})
