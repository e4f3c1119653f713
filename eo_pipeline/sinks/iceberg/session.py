"""One pipeline's ledger and rows in an Iceberg table, written by PyIceberg."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
from pyiceberg.exceptions import (
    CommitFailedException,
    NoSuchTableError,
    NotInstalledError,
    TableAlreadyExistsError,
    ValidationException,
)
from pyiceberg.table import Table, Transaction
from pyiceberg.transforms import parse_transform

from eo_pipeline.errors import CommitUnknownError, RefusedError, SinkUnavailableError
from eo_pipeline.ledger.entry import CHECKPOINT_COLUMN, LedgerEntry, Operation
from eo_pipeline.sinks.iceberg.catalog import UNREACHABLE, asking, connect, load, make_namespace
from eo_pipeline.sinks.iceberg.rows import RowFiles, own_columns
from eo_pipeline.sinks.iceberg.sink import TYPES, IcebergSink
from eo_pipeline.sinks.iceberg.table import (
    HEAD_PROPERTY,
    NO_RETRIES,
    NO_ROWS,
    check,
    columns_of,
    forget_old_snapshots,
    has_retries,
    lacks_layout,
    new_properties,
    pointer_of,
)
from eo_pipeline.sinks.lake.frame import Commit, LakeSession, OvertakenError, Publication
from eo_pipeline.sinks.lake.ledger import Pointer, Record
from eo_pipeline.sinks.lineage import lineage_of_batches, lineage_schema
from eo_pipeline.sinks.parquet.types import new_columns
from eo_pipeline.sinks.removal import goes_back, target_of

#: What PyIceberg raises when the table as it is does not take a file or a condition.
_NOT_TAKEN = (ValueError, NotImplementedError, ValidationException, pa.ArrowException)


class IcebergSession(LakeSession[Table]):
    """See :class:`LakeSession` for the order of things.

    What is Iceberg's own: new columns, rows taken back, files added and the head's version and
    token (a property of the table, which the expiry of snapshots leaves alone) are one commit,
    and so is the making of the table. Every commit makes a snapshot, also without rows: only a
    snapshot carries the requirement that the branch has not moved on.
    """

    def __init__(self, sink: IcebergSink, pipeline: str) -> None:
        super().__init__(pipeline, sink.root)
        self._sink = sink
        self._files = RowFiles(sink.root, pipeline)
        self._catalog = connect(sink)
        if table := self._open():
            check(table, sink)

    def close(self) -> None:
        self._catalog.close()

    def lineage(self, since: int = 0) -> Iterator[pa.RecordBatch]:
        """Of one snapshot, file by file."""
        table = self._open()
        if table is None:
            return
        schema = lineage_schema(table.schema().column_names)
        with _unreadable(self._sink.table):
            yield from lineage_of_batches(_scan(table, schema, since), schema, since)

    def _open(self) -> Table | None:
        return load(self._catalog, self._sink)

    def _pointer(self, table: Table) -> Pointer | None:
        return pointer_of(table, self.pipeline)

    def _side_folders(self) -> tuple[Path, ...]:
        return (self._files.inline_folder,)

    def _prepare(self, publication: Publication[Table], written: list[Path]) -> Commit:
        table, rows = publication.table, publication.staged.rows
        back = _taken_back(publication.entry)
        result = TYPES.schema(own_columns(rows.schema)) if rows is not None else pa.schema([])
        if table is None:
            transaction = self._new_table(result)
        else:
            check(table, self._sink)
            self._switch_retries_off(table)
            forget_old_snapshots(table)
            table.catalog = asking(self._catalog, lambda: self._landed(publication.record))
            transaction = table.transaction()
        with _refused(self._sink.table):
            self._widen(transaction, table, result)
            metadata = transaction.table_metadata
            files = self._files.uris(rows, metadata, publication.record.at, written)
            if back is not None and table is not None:
                _delete(transaction, back, publication.entry)
            # without files too: only a snapshot makes PyIceberg compare, see the class
            transaction.add_files(files, _summary(publication.entry), check_duplicate_files=False)
            head = {HEAD_PROPERTY + self.pipeline: publication.record.at.stem}
            transaction.set_properties(head)
        return lambda: self._commit(transaction, publication.record)

    def _new_table(self, result: pa.Schema) -> Transaction:
        """A transaction that makes the table, together with its first rows."""
        try:
            make_namespace(self._catalog, self._sink)
            return self._catalog.create_table_transaction(
                self._sink.identifier,
                schema=result if result.names else NO_ROWS,
                location=f"file://{self.root}",
                properties=new_properties(self._sink.partitioning),
            )
        except TableAlreadyExistsError as error:
            raise OvertakenError(str(error)) from error
        except UNREACHABLE as error:
            raise SinkUnavailableError(
                f"{self._sink.table} cannot be made: {error}. Nothing was published."
            ) from error

    def _switch_retries_off(self, table: Table) -> None:
        """In a commit of its own, then look again; somebody else's table has them on."""
        if not has_retries(table):
            return
        try:
            table.transaction().set_properties(NO_RETRIES).commit_transaction()
        except CommitFailedException as error:
            raise OvertakenError(str(error)) from error
        except UNREACHABLE as error:
            raise SinkUnavailableError(
                f"{self._sink.table} cannot be written: {error}. Nothing was published."
            ) from error
        if has_retries(table):
            raise SinkUnavailableError(
                f"{self._sink.table}: the catalog does not keep {NO_RETRIES}, without which a "
                "stale run would be put on top of a newer one. Nothing was published."
            )
        raise OvertakenError("the table's retries were switched off")

    def _widen(self, transaction: Transaction, table: Table | None, result: pa.Schema) -> None:
        """New nullable columns, and the layout once the table has columns, in the same commit."""
        new = new_columns(columns_of(table), result) if table is not None else []
        if new:
            with transaction.update_schema() as update:
                update.union_by_name(pa.schema([result.field(name) for name in new]))
        sources = {field.source for field in self._sink.partitioning}
        if (
            sources
            and sources <= set(result.names)
            and (table is None or lacks_layout(table, self._sink))
        ):
            with transaction.update_spec() as spec:
                for field in self._sink.partitioning:
                    transform = parse_transform(field.transform)
                    spec.add_field(field.source, transform, field.field_name)

    def _refuse_going_back(self, entry: LedgerEntry, table: Table | None) -> None:
        """The shared table apart, any table of this sink gives rows back: it is append only."""

    def _commit(self, transaction: Transaction, record: Record) -> None:
        """Step 4 of :class:`LakeSession`."""
        try:
            transaction.commit_transaction()
        except (
            CommitFailedException,
            TableAlreadyExistsError,
            NoSuchTableError,
            ValidationException,
        ) as error:
            if not self._landed(record):
                raise OvertakenError(str(error)) from error
        except CommitUnknownError:
            raise
        except Exception as error:
            raise CommitUnknownError(
                f"{self._sink.table}: the commit's outcome is not known: {error}. Only the same "
                "transaction may be tried again; the ledger tells the next run."
            ) from error

    def _landed(self, record: Record) -> Table | None:
        """The table, if ``record`` itself is in its ledger."""
        try:
            table = self._open()
            head = self._head(table)
        except SinkUnavailableError as error:
            raise CommitUnknownError(
                f"{self._sink.table}: a commit was refused, and whether by its own is not known: "
                f"{error}"
            ) from error
        found = self.ledger.at(head, record.at.version) if head else None
        return table if found is not None and found.at == record.at else None


