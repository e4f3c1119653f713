"""Real receivers of what runs tell: OTLP over HTTP, read by OpenTelemetry's own message classes,
and an endpoint for OpenLineage's events.
"""

from __future__ import annotations

import gzip
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import KeyValue
from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric
from opentelemetry.proto.trace.v1.trace_pb2 import Span


@dataclass
class Received:
    """All that came, in order."""

    url: str
    spans: list[Span] = field(default_factory=list)
    resources: list[dict[str, Any]] = field(default_factory=list)
    metrics: list[Metric] = field(default_factory=list)
    events: list[dict[str, Any]] = field(default_factory=list)

    def environment(self) -> dict[str, str]:
        """What makes a run tell this receiver."""
        return {
            "OTEL_EXPORTER_OTLP_ENDPOINT": self.url,
            "OTEL_SERVICE_NAME": "orders-team",
            "OPENLINEAGE_URL": self.url,
            "OPENLINEAGE_NAMESPACE": "shop",
        }

    def take(self, path: str, body: bytes) -> None:
        if path == "/v1/traces":
            for spans in ExportTraceServiceRequest.FromString(body).resource_spans:
                self.resources.append(said(spans.resource.attributes))
                self.spans += [span for scope in spans.scope_spans for span in scope.spans]
        elif path == "/v1/metrics":
            for found in ExportMetricsServiceRequest.FromString(body).resource_metrics:
                self.metrics += [each for scope in found.scope_metrics for each in scope.metrics]
        elif path == "/api/v1/lineage":
            self.events.append(json.loads(body))
        else:
            raise AssertionError(path)

    def span(self, name: str) -> Span:
        [found] = [span for span in self.spans if span.name == name]
        return found

    def metric(self, name: str) -> dict[tuple[tuple[str, Any], ...], float]:
        """The newest value of each combination of attributes."""
        values = {}
        for metric in self.metrics:
            if metric.name == name:
                kind = str(metric.WhichOneof("data"))
                for point in getattr(metric, kind).data_points:
                    value = point.sum if kind == "histogram" else point.as_int or point.as_double
                    values[tuple(sorted(said(point.attributes).items()))] = value
        return values


def said(attributes: Any) -> dict[str, Any]:
    """Attributes as a dictionary."""

    def value(pair: KeyValue) -> Any:
        return getattr(pair.value, str(pair.value.WhichOneof("value")))

    return {pair.key: value(pair) for pair in attributes}


@contextmanager
def receiver() -> Iterator[Received]:
    """Listens on this machine while the block lasts."""
    received = Received("")

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            received.take(self.path, body)
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    received.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield received
    finally:
        server.shutdown()
        server.server_close()
        thread.join(60)
