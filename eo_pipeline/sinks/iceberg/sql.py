"""An SQL catalog as PyIceberg speaks to it, but for metadata that is known already."""

from __future__ import annotations

from typing import Any, cast

from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import IcebergTables, SqlCatalog
from pyiceberg.io import FileIO
from pyiceberg.table import CommitTableResponse, Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.update import TableRequirement, TableUpdate
from sqlalchemy import event
from sqlalchemy.engine import ExceptionContext

from eo_pipeline.sinks.iceberg.known import KNOWN
from eo_pipeline.sinks.iceberg.written import AsWritten


class KnowingSqlCatalog(SqlCatalog):
    """Asks the database as ever where a table's metadata lies, each time; reads what lies there
    unless this process did, or wrote it.

    Two inner steps of PyIceberg 0.12 are replaced, the reading and the writing of metadata: were
    they called otherwise one day, all would be read and written as before.
    """

    def __init__(self, name: str, **properties: Any) -> None:
        super().__init__(name, **properties)
        event.listen(self.engine, "handle_error", _give_up_connection)

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

    @staticmethod
    def _write_metadata(metadata: TableMetadata, io: FileIO, metadata_path: str) -> None:
        said = AsWritten(metadata, KNOWN.written(metadata.table_uuid))
        SqlCatalog._write_metadata(cast(TableMetadata, said), io, metadata_path)


def _give_up_connection(context: ExceptionContext) -> None:
    """A commit that failed is never seen as made. SQLite keeps the transaction when it cannot end
    it because somebody reads, and SQLAlchemy hands the connection on as it is: whoever gets it next
    would find our commit in a catalog that does not hold it.
    """
    if context.statement is None:  # a COMMIT or ROLLBACK
        context.is_disconnect = True
