"""Settings shared by the sinks whose table is a folder of files."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Protocol, cast

from eo_pipeline.sinks.columns import is_made_of_scalars
from eo_pipeline.sinks.config import Sink
from eo_pipeline.storage.paths import Place

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import DataType

#: Below the table's folder, where no reader and no clean-up looks: attempts and their promises.
STAGING_FOLDER = "_eo_staging"


class DeadLetterReader(Protocol):
    """A session whose dead letters are files."""

    def read_dead_letters(self, since: int = 0) -> pa.Table:
        """Every record that could not be read, of the checkpoints from version ``since``."""


class FolderSink(Sink):
    """A table that lies in one folder, with its ledger and its dead letters."""

    @property
    @abstractmethod
    def root(self) -> Place:
        """The table's folder."""

    def gives_back(self, data_type: DataType) -> bool:
        """Files hold whatever can be stored as it is."""
        return is_made_of_scalars(data_type)

    def dead_letters(self, pipeline: str, since: int = 0) -> pa.Table:
        """The records of ``pipeline`` that could not be read, from checkpoint ``since`` on."""
        with self.open(pipeline) as session:
            return cast(DeadLetterReader, session).read_dead_letters(since)
