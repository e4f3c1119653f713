"""The catalog, a snapshot of the table, and the meaning of errors of either."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast
from urllib.parse import quote, urlsplit

import pyarrow as pa
from pyiceberg.catalog import (
    PY_CATALOG_IMPL,
    TYPE,
    URI,
    Catalog,
    CatalogType,
    infer_catalog_type,
    load_catalog,
)
from pyiceberg.exceptions import (
    BadRequestError,
    CommitFailedException,
    ForbiddenError,
    NoSuchNamespaceError,
    NoSuchTableError,
    NotInstalledError,
    RESTError,
    TableAlreadyExistsError,
    UnauthorizedError,
    ValidationError,
    ValidationException,
)
from pyiceberg.expressions.parser import parse
from pyiceberg.io import PY_IO_IMPL
from pyiceberg.io.pyarrow import compute_statistics_plan
from pyiceberg.table import CommitTableResponse, Table, TableProperties, Transaction
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.update import AddSnapshotUpdate
from pyiceberg.transforms import parse_transform
from pyiceberg.utils.config import Config, merge_config
from sqlalchemy.exc import ArgumentError, SQLAlchemyError

from eo_pipeline import _process
from eo_pipeline.errors import (
    ConfigError,
    EoPipelineError,
    RefusedError,
    SinkError,
    SinkUnavailableError,
)
from eo_pipeline.ledger.entry import CHECKPOINT_COLUMN, LedgerEntry, Operation
from eo_pipeline.sinks.iceberg import catalogs
from eo_pipeline.sinks.iceberg.added import Added, NewFiles, uri_of
from eo_pipeline.sinks.iceberg.catalogs import KnowingSqlCatalog, Unchanging, cheaply_copied
from eo_pipeline.sinks.iceberg.config import (
    IcebergCatalog,
    IcebergSink,
    PartitionField,
    partition_values,
)
from eo_pipeline.sinks.iceberg.fields import with_ids
from eo_pipeline.sinks.iceberg.rest import PatientRestCatalog
from eo_pipeline.sinks.iceberg.types import TYPES, reads_as_it_stands
from eo_pipeline.sinks.lake.ledger import Pointer
from eo_pipeline.sinks.lake.session import PublishedFiles, one_file_each
from eo_pipeline.sinks.lake.types import own_columns, refuse_unbounded_rows
from eo_pipeline.sinks.session import CommitConflictError, goes_back, target_of
from eo_pipeline.staging.rows import StagedTable
from eo_pipeline.storage.paths import Place, RemotePath

#: The embedded catalog: its name and file.
EMBEDDED = "eo"
_FILE = "catalog.db"

#: Kinds of catalogs that are opened as our own.
_OWN: Mapping[str, Callable[..., Catalog]] = {
    CatalogType.REST.value: PatientRestCatalog,
    CatalogType.SQL.value: KnowingSqlCatalog,
}

#: A table in a bucket may have been made by Hadoop's names for the same place.
_S3_SCHEMES = ("s3", "s3a", "s3n")

#: What a catalog that cannot be asked raises.
UNREACHABLE = (OSError, RESTError, SQLAlchemyError)

#: What a REST catalog answers that did not try: the request is wrong, or not allowed.
REFUSALS = (BadRequestError, ForbiddenError, UnauthorizedError)

#: What PyIceberg raises when the table as it is does not take a file or a condition.
_NOT_TAKEN = (ValueError, NotImplementedError, ValidationException, pa.ArrowException)

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
        except ArgumentError as error:  # an address, or a driver that is not there
            raise ConfigError(f"sink.catalog: {error}") from error
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
        return _named(sink, sink.catalog)
    warehouse = sink.warehouse.absolute()
    try:
        warehouse.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise ConfigError(f"sink.warehouse: {warehouse} cannot be a folder: {error}") from error
    uri = f"sqlite:///{quote(str(warehouse / _FILE))}"
    return _opened(EMBEDDED, {"type": "sql", "uri": uri, "warehouse": f"file://{warehouse}"})


def _named(sink: IcebergSink, catalog: IcebergCatalog) -> Catalog:
    properties = (
        {**sink.root.bucket.iceberg, PY_IO_IMPL: f"{catalogs.__name__}.WholePutsFileIO"}
        if isinstance(sink.root, RemotePath)
        else {}
    )
    return _opened(catalog.name, {**properties, **catalog.values()})


def _opened(name: str, properties: dict[str, str]) -> Catalog:
    """As ``load_catalog`` does, with our own of the two kinds that we know."""
    if PY_CATALOG_IMPL not in properties:
        merged = merge_config(Config().get_catalog_config(name) or {}, {**properties})
        kind = merged.get(TYPE) or infer_catalog_type(name, merged)
        catalog = _OWN.get(str(getattr(kind, "value", kind)).lower())
        if catalog is not None and URI in merged:
            return catalog(name, **cast("dict[str, str]", merged))
    return load_catalog(name, **properties)


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


def drop(catalog: Catalog, sink: IcebergSink) -> None:
    """Make the catalog forget the table; its files stay. One that is not there is no error.

    Raises:
        SinkUnavailableError: the catalog does not answer.
    """
    try:
        catalog.drop_table(sink.identifier)
    except (NoSuchTableError, NoSuchNamespaceError):
        return
    except UNREACHABLE as error:
        raise SinkUnavailableError(f"{sink.table} cannot be dropped: {error}") from error


def make_namespace(catalog: Catalog, sink: IcebergSink) -> None:
    """The table's namespace, if it is not there. Two runs may make it at once."""
    namespace = sink.identifier[:-1]
    try:
        catalog.create_namespace_if_not_exists(namespace)
    except UNREACHABLE:
        if not catalog.namespace_exists(namespace):
            raise


