"""Dead letters always find a place: what made a record unreadable must not stop its storing."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from eo_pipeline.staging.rows import StagedTable

_HEADERS = "headers"
_NUL, _REPLACEMENT = "\0", "\N{REPLACEMENT CHARACTER}"


class DeadLetters(StagedTable):
    """Staged dead letters whose headers can be stored as JSON.

    Keys and values of records are binary and stored as they are. A header's name is text that any
    producer may choose; the NUL character in it, which databases do not store, is replaced.
    """

    @classmethod
    def of(cls, staged: StagedTable) -> DeadLetters:
        return cls(**vars(staged))

    def batches(self) -> Iterator[pa.RecordBatch]:
        for batch in super().batches():
            place = batch.schema.get_field_index(_HEADERS)
            field = batch.schema.field(place)
            headers = [_storable(headers) for headers in batch.column(place).to_pylist()]
            yield batch.set_column(place, field, pa.array(headers, field.type))


def _storable(headers: list[dict[str, str | bytes]] | None) -> list[dict[str, str | bytes]] | None:
    if headers is None:
        return None
    return [
        {name: v.replace(_NUL, _REPLACEMENT) if isinstance(v, str) else v for name, v in h.items()}
        for h in headers
    ]
