"""An SQL catalog as PyIceberg speaks to it, but for metadata that is known already."""

from __future__ import annotations

from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import IcebergTables, SqlCatalog
from pyiceberg.table import CommitTableResponse, Table
from pyiceberg.table.update import TableRequirement, TableUpdate

from eo_pipeline.sinks.iceberg.known import KNOWN


class KnowingSqlCatalog(SqlCatalog):
    """Asks the database as ever where a table's metadata lies, each time; reads what lies there
    unless this process did, or wrote it.

    What this replaces is an inner step of PyIceberg 0.12: were it called otherwise one day, all
    would be read as before.
    """

    def _convert_orm_to_iceberg(self, orm_table: IcebergTables) -> Table:
        location = orm_table.metadata_location or ""
        metadata = KNOWN.get(location)
        if metadata is None:
            table = super()._convert_orm_to_iceberg(orm_table)
            KNOWN.keep(table.metadata_location, table.metadata)
            return table
        name = *Catalog.identifier_to_tuple(orm_table.table_namespace), orm_table.table_name
        io = self._load_file_io(metadata.properties, location)
        return Table(name, metadata, location, io, self)

    def commit_table(
        self,
        table: Table,
        requirements: tuple[TableRequirement, ...],
        updates: tuple[TableUpdate, ...],
    ) -> CommitTableResponse:
        made = super().commit_table(table, requirements, updates)
        KNOWN.keep(made.metadata_location, made.metadata)
        return made