class _VerifyingCatalog:
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


def verifying(catalog: Catalog, landed: Callable[[], Table | None]) -> Catalog:
    """``catalog``, with :class:`_VerifyingCatalog`'s caution. ``landed`` gives the table that holds
    the commit, None if it is not there and never will be.
    """
    return cast(Catalog, _VerifyingCatalog(catalog, landed))


#: The table's property that names the head of a pipeline's ledger.
HEAD_PROPERTY = "eo.head."

#: With retries on, PyIceberg puts a stale commit on top of whatever came in between.
NO_RETRIES = {TableProperties.COMMIT_NUM_RETRIES: "0"}

#: Of tables made here: a commit must not cost more because there were many before it.
_NEW_TABLE = {
    **NO_RETRIES,
    TableProperties.MANIFEST_MERGE_ENABLED: "true",
    TableProperties.METADATA_DELETE_AFTER_COMMIT_ENABLED: "true",
}

_MODES_WITHOUT_BOUNDS = frozenset({"NONE", "COUNTS"})

#: The columns of a table that is made before there are rows.
NO_ROWS = pa.schema([(CHECKPOINT_COLUMN, pa.int64())])


def new_properties(fields: tuple[PartitionField, ...]) -> dict[str, str]:
    """Of a table made here. Bounds are kept of the columns that the sink goes by, however many
    columns precede them: PyIceberg keeps those of the first hundred.
    """
    prefix = TableProperties.METRICS_MODE_COLUMN_CONF_PREFIX
    columns = [CHECKPOINT_COLUMN, *(p.source for p in fields)]
    return _NEW_TABLE | {f"{prefix}.{name}": "full" for name in columns}


def pointer_of(table: Table, pipeline: str) -> Pointer | None:
    """The head of ``pipeline``'s ledger, None if no commit of it is in the table.

    Raises:
        SinkError: somebody changed the property.
    """
    text = table.properties.get(HEAD_PROPERTY + pipeline)
    if text is None:
        return None
    pointer = Pointer.of_file(text)
    if pointer is None or pointer.stem != text:
        raise SinkError(f"{table.name()}: the property {HEAD_PROPERTY}{pipeline} is {text!r}")
    return pointer


