"""The cursors of many pipelines as one. Dagster keeps it with every tick, so it is packed."""

from __future__ import annotations

import json
import zlib
from base64 import b85decode, b85encode
from collections.abc import Mapping

_FORMAT = "1:"


def to_cursor(cursors: Mapping[str, str]) -> str:
    """``cursors`` by name; some 40 bytes each."""
    return _FORMAT + b85encode(zlib.compress(json.dumps(cursors).encode(), 9)).decode()


def cursors_of(cursor: str | None) -> dict[str, str]:
    """The inverse; empty if there is none of this format."""
    if not cursor or not cursor.startswith(_FORMAT):
        return {}
    packed = b85decode(cursor.removeprefix(_FORMAT))
    return dict(json.loads(zlib.decompress(packed)))
