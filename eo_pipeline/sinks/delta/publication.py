"""One try to publish an entry in a Delta table: what its one commit is."""

from __future__ import annotations

from contextlib import suppress
from functools import partial

from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError, DeltaError
from deltalake.transaction import (
    AddAction,
    RemoveAction,
    create_table_with_add_actions,
)

from eo_pipeline.arrow import pa
from eo_pipeline.errors import (
    CommitUnknownError,
    RefusedError,
    SinkUnavailableError,
)
from eo_pipeline.ledger.entry import CHECKPOINT_COLUMN, LedgerEntry, Operation
from eo_pipeline.places import write_new
from eo_pipeline.sinks.delta.append import Appendable, append_text
from eo_pipeline.sinks.delta.checkpoints import checkpoint_if_due
from eo_pipeline.sinks.delta.commit import (
    Arguments,
    commit_errors,
    commit_files,
    ledger_commit,
    maintenance_commit,
    transactions_of,
    words_of,
)
from eo_pipeline.sinks.delta.layout import refuse_merged
from eo_pipeline.sinks.delta.merge import merge, newest_rows, refuse_moved_keys
from eo_pipeline.sinks.delta.removal import without
from eo_pipeline.sinks.delta.restore import restore
from eo_pipeline.sinks.delta.rows import in_memory, in_types_of
from eo_pipeline.sinks.delta.set_back import set_back
from eo_pipeline.sinks.delta.store import Snapshot, delta_schema, explained, is_of_files
from eo_pipeline.sinks.delta.table_session import DeltaTableSession
from eo_pipeline.sinks.lake.publication import Commit, LakePublication
from eo_pipeline.sinks.lake.rows import PublishedFiles
from eo_pipeline.sinks.lake.types import changed
from eo_pipeline.sinks.protocol import OvertakenError
from eo_pipeline.sinks.removal import target_of
from eo_pipeline.sinks.upsert import UpsertRule
from eo_pipeline.staging.rows import StagedOutput, StagedTable


class AppendPublication(LakePublication[Snapshot]):
    """One try to add files, or none, behind a commit of our own; see
    :mod:`eo_pipeline.sinks.delta.append`.
    """

    session: DeltaTableSession

    def __init__(
        self,
        session: DeltaTableSession,
        entry: LedgerEntry,
        staged: StagedOutput,
        newest: Appendable,
    ) -> None:
        super().__init__(session, entry, staged, None, session.ledger.get(newest.own.pointer))
        self.newest = newest
        self._aside = session.ledger.aside(self.at)

    def _prepare(self) -> Commit:
        session, described = self.session, self.newest.described
        described.check(session.sink.partition_by)
        files = PublishedFiles(session.published_folder, self.at, self.written)
        added = session.add_actions(described, self.staged.rows, files)
        words = words_of(self.entry, session.told_of(described))
        transactions = transactions_of(self.entry.pipeline, self.at)
        self._text = append_text(words, described.partition_by, transactions, added)

        def commit() -> None:
            session.about_to_commit()
            self.newest.followed_by(self._aside)

        return commit_errors(session.uri, session.damage)(commit)

    def enter(self) -> None:
        super().enter()
        self.written.append(self._aside)
        write_new(self._aside, self._text)

    def committed(self) -> None:
        with suppress(OSError):
            self._aside.unlink()
        version, settings = self.newest.own.version + 1, self.newest.described.configuration
        checkpoint_if_due(self.session.root, self.session.options, version, settings)


class DeltaPublication(LakePublication[Snapshot]):
    """One try: add actions, a merge, removals or a restore, in the one commit of this handle."""

    session: DeltaTableSession
    #: of the table, once this has landed
    version: int = 0
    #: whether the table is the same behind this, but for its rows
    _changes_no_column = True

    def committed(self) -> None:
        settings = self.table.described.configuration if self.table else {}
        checkpoint_if_due(self.session.root, self.session.options, self.version, settings)

    def _prepare(self) -> Commit:
        change = self._create() if self.table is None else self._change(self.table)

        def commit() -> None:
            self.session.about_to_commit()
            change()

        return commit_errors(self.session.uri, self.session.damage)(commit)

    def _change(self, table: Snapshot) -> Commit:
        described, operation = table.described, self.entry.operation
        described.check(self.session.sink.partition_by)
        self.refuse_rolled_back(set_back(table, self.head.entry))
        self.version = table.table.version() + 1
        rows, rule = self.staged.rows, self.session.sink.upsert_rule
        after = described.following(rows.schema) if rows is not None else described.types
        lacking = changed(described.types, after)
        self._changes_no_column = not lacking.names
        if operation is Operation.REWIND:
            return self._rewind(table)
        if rule and rows is not None:
            return self._merge(table, rows, rule, lacking)
        actions: list[AddAction | RemoveAction] = [*self._actions(rows)]
        if operation is Operation.REPLAY:
            target = target_of(self.entry)
            actions += without(table, target, target, self._files)
        change = partial(commit_files, table.table, actions, self._arguments)
        return self._widened(table, lacking, change)

    def _widened(self, table: Snapshot, lacking: pa.Schema, change: Commit) -> Commit:
        """``change``, after the columns and nested fields that the table lacks were added to it."""
        if not lacking.names:
            return change

        def widen_and_change() -> None:
            self._widen(table.table, lacking)
            self.version += 1
            change()

        return widen_and_change

    def _rewind(self, table: Snapshot) -> Commit:
        if not self.session.sink.upsert_rule:
            actions = without(table, target_of(self.entry) + 1, None, self._files)
            return partial(commit_files, table.table, actions, self._arguments)
        version = self.session.version_left_by_target(self.entry, table)
        return partial(restore, table.table, version, self._arguments)

    def _merge(
        self, table: Snapshot, rows: StagedTable, rule: UpsertRule, lacking: pa.Schema
    ) -> Commit:
        """The columns that the table lacks are added before the merge: delta-rs' own would make
        another table of it, by its id, and take from its columns that they may not be null.
        """
        table.refuse_removal()
        types = table.described.following(rows.schema)
        source = in_types_of(types, newest_rows(in_memory(rows), rule))
        refuse_merged(source, table.described.partition_by)
        refuse_moved_keys(table.table, source, rule)
        change = partial(merge, table.table, source, rule, self._arguments)
        return self._widened(table, lacking, change)

    def _widen(self, table: DeltaTable, new: pa.Schema) -> None:
        """New nullable columns, in a commit of their own just before the rows' commit, which
        changes no row, so that a rewind goes back past it.

        delta-rs has no call for both at once. Dying in between leaves columns without values.
        """
        try:
            table.alter.add_columns(list(delta_schema(new).fields), **maintenance_commit({}))
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
        described = self.table.described if self.table else None
        return self.session.add_actions(described, rows, self._files)

    @property
    def _files(self) -> PublishedFiles:
        return PublishedFiles(self.session.published_folder, self.at, self.written)

    @property
    def _arguments(self) -> Arguments:
        table, told = self.table, dict[str, str]()
        # what going back brings back may be what nobody has looked at
        if table is not None and self.entry.operation is not Operation.REWIND:
            told = self.session.told_of(table.described, whole=self._changes_no_column)
        return ledger_commit(self.entry, self.at, told)


def _no_rows() -> pa.Schema:
    """The columns of a table that is created before there are rows."""
    return pa.schema([(CHECKPOINT_COLUMN, pa.int64())])
