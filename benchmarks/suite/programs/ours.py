"""eo-pipeline in a process that stays: a run for each line of stdin, which is the document.

What Dagster's code server, a notebook or a service of one's own is. Spark is where the document's
``spark.remote`` says.
"""

from __future__ import annotations

import json
import sys
import time

from eo_pipeline import Pipeline


def main() -> None:
    """A run for each line."""
    known: dict[str, Pipeline] = {}
    for line in sys.stdin:
        config = json.loads(line)
        name = config["name"]
        started = time.perf_counter()
        if name not in known:
            known[name] = Pipeline.from_config(config)
        known[name].run()
        sys.stdout.write(json.dumps({"seconds": time.perf_counter() - started}) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
