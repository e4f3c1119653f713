"""Parquet files: one folder a checkpoint, which appears by one rename with its ledger entry."""

from eo_pipeline.sinks.parquet.config import ParquetSink

__all__ = ["ParquetSink"]
