"""`eo doctor`: everything a pipeline needs, one line each, with its remedy."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import typer
from rich.text import Text

from eo_pipeline.cli.checks import (
    Check,
    State,
    examined,
    fail,
    java,
    kafka_checks,
    losses,
    ok,
    packages,
    schema_registry,
    sink_checks,
    skipped,
    staging,
)
from eo_pipeline.cli.checks_spark import spark_checks
from eo_pipeline.cli.options import AsJson, Files, Name, documents, load
from eo_pipeline.cli.output import ExitCode, Output
from eo_pipeline.config.documents import Document
from eo_pipeline.errors import EoPipelineError
from eo_pipeline.pipeline import Pipeline
from eo_pipeline.storage.backend import RETRIED_FOR
from eo_pipeline.storage.config import Storage
from eo_pipeline.storage.paths import BucketPath

_Timeout = Annotated[
    float, typer.Option(min=0.1, help="Seconds to wait for Kafka, a Spark server, and a store.")
]
#: A store that answers may take as long.
_REQUEST_S_MIN = 1.0
_STYLES = {State.OK: "green", State.WARN: "yellow", State.FAIL: "red", State.SKIPPED: "dim"}


def doctor(
    files: Files = None, name: Name = None, timeout: _Timeout = 10.0, as_json: AsJson = False
) -> None:
    """Check everything a run needs: Java, packages, jars, broker, topic, permissions, sink,
    ledger. Each finding has its remedy. Changes nothing.
    """
    output = Output(as_json)
    machine = list(_shown(output, iter([java(), packages()])))
    found: dict[str, list[Check]] = {}
    for document in _documents(output, machine, files, name):
        output.say(f"\n{document.name} ({document.path})", "bold")
        found[document.name] = list(_shown(output, _checks(document, timeout)))
    passed = not any(
        check.state is State.FAIL for checks in (machine, *found.values()) for check in checks
    )
    if as_json:
        output.document(
            {
                "passed": passed,
                "machine": [check.to_json() for check in machine],
                "pipelines": {n: [c.to_json() for c in checks] for n, checks in found.items()},
            }
        )
    if not passed:
        raise typer.Exit(ExitCode.DIFFERENCES)


def _documents(output: Output, machine: list[Check], files: Files, name: Name) -> list[Document]:
    """A machine is worth a look also before there is a pipeline."""
    try:
        return documents(files, name)
    except EoPipelineError as error:
        wrong = fail("documents", str(error), "Correct the file; docs/configuration.md has all.")
        machine += _shown(output, iter([wrong]))
        return []


def _checks(document: Document, timeout: float) -> Iterator[Check]:
    """One after the other; none stops the next."""
    try:
        pipeline = load(document)
    except EoPipelineError as error:
        yield fail("document", str(error), "Correct the file; docs/configuration.md has all.")
        return
    yield ok("document", f"valid; transform {document.fields.get('transform') or 'none'}")
    pipeline = _impatient(pipeline, timeout)
    yield from spark_checks(pipeline, timeout)
    kafka = kafka_checks(pipeline.source)
    yield from kafka
    if pipeline.source.registry:
        yield schema_registry(pipeline.source, timeout)
    yield examined("staging", lambda: staging(pipeline), "Start the store, or correct `staging`.")
    sink = sink_checks(pipeline)
    yield from sink
    if any(check.state is State.FAIL for check in (kafka[0], kafka[1], sink[0])):
        yield skipped("next", "Kafka or the sink did not respond")
    else:
        yield examined("next", lambda: losses(pipeline), "See above.")


def _impatient(pipeline: Pipeline, timeout: float) -> Pipeline:
    """The pipeline, waiting for Kafka and for stores no longer than a doctor should."""
    source, sink, staging = pipeline.source, pipeline.sink, pipeline.staging
    storage = _soon(pipeline.storage, timeout)
    if isinstance(own := getattr(sink, "storage", None), Storage):
        sink = sink.model_copy(update={"storage": _soon(own, timeout)})
    if isinstance(staging, BucketPath):
        staging = storage.place(str(staging))
    wait = min(source.request_timeout, timeout)
    changed = {
        "source": source.model_copy(update={"request_timeout": wait}),
        "storage": storage,
        "sink": sink,
        "staging": staging,
    }
    return pipeline.model_copy(update=changed)


def _soon(storage: Storage, timeout: float) -> Storage:
    """``storage``, but that a store is given up after ``timeout``, all its tries together."""
    one = max(_REQUEST_S_MIN, timeout / RETRIED_FOR)
    wait = min(storage.request_timeout, one)
    return storage.model_copy(update={"request_timeout": wait})


def _shown(output: Output, checks: Iterator[Check]) -> Iterator[Check]:
    """Each check as soon as it is made."""
    for check in checks:
        output.styled(_line(check))
        if check.remedy and check.state is not State.OK:
            output.say(f"{'':<23}-> {check.remedy}")
        yield check


def _line(check: Check) -> Text:
    said = check.said.replace("\n", "\n" + " " * 23)
    return Text.assemble(
        (f"{check.state.value:<9}", _STYLES[check.state]), f"{check.name:<14}{said}"
    )
