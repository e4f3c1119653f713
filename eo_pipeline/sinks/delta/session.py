"""One pipeline's ledger and rows in a Delta table, written by delta-rs."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path

from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError, DeltaError
from deltalake.transaction import AddAction, create_table_with_add_actions

from eo_pipeline.arrow import pa
from eo_pipeline.bucket import BucketPath
from eo_pipeline.errors import (
    CommitUnknownError,
    DamagedError,
    EoPipelineError,
    RefusedError,
    SinkUnavailableError,
)
from eo_pipeline.ledger.entry import CHECKPOINT_COLUMN, LedgerEntry, Operation
from eo_pipeline.places import Place
from eo_pipeline.sinks.delta.commit import (
    Arguments,
    commit_errors,
    commit_files,
    ledger_commit,
    plain_commit,
)
from eo_pipeline.sinks.delta.config import ROWS_FOLDER, DeltaSink
from eo_pipeline.sinks.delta.damage import damage
from eo_pipeline.sinks.delta.log import LOG_FOLDER
from eo_pipeline.sinks.delta.merge import merge, newest_rows, refuse_moved_keys
from eo_pipeline.sinks.delta.newest import Newest
from eo_pipeline.sinks.delta.own import OwnCommit, newest_own, told_of
from eo_pipeline.sinks.delta.past import past_of
from eo_pipeline.sinks.delta.removal import replay, rewind
from eo_pipeline.sinks.delta.restore import NotRestorableError, Restore, restore
from eo_pipeline.sinks.delta.rows import AddActions, in_memory, in_types_of
from eo_pipeline.sinks.delta.store import Snapshot, delta_schema, explained, is_of_files
from eo_pipeline.sinks.lake.ledger import LedgerFile, Pointer
from eo_pipeline.sinks.lake.rows import PublishedFiles
from eo_pipeline.sinks.lake.session import Commit, LakePublication, LakeSession
from eo_pipeline.sinks.lake.types import changed
from eo_pipeline.sinks.lake.upkeep import stopped
from eo_pipeline.sinks.maintenance import Maintenance, Upkeep
from eo_pipeline.sinks.past import Past, Selected
from eo_pipeline.sinks.protocol import OvertakenError
from eo_pipeline.sinks.removal import target_of
from eo_pipeline.sinks.upsert import UpsertRule
from eo_pipeline.staging.rows import StagedOutput, StagedTable

log = logging.getLogger(__name__)

#: Our own commits between two checkpoints of the log, unless the table says otherwise; and once the
#: ledger is long: each checkpoint holds all files, each opening reads what came after the last one.
CHECKPOINT_INTERVAL = 10
LONG_INTERVAL, LONG_LEDGER = 25, 1000

#: Below a pipeline's folder of rows: files made by publishing.
_PUBLISHED_FOLDER = "published"


class DeltaSession(LakeSession[Snapshot]):
    """See :class:`LakeSession` for the steps.

    What is Delta's own: the head's version and token are application transactions of the commit
    that adds the files, and survive vacuum, checkpoints and clean-up of the log.
    """

    log_folder = LOG_FOLDER
    # decoded a second time; taken for a slash; refused
    misread = re.compile(r"%[0-9A-Fa-f]{2}|\\|[\x00-\x1f\x7f]")
    folder_field = "path"

    def __init__(self, sink: DeltaSink, pipeline: str) -> None:
        super().__init__(pipeline, sink.root)
        self.sink = sink
        self.uri = str(sink.root)
        told = dict(sink.root.bucket.delta) if isinstance(sink.root, BucketPath) else {}
        self.options = told | {k: v.get_secret_value() for k, v in sink.storage_options.items()}
        self._newest = Newest(sink.root / self.log_folder)
        self.published_folder = sink.root / ROWS_FOLDER / pipeline / _PUBLISHED_FOLDER
        own = self._own_commit()
        fits = own is not None and own.partition_by == sink.partition_by
        if not fits and (table := self.open_table()):
            table.check(sink.partition_by)

    def newest_head(self) -> LedgerFile | None:
        own = self._own_commit()
        return self.ledger.get(own.pointer) if own else super().newest_head()

    def table_identity(self) -> Mapping[str, str]:
        own = self._own_commit()
        return {"table": own.table} if own else super().table_identity()

    def _own_commit(self) -> OwnCommit | None:
        """What needs no open table; None: look at that, it may be open already."""
        # a bucket would be asked for one name after the other: delta-rs lists them in one request
        if self._newest.known() is not None or not isinstance(self.root, Path):
            return None
        return newest_own(self.root / self.log_folder, self.pipeline)

    def open_table(self) -> Snapshot | None:
        return self._newest.get(lambda: Snapshot.open(self.root, self.options, self.pipeline))

    def about_to_commit(self) -> None:
        """What is seen of the table from now on is looked at anew."""
        self._newest.forget()

    def never_null(self) -> frozenset[str]:
        """The table's columns that take no null; none while it is absent."""
        table = self.open_table()
        return table.required if table else frozenset()

    def lineage(self, since: int = 0) -> Iterator[pa.RecordBatch]:
        """Of one version of the table, file by file.

        Raises:
            DamagedError: besides the usual ones; a file is gone, or was cut.
        """
        return self._readable(lambda table: table.lineage(since))

    def values(self, since: int = 0) -> Iterator[pa.RecordBatch]:
        """Of one version of the table, file by file; raises as :meth:`lineage`."""
        return self._readable(lambda table: table.values(since))

    def _readable(
        self, read: Callable[[Snapshot], Iterator[pa.RecordBatch]]
    ) -> Iterator[pa.RecordBatch]:
        table = self.open_table()
        try:
            yield from read(table) if table else ()
        except SinkUnavailableError as error:
            raise self.damage() or error from error.__cause__

    def past(self, entry: LedgerEntry) -> Past:
        """By Delta's own versions, also of an upserted table."""
        table = self.open_table()
        head = self.head_of(table)
        if table is None or head is None:
            raise RefusedError("there is no table yet")
        return past_of(Restore(table, self.ledger, head, self.options), entry)

    def queries(self, selected: Selected) -> Mapping[str, str]:
        condition = selected.condition(CHECKPOINT_COLUMN)
        return {"Spark": f"SELECT * FROM delta.`{self.root}` WHERE {condition}"}

    def damage(self) -> DamagedError | None:
        """What is wrong with the files of the newest version; ``None``: nothing."""
        table = self.open_table()
        upserts = self.sink.upsert_rule is not None
        return damage(table.table, self.root, upserts=upserts) if table else None

    def maintain(self, rules: Maintenance, *, dry_run: bool) -> Iterator[Upkeep]:
        """See :mod:`eo_pipeline.sinks.delta.maintain`."""
        from eo_pipeline.sinks.delta.maintain import DeltaUpkeep

        with self._told_as(self._not_kept):
            table = self.open_table()
            if table is not None:
                table.check(self.sink.partition_by)
            self.about_to_commit()
            opened = partial(Snapshot.open, self.root, self.options, self.pipeline)
            yield from DeltaUpkeep(self.root, self.pipeline, rules, opened).work(dry_run=dry_run)

    def _not_kept(self, error: Exception) -> EoPipelineError:
        return self.damage() or stopped(self.root, error)

    def explain(self, error: Exception) -> EoPipelineError:
        if isinstance(error, DeltaError):
            return (is_of_files(error) and self.damage()) or explained(self.uri, error)
        return super().explain(error)

    def version_left_by_target(self, entry: LedgerEntry, table: Snapshot) -> int | None:
        """The version of the upserted table that a rewind restores; ``None``: there was no table.

        Raises:
            RefusedError: it cannot be had back.
        """
        head = self.head_of(table)
        if head is None:
            return None  # asked of a pipeline that never started: publishing is fenced
        try:
            return Restore(table, self.ledger, head, self.options).version(entry)
        except NotRestorableError as error:
            raise self.cannot_go_back(entry, f"the table is upserted, and {error}") from error

    def _id_of(self, table: Snapshot) -> str:
        return table.identity

    def _pointer(self, table: Snapshot) -> Pointer | None:
        return table.pointer

    def _publication(
        self, entry: LedgerEntry, staged: StagedOutput, table: Snapshot | None, head: LedgerFile
    ) -> DeltaPublication:
        return DeltaPublication(self, entry, staged, table, head)

    def _refuse_going_back(self, entry: LedgerEntry, table: Snapshot | None) -> None:
        if table is None:
            return
        table.refuse_removal()
        if self.sink.upsert_rule:
            self.version_left_by_target(entry, table)

    def _side_folders(self) -> tuple[Place, ...]:
        return (self.published_folder,)


