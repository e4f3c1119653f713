"""What an audit asks of a store: where the rows came from, and what they hold."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from eo_pipeline.errors import RefusedError

if TYPE_CHECKING:
    import pyarrow as pa


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
