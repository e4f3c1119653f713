"""A table's metadata as PyIceberg writes it, without writing again what was written before.

Each commit writes all snapshots that are kept, and adds one. A snapshot never changes, so its JSON
does not either: of the two lists that grow with every commit only what is new is turned into text.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import is_
from typing import Any

from pydantic import TypeAdapter
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot, SnapshotLogEntry

#: Fields of the metadata in their order: the name in JSON, and how a list of such values is dumped.
_GROWING: dict[str, tuple[str, TypeAdapter[Any]]] = {
    "snapshots": ("snapshots", TypeAdapter(list[Snapshot])),
    "snapshot_log": ("snapshot-log", TypeAdapter(list[SnapshotLogEntry])),
}

#: Of a first format, snapshots are written otherwise than they are.
_FORMAT = 2


class Written:
    """What was written of one table. Safe for threads: what two write at once, one remembers."""

    def __init__(self) -> None:
        #: By field: the values of the list that was written last, and their JSON.
        self._begun: dict[str, tuple[list[Any], str]] = {}

    def json(self, metadata: TableMetadata) -> str:
        """Character by character what ``metadata.model_dump_json()`` gives."""
        if metadata.format_version != _FORMAT:
            return metadata.model_dump_json()
        rest = metadata.model_copy(update={name: [] for name in _GROWING}).model_dump_json()
        parts: list[str] = []
        for field, (name, adapter) in _GROWING.items():
            # quotes within a text are escaped: this is the field itself
            before, empty, rest = rest.partition(f'"{name}":[]')
            if not empty:
                return metadata.model_dump_json()
            listed = self._listed(field, getattr(metadata, field), adapter)
            parts += [before, f'"{name}":[', listed, "]"]
        return "".join([*parts, rest])

    def _listed(self, field: str, values: Sequence[Any], adapter: TypeAdapter[Any]) -> str:
        known, text = self._begun.get(field, ([], ""))
        if len(known) > len(values) or not all(map(is_, known, values)):
            known, text = [], ""
        if new := [*values[len(known) :]]:
            text = ",".join(filter(None, (text, _dumped(adapter, new))))
        self._begun[field] = [*values], text
        return text


def _dumped(adapter: TypeAdapter[Any], values: list[Any]) -> str:
    """Without the brackets."""
    return adapter.dump_json(values, by_alias=True, exclude_none=True)[1:-1].decode()


class AsWritten:
    """Stands for ``metadata`` where PyIceberg asks for its JSON in order to write it."""

    def __init__(self, metadata: TableMetadata, written: Written) -> None:
        self._metadata = metadata
        self._written = written

    def model_dump_json(self, *, exclude_none: bool = True) -> str:
        if not exclude_none:  # a setting of PyIceberg's, for readers of old
            return self._metadata.model_dump_json(exclude_none=False)
        return self._written.json(self._metadata)
