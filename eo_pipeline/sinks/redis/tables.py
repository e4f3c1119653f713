"""Several tables under one hash tag, published by one script with one ledger entry."""

from __future__ import annotations

from eo_pipeline.ledger.entry import LedgerEntry
from eo_pipeline.sinks.config import Sink
from eo_pipeline.sinks.redis.rows import PackedOutput
from eo_pipeline.sinks.redis.session import RedisPublication, RedisSession
from eo_pipeline.sinks.redis.types import RedisKind
from eo_pipeline.sinks.session import Publication
from eo_pipeline.sinks.tables import TablesSession
from eo_pipeline.staging.rows import StagedOutput


class RedisTablesSession(TablesSession[RedisSession]):
    """A session for each table, all on one connection. The ledger is the pipeline's hash."""

    keeps_ledger = None

    def _member(self, name: str, sink: Sink) -> RedisSession:  # noqa: ARG002
        session: RedisSession = sink._session_class()(sink, self.pipeline, self.first)
        return session

    def was_written(self) -> bool:
        """Also of tables that appeared, which a lost ledger does not name."""
        return super().was_written() or self.ledger.was_written()

    def prune(self, *, dry_run: bool) -> int:
        return self.ledger.prune(dry_run=dry_run)

    def reset(self, *, dry_run: bool) -> tuple[str, ...]:
        """Also the keys of tables that left the document."""
        return self.ledger.reset(dry_run=dry_run)

    def begin(self, entry: LedgerEntry, staged: StagedOutput) -> Publication:
        return RedisTablesPublication(self, entry, staged)


class RedisTablesPublication(RedisPublication):
    """One run of the script for all tables."""

    def __init__(
        self, together: RedisTablesSession, entry: LedgerEntry, staged: StagedOutput
    ) -> None:
        members = together.members
        parts = [(members[name], output) for name, output in staged.tables.items()]
        super().__init__(together.ledger, entry, staged, parts)
        self._names = () if together.ledger in members.values() else tuple(staged.tables)

    def write(self) -> None:
        """The table without rows has the names of those that appeared instead of columns."""
        super().write()
        if self._names:
            names = dict.fromkeys(self._names, RedisKind.TEXT)
            self._packed.append((self.session, PackedOutput(columns=names)))
