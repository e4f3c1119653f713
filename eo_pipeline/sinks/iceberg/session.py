"""One pipeline's session with an Iceberg table, written by PyIceberg: its ledger and rows."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException, TableAlreadyExistsError
from pyiceberg.schema import Schema
from pyiceberg.table import Table, TableProperties, Transaction
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.transforms import parse_transform

from eo_pipeline.errors import (
    EoPipelineError,
    RefusedError,
    SinkUnavailableError,
    TableRolledBackError,
)
from eo_pipeline.ledger.entry import CHECKPOINT_COLUMN, LedgerEntry
from eo_pipeline.sinks.capabilities import (
    Maintenance,
    Selected,
    TimeTravelView,
    Upkeep,
    lineage_of_batches,
    lineage_schema,
)
from eo_pipeline.sinks.iceberg.added import append, uri_of
from eo_pipeline.sinks.iceberg.config import ROWS_FOLDER, IcebergSink, refuse_alike
from eo_pipeline.sinks.iceberg.fields import (
    as_spark_writes,
    following,
    ids_of,
    name_mapping,
    widen,
)
from eo_pipeline.sinks.iceberg.table import (
    HEAD_PROPERTY,
    NO_RETRIES,
    NO_ROWS,
    REFUSALS,
    UNREACHABLE,
    check,
    commit_errors,
    connect,
    drop,
    explained,
    forget_old_snapshots,
    has_retries,
    lacks_layout,
    load,
    make_namespace,
    new_files,
    new_properties,
    pointer_of,
    read_errors,
    take_back,
    verifying,
)
from eo_pipeline.sinks.iceberg.types import TYPES
from eo_pipeline.sinks.lake.ledger import LedgerFile, Pointer
from eo_pipeline.sinks.lake.maintenance import stopped
from eo_pipeline.sinks.lake.session import Commit, LakePublication, LakeSession, PublishedFiles
from eo_pipeline.sinks.lake.types import LAYOUT_PREFIX, own_columns
from eo_pipeline.sinks.session import CommitConflictError
from eo_pipeline.staging.rows import StagedOutput
from eo_pipeline.storage.paths import Place

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


def past_of(table: Table, entry: LedgerEntry) -> TimeTravelView:
    """The last snapshot that the commit of ``entry`` made.

    Raises:
        RefusedError: it expired, or there was none.
    """
    return _past(table, (s for s in _ancestors(table) if _is_of(s, entry)), entry)


def past_of_version(table: Table | None, entry: LedgerEntry) -> TimeTravelView:
    """The last snapshot of the pipeline up to ``entry``, whose commit may not have changed the
    table. Nothing is missing between: snapshots name their parents.

    Raises:
        RefusedError: it expired, or there was none.
    """
    if table is None:
        raise RefusedError("there is no table yet")
    versions = ((_version_of(s, entry.pipeline), s) for s in _ancestors(table))
    up_to = (s for version, s in versions if version is not None and version <= entry.version)
    return _past(table, up_to, entry)


def rolled_back(table: Table, head: LedgerEntry) -> TableRolledBackError | None:
    """Told by the newest snapshot below the current one that a commit of the pipeline made: each
    commit makes one, and moves the ledger. If those expired, by the snapshot of the head, if that
    is kept and not below the current one.
    """
    versions = (_version_of(snapshot, head.pipeline) for snapshot in _ancestors(table))
    stands = next((version for version in versions if version is not None), None)
    newest = next((s for s in table.metadata.snapshots if _is_of(s, head)), None)
    if stands is None and newest is not None and newest not in _ancestors(table):
        stands = 0  # or one whose snapshot expired: going back to 0 is right for each
    if stands is None or stands >= head.version:
        return None
    forward = f"Set it to snapshot {newest.snapshot_id} again" if newest else "Set it forward again"
    return TableRolledBackError(head.pipeline, head.version, stands, forward)


def _version_of(snapshot: Snapshot, pipeline: str) -> int | None:
    properties = snapshot.summary.additional_properties if snapshot.summary else {}
    version = properties.get("eo.version") if properties.get("eo.pipeline") == pipeline else None
    return int(version) if version is not None else None


def _past(table: Table, snapshots: Iterator[Snapshot], entry: LedgerEntry) -> TimeTravelView:
    """The first of ``snapshots``."""
    snapshot = next(snapshots, None)
    if snapshot is None:
        raise RefusedError(
            f"the table has no snapshot of version {entry.version} (they expire; the first version "
            "has none)"
        )
    snapshot_id = snapshot.snapshot_id
    scan = table.scan(snapshot_id=snapshot_id)
    return TimeTravelView(
        f"snapshot {snapshot_id} of the Iceberg table",
        lambda _: TYPES.shown(iter(scan.to_arrow_batch_reader())),
        scan.count,
        {"Spark": f"SELECT * FROM {'.'.join(table.name())} VERSION AS OF {snapshot_id}"},
    )


def _ancestors(table: Table) -> Iterator[Snapshot]:
    """From the newest on, as far as they are kept: what was rolled back is not among them."""
    ancestor = table.current_snapshot()
    if ancestor is None:
        return
    yield ancestor  # nearly always all that is asked for, of many
    held = {snapshot.snapshot_id: snapshot for snapshot in table.metadata.snapshots}
    while (ancestor := held.get(ancestor.parent_snapshot_id or -1)) is not None:
        yield ancestor


def _is_of(snapshot: Snapshot, entry: LedgerEntry) -> bool:
    properties = snapshot.summary.additional_properties if snapshot.summary else {}
    mine = (entry.pipeline, str(entry.version), entry.run_id)
    return tuple(properties.get(f"eo.{name}") for name in ("pipeline", "version", "run-id")) == mine


#: Iceberg's property of a table whose files are another's too: what one state of it has no use for
#: may be in a branch, or a state, that the catalog keeps (Nessie).
_KEEPS_FILES = "gc.enabled"

#: Below a pipeline's folder of rows: files of batches that came in memory.
_INLINE_FOLDER = "inline"


class IcebergSession(LakeSession[Table]):
    """See :class:`LakeSession` for the steps.

    What is Iceberg's own: new columns, rows taken back, files added and the head's version and
    token (a property of the table, which the expiry of snapshots leaves alone) are one commit,
    and so is the making of the table. Every commit makes a snapshot, also without rows: only a
    snapshot carries the requirement that the branch has not moved on.
    """

    log_folder = "metadata"
    # the rest of a URL, which the folder's name is taken for
    misread = re.compile(r"[#?]|[\x00-\x1f\x7f]")

    @property
    def folder_field(self) -> str:
        return self.sink.folder_field

    def __init__(self, sink: IcebergSink, pipeline: str, catalog: Catalog | None = None) -> None:
        self.sink = sink
        super().__init__(pipeline, sink.root)
        self.inline_folder = sink.root / ROWS_FOLDER / pipeline / _INLINE_FOLDER
        self.catalog = catalog or connect(sink)
        #: as the last look found it
        self._seen: Table | None = None
        if table := self.open_table():
            check(table, sink)

    def close(self) -> None:
        self.catalog.close()

    def open_table(self) -> Table | None:
        self._seen = load(self.catalog, self.sink)
        return self._seen

    def rolled_back(self, head: LedgerEntry | None) -> TableRolledBackError | None:
        table = self.open_table()
        return rolled_back(table, head) if table is not None and head is not None else None

    def never_null(self) -> frozenset[str]:
        schema = self._seen.schema() if self._seen is not None else Schema()
        return frozenset(field.name for field in schema.fields if field.required)

    def as_staged(self, columns: StructType) -> StructType:
        """With the ids of the table's columns as it was when it was last looked at. Whether they
        are still those a commit finds out.
        """
        from pyspark.sql.pandas.types import to_arrow_schema
        from pyspark.sql.types import StructType

        data_fields = [f for f in columns if not f.name.startswith(LAYOUT_PREFIX)]
        result = TYPES.schema(to_arrow_schema(StructType(data_fields)))
        after = as_spark_writes(StructType(data_fields), ids_of(following(self._seen, result)))
        return StructType([*after, *(f for f in columns if f.name.startswith(LAYOUT_PREFIX))])

    def lineage(self, since: int = 0) -> Iterator[pa.RecordBatch]:
        """Of one snapshot, file by file."""
        table = self.open_table()
        if table is None:
            return
        schema = lineage_schema(table.schema().column_names)
        with read_errors(self.sink.table):
            yield from lineage_of_batches(_scan(table, schema.names, since), schema, since)

    def values(self, since: int = 0) -> Iterator[pa.RecordBatch]:
        """Of one snapshot, file by file."""
        table = self.open_table()
        if table is None:
            return
        with read_errors(self.sink.table):
            yield from TYPES.shown(_scan(table, table.schema().column_names, since))

    def past(self, entry: LedgerEntry) -> TimeTravelView:
        """By the table's snapshots, of which each says whose it is."""
        table = self.open_table()
        if table is None:
            raise RefusedError("there is no table yet")
        with read_errors(self.sink.table):
            return past_of(table, entry)

    def queries(self, selected: Selected) -> Mapping[str, str]:
        condition = selected.condition(CHECKPOINT_COLUMN)
        return {"Spark": f"SELECT * FROM {self.sink.table} WHERE {condition}"}

    def maintain(self, rules: Maintenance, *, dry_run: bool) -> Iterator[Upkeep]:
        """See :mod:`eo_pipeline.sinks.iceberg.maintenance`."""
        from eo_pipeline.sinks.iceberg.maintenance import IcebergUpkeep

        with self._translating(self._not_kept):
            if table := self.open_table():
                check(table, self.sink)
            if not dry_run:
                self.remove_lost()
            if table is not None and table.properties.get(_KEEPS_FILES) == "false":
                yield Upkeep("none", f"{_KEEPS_FILES}=false: left to its catalog's own tool")
                return
            kept = IcebergUpkeep(self.root, self.pipeline, rules, self.open_table, self.catalog)
            yield from kept.work(dry_run=dry_run)

    def _not_kept(self, error: Exception) -> EoPipelineError:
        passes = isinstance(error, UNREACHABLE) and not isinstance(error, REFUSALS)
        return stopped(self.root, error, lasts=not passes)

    def explain(self, error: Exception) -> EoPipelineError:
        return explained(self.sink.table, error) or super().explain(error)

    def _ledgers(self) -> list[str]:
        """Also those that lie elsewhere: each commit names its own."""
        properties = table.properties if (table := self.open_table()) else {}
        heads = (name for name in properties if name.startswith(HEAD_PROPERTY))
        return sorted({*super()._ledgers(), *(h.removeprefix(HEAD_PROPERTY) for h in heads)})

    def _drop_table(self) -> None:
        drop(self.catalog, self.sink)

    def _id_of(self, table: Table) -> str:
        return str(table.metadata.table_uuid)

    def _pointer(self, table: Table) -> Pointer | None:
        return pointer_of(table, self.pipeline)

    def _publication(
        self, entry: LedgerEntry, staged: StagedOutput, table: Table | None, head: LedgerFile
    ) -> IcebergPublication:
        return IcebergPublication(self, entry, staged, table, head)

    def _refuse_going_back(self, entry: LedgerEntry, table: Table | None) -> None:
        """The shared table apart, any table of this sink gives rows back: it is append only."""

    def _side_folders(self) -> tuple[Place, ...]:
        return (self.inline_folder,)


