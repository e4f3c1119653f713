"""One pipeline's connection to MySQL or MariaDB."""

from __future__ import annotations

from eo_pipeline.sinks.mysql.rows import MySqlTable
from eo_pipeline.sinks.mysql.store import MySqlStore
from eo_pipeline.sinks.sql.session import SqlSession


class MySqlSession(SqlSession):
    """See :class:`~eo_pipeline.sinks.sql.session.SqlSession`. The loser of two publishers is told
    of a duplicate; where the parent is not in the ledger, nothing is inserted.
    """

    store_class = MySqlStore
    table_class = MySqlTable
