"""The terminal, for looking at a pipeline before it has a table."""

from eo_pipeline.sinks.console.config import ConsoleSink

__all__ = ["ConsoleSink"]
