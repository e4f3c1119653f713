"""One pipeline's ledger and rows in a Delta table, written by delta-rs."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError, DeltaError
from deltalake.transaction import AddAction, create_table_with_add_actions

from eo_pipeline.errors import CommitUnknownError, RefusedError, SinkUnavailableError
from eo_pipeline.ledger.entry import CHECKPOINT_COLUMN, LedgerEntry, Operation
from eo_pipeline.sinks.delta.commit import commit_files, ledger_commit, outcome_told, plain_commit
from eo_pipeline.sinks.delta.going_back import replay, rewind
from eo_pipeline.sinks.delta.restore import NotThereError, Restore, restore
from eo_pipeline.sinks.delta.rows import RowFiles
from eo_pipeline.sinks.delta.sink import DeltaSink
from eo_pipeline.sinks.delta.table import Snapshot, delta_schema
from eo_pipeline.sinks.delta.types import stored_table
from eo_pipeline.sinks.lake.frame import Commit, LakeSession, OvertakenError, Publication
from eo_pipeline.sinks.lake.ledger import Pointer
from eo_pipeline.staging.rows import StagedTable

log = logging.getLogger(__name__)

#: Our own commits between two checkpoints of the log, unless the table says otherwise.
CHECKPOINT_INTERVAL = 10

#: The columns of a table that is created before there are rows.
_NO_ROWS = pa.schema([(CHECKPOINT_COLUMN, pa.int64())])


class DeltaSession(LakeSession[Snapshot]):
    """See :class:`LakeSession` for the order of things.

    What is Delta's own: the head's version and token are application transactions of the commit
    that adds the files, and survive vacuum, checkpoints and clean-up of the log.
    """

    def __init__(self, sink: DeltaSink, pipeline: str) -> None:
        super().__init__(pipeline, sink.root)
        self._sink = sink
        self._uri = str(sink.root)
        self._options = {k: v.get_secret_value() for k, v in sink.storage_options.items()}
        if table := self._open():
            table.check(sink.partition_by)

    def _open(self) -> Snapshot | None:
        return Snapshot.open(self._uri, self._options, self.pipeline)

    def _pointer(self, table: Snapshot) -> Pointer | None:
        return table.pointer

    def _side_folders(self) -> tuple[Path, ...]:
        return (self._files(None).published_folder,)

    def _prepare(self, publication: Publication[Snapshot], written: list[Path]) -> Commit:
        table, operation = publication.table, publication.entry.operation
        if table is not None:
            table.check(self._sink.partition_by)
        rows = publication.staged.rows
        schema = rows.schema if rows is not None else None
        if table is None:
            return self._create(publication, written)
        missing = table.missing(schema) if schema is not None else []
        if operation is Operation.REWIND:
            return self._rewind(table, publication)
        if self._sink.upsert and rows is not None:
            return self._merge(table, publication, rows)
        actions = self._actions(rows, publication, written)

        def commit() -> None:
            if missing and schema is not None:
                self._widen(table.table, schema, missing)
            if operation is Operation.REPLAY:
                replay(table.table, actions, publication, self._uri)
                return
            with outcome_told(self._uri):
                commit_files(table.table, actions, publication.record)

        return commit

    def _refuse_going_back(self, entry: LedgerEntry, table: Snapshot | None) -> None:
        if table is None:
            return
        table.refuse_removal()
        if self._sink.upsert:
            self._left_by_target(entry, table)

    def _left_by_target(self, entry: LedgerEntry, table: Snapshot) -> int | None:
        head = self._head(table)
        if head is None:
            return None  # asked of a pipeline that never started: publishing is fenced
        try:
            return Restore(table, self.ledger, head, self._options).version(entry)
        except NotThereError as error:
            raise self._cannot_go_back(entry, f"the table is upserted, and {error}") from error

    def _rewind(self, table: Snapshot, publication: Publication[Snapshot]) -> Commit:
        if not self._sink.upsert:
            return lambda: rewind(table.table, publication, self._uri)
        version = self._left_by_target(publication.entry, table)
        return lambda: restore(table.table, version, publication, self._uri)

    def lineage(self, since: int = 0) -> Iterator[pa.RecordBatch]:
        """Of one version of the table, file by file."""
        table = self._open()
        return table.lineage(since) if table else iter(())

    def _create(self, publication: Publication[Snapshot], written: list[Path]) -> Commit:
        """The table and its first entry in one commit, of which the log takes only one."""
        rows, upsert = publication.staged.rows, self._sink.upsert
        if upsert and rows is not None:
            rows = StagedTable.in_memory(upsert.newest(in_memory(rows)))
        partition_by = list(self._sink.partition_by)
        absent = [n for n in partition_by if rows is None or n not in rows.schema.names]
        if absent:
            raise RefusedError(
                f"{self._uri}: the table does not exist and this entry has no column "
                f"{', '.join(absent)} to lay it out by. Create it, partitioned, and run again."
            )
        schema = delta_schema(rows.schema if rows is not None else _NO_ROWS)
        actions = self._actions(rows, publication, written)

        def commit() -> None:
            try:
                create_table_with_add_actions(
                    self._uri,
                    schema,
                    actions,
                    mode="error",
                    partition_by=partition_by,
                    storage_options=self._options,
                    **ledger_commit(publication.record),
                )
            except (DeltaError, OSError) as error:
                raise self._not_created(error) from error

        return commit

    def _not_created(self, error: Exception) -> Exception:
        """That a table is there without our entry is proof that somebody else created it."""
        if isinstance(error, CommitFailedError) or DeltaTable.is_deltatable(
            self._uri, self._options
        ):
            return OvertakenError(str(error))
        return CommitUnknownError(
            f"{self._uri}: whether the table was created is not known: {error}"
        )

    def _actions(
        self, rows: StagedTable | None, publication: Publication[Snapshot], written: list[Path]
    ) -> list[AddAction]:
        files = self._files(publication.table)
        return files.actions(rows, publication.record.at, written) if rows is not None else []

    def _files(self, table: Snapshot | None) -> RowFiles:
        partition_by = table.partition_by if table else self._sink.partition_by
        fields = table.columns.values() if table else ()
        required = frozenset(field["name"] for field in fields if not field["nullable"])
        return RowFiles(self.root, self.pipeline, tuple(partition_by), required)

    def _widen(self, table: DeltaTable, schema: pa.Schema, names: list[str]) -> None:
        """New nullable columns, in a commit of their own just before the rows' commit.

        delta-rs has no call for both at once. Dying in between leaves columns without values.
        """
        new = delta_schema(pa.schema([schema.field(name) for name in names]))
        try:
            table.alter.add_columns(list(new.fields), **plain_commit())
        except CommitFailedError as error:
            raise OvertakenError(str(error)) from error
        except (DeltaError, OSError) as error:
            raise SinkUnavailableError(
                f"{self._uri}: columns {', '.join(names)} could not be added: {error}. "
                "No row was written."
            ) from error

    def _merge(
        self, table: Snapshot, publication: Publication[Snapshot], rows: StagedTable
    ) -> Commit:
        upsert = self._sink.upsert
        assert upsert is not None, "only upserts merge"
        table.refuse_removal()
        source = upsert.newest(in_memory(rows))

        def commit() -> None:
            before = table.table.version()
            with outcome_told(self._uri):
                merger = table.table.merge(
                    source,
                    upsert.same_row("old", "new"),
                    source_alias="new",
                    target_alias="old",
                    merge_schema=True,
                    streamed_exec=False,
                    **ledger_commit(publication.record),
                )
                merger = merger.when_matched_update_all(upsert.not_older("old", "new"))
                merger.when_not_matched_insert_all().execute()
                if table.table.version() == before:
                    # a merge that changes nothing makes no commit, and says nothing
                    commit_files(table.table, [], publication.record)

        return commit

    def _committed(self, publication: Publication[Snapshot]) -> None:
        """Keeps the log short, as delta-rs's own hooks would; the commit has landed already."""
        interval, cleans = CHECKPOINT_INTERVAL, True
        if publication.table is not None:
            settings = publication.table.configuration
            interval = int(settings.get("delta.checkpointInterval", interval))
            cleans = settings.get("delta.enableExpiredLogCleanup", "true") == "true"
        if publication.entry.version % interval:
            return
        try:
            table = DeltaTable(self._uri, storage_options=self._options)
            table.create_checkpoint()
            if cleans:
                table.cleanup_metadata()
        except (DeltaError, OSError) as error:
            log.warning("%s: no checkpoint of the log was made: %s", self._uri, error)


def in_memory(rows: StagedTable) -> pa.Table:
    """Staged rows as one table in the types Delta has."""
    if rows.table is not None:
        return stored_table(rows.table)
    return stored_table(pa.Table.from_batches(rows.batches(), rows.schema))
