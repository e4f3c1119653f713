"""What was done and what came of it, one JSON line an event, as it happens.

``invoke`` begins an operation; it ends as ``ok``, ``fail`` (it said that it failed) or ``info``
(nobody knows: it was killed, or said so itself). ``fault`` is what was done to it, ``look`` what a
reader saw, ``found`` what was wrong with that.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any


class History:
    """Of one life."""

    def __init__(self, file: Path) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        self.file = file
        self._began = time.monotonic()
        self._out = file.open("w", buffering=1)

    def note(self, kind: str, what: str, **value: Any) -> None:
        """An event at this moment, in seconds since the life began."""
        at = round(time.monotonic() - self._began, 3)
        event = {"at": at, "type": kind, "f": what, **value}
        self._out.write(json.dumps(event, default=str) + "\n")

    def close(self) -> None:
        self._out.close()
