"""One run in its own process: ``python -m tests.runs.driver CONFIG [--crash-at POINT NTH]``.

``CONFIG`` is JSON, or a document's path. With ``--rewind TO``, ``--replay FIRST LAST``,
``--preview FIRST LAST`` or ``--redrive`` it does that instead. Prints one JSON line per checkpoint,
then ``done``. With ``--crash-at`` the process kills itself by SIGKILL when it reaches the named
point for the nth time.
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from eo_pipeline.config.documents import one_document
from eo_pipeline.crashpoints import CrashPoint, Reach, keep_going, reaching
from eo_pipeline.pipeline import Pipeline
from eo_pipeline.runs.report import CheckpointReport
from eo_pipeline.testing import crash_at


def say(report: CheckpointReport) -> None:
    line = {"version": report.entry.version, "recovered": report.recovered}
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


def configuration(text: str) -> Any:
    return (
        json.loads(text)
        if text.startswith("{")
        else one_document(text).config(Pipeline.model_fields)
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("config", type=configuration)
    parser.add_argument("--crash-at", nargs=2, metavar=("POINT", "NTH"))
    parser.add_argument("--rewind", type=int, metavar="TO")
    parser.add_argument("--replay", type=int, nargs=2, metavar=("FIRST", "LAST"))
    parser.add_argument("--preview", type=int, nargs=2, metavar=("FIRST", "LAST"))
    parser.add_argument("--redrive", action="store_true")
    options = parser.parse_args()
    hook: Reach = keep_going
    if options.crash_at:
        point, nth = options.crash_at
        hook = crash_at(CrashPoint(point), int(nth))
    pipeline = Pipeline.from_config(options.config)
    with reaching(hook):
        _work(pipeline, options)
    sys.stdout.write("done\n")


def _work(pipeline: Pipeline, options: argparse.Namespace) -> None:
    if options.rewind is not None:
        pipeline.plan_rewind(options.rewind).apply(on_checkpoint=say)
    elif options.replay:
        pipeline.plan_replay(*options.replay).apply(on_checkpoint=say)
    elif options.preview:
        pipeline.preview_replay(pipeline.plan_replay(*options.preview))
    elif options.redrive:
        pipeline.plan_redrive().apply(on_checkpoint=say)
    else:
        pipeline.run(on_checkpoint=say)


if __name__ == "__main__":
    main()