class IcebergPublication(LakePublication[Table]):
    """One try: columns, rows taken back, files and the head's property, in one transaction."""

    session: IcebergSession

    def _prepare(self) -> Commit:
        return partial(self._make, self.transaction())

    def transaction(self) -> Transaction:
        """All that this try changes in the table, prepared, its files written.

        Raises:
            RefusedError: the table will never take these rows.
        """
        rows, session = self.staged.rows, self.session
        if self.table is not None:
            self.refuse_rolled_back(self._rolled_back(self.table))
        result = TYPES.schema(own_columns(rows.schema)) if rows is not None else pa.schema([])
        transaction = self._change(self.table) if self.table is not None else self._create(result)
        self._widen(transaction, result)
        files = PublishedFiles(session.inline_folder, self.at, self.written)
        new = new_files(rows, transaction.table_metadata, files)
        if all(file.has_ids for file in new):
            self._keep_names(transaction)
        summary = _summary(self.entry)
        if self.table is not None:
            take_back(transaction, self.entry, summary)
        # without files too: only a snapshot makes PyIceberg compare, see the session
        append(transaction, new, summary)
        transaction.set_properties({HEAD_PROPERTY + session.pipeline: self.at.stem})
        return transaction

    def _rolled_back(self, table: Table) -> TableRolledBackError | None:
        return rolled_back(table, self.head.entry)

    def _create(self, result: pa.Schema) -> Transaction:
        """A transaction that makes the table, together with its first rows."""
        sink = self.session.sink
        schema = result if result.names else NO_ROWS
        try:
            make_namespace(self.session.catalog, sink)
            return self._new_table(schema, uri_of(sink.root), new_properties(sink.partition_fields))
        except TableAlreadyExistsError as error:
            raise CommitConflictError(str(error)) from error

    def _new_table(
        self, schema: pa.Schema, location: str, properties: Mapping[str, str]
    ) -> Transaction:
        transaction = self.session.catalog.create_table_transaction(
            self.session.sink.identifier, schema, location, properties=dict(properties)
        )
        self._lay_out(transaction)
        return transaction

    def _change(self, table: Table) -> Transaction:
        check(table, self.session.sink)
        self._switch_retries_off(table)
        forget_old_snapshots(table)
        table.catalog = verifying(self.session.catalog, self.landed)
        return table.transaction()

    def _switch_retries_off(self, table: Table) -> None:
        """In a commit of its own, then look again; somebody else's table has them on."""
        if not has_retries(table):
            return
        try:
            table.transaction().set_properties(NO_RETRIES).commit_transaction()
        except CommitFailedException as error:
            raise CommitConflictError(str(error)) from error
        if has_retries(table):
            raise SinkUnavailableError(
                f"{self.session.sink.table}: the catalog does not keep {NO_RETRIES}, without which "
                "a stale run would be put on top of a newer one. Nothing was published."
            )
        raise CommitConflictError("the table's retries were switched off")

    def _widen(self, transaction: Transaction, result: pa.Schema) -> None:
        """New nullable columns, wider types, and the layout once the table has columns, in the
        same commit.
        """
        if self.table is not None:
            widen(transaction, self.table, result)
            if lacks_layout(self.table, self.session.sink):
                self._lay_out(transaction)

    def _lay_out(self, transaction: Transaction) -> None:
        """The partitions, if all columns that they come from are there."""
        fields = self.session.sink.partition_fields
        schema = transaction.table_metadata.schema()
        if not fields or not {field.source for field in fields} <= {*schema.column_names}:
            return
        refuse_alike(schema.as_arrow(), fields)
        with transaction.update_spec() as spec:
            for field in fields:
                spec.add_field(field.source, parse_transform(field.transform), field.field_name)

    def _keep_names(self, transaction: Transaction) -> None:
        """Keep the entries of the table's name mapping: PyIceberg gives the name of a new column
        away that files without ids have for another one.
        """
        before = name_mapping(self.table.metadata) if self.table is not None else None
        if before is not None and name_mapping(transaction.table_metadata) != before:
            transaction.set_properties({TableProperties.DEFAULT_NAME_MAPPING: before})

    def _make(self, transaction: Transaction) -> None:
        """The commit."""
        with commit_errors(self.session.sink.table):
            transaction.commit_transaction()


def _scan(table: Table, columns: Iterable[str], since: int) -> Iterator[pa.RecordBatch]:
    existing = [name for name in columns if name in table.schema().column_names]
    if CHECKPOINT_COLUMN not in existing:
        # somebody else's columns only: their rows are counted by any of them
        return iter(table.scan().to_arrow_batch_reader())
    wanted = f"{CHECKPOINT_COLUMN} >= {int(since)} OR {CHECKPOINT_COLUMN} IS NULL"
    return iter(table.scan(wanted, selected_fields=tuple(existing)).to_arrow_batch_reader())


def _summary(entry: LedgerEntry) -> dict[str, str]:
    """For people who read the table's history; gone when the snapshot expires."""
    return {
        "eo.pipeline": entry.pipeline,
        "eo.version": str(entry.version),
        "eo.operation": entry.operation.value,
        "eo.run-id": entry.run_id,
    }
