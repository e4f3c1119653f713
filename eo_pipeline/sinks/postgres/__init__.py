"""PostgreSQL: rows and ledger in one transaction."""

from eo_pipeline.sinks.postgres.config import PostgresSink

__all__ = ["PostgresSink"]