def has_retries(table: Table) -> bool:
    return table.properties.get(TableProperties.COMMIT_NUM_RETRIES) != "0"


def forget_old_snapshots(table: Table) -> None:
    """From this handle only, which a commit needs for its updates and its requirements.

    PyIceberg copies the handle's metadata some twenty times a commit, snapshots and all; the
    catalog applies the updates to the metadata it holds itself.
    """
    metadata = cheaply_copied(table.metadata)
    kept = {reference.snapshot_id for reference in metadata.refs.values()}
    snapshots = Unchanging(
        snapshot for snapshot in metadata.snapshots if snapshot.snapshot_id in kept
    )
    table.metadata = metadata.model_copy(update={"snapshots": snapshots, "snapshot_log": []})


def layout_of(table: Table) -> list[tuple[str, str]]:
    """Source column and transform of each partition field."""
    schema = table.schema()
    return [
        (schema.find_column_name(field.source_id) or "", str(field.transform))
        for field in table.spec().fields
    ]


def lacks_layout(table: Table, sink: IcebergSink) -> bool:
    """True for a table made before there were rows: its columns are not known yet."""
    existing = table.schema().column_names
    return not layout_of(table) and any(p.source not in existing for p in sink.partition_fields)


def check(table: Table, sink: IcebergSink) -> None:
    """Refuse a table that this sink must not write to.

    Raises:
        ConfigError: names the field.
    """
    if not _lies_at(table.location(), sink.root):
        raise ConfigError(
            f"sink.location: the table {sink.table} lies at {table.location()}, not at {sink.root}"
        )
    wanted = [(p.source, str(parse_transform(p.transform))) for p in sink.partition_fields]
    if layout_of(table) != wanted and not lacks_layout(table, sink):
        raise ConfigError(
            f"sink.partition_by: the table is partitioned by {_in_words(layout_of(table))}, not "
            f"by {_in_words(wanted)}. Only columns and year, month, day or hour of one are possible"
        )
    _check_bounds(table)


def _lies_at(location: str, root: Place) -> bool:
    url = urlsplit(location)
    if isinstance(root, RemotePath):
        return url.scheme in _S3_SCHEMES and (url.netloc, url.path.strip("/")) == (
            root.bucket.name,
            root.key,
        )
    return url.scheme in ("", "file") and Path(url.path).resolve() == root.resolve()


def _check_bounds(table: Table) -> None:
    """PyIceberg takes a partition's value from the bounds it keeps, and null if it keeps none."""
    plan = compute_statistics_plan(table.schema(), table.properties)
    for field in table.spec().fields:
        mode = plan[field.source_id].mode.type.name
        if mode in _MODES_WITHOUT_BOUNDS:
            name = table.schema().find_column_name(field.source_id)
            prefix = TableProperties.METRICS_MODE_COLUMN_CONF_PREFIX
            raise ConfigError(
                f"sink.table: {table.name()} keeps no bounds of {name!r}, by which it is "
                f"partitioned. Set the table's property {prefix}.{name} to full."
            )


def _in_words(layout: list[tuple[str, str]]) -> str:
    return ", ".join(str(PartitionField(*field)) for field in layout) or "nothing"


def explained(table: str, error: Exception) -> EoPipelineError | None:
    """Translate an error that came before the commit was requested, ``None`` if it is unknown."""
    if isinstance(error, NotInstalledError):
        return RefusedError(
            f"{table}: files that hold rows of several checkpoints must be written anew, by "
            f"partition, and that needs one more package: {error}. Nothing was written."
        )
    if isinstance(error, _NOT_TAKEN):
        return RefusedError(
            f"{table}: PyIceberg does not write this: {error}. Nothing was written."
        )
    if isinstance(error, UNREACHABLE):
        return SinkUnavailableError(f"{table} cannot be written: {error}. Nothing was published.")
    return None


