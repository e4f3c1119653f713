"""One process that runs pipelines on request: a JSON line in for each run, a JSON line out.

Started by :mod:`benchmarks.bench_small`, once for each checkout and kind of Spark.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from eo_pipeline import Pipeline


def answer(config: dict[str, Any], records: int) -> dict[str, Any]:
    """One run, which must find ``records``: its seconds, and those of its phases."""
    pipeline = Pipeline.from_config(config)
    started = time.perf_counter()
    report = pipeline.run()
    spent = time.perf_counter() - started
    if report.rows != records:
        raise SystemExit(f"{report.rows} rows instead of {records}")
    phases: dict[str, float] = {}
    for checkpoint in report.checkpoints:
        for name, seconds in checkpoint.seconds.items():
            phases[name] = phases.get(name, 0.0) + seconds
    return {"seconds": spent, "phases": phases}


def main() -> None:
    """Until the other side closes."""
    for line in sys.stdin:
        asked = json.loads(line)
        sys.stdout.write(json.dumps(answer(asked["config"], asked["records"])) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
