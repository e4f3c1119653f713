"""What an audit asks of a store: where the rows came from, and what they hold; and what people do
who want to see the table as it once was.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from eo_pipeline.errors import RefusedError

if TYPE_CHECKING:
    import pyarrow as pa

    from eo_pipeline.ledger.entry import LedgerEntry
    from eo_pipeline.sinks.past import Past, Selected


class Showing:
    """The part of a session that reads back. A store that cannot leaves all of it as it is."""

    def lineage(self, since: int = 0) -> Iterator[pa.RecordBatch]:  # noqa: ARG002
        """Where every row of the table came from, for the audit; in bounded memory, in any order.

        Columns: ``_eo_checkpoint`` (int64), and ``_eo_topic`` (string), ``_eo_partition`` (int32)
        and ``_eo_offset`` (int64) if the table has them. Rows whose checkpoint is ``since`` or
        later, and those that belong to none (null); nothing if there is no table yet. One
        consistent snapshot of the table.

        Raises:
            RefusedError: rows cannot be read back from this store.
            SinkUnavailableError: the store does not answer.
        """
        raise RefusedError(
            f"{type(self).__name__} cannot read its rows back, so that an audit can only look at "
            "the ledger."
        )

    def values(self, since: int = 0) -> Iterator[pa.RecordBatch]:  # noqa: ARG002
        """The table's rows as :meth:`lineage` takes them, with all columns that the sink
        :meth:`~eo_pipeline.sinks.config.Sink.gives_back`, and others or not. Batches may have
        different columns.

        Raises:
            RefusedError: rows cannot be read back from this store.
            SinkUnavailableError: the store does not answer.
        """
        raise RefusedError(f"{type(self).__name__} cannot read its rows back.")

    def dead_letter_values(self, since: int = 0) -> Iterator[pa.RecordBatch]:  # noqa: ARG002
        """The same of the dead letters that are visible, with ``_eo_checkpoint``."""
        raise RefusedError(f"{type(self).__name__} cannot read its dead letters back.")

    def rows_of(self, selected: Selected) -> Iterator[pa.RecordBatch]:
        """The ``selected`` rows, in bounded memory, in any order, with all columns; those of which
        the store keeps a form of its own as text, and so marked
        (:func:`~eo_pipeline.sinks.past.is_own_form`). One consistent snapshot of the table.

        Raises:
            RefusedError: rows cannot be read back from this store.
            SinkUnavailableError: the store does not answer.
        """
        self.refuse_shared_numbers()
        return _selected(selected, self.values(selected.first))

    def counts_of(self, selected: Selected) -> dict[int | None, int]:
        """How many of the ``selected`` rows each checkpoint has; raises as :meth:`rows_of`."""
        self.refuse_shared_numbers()
        # not before there are rows: it takes its time
        from eo_pipeline.sinks.past import counted

        return counted(_selected(selected, self.lineage(selected.first)))

    def refuse_shared_numbers(self) -> None:
        """Return if the number of a checkpoint says whose a row is; else raise RefusedError."""

    def queries(self, selected: Selected) -> Mapping[str, str]:  # noqa: ARG002
        """The SQL that shows the ``selected`` rows, by the name of the engine it is for; empty
        where there is none.
        """
        return {}

    def past(self, entry: LedgerEntry) -> Past | None:  # noqa: ARG002
        """The whole table as ``entry`` left it, by what the store keeps of earlier states itself;
        None from a store that keeps none.

        Raises:
            RefusedError: it keeps some, and not that one; says why.
        """
        return None


def _selected(selected: Selected, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from selected.of(batches)
