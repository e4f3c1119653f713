"""Kafka: rows, ledger record and source offsets in one transaction."""

from eo_pipeline.sinks.kafka.config import KafkaSink

__all__ = ["KafkaSink"]
