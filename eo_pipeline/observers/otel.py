"""Traces and metrics for OpenTelemetry, set up by its own environment variables.

A trace is a run; below it a span for each checkpoint, and below that one for each phase. A program
that has set OpenTelemetry up itself gets them where it sends its own.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING

from eo_pipeline.errors import ConfigError, SetupError, scrubbed
from eo_pipeline.observers.detection import by_otel_variables
from eo_pipeline.observers.failures import kind_of
from eo_pipeline.runs.report import CheckpointReport, ObservedRun, Observer, PhaseTimes

try:
    from opentelemetry import context, metrics, propagate, trace
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import (
        ConsoleMetricExporter,
        MetricExporter,
        PeriodicExportingMetricReader,
    )
    from opentelemetry.sdk.resources import SERVICE_NAME, Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import (
        BatchSpanProcessor,
        ConsoleSpanExporter,
        SpanExporter,
    )
except ImportError as error:
    raise SetupError(
        f"OTEL_* variables ask for OpenTelemetry, and {error.name} is not installed: "
        "pip install 'eo-pipeline[otel]'"
    ) from error

if TYPE_CHECKING:
    from opentelemetry.trace import Span
    from opentelemetry.util.types import AttributeValue

log = logging.getLogger(__name__)

_NAME = "eo_pipeline"

#: Seconds for what was recorded to leave when a run ends; whoever is away is not waited for any
#: longer.
LEAVE_S = 5.0


class Telemetry(Observer):
    """One run as a trace, and its numbers."""

    def __init__(self, run: ObservedRun) -> None:
        if by_otel_variables():
            _set_up()
        self._run = run
        self._of = {"eo.pipeline": run.pipeline, "eo.operation": run.operation}
        self._pending: list[PhaseTimes] = []
        self._tracer = trace.get_tracer(_NAME)
        self._numbers = _Numbers.made()
        # a scheduler's own trace, as OpenTelemetry hands it over in the environment
        outer = propagate.extract({k.lower(): os.environ[k] for k in _CARRIER & os.environ.keys()})
        named = {
            **self._of,
            "eo.run_id": run.run_id,
            "eo.table": run.sink.qualified_name,
            "messaging.system": "kafka",
            "messaging.destination.name": ",".join(run.source.topics)
            or str(run.source.topic_pattern),
        }
        current = None if trace.get_current_span().get_span_context().is_valid else outer
        self._span = self._tracer.start_span(
            f"{run.operation} {run.pipeline}", current, attributes=named
        )
        self._token = context.attach(trace.set_span_in_context(self._span))

    def phase(self, times: PhaseTimes) -> None:
        self._pending.append(times)
        seconds = (times.ended_ns - times.began_ns) / 1e9
        self._numbers.phases.record(seconds, {**self._of, "eo.phase": times.name})

    def committed(self, report: CheckpointReport) -> None:
        entry, counts = report.entry, report.entry.counts
        said: dict[str, AttributeValue] = {
            **self._of,
            "eo.version": entry.version,
            "eo.operation": entry.operation.value,
            "eo.partitions": len(entry.ranges),
            "eo.records": counts.records,
            "eo.rows": counts.rows,
            "eo.bytes": counts.bytes + (counts.key_bytes or 0),
            "eo.dead_letters": counts.dead_letters,
            "eo.recovered": report.recovered,
            **({} if report.lag_after is None else {"eo.lag": report.lag_after}),
        }
        self._checkpoint(f"checkpoint {entry.version}", said)
        of = {**self._of, "eo.operation": entry.operation.value}
        self._numbers.add(report, of)

    def ended(self, error: BaseException | None) -> None:
        try:
            if error is not None and self._pending:
                _failed(self._checkpoint("checkpoint", self._of, end=False), error).end()
            self._phases(self._pending, self._span)
            if error is not None:
                _failed(self._span, error)
        finally:
            context.detach(self._token)
            self._span.end()
        if (kind := kind_of(error)) is not None:
            self._numbers.failures.add(1, {**self._of, "error.type": kind})
        _flush()

    def _checkpoint(
        self, name: str, said: Mapping[str, AttributeValue], *, end: bool = True
    ) -> Span:
        """From its first phase until now; what did not commit has no number."""
        phases, self._pending = self._pending, []
        # the last phase to be told may have begun first: staged while another was committed
        began = min((each.began_ns for each in phases), default=None)
        span = self._tracer.start_span(name, attributes=said, start_time=began)
        self._phases(phases, span)
        if end:
            span.end()
        return span

    def _phases(self, phases: Sequence[PhaseTimes], parent: Span) -> None:
        within = trace.set_span_in_context(parent)
        for each in phases:
            span = self._tracer.start_span(
                each.name, within, attributes=self._of, start_time=each.began_ns
            )
            if each.failed:
                span.set_status(trace.StatusCode.ERROR)
            span.end(each.ended_ns)


def _failed(span: Span, error: BaseException) -> Span:
    """Its kind and its sentence; a stack would show values."""
    span.set_attribute("error.type", type(error).__name__)
    span.set_status(trace.StatusCode.ERROR, scrubbed(str(error)) or type(error).__name__)
    return span


class _Numbers:
    """The instruments, by the semantic conventions' units."""

    def __init__(self) -> None:
        meter = metrics.get_meter(_NAME)
        self.checkpoints = meter.create_counter("eo.checkpoints", "{version}", "Ledger versions.")
        self.records = meter.create_counter("eo.records", "{record}", "Kafka records read.")
        self.bytes = meter.create_counter("eo.bytes", "By", "Of their keys and values.")
        self.rows = meter.create_counter("eo.rows", "{row}", "Rows written.")
        self.dead_letters = meter.create_counter("eo.dead_letters", "{record}", "Set aside.")
        self.failures = meter.create_counter("eo.failures", "{run}", "Runs that failed, by kind.")
        self.phases = meter.create_histogram("eo.phase.duration", "s", "Seconds of a phase.")
        self.lag = meter.create_gauge("eo.lag", "{offset}", "Offsets that wait to be read.")

    @staticmethod
    @cache
    def made() -> _Numbers:
        return _Numbers()

    def add(self, report: CheckpointReport, of: Mapping[str, str]) -> None:
        counts = report.entry.counts
        self.checkpoints.add(1, of)
        self.records.add(counts.records, of)
        self.bytes.add(counts.bytes + (counts.key_bytes or 0), of)
        self.rows.add(counts.rows, of)
        self.dead_letters.add(counts.dead_letters, of)
        if report.lag_after is not None:
            self.lag.set(report.lag_after, {"eo.pipeline": of["eo.pipeline"]})


