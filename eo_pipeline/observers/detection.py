"""Detection of OpenTelemetry and OpenLineage by their own variables and files."""

from __future__ import annotations

import os
import sys

#: https://opentelemetry.io/docs/specs/otel/configuration/sdk-environment-variables/
_OTEL = (
    "OTEL_EXPORTER_OTLP_ENDPOINT",
    "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
    "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT",
    "OTEL_TRACES_EXPORTER",
    "OTEL_METRICS_EXPORTER",
)
#: https://openlineage.io/docs/client/python/configuration
_LINEAGE = ("OPENLINEAGE_URL", "OPENLINEAGE_CONFIG")
_LINEAGE_PREFIX = "OPENLINEAGE__"
_LINEAGE_FILE = "openlineage.yml"
_LINEAGE_AT_HOME = "~/.openlineage/openlineage.yml"


def for_opentelemetry() -> bool:
    """Return whether its variables are set, or the calling program has loaded its SDK."""
    if _is_true("OTEL_SDK_DISABLED"):
        return False
    return by_otel_variables() or "opentelemetry.sdk.trace" in sys.modules


def by_otel_variables() -> bool:
    """Return whether its variables request an exporter."""
    return any(map(os.environ.get, _OTEL))


def for_openlineage() -> bool:
    """Return whether its variables are set, or its file exists."""
    if _is_true("OPENLINEAGE_DISABLED"):
        return False
    by_variables = any(map(os.environ.get, _LINEAGE)) or any(
        name.startswith(_LINEAGE_PREFIX) for name in os.environ
    )
    # without a home, as in some containers, "~" is not expanded
    return by_variables or any(
        map(os.path.isfile, (_LINEAGE_FILE, os.path.expanduser(_LINEAGE_AT_HOME)))
    )


def _is_true(name: str) -> bool:
    return os.environ.get(name, "").strip().lower() == "true"
