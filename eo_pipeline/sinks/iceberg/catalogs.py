"""Catalogs that are databases: commits by SQL, and a cache of table metadata; whole puts.

A table's metadata names every snapshot that is kept. PyIceberg reads and parses all of it for each
look, and a commit copies it some twenty times. But a file of metadata never changes: each commit
writes another one, whose name nobody used before, and makes the catalog point to that. So only the
catalog can say what is true now; what a place holds that it points to is known once it was read.
"""

from __future__ import annotations

import re
import threading
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from operator import is_
from typing import Any, SupportsIndex, TypeVar, cast
from uuid import UUID

import pyarrow as pa
from pyarrow.fs import FileSystem
from pydantic import TypeAdapter
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import IcebergTables, SqlCatalog
from pyiceberg.exceptions import (
    CommitFailedException,
    NoSuchTableError,
    TableAlreadyExistsError,
    ValidationException,
)
from pyiceberg.io import FileIO
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.table import CommitTableResponse, Table, Transaction
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot, SnapshotLogEntry
from pyiceberg.table.update import TableRequirement, TableUpdate
from pyiceberg.typedef import Identifier
from sqlalchemy import CursorResult, event, insert, update
from sqlalchemy.engine import ExceptionContext
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session as SqlSession

from eo_pipeline.storage.paths import Place

T = TypeVar("T")

#: Fields of the metadata in their order: the name in JSON, and how a list of such values is dumped.
_GROWING: dict[str, tuple[str, TypeAdapter[Any]]] = {
    "snapshots": ("snapshots", TypeAdapter(list[Snapshot])),
    "snapshot_log": ("snapshot-log", TypeAdapter(list[SnapshotLogEntry])),
}

#: Of a first format, snapshots are written otherwise than they are.
_FORMAT = 2


class Written:
    """JSON that was written of one table's metadata. Safe for threads: of two concurrent writes one
    is kept.
    """

    def __init__(self) -> None:
        #: By field: the values of the list that was written last, and their JSON.
        self._begun: dict[str, tuple[list[Any], str]] = {}

    def json(self, metadata: TableMetadata) -> str:
        """Character by character what ``metadata.model_dump_json()`` gives."""
        if metadata.format_version != _FORMAT:
            return metadata.model_dump_json()
        rest = metadata.model_copy(update={name: [] for name in _GROWING}).model_dump_json()
        parts: list[str] = []
        for field, (name, adapter) in _GROWING.items():
            # quotes within a text are escaped: this is the field itself
            before, empty, rest = rest.partition(f'"{name}":[]')
            if not empty:
                return metadata.model_dump_json()
            listed = self._listed(field, getattr(metadata, field), adapter)
            parts += [before, f'"{name}":[', listed, "]"]
        return "".join([*parts, rest])

    def _listed(self, field: str, values: Sequence[Any], adapter: TypeAdapter[Any]) -> str:
        prefix, text = self._begun.get(field, ([], ""))
        if len(prefix) > len(values) or not all(map(is_, prefix, values)):
            prefix, text = [], ""
        if new := [*values[len(prefix) :]]:
            text = ",".join(filter(None, (text, _dumped(adapter, new))))
        self._begun[field] = [*values], text
        return text


def _dumped(adapter: TypeAdapter[Any], values: list[Any]) -> str:
    """Without the brackets."""
    return adapter.dump_json(values, by_alias=True, exclude_none=True)[1:-1].decode()


class AsWritten:
    """Stands for ``metadata`` where PyIceberg asks for its JSON in order to write it."""

    def __init__(self, metadata: TableMetadata, written: Written) -> None:
        self._metadata = metadata
        self._written = written

    def model_dump_json(self, *, exclude_none: bool = True) -> str:
        if not exclude_none:  # a setting of PyIceberg's, for readers of old
            return self._metadata.model_dump_json(exclude_none=False)
        return self._written.json(self._metadata)


#: Names with a UUID, as everybody gives them who commits through a catalog. Any other name
#: (``v3.metadata.json``) may be given again.
_NEVER_GIVEN_AGAIN = re.compile(r".*[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}[^/]*\.metadata\.json")

#: Of a table's metadata, what is a list of values that nobody changes.
_LISTS = (
    "schemas",
    "partition_specs",
    "snapshots",
    "snapshot_log",
    "metadata_log",
    "sort_orders",
    "statistics",
    "partition_statistics",
)

#: Kept of all tables together. A snapshot takes 5 KB, its JSON included: 100 MB at the most.
MOST_SNAPSHOTS = 20_000
MOST_TABLES = 256


class Unchanging(list[T]):
    """A list of frozen values: a deep copy is another list of the same ones, and so is a sum."""

    def __deepcopy__(self, memo: dict[int, Any]) -> Unchanging[T]:
        return Unchanging(self)

    def __add__(self, other: Iterable[Any]) -> Unchanging[Any]:
        return Unchanging((*self, *other))

    def __getitem__(self, at: SupportsIndex | slice) -> Any:
        value: Any = super().__getitem__(at)
        return Unchanging(value) if isinstance(at, slice) else value


