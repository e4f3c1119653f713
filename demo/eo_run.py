"""One run of the Avro demo's document in this process, as ``eo run`` does it.

Started by :mod:`demo.materialize` as a process of its own:

    python -m demo.eo_run RESULT-FILE --wait-for DESCRIPTOR

It loads everything, and waits for a byte from the pipe before it begins the run.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from uuid import uuid4

from pyspark.sql import SparkSession

from demo.run_result import RunResult
from eo_pipeline import EoPipelineError, Pipeline

DOCUMENT = Path(__file__).parent / "flights-avro.yaml"


def main(arguments: Sequence[str]) -> int:
    """Exit code 0 if the run succeeded, or was never to begin."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("result", type=Path)
    parser.add_argument("--wait-for", type=int, required=True)
    options = parser.parse_args(arguments)
    pipeline = Pipeline.from_yaml(DOCUMENT)
    if not os.read(options.wait_for, 1):  # the other end is closed: the parent gave up
        return 0
    run_id, error = str(uuid4()), None
    try:
        pipeline.run(run_id=run_id)
    except EoPipelineError as failed:
        error = str(failed)
    spark_started = SparkSession.getActiveSession() is not None
    RunResult(run_id, error is None, error, spark_started).write(options.result)
    return 0 if error is None else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
