"""Several topics of one cluster, published by one transaction with one ledger entry."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import ClassVar

from eo_pipeline.errors import EoPipelineError
from eo_pipeline.ledger.entry import LedgerEntry
from eo_pipeline.sinks.kafka.session import KafkaPublication, KafkaSession
from eo_pipeline.sinks.kafka.transactions import TopicOutput
from eo_pipeline.sinks.session import CommitConflictError, CommitOutcome, Publication
from eo_pipeline.sinks.tables import TablesSession, TablesSink
from eo_pipeline.staging.rows import StagedOutput


class KafkaTablesSession(TablesSession[KafkaSession]):
    """A session for each topic, all with one producer. The ledger has a topic of its own."""

    publish_tries: ClassVar[int] = KafkaSession.publish_tries
    keeps_itself = KafkaSession.keeps_itself
    keeps_ledger = KafkaSession.keeps_ledger

    def __init__(self, sink: TablesSink, pipeline: str) -> None:
        super().__init__(pipeline)
        first: KafkaSession | None = None
        with ExitStack() as failed:
            failed.callback(self.close)
            for name, member in sink.members.items():
                session: KafkaSession = member._session_class()(member, pipeline, first)
                session.manner = member.manner()
                self.members[name] = session
                first = first or session
            failed.pop_all()

    def recover(self) -> LedgerEntry | None:
        return self.ledger.recover()

    def has_landed(self, entry: LedgerEntry) -> bool:
        return self.ledger.has_landed(entry)

    def already_committed(self, entry: LedgerEntry, staged: StagedOutput) -> CommitOutcome:
        return self.ledger.already_committed(entry, staged)

    def begin(self, entry: LedgerEntry, staged: StagedOutput) -> Publication:
        return KafkaTablesPublication(self, entry, staged)

    def explain(self, error: Exception) -> EoPipelineError:
        return self.ledger.explain(error)

    def given_up(self, error: CommitConflictError) -> EoPipelineError:
        return self.ledger.given_up(error)


class KafkaTablesPublication(KafkaPublication):
    """One transaction over all topics."""

    def __init__(
        self, together: KafkaTablesSession, entry: LedgerEntry, staged: StagedOutput
    ) -> None:
        super().__init__(together.ledger, entry, staged)
        self._together = together

    def _outputs(self) -> Sequence[TopicOutput]:
        members = self._together.members
        return [members[name].output(staged) for name, staged in self.staged.tables.items()]
