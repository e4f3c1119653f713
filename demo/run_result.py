"""What a run's process tells the process that started it: one small file."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True)
class RunResult:
    """How a run ended. ``error`` is the first error's own sentence."""

    run_id: str
    success: bool
    error: str | None
    spark_started: bool

    def write(self, file: Path) -> None:
        """Whole or not at all."""
        fresh = file.with_suffix(".new")
        fresh.write_text(json.dumps(asdict(self)))
        fresh.rename(file)

    @classmethod
    def read(cls, file: Path) -> RunResult | None:
        """None if the process ended before it could tell."""
        return cls(**json.loads(file.read_text())) if file.exists() else None
