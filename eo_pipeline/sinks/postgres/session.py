"""One pipeline's connection to PostgreSQL."""

from __future__ import annotations

from typing import Any

from eo_pipeline.errors import RefusedError
from eo_pipeline.sinks.postgres.refused import is_of_a_row, refused_records
from eo_pipeline.sinks.postgres.rows import DeadLetters, PostgresTable
from eo_pipeline.sinks.postgres.store import PostgresStore
from eo_pipeline.sinks.sql.session import SqlSession
from eo_pipeline.staging.rows import StagedOutput, StagedTable


class PostgresSession(SqlSession):
    """See :class:`~eo_pipeline.sinks.sql.session.SqlSession`. The loser of two publishers is told
    of a unique violation; where the parent is not in the ledger, nothing is inserted.
    """

    store_class = PostgresStore
    table_class = PostgresTable
    table: PostgresTable

    def refused_records(
        self, error: RefusedError, staged: StagedOutput, most: int
    ) -> list[dict[str, Any]]:
        if staged.rows is None or not is_of_a_row(error.__cause__):
            return []
        try:
            return refused_records(self.table, staged.rows, most)
        except self.store.driver_error as failed:
            raise self.store.while_publishing(self.store.diagnose(failed)) from failed

    def storable(self, dead_letters: StagedTable) -> StagedTable:
        return DeadLetters.of(dead_letters)
