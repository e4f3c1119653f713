"""Metadata of tables that this process has read or written before.

A table's metadata names every snapshot that is kept. PyIceberg reads and parses all of it for each
look, and a commit copies it some twenty times. But a file of metadata never changes: each commit
writes another one, whose name nobody used before, and makes the catalog point to that. So only the
catalog can say what is true now; what a place holds that it points to is known once it was read.
"""

from __future__ import annotations

import re
import threading
from collections import OrderedDict
from collections.abc import Iterable
from typing import Any, SupportsIndex, TypeVar
from uuid import UUID

from pyiceberg.table.metadata import TableMetadata

from eo_pipeline.sinks.iceberg.written import Written

T = TypeVar("T")

#: Names with a UUID, as everybody gives them who commits through a catalog. Any other name
#: (``v3.metadata.json``) may be given again.
_NEVER_GIVEN_AGAIN = re.compile(r".*[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}[^/]*\.metadata\.json")

#: Of a table's metadata, what is a list of values that nobody changes.
_LISTS = (
    "schemas",
    "partition_specs",
    "snapshots",
    "snapshot_log",
    "metadata_log",
    "sort_orders",
    "statistics",
    "partition_statistics",
)

#: Kept of all tables together. A snapshot takes 5 KB, its JSON included: 100 MB at the most.
MOST_SNAPSHOTS = 20_000
MOST_TABLES = 256


class Unchanging(list[T]):
    """A list of frozen values: a deep copy is another list of the same ones, and so is a sum."""

    def __deepcopy__(self, memo: dict[int, Any]) -> Unchanging[T]:
        return Unchanging(self)

    def __add__(self, other: Iterable[Any]) -> Unchanging[Any]:
        return Unchanging((*self, *other))

    def __getitem__(self, at: SupportsIndex | slice) -> Any:
        found: Any = super().__getitem__(at)
        return Unchanging(found) if isinstance(at, slice) else found


def cheaply_copied(metadata: TableMetadata) -> TableMetadata:
    """Equal to ``metadata``; a deep copy of it costs little, however many snapshots it has."""
    lists = {name: Unchanging(getattr(metadata, name)) for name in _LISTS}
    return metadata.model_copy(update=lists)


class KnownMetadata:
    """By the place it lies at; of each table the newest that was met, and of all tables those that
    were asked for last. Safe for threads.
    """

    def __init__(self) -> None:
        self._held: OrderedDict[str, TableMetadata] = OrderedDict()
        self._written: dict[UUID, Written] = {}
        self._lock = threading.Lock()

    def get(self, location: str) -> TableMetadata | None:
        """What ``location`` holds, a copy of the caller's own; None if that is not known."""
        with self._lock:
            found = self._held.get(location)
            if found is None:
                return None
            self._held.move_to_end(location)
        return found.model_copy(deep=True)

    def keep(self, location: str, metadata: TableMetadata) -> None:
        """That ``location`` holds ``metadata``, which was read there, or written there by us."""
        if not _NEVER_GIVEN_AGAIN.fullmatch(location):
            return
        own = cheaply_copied(metadata).model_copy(deep=True)
        with self._lock:
            others = {k: v for k, v in self._held.items() if v.table_uuid != own.table_uuid}
            # one that is too long by itself takes no place from others
            mine = {location: own} if len(own.snapshots) <= MOST_SNAPSHOTS else {}
            self._held = OrderedDict({**others, **mine})
            while self._is_too_much():
                self._held.popitem(last=False)
            left = {held.table_uuid for held in self._held.values()}
            self._written = {k: v for k, v in self._written.items() if k in left}

    def written(self, table: UUID) -> Written:
        """What was written of a table, for as long as it is kept."""
        with self._lock:
            return self._written.setdefault(table, Written())

    def _is_too_much(self) -> bool:
        snapshots = sum(len(held.snapshots) for held in self._held.values())
        return snapshots > MOST_SNAPSHOTS or len(self._held) > MOST_TABLES


#: Of this process.
KNOWN = KnownMetadata()
