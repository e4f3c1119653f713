"""The configuration of an Iceberg table that follows Kafka topics."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, Field, SecretStr, model_validator

from eo_pipeline.settings import Settings
from eo_pipeline.sinks.config import Guarantee, StagingFolders
from eo_pipeline.sinks.files import local_folder
from eo_pipeline.sinks.iceberg.partitioning import PartitionField, refuse_absent
from eo_pipeline.sinks.iceberg.types import TYPES, is_read_as_it_stands
from eo_pipeline.sinks.lake.config import STAGING_FOLDER, FolderSink
from eo_pipeline.sinks.options import each_once

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import DataType

#: Below the table's location: rows, where readers and clean-ups look.
ROWS_FOLDER = "data/eo_rows"


def _checked_table(name: str) -> str:
    if len(parts := name.split(".")) < 2 or not all(parts):
        raise ValueError(f"{name!r} is not of the form namespace.table")
    return name


def _checked_partitioning(texts: tuple[str, ...]) -> tuple[str, ...]:
    each_once(tuple(PartitionField.parse(text).field_name for text in texts))
    return texts


class IcebergCatalog(Settings):
    """A PyIceberg catalog by name and properties, as ``.pyiceberg.yaml`` has them.

    Args:
        name: PyIceberg's name for it; with no ``properties`` its own configuration is read.
        properties: ``type``, ``uri``, ``token`` ... Values are never shown.
    """

    name: str
    properties: Mapping[str, SecretStr] = Field(default_factory=dict)

    def values(self) -> dict[str, str]:
        return {key: value.get_secret_value() for key, value in self.properties.items()}


class IcebergSink(FolderSink):
    """An Iceberg table, with the ledger in a hidden folder ``_eo_ledger`` at its location.

    Args:
        table: ``namespace.table``. Created together with its first rows.
        catalog: where the table is registered. Without one: an SQL catalog in a SQLite file
            ``catalog.db`` in the ``warehouse``, for one machine.
        warehouse: the folder of the embedded catalog and its tables.
        location: the table's folder. Without one: ``<warehouse>/<namespace>/<table>``, the
            warehouse being the catalog's own property if it is a folder. A file system that Spark
            and this process share.
        mode: ``append``. Rows that replace each other by key: see ``type: delta``.
        partition_by: columns, or ``year|month|day|hour(column)``; used when the table is created,
            and then the same as the table's.
    """

    type: Literal["iceberg"] = "iceberg"
    table: Annotated[str, AfterValidator(_checked_table)]
    catalog: IcebergCatalog | None = None
    warehouse: Path = Path(".eo/warehouse")
    location: str | None = None
    mode: Literal["append"] = "append"
    partition_by: Annotated[tuple[str, ...], AfterValidator(_checked_partitioning)] = ()

    guarantee: ClassVar[Guarantee] = Guarantee.EXACTLY_ONCE
    copies_rows: ClassVar[bool] = False
    session_class: ClassVar[str] = "eo_pipeline.sinks.iceberg.session:IcebergSession"
    extra: ClassVar[str | None] = "iceberg"

    @model_validator(mode="before")
    @classmethod
    def _no_upsert(cls, values: Any) -> Any:
        if isinstance(values, Mapping) and values.get("mode") == "upsert":
            raise ValueError(
                "mode: upsert is not possible here: PyIceberg finds the rows to replace by one "
                "condition a row and knows no order among them, so that an older record could "
                "overwrite a newer one. Use type: delta or type: postgres"
            )
        return values

    @model_validator(mode="after")
    def _has_a_folder(self) -> Self:
        if self.location is not None and local_folder(self.location) is None:
            raise ValueError(
                f"location: {self.location!r} is not supported yet: rows are staged in a folder of "
                "the table, which must be a file system that Spark and this process share"
            )
        if self.location is None and self._warehouse() is None:
            raise ValueError(
                "location: is required, the folder of the table: the catalog's warehouse is not a "
                "folder that Spark and this process share"
            )
        return self

    def _warehouse(self) -> Path | None:
        if self.catalog is None:
            return self.warehouse.absolute()
        found = self.catalog.properties.get("warehouse")
        return local_folder(found.get_secret_value()) if found else None

    @property
    def root(self) -> Path:
        if self.location is not None:
            folder = local_folder(self.location)
        else:
            warehouse = self._warehouse()
            folder = warehouse.joinpath(*self.identifier) if warehouse else None
        assert folder is not None, "checked when the sink was made"
        return folder

    @property
    def folder_field(self) -> str:
        """The field that :attr:`root` comes from."""
        if self.location is not None:
            return "location"
        return "warehouse" if self.catalog is None else "catalog.properties.warehouse"

    @property
    def identifier(self) -> tuple[str, ...]:
        return tuple(self.table.split("."))

    @property
    def partition_fields(self) -> tuple[PartitionField, ...]:
        return tuple(map(PartitionField.parse, self.partition_by))

    @property
    def table_name(self) -> str:
        return self.table

    @property
    def partition_columns(self) -> tuple[str, ...]:
        return tuple(field.layout_column for field in self.partition_fields)

    def describe(self) -> dict[str, str]:
        return {"kind": "iceberg", "uri": self.root.as_uri(), "table": self.table}

    def staging_folders(self) -> StagingFolders:
        """Promises in a hidden folder, rows in a visible one: once a rewind took a file out of the
        table, only there does ``remove_orphan_files`` find it.
        """
        return StagingFolders(self.root / STAGING_FOLDER, self.root / ROWS_FOLDER)

    def gives_back(self, data_type: DataType) -> bool:
        """Without what PyIceberg 0.12 reads otherwise than it stands in the files: an array that is
        null in a struct comes back empty.
        """
        return super().gives_back(data_type) and is_read_as_it_stands(data_type)

    def project(self, df: DataFrame) -> DataFrame:
        """Adds the columns for laying out; changes no type.

        Raises:
            SchemaChangeError: a column has a type that Iceberg has nothing for.
            ConfigError: a column that the table is laid out by is not there.
        """
        TYPES.refuse_unknown(df)
        refuse_absent(self.partition_fields, df.columns)
        copies = {field.layout_column: field.layout(df) for field in self.partition_fields}
        return df.withColumns(copies) if copies else df
