"""The contract every sink keeps.

A sink answers one question in its own way: how do rows and ledger entry become visible together?
It is two things. :class:`Sink` is configuration: frozen, written in Python or YAML, no I/O.
:class:`SinkSession` is one pipeline's open connection to the store, used by one thread.
Everything before the commit (reading, staging, the manifest) is shared and not a sink's business.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, ClassVar, NamedTuple, Self

from pydantic import BaseModel, ConfigDict

from eo_pipeline.crashpoints import Reach, keep_going
from eo_pipeline.errors import RefusedError
from eo_pipeline.ledger.entry import LedgerEntry
from eo_pipeline.staging.rows import StagedOutput

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame


class Guarantee(StrEnum):
    """How often a record that was read is visible in the sink, whatever crashes."""

    EXACTLY_ONCE = "exactly_once"
    AT_LEAST_ONCE = "at_least_once"
    NONE = "none"


class CommitOutcome(StrEnum):
    """What :meth:`SinkSession.publish` found. Everything else is an error."""

    COMMITTED = "committed"
    ALREADY_COMMITTED = "already_committed"


class StagingFolders(NamedTuple):
    """Where a sink wants attempts staged; ``None``: where the pipeline stages by default.

    ``manifests`` holds the promises. ``rows`` holds the Parquet files: for a lake sink a folder of
    the table itself, because there the staged files become the table.
    """

    manifests: Path | None = None
    rows: Path | None = None


class Sink(BaseModel, ABC):
    """Where rows and ledger go. Configuration only: creating one touches no network.

    Class attributes say what the store can promise:

    - ``guarantee``: see :class:`Guarantee`.
    - ``copies_rows``: publishing copies the staged rows into the store, so that staged files may
      be deleted once the ledger holds the entry. False where the staged files become the table.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    guarantee: ClassVar[Guarantee]
    copies_rows: ClassVar[bool] = True

    @abstractmethod
    def open(self, pipeline: str) -> SinkSession:
        """Connect to the store for one pipeline.

        Called once per run, before anything is planned. Must not create or change anything a
        reader of the store can see, except an empty ledger.

        Raises:
            SinkUnavailableError: the store does not answer.
            ConfigError: the store answers and the configuration cannot work there.
        """

    @property
    @abstractmethod
    def table_name(self) -> str:
        """The table as a person would write it, for messages and metadata."""

    def describe(self) -> dict[str, str]:
        """What the sink is, for metadata: ``kind``, ``uri`` ... Never holds a secret."""
        return {"kind": type(self).__name__, "table": self.table_name}

    @property
    def keeps_every_row(self) -> bool:
        """False where a row may replace an older one, as an upsert does: then an audit cannot tell
        a replaced row from a missing one.
        """
        return True

    def staging_folders(self) -> StagingFolders:
        """Where attempts must be staged, if not where the pipeline says."""
        return StagingFolders()

    @property
    def partition_columns(self) -> tuple[str, ...]:
        """Columns by which Spark lays out the staged files in ``name=value`` folders."""
        return ()

    def project(self, df: DataFrame) -> DataFrame:
        """Give ``df`` the column types this store can take. Called inside the one Spark job.

        Must be lazy, must not drop rows.

        Raises:
            SchemaChangeError: a column's type cannot be stored here at all.
        """
        return df


class SinkSession(ABC):
    """One pipeline's open connection to its sink. Not shared between threads.

    Usable again after any error: a session reconnects by itself when its connection died.
    """

    def recover(self) -> LedgerEntry | None:
        """Settle what dead runs left open in the store, then return :meth:`head`.

        Called first in every run. Stores that roll back by themselves when a connection dies need
        nothing here.
        """
        return self.head()

    @abstractmethod
    def head(self) -> LedgerEntry | None:
        """The newest entry, ``None`` for a pipeline that never committed. Cost independent of the
        ledger's length.
        """

    @abstractmethod
    def entry(self, version: int) -> LedgerEntry | None:
        """The entry at ``version`` or ``None``. Cost independent of the ledger's length."""

    @abstractmethod
    def history(self, since: int = 0) -> Iterator[LedgerEntry]:
        """Entries from version ``since`` upwards, oldest first."""

    @abstractmethod
    def publish(
        self, entry: LedgerEntry, staged: StagedOutput, reach: Reach = keep_going
    ) -> CommitOutcome:
        """Make ``staged`` and ``entry`` visible together, if and only if the head is the parent.

        Called by the run that staged the rows, and by any later run that found its manifest:
        perhaps twice, perhaps at the same moment from two processes.

        Must look the entry's transaction id up *at its version* first and, if it is there, answer
        ``ALREADY_COMMITTED`` without touching anything. Must never leave rows without the entry or
        the entry without rows. Must call ``reach(ROWS_SENT)`` and ``reach(ENTRY_SENT)`` at those
        moments where the store has them. ``committed_at`` is set by the store's clock.

        Raises:
            FencedError: the head is not the entry's parent; nothing is visible.
            RefusedError: the store will never take these rows; nothing is visible.
            SinkUnavailableError: nothing is visible and nothing will be; try again later.
            CommitUnknownError: it may have landed or may still land; only the same entry may be
                tried again.
        """

    def check_going_back(self, entry: LedgerEntry) -> None:
        """Say now what :meth:`publish` would say of a rewind or replay ``entry``. Changes nothing.

        A sink that can take rows back overrides this; it need not look at the rows.

        Raises:
            RefusedError: this store cannot take rows back, or not those of this target.
        """
        raise RefusedError(
            f"{entry.operation} is not possible: {type(self).__name__} cannot take rows back. "
            "Nothing was changed. Start a new pipeline from that checkpoint (fork) instead."
        )

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

    @abstractmethod
    def close(self) -> None:
        """Give the connection back. Called once; an open transaction is rolled back."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