@contextmanager
def commit_errors(table: str) -> Iterator[None]:
    """Turns what a commit raises into words. Only these say that nothing landed; of anything else
    nobody knows.
    """
    try:
        yield
    except (
        CommitFailedException,
        TableAlreadyExistsError,
        NoSuchTableError,
        ValidationException,
    ) as error:
        raise CommitConflictError(str(error)) from error
    except REFUSALS as error:
        raise RefusedError(
            f"{table}: the catalog refused the commit: {error}. Nothing was published."
        ) from error


@contextmanager
def read_errors(table: str) -> Iterator[None]:
    """Turns what a scan raises into words."""
    try:
        yield
    except (pa.ArrowException, *UNREACHABLE) as error:
        raise SinkUnavailableError(
            f"{table} cannot be read: {error}. Was a snapshot expired meanwhile? Ask again."
        ) from error


def new_files(
    rows: StagedTable | None, metadata: TableMetadata, files: PublishedFiles
) -> list[Added]:
    """The files that hold ``rows``, for a table that has this ``metadata`` then. Rows in memory
    become ``files`` first.

    Raises:
        RefusedError: a value cannot be stored, or a file does not show its partition.
    """
    if rows is None:
        return []
    new, paths, sizes = NewFiles(metadata), rows.paths(), rows.sizes()
    if rows.table is not None:
        table = TYPES.table(rows.table.select(own_columns(rows.table.schema).names))
        refuse_unbounded_rows(table, TYPES.store)
        transforms = [str(field.transform) for field in metadata.spec().fields]
        layout = zip(new.sources, transforms, strict=True)
        keys = [partition_values(table[source], transform) for source, transform in layout]
        paths = files.write(one_file_each(table.cast(with_ids(table.schema, new.ids)), keys))
    return _process.each(lambda path: new.added(path, sizes.get(path)), paths)


def manifests_of(transaction: Transaction, root: Place) -> list[Place]:
    """The files in the table's folder ``root`` that were written for the commit, rows apart."""
    added = (update for update in transaction._updates if isinstance(update, AddSnapshotUpdate))
    files = [update.snapshot.manifest_list for update in added]
    for producer in transaction._snapshot_producers:
        files += producer._written_manifests
    folder = f"{uri_of(root)}/"
    return [root / file.removeprefix(folder) for file in files if file.startswith(folder)]


def take_back(transaction: Transaction, entry: LedgerEntry, summary: dict[str, str]) -> None:
    """The rows that leave the table by ``entry``, if it is about that."""
    if not goes_back(entry):
        return
    operator = ">" if entry.operation is Operation.REWIND else "="
    leaving = f"{CHECKPOINT_COLUMN} {operator} {target_of(entry)}"
    _refuse_odd_rewrite(transaction, leaving)
    with warnings.catch_warnings():
        # that nothing matched is no news: a checkpoint may have no rows
        warnings.filterwarnings("ignore", message="Delete operation did not match")
        transaction.delete(leaving, summary)


def _refuse_odd_rewrite(transaction: Transaction, leaving: str) -> None:
    """Refuse to let PyIceberg write rows anew that it does not read as they stand: of an array of
    structs that is null it makes an empty one.
    """
    schema = transaction.table_metadata.schema()
    odd = [field.name for field in schema.as_arrow() if not reads_as_it_stands(field.type)]
    if not odd:
        return
    looked_at = transaction.update_snapshot().delete()  # of which nothing is made
    looked_at.delete_by_predicate(parse(leaving))
    if looked_at.rewrites_needed:
        raise RefusedError(
            f"rows that stay share a file with rows that leave the table, and PyIceberg, which "
            f"would rewrite that file, does not read {', '.join(map(repr, odd))} back as "
            "written. Nothing was changed. Remove the rows with Spark, and try again: DELETE "
            f"FROM ... WHERE {leaving}"
        )
