"""PostgreSQL: rows and ledger in one transaction."""

from eo_pipeline.sinks.postgres.sink import PostgresSink

__all__ = ["PostgresSink"]