def cheaply_copied(metadata: TableMetadata) -> TableMetadata:
    """Equal to ``metadata``; a deep copy of it costs little, however many snapshots it has."""
    lists = {name: Unchanging(getattr(metadata, name)) for name in _LISTS}
    return metadata.model_copy(update=lists)


class KnownMetadata:
    """Cached metadata by location: of each table the newest that was met, and of all tables those
    that were asked for last. Safe for threads.
    """

    def __init__(self) -> None:
        self._held: OrderedDict[str, TableMetadata] = OrderedDict()
        self._written: dict[UUID, Written] = {}
        self._lock = threading.Lock()

    def get(self, location: str) -> TableMetadata | None:
        """Return a copy of the metadata at ``location``; None if it is not cached."""
        with self._lock:
            cached = self._held.get(location)
            if cached is None:
                return None
            self._held.move_to_end(location)
        return cached.model_copy(deep=True)

    def keep(self, location: str, metadata: TableMetadata) -> None:
        """That ``location`` holds ``metadata``, which was read there, or written there by us."""
        if not _NEVER_GIVEN_AGAIN.fullmatch(location):
            return
        copied = cheaply_copied(metadata).model_copy(deep=True)
        with self._lock:
            others = {k: v for k, v in self._held.items() if v.table_uuid != copied.table_uuid}
            # one that is too long by itself takes no place from others
            mine = {location: copied} if len(copied.snapshots) <= MOST_SNAPSHOTS else {}
            self._held = OrderedDict({**others, **mine})
            while self._is_too_much():
                self._held.popitem(last=False)
            left = {held.table_uuid for held in self._held.values()}
            self._written = {k: v for k, v in self._written.items() if k in left}

    def written(self, table: UUID) -> Written:
        """Return the cache of a table's written metadata, for as long as it is kept."""
        with self._lock:
            return self._written.setdefault(table, Written())

    def _is_too_much(self) -> bool:
        snapshots = sum(len(held.snapshots) for held in self._held.values())
        return snapshots > MOST_SNAPSHOTS or len(self._held) > MOST_TABLES


#: Of this process.
KNOWN = KnownMetadata()


class SharedCommits(ABC):
    """A catalog that changes several tables by one commit."""

    @abstractmethod
    def commit_together(self, transactions: Sequence[Transaction]) -> None:
        """Commit all or none.

        Raises:
            CommitFailedException, TableAlreadyExistsError: a table is not as its transaction was
                prepared on. No table has changed.
        """

    @abstractmethod
    def new_table(
        self,
        identifier: Identifier,
        schema: pa.Schema,
        location: str,
        properties: Mapping[str, str],
        lay_out: Callable[[Transaction], None] = lambda _: None,
    ) -> Transaction:
        """Return a transaction for :meth:`commit_together` on an absent table; ``lay_out`` adds its
        partitions.
        """

    @property
    def lacks(self) -> str:
        """Words for the endpoint that the catalog does not list; empty if it lists all."""
        return ""

    @property
    def unproven(self) -> str | None:
        """Digest of the catalog's address if it must be probed; None for a database."""
        return None

    def probe(self, identifier: Identifier, folder: Place) -> str:  # noqa: ARG002
        """Return the fault that a probe finds in its commits, by tables named after ``identifier``
        in ``folder``; empty if it finds none.
        """
        return ""


class _Taking:
    """Stands for the catalog of a transaction that is committed together with others."""

    def __init__(self, catalog: Catalog, take: Callable[..., CommitTableResponse]) -> None:
        self._catalog = catalog
        self._take = take

    def __getattr__(self, name: str) -> Any:
        return getattr(self._catalog, name)

    def commit_table(self, *request: Any) -> CommitTableResponse:
        """Only hand it over."""
        return self._take(*request)

    @staticmethod
    def _delete_old_metadata(*_: Any) -> None:
        """Nothing, until the commit is made."""


def hand_over(
    transaction: Transaction, catalog: Catalog, take: Callable[..., CommitTableResponse]
) -> None:
    """Give what ``transaction`` would commit to ``take``, in place of ``catalog``."""
    transaction._table.catalog = cast(Catalog, _Taking(catalog, take))
    transaction.commit_transaction()


