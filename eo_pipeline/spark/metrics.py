"""What a job's Observation heard, if it heard anything."""

from __future__ import annotations

import threading
from typing import Any

from pyspark.sql import Observation

#: Seconds to wait for a finished job's metrics. They are there at once, unless the optimizer
#: proved the result empty and left the reading out of the plan; then they never come.
_METRICS_SECONDS = 10.0


def metrics_of(observation: Observation) -> dict[str, Any] | None:
    """The job's metrics, or None if reading was optimized away (``get`` would wait for ever)."""
    found: list[dict[str, Any]] = []
    waiting = threading.Thread(target=lambda: found.append(observation.get), daemon=True)
    waiting.start()
    waiting.join(_METRICS_SECONDS)
    return found[0] if found and found[0] else None
