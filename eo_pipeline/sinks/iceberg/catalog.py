"""The catalog a table is registered in, and what its errors mean."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import (
    CommitFailedException,
    NoSuchNamespaceError,
    NoSuchTableError,
    RESTError,
    ValidationError,
)
from pyiceberg.table import CommitTableResponse, Table
from sqlalchemy.exc import SQLAlchemyError

from eo_pipeline.errors import ConfigError, SinkUnavailableError
from eo_pipeline.sinks.iceberg.sink import IcebergSink

#: The embedded catalog: its name and file.
EMBEDDED = "eo"
_FILE = "catalog.db"

#: What a catalog that cannot be asked raises.
UNREACHABLE = (OSError, RESTError, SQLAlchemyError)

#: A second process may be making the embedded catalog's own tables at this moment.
_CONNECT_TRIES = 3


def connect(sink: IcebergSink) -> Catalog:
    """The sink's catalog.

    Raises:
        ConfigError: PyIceberg does not know it.
        SinkUnavailableError: it does not answer.
    """
    for left in reversed(range(_CONNECT_TRIES)):
        try:
            return _catalog(sink)
        except UNREACHABLE as error:
            if not left:
                raise SinkUnavailableError(
                    f"the catalog of {sink.table} does not answer: {error}"
                ) from error
        except (ValueError, ValidationError) as error:
            raise ConfigError(f"sink.catalog: {error}") from error
    raise AssertionError("unreachable: the last try returns or raises")


def _catalog(sink: IcebergSink) -> Catalog:
    if sink.catalog is not None:
        return load_catalog(sink.catalog.name, **sink.catalog.values())
    warehouse = sink.warehouse.absolute()
    warehouse.mkdir(parents=True, exist_ok=True)
    uri = f"sqlite:///{warehouse / _FILE}"
    return load_catalog(EMBEDDED, type="sql", uri=uri, warehouse=f"file://{warehouse}")


def load(catalog: Catalog, sink: IcebergSink) -> Table | None:
    """The table as it is now, None where there is none.

    Raises:
        SinkUnavailableError: the catalog, or the table's metadata, cannot be read.
    """
    try:
        return catalog.load_table(sink.identifier)
    except (NoSuchTableError, NoSuchNamespaceError):
        return None
    except UNREACHABLE as error:
        raise SinkUnavailableError(f"{sink.table} cannot be read: {error}") from error


def make_namespace(catalog: Catalog, sink: IcebergSink) -> None:
    """The table's namespace, if it is not there. Two runs may make it at once."""
    namespace = sink.identifier[:-1]
    try:
        catalog.create_namespace_if_not_exists(namespace)
    except UNREACHABLE:
        if not catalog.namespace_exists(namespace):
            raise


class _AskingCatalog:
    """Before a refused commit is believed, asks whether it is there.

    A transport that repeats a request on its own is refused by what it has just made. PyIceberg
    then deletes the commit's manifests, and with them the table's.
    """

    def __init__(self, catalog: Catalog, landed: Callable[[], Table | None]) -> None:
        self._catalog = catalog
        self._landed = landed

    def __getattr__(self, name: str) -> Any:
        return getattr(self._catalog, name)

    def commit_table(self, *request: Any) -> CommitTableResponse:
        try:
            return self._catalog.commit_table(*request)
        except CommitFailedException:
            table = self._landed()
            if table is None:
                raise
            return CommitTableResponse(
                metadata=table.metadata, metadata_location=table.metadata_location
            )


def asking(catalog: Catalog, landed: Callable[[], Table | None]) -> Catalog:
    """``catalog``, with :class:`_AskingCatalog`'s caution. ``landed`` gives the table that holds
    the commit, None if it is not there and never will be.
    """
    return cast(Catalog, _AskingCatalog(catalog, landed))
