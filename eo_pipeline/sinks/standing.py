"""What every session can tell of where its pipeline stands: whether ledger and table are still
those that were committed to.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from eo_pipeline.errors import LedgerDamagedError, RefusedError, TableRolledBackError
from eo_pipeline.ledger.chain import verify_head
from eo_pipeline.ledger.entry import CHECKPOINT_COLUMN, START_VERSION, LedgerEntry
from eo_pipeline.sinks.identity import (
    LATER_ROWS,
    identified,
    refuse_another_manner,
    refuse_another_table,
    refuse_rows_without_ledger,
)
from eo_pipeline.sinks.maintenance import Maintained
from eo_pipeline.sinks.showing import Showing
from eo_pipeline.sinks.unfit import Bound
from eo_pipeline.staging.rows import StagedOutput


class Standing(Showing, Maintained, ABC):
    """The part of a session that compares. A store tells by :meth:`table_identity` what its table
    is; what it leaves out is not compared.
    """

    #: How rows go in, as the configuration says; see ``Sink.manner``.
    manner: Mapping[str, str] = {}

    def __init__(self, pipeline: str) -> None:
        self.pipeline = pipeline

    @abstractmethod
    def entry(self, version: int) -> LedgerEntry | None:
        """See ``SinkSession.entry``."""

    def verified(self, head: LedgerEntry | None) -> LedgerEntry | None:
        """``head``, after it was compared with what it stands on. Cost as that of :meth:`entry`.

        Raises:
            LedgerDamagedError: it, or its parent, is not what was committed; or it is lost, and
                the table holds rows.
            TableReplacedError: the table is another one.
            ConfigError: rows would go in otherwise than before.
        """
        refuse_rows_without_ledger(self.pipeline, head, self.was_written)
        if head is not None:
            verify_head(head, self.entry(head.parent.version) if head.parent else None)
            refuse_another_manner(head, self.manner)
            refuse_another_table(head, self.table_identity())
        return head

    def refuse_later_rows(self, head: LedgerEntry | None, *, thorough: bool) -> None:
        """Return if the table holds nothing of a checkpoint above ``head``; see
        :meth:`has_later_rows`.

        Raises:
            LedgerDamagedError: it does: the newest entries were lost, and what they read would be
                read once more.
        """
        if self.has_later_rows(thorough=thorough):
            following = head.version + 1 if head else START_VERSION
            raise LedgerDamagedError(self.pipeline, following, LATER_ROWS)

    def identified(self, entry: LedgerEntry) -> LedgerEntry:
        """``entry`` with what it is going to be committed into, by identity."""
        return identified(entry, self.table_identity(), self.manner)

    def table_identity(self) -> Mapping[str, str] | None:
        """What the table is, in words that stay the same for as long as it lives, through renaming,
        backup and restoring, and that no other table has. Empty if there is no table with a column
        of checkpoints; None from a store that cannot tell. Cheap: asked in every run.
        """
        return None

    def was_written(self) -> bool:
        """True if rows of a checkpoint are there, or whatever else tells of one that was committed,
        of this pipeline as far as can be told. Asked before the first checkpoint only.
        """
        return self.holds_rows(START_VERSION)

    def has_later_rows(self, *, thorough: bool) -> bool:  # noqa: ARG002
        """True if the table holds rows of a checkpoint above the ledger's head, both as of one
        moment. Asked in every run, so that it must cost the same however many rows there are;
        ``thorough`` if staging does not know the head either: it may then take its time.

        Left to itself a store says no, as one may that keeps an entry in what holds its rows.
        """
        return False

    def rolled_back(self, head: LedgerEntry | None) -> TableRolledBackError | None:  # noqa: ARG002
        """What somebody did who set the table back to before ``head`` by the store's own means;
        None if nobody did, or the store cannot tell. Cheap: asked in every run.
        """
        return None

    def bounds(self) -> Mapping[str, Bound]:
        """By folded names, the table's columns that would cut values in silence."""
        return {}

    def refused_records(
        self,
        error: RefusedError,  # noqa: ARG002
        staged: StagedOutput,  # noqa: ARG002
        most: int,  # noqa: ARG002
    ) -> list[dict[str, Any]]:
        """The records, at most so many, of which ``staged`` has a row that the store refuses
        whatever the others are, after publishing raised ``error``: each with ``topic``,
        ``partition``, ``offset`` and ``error``. None if it was something else, or cannot be told.
        """
        return []

    def holds_rows(self, since: int) -> bool:
        """True if the table holds rows of checkpoint ``since`` or a later one, of this pipeline as
        far as can be told. Asked before the first checkpoint, or when something is wrong.
        """
        try:
            batches = self.lineage(since)
            return any(b[CHECKPOINT_COLUMN].null_count < b.num_rows for b in batches)
        except RefusedError:
            return False