def _taken_back(entry: LedgerEntry) -> str | None:
    """Which rows leave the table by ``entry``."""
    if not goes_back(entry):
        return None
    operator = ">" if entry.operation is Operation.REWIND else "="
    return f"{CHECKPOINT_COLUMN} {operator} {target_of(entry)}"


def _scan(table: Table, schema: pa.Schema, since: int) -> Iterator[pa.RecordBatch]:
    known = [name for name in schema.names if name in table.schema().column_names]
    if CHECKPOINT_COLUMN not in known:
        # somebody else's columns only: their rows are counted by any of them
        return iter(table.scan().to_arrow_batch_reader())
    wanted = f"{CHECKPOINT_COLUMN} >= {int(since)} OR {CHECKPOINT_COLUMN} IS NULL"
    return iter(table.scan(wanted, selected_fields=tuple(known)).to_arrow_batch_reader())


@contextmanager
def _unreadable(table: str) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowException, *UNREACHABLE) as error:
        raise SinkUnavailableError(
            f"{table} cannot be read: {error}. Was a snapshot expired meanwhile? Ask again."
        ) from error


def _summary(entry: LedgerEntry) -> dict[str, str]:
    """For people who read the table's history; gone when the snapshot expires."""
    return {
        "eo.pipeline": entry.pipeline,
        "eo.version": str(entry.version),
        "eo.operation": entry.operation.value,
        "eo.run-id": entry.run_id,
    }


def _delete(transaction: Transaction, rows: str, entry: LedgerEntry) -> None:
    with warnings.catch_warnings():
        # that nothing matched is no news: a checkpoint may have no rows
        warnings.filterwarnings("ignore", message="Delete operation did not match")
        transaction.delete(rows, _summary(entry))


@contextmanager
def _refused(table: str) -> Iterator[None]:
    try:
        yield
    except NotInstalledError as error:
        raise RefusedError(
            f"{table}: files that hold rows of several checkpoints must be written anew, by "
            f"partition, and that needs one more package: {error}. Nothing was written."
        ) from error
    except _NOT_TAKEN as error:
        raise RefusedError(
            f"{table}: PyIceberg does not write this: {error}. Nothing was written."
        ) from error
