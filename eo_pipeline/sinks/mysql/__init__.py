"""MySQL and MariaDB: rows and ledger in one transaction."""

from eo_pipeline.sinks.mysql.sink import MySqlSink

__all__ = ["MySqlSink"]