class KnowingSqlCatalog(SqlCatalog, SharedCommits):
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
        response = super().commit_table(table, requirements, updates)
        KNOWN.keep(response.metadata_location, response.metadata)
        return response

    def commit_together(self, transactions: Sequence[Transaction]) -> None:
        """Commit all, in one transaction of the database: each on condition that its table is still
        where it was when its metadata was prepared. After a conflict, what was written for the
        commit is gone.
        """
        prepared: list[_Prepared] = []

        def take(*request: Any) -> CommitTableResponse:
            change = self.prepare(*request)
            prepared.append(change)
            staged = change.staged
            return CommitTableResponse(
                metadata=staged.metadata, metadata_location=staged.metadata_location
            )

        try:
            for transaction in transactions:
                hand_over(transaction, self, take)
            self._swap(prepared)
        except (CommitFailedException, TableAlreadyExistsError, ValidationException):
            for change in prepared:
                change.discard()
            raise
        for change in prepared:
            KNOWN.keep(change.staged.metadata_location, change.staged.metadata)
            if change.base is not None:
                with suppress(OSError):  # as PyIceberg does: what is left is a file too many
                    self._delete_old_metadata(
                        change.staged.io, change.base.metadata, change.staged.metadata
                    )

    def new_table(
        self,
        identifier: Identifier,
        schema: pa.Schema,
        location: str,
        properties: Mapping[str, str],
        lay_out: Callable[[Transaction], None] = lambda _: None,
    ) -> Transaction:
        """Return a transaction that makes the table."""
        transaction = self.create_table_transaction(
            identifier, schema, location, properties=dict(properties)
        )
        lay_out(transaction)
        return transaction

    def prepare(
        self,
        table: Table,
        requirements: tuple[TableRequirement, ...],
        updates: tuple[TableUpdate, ...],
    ) -> _Prepared:
        """Write the metadata that ``table`` gets, to which nothing points yet.

        Raises:
            CommitFailedException: the table is not as ``requirements`` have it.
        """
        try:
            base = self.load_table(table.name())
        except NoSuchTableError:
            base = None
        staged = self._update_and_stage_table(base, table.name(), requirements, updates)
        self._write_metadata(staged.metadata, staged.io, staged.metadata_location)
        return _Prepared(staged, base)

    def _swap(self, prepared: Sequence[_Prepared]) -> None:
        with SqlSession(self.engine) as session:
            for change in sorted(prepared, key=lambda change: change.name):  # two wait for no third
                try:
                    result = cast("CursorResult[Any]", session.execute(self._pointed(change)))
                except IntegrityError as error:
                    raise TableAlreadyExistsError(f"{change.name} was made meanwhile") from error
                if change.base is not None and result.rowcount < 1:
                    raise CommitFailedException(f"{change.name} was changed by somebody else")
            session.commit()

    def _pointed(self, prepared: _Prepared) -> Any:
        """The statement that makes the catalog point to the new metadata."""
        name, there = prepared.staged.name(), prepared.staged.metadata_location
        namespace = Catalog.namespace_to_string(Catalog.namespace_from(name))
        table_name = Catalog.table_name_from(name)
        if prepared.base is None:
            return insert(IcebergTables).values(
                **self._create_table_row(namespace, table_name, there)
            )
        before = prepared.base.metadata_location
        return (
            update(IcebergTables)
            .where(
                IcebergTables.catalog_name == self.name,
                IcebergTables.table_namespace == namespace,
                IcebergTables.table_name == table_name,
                IcebergTables.metadata_location == before,
            )
            .values(metadata_location=there, previous_metadata_location=before)
        )

    @staticmethod
    def _write_metadata(metadata: TableMetadata, io: FileIO, metadata_path: str) -> None:
        as_written = AsWritten(metadata, KNOWN.written(metadata.table_uuid))
        SqlCatalog._write_metadata(cast(TableMetadata, as_written), io, metadata_path)


@dataclass(frozen=True)
class _Prepared:
    """A table as a commit makes it, and as it was; None if that makes the table."""

    staged: Table
    base: Table | None

    @property
    def name(self) -> str:
        return ".".join(self.staged.name())

    def discard(self) -> None:
        """Remove what was written for the commit. Only if it is certain that it did not land."""
        known = {s.snapshot_id for s in self.base.metadata.snapshots} if self.base else set()
        io = self.staged.io
        files = [self.staged.metadata_location]
        for snapshot in self.staged.metadata.snapshots:
            if snapshot.snapshot_id not in known:
                manifests = snapshot.manifests(io)
                files += [m.manifest_path for m in manifests if m.added_snapshot_id not in known]
                files.append(snapshot.manifest_list)
        for file in files:
            with suppress(OSError):
                io.delete(file)


def _give_up_connection(context: ExceptionContext) -> None:
    """A commit that failed is never seen as made. SQLite keeps the transaction when it cannot end
    it because somebody reads, and SQLAlchemy hands the connection on as it is: whoever gets it next
    would find our commit in a catalog that does not hold it.
    """
    if context.statement is None:  # a COMMIT or ROLLBACK
        context.is_disconnect = True


_DELAYED = "allow_delayed_open"


class WholePutsFileIO(PyArrowFileIO):
    """Puts a file of less than a part's size in one request. By default Arrow begins an upload of
    parts for each manifest of some kilobytes: three requests, and whoever is killed between them
    leaves an upload that no list shows.
    """

    def _initialize_s3_fs(self, netloc: str | None) -> FileSystem:
        filesystem = super()._initialize_s3_fs(netloc)
        again, (options,) = filesystem.__reduce__()
        if _DELAYED not in options:  # an Arrow that cannot
            return filesystem
        rebuilt: FileSystem = again({**options, _DELAYED: True})
        return rebuilt
