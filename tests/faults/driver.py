"""One run in its own process: ``python -m tests.faults.driver CONFIG [--crash-at POINT NTH]``.

Prints one JSON line per checkpoint, then ``done``. With ``--crash-at`` the process kills itself by
SIGKILL when it reaches the named point for the nth time.
"""

from __future__ import annotations

import argparse
import json
import sys

from eo_pipeline.crashpoints import CrashPoint, Reach, keep_going
from eo_pipeline.pipeline import Pipeline
from eo_pipeline.report import CheckpointReport
from eo_pipeline.testing import crash_at


def say(report: CheckpointReport) -> None:
    line = {"version": report.entry.version, "recovered": report.recovered}
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("config", type=json.loads)
    parser.add_argument("--crash-at", nargs=2, metavar=("POINT", "NTH"))
    options = parser.parse_args()
    reach: Reach = keep_going
    if options.crash_at:
        point, nth = options.crash_at
        reach = crash_at(CrashPoint(point), int(nth))
    Pipeline.from_config(options.config).run(on_checkpoint=say, reach=reach)
    sys.stdout.write("done\n")


if __name__ == "__main__":
    main()
