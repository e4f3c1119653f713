"""`eo doctor`: checks of a pipeline's requirements, with remedies."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

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
from eo_pipeline.storage.paths import RemotePath

_Timeout = Annotated[
    float, typer.Option(min=0.1, help="Seconds to wait for Kafka, a Spark server, and a store.")
]
#: Minimum timeout of a request, which a working store may need.
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
    results: dict[str, list[Check]] = {}
    for document in _documents(output, machine, files, name):
        output.say(f"\n{document.name} ({document.path})", "bold")
        results[document.name] = list(_shown(output, _checks(document, timeout)))
    passed = not any(
        check.state is State.FAIL for checks in (machine, *results.values()) for check in checks
    )
    if as_json:
        output.document(
            {
                "passed": passed,
                "machine": [check.to_json() for check in machine],
                "pipelines": {n: [c.to_json() for c in checks] for n, checks in results.items()},
            }
        )
    if not passed:
        raise typer.Exit(ExitCode.DIFFERENCES)


def _documents(output: Output, machine: list[Check], files: Files, name: Name) -> list[Document]:
    """Return the documents; an error becomes a failed check, since the machine is checked even
    without a pipeline.
    """
    try:
        return documents(files, name)
    except EoPipelineError as error:
        failure = fail("documents", str(error), "Correct the file; docs/configuration.md has all.")
        machine += _shown(output, iter([failure]))
        return []


def _checks(document: Document, timeout: float) -> Iterator[Check]:
    """Yield all checks of a pipeline; a failed one does not stop the next."""
    try:
        pipeline = load(document)
    except EoPipelineError as error:
        yield fail("document", str(error), "Correct the file; docs/configuration.md has all.")
        return
    yield ok("document", f"valid; transform {_transforms(document.fields)}")
    pipeline = _with_timeout(pipeline, timeout)
    yield from spark_checks(pipeline, timeout)
    kafka = kafka_checks(pipeline.source)
    yield from kafka
    sources = [table.source for table in pipeline.tables if table.source] or [pipeline.source]
    yield from (schema_registry(source, timeout) for source in sources if source.registry)
    yield examined("staging", lambda: staging(pipeline), "Start the store, or correct `staging`.")
    sink = sink_checks(pipeline)
    yield from sink
    failed = [c.name for c in (kafka[0], kafka[1], sink[0]) if c.state is State.FAIL]
    if failed:
        yield skipped("next", f"needs {' and '.join(failed)}, see above")
    else:
        yield examined("next", lambda: losses(pipeline), "See above.")


def _transforms(fields: Mapping[str, Any]) -> str:
    """Return the transform of a document, or those of its tables."""
    tables = fields.get("tables") or ()
    parts = [fields, *([tables] if isinstance(tables, Mapping) else tables)]
    return ", ".join(part["transform"] for part in parts if part.get("transform")) or "none"


def _with_timeout(pipeline: Pipeline, timeout: float) -> Pipeline:
    """Return the pipeline with its timeouts of Kafka and stores limited to ``timeout``."""
    source, sink, staging = pipeline.source, pipeline.sink, pipeline.staging
    storage = _limited(pipeline.storage, timeout)
    if isinstance(sink_storage := getattr(sink, "storage", None), Storage):
        sink = sink.model_copy(update={"storage": _limited(sink_storage, timeout)})
    if isinstance(staging, RemotePath):
        staging = storage.place(str(staging))
    request_timeout = min(source.request_timeout, timeout)
    limited = {
        "source": source.model_copy(update={"request_timeout": request_timeout}),
        "storage": storage,
        "sink": sink,
        "staging": staging,
    }
    return pipeline.model_copy(update=limited)


def _limited(storage: Storage, timeout: float) -> Storage:
    """Return ``storage`` with a total time limit of ``timeout`` for all tries of a request."""
    per_try = max(_REQUEST_S_MIN, timeout / RETRIED_FOR)
    request_timeout = min(storage.request_timeout, per_try)
    return storage.model_copy(update={"request_timeout": request_timeout})


def _shown(output: Output, checks: Iterator[Check]) -> Iterator[Check]:
    """Print each check as soon as it is done."""
    for check in checks:
        output.styled(_line(check))
        if check.remedy and check.state is not State.OK:
            output.say(f"{'':<24}-> {check.remedy}")
        yield check


def _line(check: Check) -> Text:
    message = check.message.replace("\n", "\n" + " " * 24)
    return Text.assemble(
        (f"{check.state.value:<9}", _STYLES[check.state]), f"{check.name:<15}{message}"
    )
