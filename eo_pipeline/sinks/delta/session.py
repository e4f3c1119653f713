"""One pipeline's session with a Delta table: damage checks, publications and time travel."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError, DeltaError
from deltalake.transaction import (
    AddAction,
    RemoveAction,
    create_table_with_add_actions,
)

from eo_pipeline._lazy import pa
from eo_pipeline.errors import (
    CommitUnknownError,
    DamagedError,
    EoPipelineError,
    RefusedError,
    SinkUnavailableError,
    TableRolledBackError,
    some_of,
)
from eo_pipeline.ledger.entry import CHECKPOINT_COLUMN, LedgerEntry, Operation
from eo_pipeline.sinks.capabilities import Maintenance, Selected, TimeTravelView, Upkeep
from eo_pipeline.sinks.delta.commit import (
    Arguments,
    NotRestorableError,
    Restore,
    commit_errors,
    commit_files,
    commit_metadata,
    ledger_commit,
    maintenance_commit,
    merge,
    newest_rows,
    refuse_moved_keys,
    restore,
    transactions_of,
    without,
)
from eo_pipeline.sinks.delta.config import ROWS_FOLDER, DeltaSink
from eo_pipeline.sinks.delta.files import AddActions, in_memory, in_types_of
from eo_pipeline.sinks.delta.layout import refuse_merged
from eo_pipeline.sinks.delta.log import (
    LOG_FOLDER,
    BlindAppend,
    DeltaMetadata,
    DescribedTables,
    LedgerCommit,
    LedgerCommits,
    append_text,
    checkpoint_if_due,
    table_metadata,
)
from eo_pipeline.sinks.delta.table import (
    Snapshot,
    SnapshotCache,
    delta_schema,
    explained,
    is_of_files,
    set_back,
)
from eo_pipeline.sinks.lake.ledger import LedgerFile, Pointer
from eo_pipeline.sinks.lake.maintenance import stopped
from eo_pipeline.sinks.lake.session import Commit, LakePublication, LakeSession, PublishedFiles
from eo_pipeline.sinks.lake.types import changed
from eo_pipeline.sinks.session import CommitConflictError, Publication, goes_back, target_of
from eo_pipeline.sinks.upsert import UpsertRule
from eo_pipeline.staging.rows import StagedOutput, StagedTable
from eo_pipeline.storage.paths import Place, RemotePath, sizes_of, write_new

#: Files and checkpoints a message names before it only counts them.
_NAMED_MAX = 5


def damage(table: DeltaTable, root: Place, *, upserts: bool) -> DamagedError | None:
    """Describe a fault of the files of this version of the table; ``None``: there is none.

    They do not come back by themselves. A replay writes the rows of an appended checkpoint again.
    """
    damaged = list(_damaged(table, root))
    if not damaged:
        return None
    files = some_of([f"{path} {what}" for path, what, _ in damaged], _NAMED_MAX)
    numbers = sorted({number for _, _, held in damaged for number in held})
    held = f"checkpoint {some_of(numbers, _NAMED_MAX)}" if numbers else "no checkpoint"
    replay = (
        f" or, while Kafka still has their records, read them again: {_replays(numbers)}."
        if numbers and not upserts
        else "."
    )
    return DamagedError(
        f"{root}: data files of the table are damaged: {files}. They hold rows of {held}. Nothing "
        f"was changed. Bring the files back from a backup{replay}"
    )


def _damaged(table: DeltaTable, root: Place) -> Iterator[tuple[str, str, range]]:
    """Path, what is wrong with it, and the checkpoints whose rows it has by the log."""
    low, high = f"min.{CHECKPOINT_COLUMN}", f"max.{CHECKPOINT_COLUMN}"
    actions = pa.table(table.get_add_actions(flatten=True)).to_pylist()
    sizes = _sizes(root, [action["path"] for action in actions])
    for action in actions:
        size, expected = sizes[action["path"]], action["size_bytes"]
        if size != expected:
            what = "is gone" if size is None else f"has {size} of {expected} bytes"
            yield action["path"], what, _range(action, low, high)


def _range(action: dict[str, Any], low: str, high: str) -> range:
    first, last = action.get(low), action.get(high)
    return range(first, last + 1) if first is not None and last is not None else range(0)


def _sizes(root: Place, paths: list[str]) -> dict[str, int | None]:
    """By path, which the log may have encoded; ``None``: there is no such file."""
    sizes = sizes_of(root, [name for path in paths for name in (path, unquote(path))])
    return {path: sizes.get(path, sizes.get(unquote(path))) for path in paths}


def _replays(numbers: list[int]) -> str:
    """``eo replay 3``; a stretch where they are many."""
    last = f" {numbers[-1]}" if len(numbers) > 1 else ""
    return f"`eo replay {numbers[0]}{last}`"


#: Below a pipeline's folder of rows: files made by publishing.
_PUBLISHED_FOLDER = "published"


class DeltaTableSession(LakeSession[Snapshot]):
    """The part of a session that its publications use."""

    log_folder = LOG_FOLDER
    # decoded a second time; taken for a slash; refused
    misread = re.compile(r"%[0-9A-Fa-f]{2}|\\|[\x00-\x1f\x7f]")
    folder_field = "path"

    def __init__(self, sink: DeltaSink, pipeline: str) -> None:
        super().__init__(pipeline, sink.root)
        self.sink = sink
        self.uri = str(sink.root)
        options = dict(sink.root.bucket.delta) if isinstance(sink.root, RemotePath) else {}
        self.options = options | {k: v.get_secret_value() for k, v in sink.storage_options.items()}
        log_folder = sink.root / self.log_folder
        self._newest = SnapshotCache(log_folder)
        # a bucket would be asked for one name after the other: delta-rs lists them in one request
        self._own = LedgerCommits(log_folder, pipeline) if isinstance(log_folder, Path) else None
        self._described = DescribedTables(self.ledger.folder)
        self.published_folder = sink.root / ROWS_FOLDER / pipeline / _PUBLISHED_FOLDER
        own_commit = self._own_commit()
        fits = own_commit is not None and own_commit.partition_by == sink.partition_by
        if not fits and (table := self.open_table()):
            table.described.check(sink.partition_by)

    def newest_head(self) -> LedgerFile | None:
        own_commit = self._own_commit()
        return self.ledger.get(own_commit.pointer) if own_commit else super().newest_head()

    def table_identity(self) -> Mapping[str, str]:
        own_commit = self._own_commit()
        return {"table": own_commit.table} if own_commit else super().table_identity()

    def rolled_back(self, head: LedgerEntry | None) -> TableRolledBackError | None:
        if head is None or self._own_commit():
            return None
        table = self.open_table()
        return set_back(table, head) if table else None

    def _own_commit(self) -> LedgerCommit | None:
        """The newest commit if it needs no open table; None: open the table."""
        return self._own.newest() if self._own else None

    def described(self) -> DeltaMetadata | None:
        """Metadata of the newest version; ``None``: there is no table."""
        own_commit = self._own_commit()
        if (
            own_commit
            and own_commit.described
            and (kept := self._described.get(own_commit.described))
        ):
            return kept
        table = self.open_table()
        return table.described if table else None

    def table_metadata(self, described: DeltaMetadata, *, whole: bool = True) -> dict[str, str]:
        """Metadata of a commit for the next look; and, if ``described`` is the ``whole`` of the
        table behind this commit, for the next commit.
        """
        key = described.key if whole and self._own else None
        if key:
            self._described.keep(described)
        return table_metadata(described.identity, described.partition_by, key)

    def open_table(self) -> Snapshot | None:
        return self._newest.get(lambda: Snapshot.open(self.root, self.options, self.pipeline))

    def about_to_commit(self) -> None:
        """Drop cached state, so that the table is read anew from now on."""
        self._newest.forget()
        if self._own:
            self._own.forget()

    def damage(self) -> DamagedError | None:
        """Describe a fault of the files of the newest version; ``None``: there is none."""
        table = self.open_table()
        upserts = self.sink.upsert_rule is not None
        return damage(table.table, self.root, upserts=upserts) if table else None

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
        return table.described.identity

    def _pointer(self, table: Snapshot) -> Pointer | None:
        return table.pointer

    def add_actions(
        self, described: DeltaMetadata | None, rows: StagedTable | None, files: PublishedFiles
    ) -> list[AddAction]:
        """Return the actions that add ``rows`` to the table; some become ``files`` first."""
        if rows is None:
            return []
        layout = tuple(described.partition_by) if described else self.sink.partition_by
        required = described.required if described else frozenset()
        table_schema = described.following(rows.schema) if described else pa.schema([])
        return AddActions(self.root, layout, required, table_schema).of(rows, files)


class AppendPublication(LakePublication[Snapshot]):
    """One try to add files, or none, behind a commit of our own; see
    :mod:`eo_pipeline.sinks.delta.log`.
    """

    session: DeltaTableSession

    def __init__(
        self,
        session: DeltaTableSession,
        entry: LedgerEntry,
        staged: StagedOutput,
        newest: BlindAppend,
    ) -> None:
        super().__init__(session, entry, staged, None, session.ledger.get(newest.commit.pointer))
        self.newest = newest
        self._aside = session.ledger.aside(self.at)

    def _prepare(self) -> Commit:
        session, described = self.session, self.newest.described
        described.check(session.sink.partition_by)
        files = PublishedFiles(session.published_folder, self.at, self.written)
        added = session.add_actions(described, self.staged.rows, files)
        words = commit_metadata(self.entry, session.table_metadata(described))
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
        version, settings = self.newest.commit.version + 1, self.newest.described.configuration
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
            raise CommitConflictError(str(error)) from error
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
                return CommitConflictError(str(error))
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
        table, metadata = self.table, dict[str, str]()
        # what going back brings back may be what nobody has looked at
        if table is not None and self.entry.operation is not Operation.REWIND:
            metadata = self.session.table_metadata(table.described, whole=self._changes_no_column)
        return ledger_commit(self.entry, self.at, metadata)


def _no_rows() -> pa.Schema:
    """The columns of a table that is created before there are rows."""
    return pa.schema([(CHECKPOINT_COLUMN, pa.int64())])


def past_of(restore: Restore, entry: LedgerEntry) -> TimeTravelView:
    """The version of the table that is ``entry``'s own commit.

    Raises:
        RefusedError: the log of that time is cleaned up, or files of it are gone.
    """
    try:
        version = _version_of(restore, entry)
        restore.check_files(version)
        snapshot = restore.at(version)
    except NotRestorableError as error:
        raise RefusedError(str(error)) from error
    where = str(restore.table.root)
    return TimeTravelView(
        f"version {version} of the Delta table",
        lambda _: snapshot.values(0),
        lambda: _count(snapshot),
        {"Spark": f"SELECT * FROM delta.`{where}` VERSION AS OF {version}"},
    )


def _version_of(restore: Restore, entry: LedgerEntry) -> int:
    """The newest one, if there are several: a table may have been restored by other hands."""
    held = restore.ledger.at(restore.head, entry.version)
    for version in _commits_of(restore, entry.version):
        if held is not None and restore.at(version).pointer == held.at:
            return version
    raise NotRestorableError(
        f"the table's log has no commit of version {entry.version} (it is cleaned up after a "
        "while; the first version has none)"
    )


def _commits_of(restore: Restore, number: int) -> Iterator[int]:
    for commit in restore.table.table.history():
        mine = commit.get("eo_pipeline") == restore.table.pipeline
        if mine and int(commit["eo_version"]) == number and "version" in commit:
            yield int(commit["version"])


def _count(snapshot: Snapshot) -> int:
    """By the log, if it has the number of rows of every file."""
    counts = pa.table(snapshot.table.get_add_actions())["num_records"].to_pylist()
    if None in counts:
        return sum(batch.num_rows for batch in snapshot.lineage(0))
    return sum(counts)


class DeltaSession(DeltaTableSession):
    """See :class:`LakeSession` for the steps.

    What is Delta's own: the head's version and token are application transactions of the commit
    that adds the files, and survive vacuum, checkpoints and clean-up of the log.
    """

    def never_null(self) -> frozenset[str]:
        """The table's columns that take no null; none while it is absent."""
        described = self.described()
        return described.required if described else frozenset()

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
        except (SinkUnavailableError, DamagedError) as error:
            raise self.damage() or error from error.__cause__

    def past(self, entry: LedgerEntry) -> TimeTravelView:
        """By Delta's own versions, also of an upserted table."""
        table = self.open_table()
        head = self.head_of(table)
        if table is None or head is None:
            raise RefusedError("there is no table yet")
        return past_of(Restore(table, self.ledger, head, self.options), entry)

    def queries(self, selected: Selected) -> Mapping[str, str]:
        condition = selected.condition(CHECKPOINT_COLUMN)
        return {"Spark": f"SELECT * FROM delta.`{self.root}` WHERE {condition}"}

    def maintain(self, rules: Maintenance, *, dry_run: bool) -> Iterator[Upkeep]:
        """See :mod:`eo_pipeline.sinks.delta.maintenance`."""
        from eo_pipeline.sinks.delta.maintenance import DeltaUpkeep

        with self._translating(self._not_kept):
            table = self.open_table()
            if table is not None:
                table.described.check(self.sink.partition_by)
            if not dry_run:
                self.remove_lost()
            self.about_to_commit()
            opened = partial(Snapshot.open, self.root, self.options, self.pipeline)
            yield from DeltaUpkeep(self.root, self.pipeline, rules, opened).work(dry_run=dry_run)

    def _not_kept(self, error: Exception) -> EoPipelineError:
        lasts = isinstance(error, DeltaError) and not is_of_files(error)
        return self.damage() or stopped(self.root, error, lasts=lasts)

    def explain(self, error: Exception) -> EoPipelineError:
        if isinstance(error, DeltaError):
            return (is_of_files(error) and self.damage()) or explained(self.uri, error)
        if isinstance(error, OSError | pa.ArrowException):  # a file that is written anew is read
            return self.damage() or super().explain(error)
        return super().explain(error)

    def begin(self, entry: LedgerEntry, staged: StagedOutput) -> Publication:
        """On the newest commit where rows are added behind one of our own, on an opened table
        where not: the first one, behind anybody else's, and where more is changed than that.
        """
        newest = self._appendable(entry, staged)
        if newest is None:
            return super().begin(entry, staged)
        return AppendPublication(self, entry, staged, newest)

    def _appendable(self, entry: LedgerEntry, staged: StagedOutput) -> BlindAppend | None:
        rows = staged.rows
        if self._own is None or goes_back(entry) or (rows is not None and self.sink.upsert_rule):
            return None
        own_commit = self._own.newest()
        described = (
            self._described.get(own_commit.described)
            if own_commit and own_commit.described
            else None
        )
        if own_commit is None or described is None or not self._own.is_last(own_commit.version):
            return None
        fits = rows is None or described.takes(rows.schema)
        return BlindAppend(self.root / self.log_folder, own_commit, described) if fits else None

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
