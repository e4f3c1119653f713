"""What can become of a staged file between the promise and the commit, and of an entry after it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from eo_pipeline.ledger.entry import LedgerEntry

_PADDING_MAX = 1 << 16


def _cut_short(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-10])


def _unreadable(path: Path) -> None:
    """As long as before, and nothing in it is what it was."""
    path.write_bytes(b"\x00" * path.stat().st_size)


def _other_rows(path: Path) -> None:
    """As long as before, whole, and a row shorter: what another attempt might have left."""
    size, table = path.stat().st_size, pq.read_table(path, partitioning=None)
    fewer = table.slice(0, table.num_rows - 1)
    for padding in range(_PADDING_MAX):
        with pq.ParquetWriter(path, fewer.schema, store_schema=False) as writer:
            writer.write_table(fewer)
            writer.add_key_value_metadata({"": " " * padding})
        if path.stat().st_size == size:
            return
    raise ValueError(f"{path} cannot be made {size} bytes long")


#: By a name for tests: what happens to the file of a path.
DAMAGES: Mapping[str, Callable[[Path], None]] = {
    "missing": Path.unlink,
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
