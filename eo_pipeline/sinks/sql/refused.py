"""Where the record was of a row that a database refuses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

#: As its rows have it, and as a bad record has it.
COORDINATES = {"_eo_topic": "topic", "_eo_partition": "partition", "_eo_offset": "offset"}


def record_of(row: Mapping[str, Any]) -> dict[str, Any]:
    """The coordinates of the record that ``row`` came from."""
    return {name: row[column] for column, name in COORDINATES.items()}
