"""One pipeline's connection to PostgreSQL."""

from __future__ import annotations

from eo_pipeline.sinks.postgres.rows import DeadLetters, PostgresTable
from eo_pipeline.sinks.postgres.store import PostgresStore
from eo_pipeline.sinks.sql.session import SqlSession
from eo_pipeline.staging.rows import StagedTable


class PostgresSession(SqlSession):
    """See :class:`~eo_pipeline.sinks.sql.session.SqlSession`. The loser of two publishers is told
    of a unique violation; where the parent is not in the ledger, nothing is inserted.
    """

    store_class = PostgresStore
    table_class = PostgresTable

    def storable(self, dead_letters: StagedTable) -> StagedTable:
        return DeadLetters.of(dead_letters)
