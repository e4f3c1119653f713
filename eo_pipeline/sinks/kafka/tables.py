"""Several topics of one cluster, published by one transaction with one ledger entry."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from eo_pipeline.ledger.entry import LedgerEntry
from eo_pipeline.sinks.config import Sink
from eo_pipeline.sinks.kafka.session import KafkaPublication, KafkaSession
from eo_pipeline.sinks.kafka.transactions import TopicOutput
from eo_pipeline.sinks.session import Publication
from eo_pipeline.sinks.tables import TablesSession
from eo_pipeline.staging.rows import StagedOutput


class KafkaTablesSession(TablesSession[KafkaSession]):
    """A session for each topic, all with one producer. The ledger has a topic of its own."""

    publish_tries: ClassVar[int] = KafkaSession.publish_tries
    keeps_itself = KafkaSession.keeps_itself
    keeps_ledger = KafkaSession.keeps_ledger

    def _member(self, name: str, sink: Sink) -> KafkaSession:  # noqa: ARG002
        session: KafkaSession = sink._session_class()(sink, self.pipeline, self.first)
        return session

    def begin(self, entry: LedgerEntry, staged: StagedOutput) -> Publication:
        return KafkaTablesPublication(self, entry, staged)


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
