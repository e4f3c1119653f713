"""``eo report``: a pipeline's history as a page to look at."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from eo_pipeline.cli.options import Files, Name
from eo_pipeline.cli.output import Output
from eo_pipeline.cli.selection import choose
from eo_pipeline.cli.telling import note
from eo_pipeline.errors import EoPipelineError, SetupError
from eo_pipeline.pipeline import Pipeline
from eo_pipeline.run.status import Status

_Out = Annotated[Path | None, typer.Option("--out", "-o", help="The file. Default: NAME.html.")]
_Last = Annotated[int, typer.Option("--last", "-n", min=1, help="How many versions, the newest.")]


def report(out: _Out = None, last: _Last = 200, files: Files = None, name: Name = None) -> None:
    """One page of HTML: history as a tree, throughput, phases, lag, rows and costs.

    It is one file that asks for nothing else: mail it, or keep it beside an incident's report.
    """
    # here, because it takes a template engine
    from eo_pipeline.report import page

    output = Output()
    pipeline = choose(files, name).pipeline
    entries = pipeline.newest(last)
    status, trouble = _status(pipeline)
    text = page(
        entries,
        pipeline=pipeline.name,
        reads=", ".join(pipeline.source.topics) or str(pipeline.source.topic_pattern),
        writes=pipeline.sink.qualified_name,
        status=status,
        failures=pipeline.failures(),
        trouble=trouble,
    )
    path = out or Path(f"{pipeline.name}.html")
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise SetupError(
            f"{path} cannot be written: {error.strerror}. Name another file with --out."
        ) from error
    output.say(f"{path}: {len(entries)} versions")


def _status(pipeline: Pipeline) -> tuple[Status | None, str]:
    """The history is worth a look, too, while Kafka is away."""
    try:
        return pipeline.status(), ""
    except EoPipelineError as error:
        note(f"{pipeline.name}: {error}")
        return None, str(error)
