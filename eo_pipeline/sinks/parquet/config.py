"""The configuration of a folder of Parquet files that follows Kafka topics."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import AfterValidator

from eo_pipeline.errors import SchemaChangeError
from eo_pipeline.sinks.columns import ColumnLimits
from eo_pipeline.sinks.config import Guarantee, StagingFolders
from eo_pipeline.sinks.files import check_folder, folder
from eo_pipeline.sinks.lake.config import STAGING_FOLDER, FolderSink
from eo_pipeline.sinks.lake.types import AS_STORED

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

TYPES = AS_STORED

#: The column that readers take from the folders' names.
PARTITION_COLUMN = "checkpoint"

#: Said to somebody who asks for maintenance.
TOO_SMALL = (
    "files of different checkpoints are never merged: for fewer files make "
    "fewer, larger checkpoints (source.max_records), or use type: delta or iceberg"
)


def refuse_partition_name(names: Iterable[str]) -> None:
    """Raise SchemaChangeError if a column has the name that readers take from the folders."""
    taken = [name for name in names if name.lower() == PARTITION_COLUMN]
    if taken:
        raise SchemaChangeError(
            f"column {taken[0]!r}: readers take a column of that name from the folders "
            f"{PARTITION_COLUMN}=<version>. Nothing was written; rename it in the transform."
        )


_NO_RENAME = (
    "has no rename that is atomic and fails if the target exists, and a checkpoint of Parquet "
    "files appears by just that. Use a folder of a file system (a mounted one too), or a table "
    "format, which commits without a rename: type: delta or type: iceberg"
)


class ParquetSink(FolderSink):
    """A folder of Parquet files, one subfolder a checkpoint, for one pipeline.

    Read ``<path>/checkpoint=*/*.parquet``, or the folder as a dataset with hive partitioning.
    Append only. It goes back on a local disk of a Linux machine, see ``docs/sinks/parquet.md``.

    Args:
        path: the folder, or its ``file://`` URL. Created by the first commit.
    """

    type: Literal["parquet"] = "parquet"
    path: Annotated[str, AfterValidator(partial(check_folder, why_not=_NO_RENAME))]

    guarantee: ClassVar[Guarantee] = Guarantee.EXACTLY_ONCE
    #: published files have names of their own (hard links): the staged ones may go
    copies_rows: ClassVar[bool] = True
    session_class: ClassVar[str] = "eo_pipeline.sinks.parquet.session:ParquetSession"
    no_tables_reason: ClassVar[str] = (
        "files in several folders cannot become visible at one moment. Use a database, or a "
        "pipeline for each table"
    )

    @property
    def root(self) -> Path:
        return folder(self.path)

    @property
    def table_name(self) -> str:
        return self.root.name

    def describe(self) -> dict[str, str]:
        return {"kind": "parquet", "uri": self.root.as_uri(), "table": self.table_name}

    def staging_folders(self) -> StagingFolders:
        """In the folder itself, so that what is published need not be copied."""
        return StagingFolders(manifests=self.root / STAGING_FOLDER)

    def column_limits(self) -> ColumnLimits:
        """The limits common to all stores."""
        return ColumnLimits()

    def project(self, df: DataFrame) -> DataFrame:
        """Changes nothing.

        Raises:
            SchemaChangeError: a column has a type that Parquet has nothing for, or the name that
                the folders' names give to readers.
        """
        TYPES.refuse_unknown(df)
        refuse_partition_name(df.columns)
        return df
