"""One pipeline's connection to MySQL or MariaDB."""

from __future__ import annotations

from typing import Any

from eo_pipeline.errors import RefusedError
from eo_pipeline.sinks.mysql.refused import refused_records
from eo_pipeline.sinks.mysql.rows import MySqlTable
from eo_pipeline.sinks.mysql.store import MySqlStore
from eo_pipeline.sinks.sql.session import SqlSession
from eo_pipeline.staging.rows import StagedOutput


class MySqlSession(SqlSession):
    """See :class:`~eo_pipeline.sinks.sql.session.SqlSession`. The loser of two publishers is told
    of a duplicate; where the parent is not in the ledger, nothing is inserted.
    """

    store_class = MySqlStore
    table_class = MySqlTable
    table: MySqlTable

    def refused_records(
        self, error: RefusedError, staged: StagedOutput, most: int
    ) -> list[dict[str, Any]]:
        if staged.rows is None:
            return []
        try:
            with self.store.transaction():
                return refused_records(self.table, staged.rows, most)
        except (RefusedError, self.store.driver_error):
            raise error from error.__cause__