class DeltaPublication(LakePublication[Snapshot]):
    """One try: add actions, a merge, removals or a restore, in the one commit of this handle."""

    session: DeltaSession

    def committed(self) -> None:
        """Keeps the log short, as delta-rs's own hooks would; the commit has landed already."""
        is_long = self.entry.version >= LONG_LEDGER
        interval, cleans = (LONG_INTERVAL if is_long else CHECKPOINT_INTERVAL), True
        if self.table is not None:
            settings = self.table.configuration
            interval = int(settings.get("delta.checkpointInterval", interval))
            cleans = settings.get("delta.enableExpiredLogCleanup", "true") == "true"
        if self.entry.version % interval:
            return
        try:
            table = DeltaTable(self.session.uri, storage_options=self.session.options)
            table.create_checkpoint()
            if cleans:
                table.cleanup_metadata()
        except (DeltaError, OSError) as error:
            log.warning("%s: no checkpoint of the log was made: %s", self.session.uri, error)

    def _prepare(self) -> Commit:
        change = self._create() if self.table is None else self._change(self.table)

        def commit() -> None:
            self.session.about_to_commit()
            change()

        return commit_errors(self.session.uri, self.session.damage)(commit)

    def _change(self, table: Snapshot) -> Commit:
        table.check(self.session.sink.partition_by)
        rows, rule, operation = (
            self.staged.rows,
            self.session.sink.upsert_rule,
            self.entry.operation,
        )
        after = table.following(rows.schema) if rows is not None else table.types
        lacking = changed(table.types, after)
        if operation is Operation.REWIND:
            return self._rewind(table)
        if rule and rows is not None:
            return self._merge(table, rows, rule, lacking)
        actions = self._actions(rows)
        if operation is Operation.REPLAY:
            target = target_of(self.entry)
            change = replay(table.table, target, rows, actions, self._arguments)
        else:
            change = partial(commit_files, table.table, actions, self._arguments)
        return self._widened(table, lacking, change)

    def _widened(self, table: Snapshot, lacking: pa.Schema, change: Commit) -> Commit:
        """``change``, after the columns and nested fields that the table lacks were added to it."""
        if not lacking.names:
            return change

        def widen_and_change() -> None:
            self._widen(table.table, lacking)
            change()

        return widen_and_change

    def _rewind(self, table: Snapshot) -> Commit:
        if not self.session.sink.upsert_rule:
            return rewind(table.table, target_of(self.entry), self._arguments)
        version = self.session.version_left_by_target(self.entry, table)
        return partial(restore, table.table, version, self._arguments)

    def _merge(
        self, table: Snapshot, rows: StagedTable, rule: UpsertRule, lacking: pa.Schema
    ) -> Commit:
        """A merge adds columns itself, but no fields to structs, and not the table feature that
        local times need: delta-rs would commit it, and no reader could open the table any more.
        """
        table.refuse_removal()
        source = in_types_of(table.following(rows.schema), newest_rows(in_memory(rows), rule))
        refuse_moved_keys(table.table, source, rule)
        change = partial(merge, table.table, source, rule, self._arguments)
        held = any(name in table.columns for name in lacking.names)
        needs_feature = any("timestamp[us]" in str(field.type) for field in lacking)
        return self._widened(table, lacking, change) if held or needs_feature else change

    def _widen(self, table: DeltaTable, new: pa.Schema) -> None:
        """New nullable columns, in a commit of their own just before the rows' commit.

        delta-rs has no call for both at once. Dying in between leaves columns without values.
        """
        try:
            table.alter.add_columns(list(delta_schema(new).fields), **plain_commit())
        except CommitFailedError as error:
            raise OvertakenError(str(error)) from error
        except (DeltaError, OSError) as error:
            raise explained(
                f"{self.session.uri}, to which columns {', '.join(new.names)} are added,", error
            ) from error

    def _create(self) -> Commit:
        """The table and its first rows in one commit, of which the log takes only one."""
        sink, rows = self.session.sink, self.staged.rows
        if sink.upsert_rule and rows is not None:
            rows = StagedTable.in_memory(newest_rows(in_memory(rows), sink.upsert_rule))
        absent = [n for n in sink.partition_by if rows is None or n not in rows.schema.names]
        if absent:
            raise RefusedError(
                f"{self.session.uri}: the table does not exist and this entry has no column "
                f"{', '.join(absent)} to lay it out by. Create it, partitioned, and run again."
            )
        schema = delta_schema(rows.schema if rows is not None else _no_rows())
        actions = self._actions(rows)

        def commit() -> None:
            try:
                create_table_with_add_actions(
                    self.session.uri,
                    schema,
                    actions,
                    mode="error",
                    partition_by=list(sink.partition_by),
                    storage_options=self.session.options,
                    **self._arguments,
                )
            except CommitFailedError:
                raise
            except (DeltaError, OSError) as error:
                raise self._not_created(error) from error

        return commit

    def _not_created(self, error: Exception) -> Exception:
        """delta-rs gives the same error for a table that is there, perhaps by this very commit, and
        for one that it cannot make.
        """
        with suppress(SinkUnavailableError):
            # not by is_deltatable: delta-rs lets no other thread run while that waits for a store
            if self.session.open_table() is not None:
                return OvertakenError(str(error))
        if not is_of_files(error):
            return explained(self.session.uri, error)
        return CommitUnknownError(
            f"{self.session.uri}: whether the table was created is not known: {error}"
        )

    def _actions(self, rows: StagedTable | None) -> list[AddAction]:
        if rows is None:
            return []
        table, sink = self.table, self.session.sink
        layout = tuple(table.partition_by) if table else sink.partition_by
        required = table.required if table else frozenset()
        files = PublishedFiles(self.session.published_folder, self.at, self.written)
        known = table.following(rows.schema) if table else pa.schema([])
        return AddActions(self.session.root, layout, required, known).of(rows, files)

    @property
    def _arguments(self) -> Arguments:
        table = self.table
        # what going back brings back may be what nobody has looked at
        is_told = table is not None and self.entry.operation is not Operation.REWIND
        told = told_of(table.identity, table.partition_by) if table and is_told else {}
        return ledger_commit(self.entry, self.at, told)


def _no_rows() -> pa.Schema:
    """The columns of a table that is created before there are rows."""
    return pa.schema([(CHECKPOINT_COLUMN, pa.int64())])
