"""What a record of the ledger topic says: an entry and who publishes its rows, or a shard's marker.

Shard 0 decides: its transaction holds the entry, which names the rows of every shard. Each of the
others follows in a transaction of its own, with a marker in the ledger topic, so that whoever reads
the ledger knows which of them have landed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Self

from eo_pipeline.ledger.entry import EntryId, LedgerEntry

#: In the record of an entry: its producers' ids are those of no other pipeline.
_APART = "apart"

#: Value, key and partition of a ledger record.
LedgerRecord = tuple[bytes, bytes, int]


@dataclass(frozen=True)
class ShardCounts:
    """How one version is divided among the shards.

    ``rows``: how many rows each shard publishes, from shard 0 on. ``producers``: how many shards
    the next version may use; no transactional id beyond has a transaction open. ``is_apart``: the
    producers have ids of their own; see :meth:`KafkaSink.earlier_transactional_id`.
    """

    rows: tuple[int, ...] = (0,)
    producers: int = 1
    is_apart: bool = True

    @property
    def followers(self) -> frozenset[int]:
        """The shards that publish rows after shard 0 decided."""
        return frozenset(shard for shard, rows in enumerate(self.rows) if shard and rows)

    @classmethod
    def from_json(cls, raw: Mapping[str, Any] | None) -> Self:
        """What a record says; one of before there were shards says nothing."""
        if raw is None:
            return cls(is_apart=False)
        return cls(tuple(raw["rows"]), raw["producers"], raw.get("ids") == _APART)


@dataclass(frozen=True)
class DecidedEntry:
    """An entry that shard 0 committed, where it lies, and the followers whose marker is there."""

    offset: int
    entry: LedgerEntry
    shards: ShardCounts
    landed: frozenset[int] = frozenset()

    @property
    def missing(self) -> frozenset[int]:
        """The shards whose rows are not visible yet. While there are any, there is no child."""
        return self.shards.followers - self.landed

    def with_marker(self, marker: Marker) -> DecidedEntry:
        """With what ``marker`` says, if it is about this entry."""
        if marker.id != self.entry.id:
            return self
        return replace(self, landed=self.landed | {marker.shard})

    def completed(self) -> DecidedEntry:
        """An entry that has a child: all of it landed, whether its markers were read or not."""
        return replace(self, landed=self.shards.followers)

    @classmethod
    def from_json(cls, raw: Mapping[str, Any], offset: int, moment: datetime) -> DecidedEntry:
        entry = LedgerEntry.from_json({**raw, "committed_at": moment.isoformat()})
        return cls(offset, entry, ShardCounts.from_json(raw.get("publication")))


@dataclass(frozen=True)
class Marker:
    """A follower's rows of one entry are visible."""

    id: EntryId
    shard: int

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> Marker | None:
        """None for the record of an entry."""
        if "shard" not in raw:
            return None
        return cls(EntryId(raw["version"], raw["transaction_id"]), raw["shard"])


def entry_record(entry: LedgerEntry, shards: ShardCounts) -> LedgerRecord:
    """``committed_at`` is not in it: that is the record's own timestamp."""
    said = {"rows": list(shards.rows), "producers": shards.producers, "ids": _APART}
    raw = {**entry.to_json(), "publication": said}
    return json.dumps(raw).encode(), entry.pipeline.encode(), 0


def marker_record(entry: LedgerEntry, shard: int) -> LedgerRecord:
    """What a follower's transaction leaves in the ledger."""
    raw = {"pipeline": entry.pipeline, **entry.id._asdict(), "shard": shard}
    return json.dumps(raw).encode(), f"{entry.pipeline}/{shard}".encode(), 0
