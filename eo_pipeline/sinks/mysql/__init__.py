"""MySQL and MariaDB: rows and ledger in one transaction."""

from eo_pipeline.sinks.mysql.config import MySqlSink

__all__ = ["MySqlSink"]
