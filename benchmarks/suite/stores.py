"""The kinds of place that a run writes to."""

from __future__ import annotations

from enum import StrEnum


class Store(StrEnum):
    """What kind of place."""

    DELTA = "Delta"
    ICEBERG = "Iceberg"
    PARQUET = "Parquet"
    POSTGRES = "PostgreSQL"
    KAFKA = "Kafka"
    NOWHERE = "nowhere"
