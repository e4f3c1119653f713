"""Short looks at a pipeline's ledger, each over one connection and bounded."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice

from eo_pipeline.checkpoint import EntryId, LedgerEntry
from eo_pipeline.discovery import Cluster
from eo_pipeline.pipeline import Pipeline
from eo_pipeline.planner import lag
from eo_pipeline.source.admin import KafkaAdmin


@dataclass(frozen=True)
class Status:
    """Where a pipeline stands: its ledger's ``head``, and the ``cluster`` at the same moment."""

    head: LedgerEntry | None
    cluster: Cluster

    @property
    def lag(self) -> int:
        """Offsets that wait; before the first run all that Kafka holds."""
        return lag(self.head.offsets if self.head else {}, self.cluster)


def status(pipeline: Pipeline) -> Status:
    """Ask the sink, then Kafka.

    Raises:
        SinkUnavailableError, SourceUnavailableError: one of them does not answer.
    """
    head = pipeline.head()
    return Status(head, KafkaAdmin(pipeline.source).cluster())


def newest(pipeline: Pipeline, count: int) -> list[LedgerEntry]:
    """The last ``count`` entries, oldest first."""
    with pipeline.sink.open(pipeline.name) as session:
        head = session.head()
        return list(session.history(max(0, head.version + 1 - count))) if head else []


def following(pipeline: Pipeline, known: EntryId | None, count: int) -> list[LedgerEntry] | None:
    """At most ``count`` entries after ``known`` (None: from the first), oldest first.

    Returns None if the ledger does not hold ``known``: it was replaced by an older one.
    """
    with pipeline.sink.open(pipeline.name) as session:
        if known is None:
            return list(islice(session.history(), count))
        held = session.entry(known.version)
        if held is None or held.id != known:
            return None
        return list(islice(session.history(known.version + 1), count))
