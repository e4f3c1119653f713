"""Which types Iceberg holds."""

from __future__ import annotations

from eo_pipeline.sinks.lake.types import StoredTypes

TYPES = StoredTypes("Iceberg", short_integers=False)