#: https://opentelemetry.io/docs/specs/otel/context/env-carriers/
_CARRIER = frozenset({"TRACEPARENT", "TRACESTATE", "BAGGAGE"})

_PROTOCOL = "http/protobuf"


@cache
def _set_up() -> None:
    """OpenTelemetry's providers for this process, unless somebody set them up already. Each run
    flushes them, so that the process need not when it ends.

    Raises:
        ConfigError: a variable asks for what this package does not bring.
    """
    resource = Resource.create(
        {} if os.environ.get("OTEL_SERVICE_NAME") else {SERVICE_NAME: _NAME}
    ).merge(Resource.create())
    if not isinstance(trace.get_tracer_provider(), TracerProvider):
        tracers = TracerProvider(resource=resource, shutdown_on_exit=False)
        if (spans := _span_exporter()) is not None:
            tracers.add_span_processor(BatchSpanProcessor(spans))
        trace.set_tracer_provider(tracers)
    if not isinstance(metrics.get_meter_provider(), MeterProvider):
        exporter = _metric_exporter()
        readers = [PeriodicExportingMetricReader(exporter)] if exporter else []
        metrics.set_meter_provider(
            MeterProvider(readers, resource=resource, shutdown_on_exit=False)
        )


def _span_exporter() -> SpanExporter | None:
    chosen = _chosen("TRACES")
    if chosen == "console":
        return ConsoleSpanExporter()
    return OTLPSpanExporter() if chosen == "otlp" else None


def _metric_exporter() -> MetricExporter | None:
    chosen = _chosen("METRICS")
    if chosen == "console":
        return ConsoleMetricExporter()
    return OTLPMetricExporter() if chosen == "otlp" else None


def _chosen(signal: str) -> str:
    variable = f"OTEL_{signal}_EXPORTER"
    chosen = os.environ.get(variable) or "otlp"
    if chosen not in ("otlp", "console", "none"):
        raise ConfigError(f"{variable}: otlp, console or none, not {chosen!r}")
    named = f"OTEL_EXPORTER_OTLP_{signal}_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"
    protocol = next(filter(None, map(os.environ.get, named)), _PROTOCOL)
    if chosen == "otlp" and protocol != _PROTOCOL:
        raise ConfigError(
            f"OTEL_EXPORTER_OTLP_PROTOCOL: {_PROTOCOL} is what this package sends, not "
            f"{protocol!r}; a collector takes it at port 4318"
        )
    return chosen


def _flush() -> None:
    """What was recorded leaves before the process may end. The exporters try again for longer than
    they are told to, so that they do it in a thread that nobody has to wait for.
    """
    thread = threading.Thread(target=_flush_all, daemon=True)
    thread.start()
    thread.join(LEAVE_S)
    if thread.is_alive():
        log.warning("OpenTelemetry's collector did not take this run within %.0f s", LEAVE_S)


def _flush_all() -> None:
    for provider in (trace.get_tracer_provider(), metrics.get_meter_provider()):
        if isinstance(provider, TracerProvider | MeterProvider):
            provider.force_flush()
