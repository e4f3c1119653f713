"""Traces and metrics for OpenTelemetry, configured by its own environment variables.

A trace is a run, with a span for each checkpoint, and within that one for each phase. They use the
providers of a program that has set up OpenTelemetry itself.
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

#: Seconds to wait for the exporters at the end of a run.
LEAVE_S = 5.0


class Telemetry(Observer):
    """Trace and metrics of one run."""

    def __init__(self, run: ObservedRun) -> None:
        if by_otel_variables():
            _set_up()
        self._run = run
        self._labels = {"eo.pipeline": run.pipeline, "eo.operation": run.operation}
        self._pending: list[PhaseTimes] = []
        self._tracer = trace.get_tracer(_NAME)
        self._instruments = _Instruments.shared()
        # a scheduler's trace, from OpenTelemetry's variables
        inherited = propagate.extract(
            {k.lower(): os.environ[k] for k in _CARRIER & os.environ.keys()}
        )
        attributes = {
            **self._labels,
            "eo.run_id": run.run_id,
            "eo.table": run.sink.qualified_name,
            "messaging.system": "kafka",
            "messaging.destination.name": ",".join(run.source.topics)
            or str(run.source.topic_pattern),
        }
        current = None if trace.get_current_span().get_span_context().is_valid else inherited
        self._span = self._tracer.start_span(
            f"{run.operation} {run.pipeline}", current, attributes=attributes
        )
        self._token = context.attach(trace.set_span_in_context(self._span))

    def phase(self, times: PhaseTimes) -> None:
        self._pending.append(times)
        seconds = (times.ended_ns - times.began_ns) / 1e9
        self._instruments.phases.record(seconds, {**self._labels, "eo.phase": times.name})

    def committed(self, report: CheckpointReport) -> None:
        entry, counts = report.entry, report.entry.counts
        attributes: dict[str, AttributeValue] = {
            **self._labels,
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
        self._checkpoint(f"checkpoint {entry.version}", attributes)
        labels = {**self._labels, "eo.operation": entry.operation.value}
        self._instruments.add(report, labels)

    def ended(self, error: BaseException | None) -> None:
        try:
            if error is not None and self._pending:
                _failed(self._checkpoint("checkpoint", self._labels, end=False), error).end()
            self._phases(self._pending, self._span)
            if error is not None:
                _failed(self._span, error)
        finally:
            context.detach(self._token)
            self._span.end()
        if (kind := kind_of(error)) is not None:
            self._instruments.failures.add(1, {**self._labels, "error.type": kind})
        _flush()

    def _checkpoint(
        self, name: str, attributes: Mapping[str, AttributeValue], *, end: bool = True
    ) -> Span:
        """Record a span from the first pending phase until now."""
        phases, self._pending = self._pending, []
        # the last reported phase may have begun first: staged while another checkpoint committed
        began = min((times.began_ns for times in phases), default=None)
        span = self._tracer.start_span(name, attributes=attributes, start_time=began)
        self._phases(phases, span)
        if end:
            span.end()
        return span

    def _phases(self, phases: Sequence[PhaseTimes], parent: Span) -> None:
        parent_context = trace.set_span_in_context(parent)
        for times in phases:
            span = self._tracer.start_span(
                times.name, parent_context, attributes=self._labels, start_time=times.began_ns
            )
            if times.failed:
                span.set_status(trace.StatusCode.ERROR)
            span.end(times.ended_ns)


def _failed(span: Span, error: BaseException) -> Span:
    """Record kind and text of an error; a stack could show values."""
    span.set_attribute("error.type", type(error).__name__)
    span.set_status(trace.StatusCode.ERROR, scrubbed(str(error)) or type(error).__name__)
    return span


class _Instruments:
    """The metric instruments, with units of the semantic conventions."""

    def __init__(self) -> None:
        meter = metrics.get_meter(_NAME)
        self.checkpoints = meter.create_counter("eo.checkpoints", "{version}", "Ledger versions.")
        self.records = meter.create_counter("eo.records", "{record}", "Kafka records read.")
        self.bytes = meter.create_counter("eo.bytes", "By", "Of their keys and values.")
        self.rows = meter.create_counter("eo.rows", "{row}", "Rows written.")
        self.dead_letters = meter.create_counter("eo.dead_letters", "{record}", "Dead letters.")
        self.failures = meter.create_counter("eo.failures", "{run}", "Runs that failed, by kind.")
        self.phases = meter.create_histogram("eo.phase.duration", "s", "Seconds of a phase.")
        self.lag = meter.create_gauge("eo.lag", "{offset}", "Offsets that wait to be read.")

    @staticmethod
    @cache
    def shared() -> _Instruments:
        return _Instruments()

    def add(self, report: CheckpointReport, labels: Mapping[str, str]) -> None:
        counts = report.entry.counts
        self.checkpoints.add(1, labels)
        self.records.add(counts.records, labels)
        self.bytes.add(counts.bytes + (counts.key_bytes or 0), labels)
        self.rows.add(counts.rows, labels)
        self.dead_letters.add(counts.dead_letters, labels)
        if report.lag_after is not None:
            self.lag.set(report.lag_after, {"eo.pipeline": labels["eo.pipeline"]})


#: https://opentelemetry.io/docs/specs/otel/context/env-carriers/
_CARRIER = frozenset({"TRACEPARENT", "TRACESTATE", "BAGGAGE"})

_PROTOCOL = "http/protobuf"


@cache
def _set_up() -> None:
    """Set up OpenTelemetry's providers for this process, unless they exist. Each run flushes them;
    no flush at exit is needed.

    Raises:
        ConfigError: a variable requests an unsupported exporter or protocol.
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
    exporter = _exporter("TRACES")
    if exporter == "console":
        return ConsoleSpanExporter()
    return OTLPSpanExporter() if exporter == "otlp" else None


def _metric_exporter() -> MetricExporter | None:
    exporter = _exporter("METRICS")
    if exporter == "console":
        return ConsoleMetricExporter()
    return OTLPMetricExporter() if exporter == "otlp" else None


def _exporter(signal: str) -> str:
    variable = f"OTEL_{signal}_EXPORTER"
    exporter = os.environ.get(variable) or "otlp"
    if exporter not in ("otlp", "console", "none"):
        raise ConfigError(f"{variable}: otlp, console or none, not {exporter!r}")
    variables = f"OTEL_EXPORTER_OTLP_{signal}_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"
    protocol = next(filter(None, map(os.environ.get, variables)), _PROTOCOL)
    if exporter == "otlp" and protocol != _PROTOCOL:
        raise ConfigError(
            f"OTEL_EXPORTER_OTLP_PROTOCOL: {_PROTOCOL} is what this package sends, not "
            f"{protocol!r}; a collector takes it at port 4318"
        )
    return exporter


def _flush() -> None:
    """Flush the exporters before the process may end, in a daemon thread: their retries exceed the
    configured timeout.
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
