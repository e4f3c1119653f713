"""The configuration of a Delta table that follows Kafka topics."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, Self

from pydantic import AfterValidator, Field, SecretStr, model_validator

from eo_pipeline.sinks.columns import ColumnLimits, reason
from eo_pipeline.sinks.config import Guarantee, StagingFolders, UpsertOptions, each_once
from eo_pipeline.sinks.delta.layout import layout_copy, refuse_layout, unfit_for
from eo_pipeline.sinks.delta.types import TYPES
from eo_pipeline.sinks.lake.config import STAGING_FOLDER, FolderSink
from eo_pipeline.sinks.lake.types import LAYOUT_PREFIX
from eo_pipeline.storage.config import Storage, checked_place
from eo_pipeline.storage.paths import Place

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

#: Below the table's folder: rows, where a vacuum looks.
ROWS_FOLDER = "eo_rows"


#: A table's name in a catalog of three levels, which could be a folder's name too.
_CATALOG_NAME = re.compile(r"\w[\w-]*(\.\w[\w-]*){2}")


def _no_catalog_name(path: str) -> str:
    if _CATALOG_NAME.fullmatch(path) and not Path(path).exists():
        raise ValueError(
            f"{path} looks like a table in a catalog, which is not supported; write ./{path} if "
            "a folder is meant"
        )
    return path


class DeltaSink(UpsertOptions, FolderSink):
    """A Delta table, with the ledger in its own hidden folder ``_eo_ledger``.

    Args:
        path: the table's folder, or its ``file://`` URL; or ``s3://bucket/path``,
            ``gs://bucket/path``, ``abfss://container@account.dfs.core.windows.net/path`` or
            ``hdfs://host:port/path``. Created by the first rows.
        mode: ``append`` every row, or ``upsert`` by ``key``.
        key: columns that identify a row; for upsert, and only there.
        sequence_by: upsert only: columns that tell which of two rows with one key is the newer.
            An older row never overwrites a newer one, whatever the order they arrive in. Without
            it the later record in Kafka is the newer one.
        partition_by: partition columns, applied when the table is created; later runs must give
            the same columns.
        storage_options: handed to delta-rs besides what ``storage`` says. Never shown.
        storage: connection settings of the store; overrides the pipeline's ``storage``.
    """

    type: Literal["delta"] = "delta"
    path: Annotated[
        str,
        AfterValidator(_no_catalog_name),
        AfterValidator(checked_place),
    ]
    partition_by: Annotated[tuple[str, ...], AfterValidator(each_once)] = ()
    storage_options: Mapping[str, SecretStr] = Field(default_factory=dict)
    storage: Storage | None = None

    guarantee: ClassVar[Guarantee] = Guarantee.EXACTLY_ONCE
    copies_rows: ClassVar[bool] = False
    session_class: ClassVar[str] = "eo_pipeline.sinks.delta.session:DeltaSession"
    no_tables_reason: ClassVar[str] = (
        "a Delta Lake commit covers one table; several need catalog-managed commits "
        "(catalog-managed tables), which no writer used here supports. Use a "
        "database, or a pipeline for each table"
    )
    extra: ClassVar[str | None] = "delta"

    @property
    def root(self) -> Place:
        return (self.storage or Storage()).place(self.path)

    def reached_by(self, storage: Storage) -> Self:
        if self.storage:
            return self
        storage.place(self.path)  # a ValueError, if it is told of another kind of store
        return self.model_copy(update={"storage": storage})

    @model_validator(mode="after")
    def _is_reached_by_its_own(self) -> Self:
        (self.storage or Storage()).place(self.path)
        return self

    @property
    def table_name(self) -> str:
        return self.root.name

    @property
    def partition_columns(self) -> tuple[str, ...]:
        """Copies of ``partition_by``; see :data:`eo_pipeline.sinks.lake.types.LAYOUT_PREFIX`."""
        in_place = self.mode == "append"
        return tuple(LAYOUT_PREFIX + name for name in self.partition_by) if in_place else ()

    def describe(self) -> dict[str, str]:
        return {"kind": "deltalake", "uri": self.root.as_uri(), "table": self.table_name}

    def staging_folders(self) -> StagingFolders:
        """Promises in a hidden folder of the table, and rows in a visible one: no vacuum ever
        removes a file from a hidden folder, once a rewind or OPTIMIZE took it out of the table.

        Rows to upsert are copied by the merge, and wait with their promise. So do rows that Spark
        lays out in folders of its own: publishing gives each file a second name in the visible
        folder, below those that readers go by.
        """
        in_place = self.mode == "append" and not self.partition_by
        rows = self.root / ROWS_FOLDER if in_place else None
        return StagingFolders(manifests=self.root / STAGING_FOLDER, rows=rows)

    def project(self, df: DataFrame) -> DataFrame:
        """Adds the columns for laying out; changes no type.

        Raises:
            SchemaChangeError: a column has a type that Delta has nothing for.
            RefusedError: a column's name cannot be used.
            ConfigError: a column that the sink goes by is not there, or the table cannot be laid
                out by it.
        """
        TYPES.refuse_unknown(df)
        refuse_layout(df.schema, self.partition_by, merges=self.mode == "upsert")
        if rule := self.upsert_rule:
            rule.check_columns(df.columns)
        if not self.partition_columns:
            return df
        kinds = {name: df.schema[name].dataType for name in self.partition_by}
        return df.withColumns(
            {LAYOUT_PREFIX + name: layout_copy(df[name], kind) for name, kind in kinds.items()}
        )

    def unfit(self, schema: StructType, never_null: Collection[str] = ()) -> Column | None:
        """Conditions of unfit rows: a null key or ordering column of an upsert, a NaN key, a
        partition's value that makes no folder.
        """
        limits = replace(self._upsert_limits, never_null=never_null)
        return reason(schema, limits, *unfit_for(schema, self.partition_by))

    def column_limits(self) -> ColumnLimits | None:
        """A value in columns that decide an upsert; None for a partitioned table."""
        return None if self.partition_by else self._upsert_limits

    @property
    def _upsert_limits(self) -> ColumnLimits:
        rule = self.upsert_rule
        return ColumnLimits(needed=rule.never_null, numbers=rule.key) if rule else ColumnLimits()
