"""Commits that carry the ledger's head, merges by key, and the meaning of delta-rs's errors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from urllib.parse import unquote

from deltalake import (
    CommitProperties,
    DeltaTable,
    PostCommitHookProperties,
    QueryBuilder,
    Transaction,
)
from deltalake.exceptions import CommitFailedError, DeltaError
from deltalake.transaction import AddAction, RemoveAction

from eo_pipeline._lazy import pa, pc
from eo_pipeline.errors import DamagedError, RefusedError
from eo_pipeline.ledger.entry import CHECKPOINT_COLUMN, LedgerEntry, Operation
from eo_pipeline.sinks.delta.compaction import Writing, data_file, is_among, removal_of
from eo_pipeline.sinks.delta.log import APP_PREFIX, TOKEN_SUFFIX
from eo_pipeline.sinks.delta.table import (
    FLOOR,
    Snapshot,
    commits_of,
    explained,
    is_of_files,
    restored_to,
)
from eo_pipeline.sinks.lake.ledger import FIRST, LedgerFile, LedgerFiles, Pointer
from eo_pipeline.sinks.lake.maintenance import DataFile
from eo_pipeline.sinks.lake.session import NO_CHECKPOINT, PublishedFiles
from eo_pipeline.sinks.session import CommitConflictError, target_of
from eo_pipeline.sinks.upsert import ORIGIN, UpsertRule
from eo_pipeline.storage.paths import sizes_of

#: No hooks: a checkpoint of the log that fails raises although the commit landed.
_NO_HOOKS = PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)

#: What tells a commit that changes no row in the table's history: of maintenance, of new columns.
MAINTENANCE = "eo_maintenance"

#: Arguments of a delta-rs call that commits.
Arguments = dict[str, Any]


def maintenance_commit(transactions: Mapping[str, int]) -> Arguments:
    """For a commit that changes no row, and leaves the ledger's head where it is. It must not be
    retried.
    """
    return {
        "commit_properties": CommitProperties(
            custom_metadata={MAINTENANCE: "true"},
            max_commit_retries=0,
            app_transactions=[Transaction(name, value) for name, value in transactions.items()],
        ),
        "post_commithook_properties": _NO_HOOKS,
    }


def commit_metadata(entry: LedgerEntry, metadata: Mapping[str, str]) -> dict[str, str]:
    """Metadata of the commit of ``entry``, besides the table's ``metadata``: for people who read
    the table's history; lost when the log is cleaned.
    """
    return {
        **metadata,
        "eo_pipeline": entry.pipeline,
        "eo_version": str(entry.version),
        "eo_operation": entry.operation.value,
        "eo_run_id": entry.run_id,
    }


def transactions_of(pipeline: str, at: Pointer) -> dict[str, int]:
    """The application transactions of the commit that makes the entry kept ``at`` the head."""
    app = APP_PREFIX + pipeline
    return {app: at.version, app + TOKEN_SUFFIX: at.token}


def ledger_commit(entry: LedgerEntry, at: Pointer, metadata: Mapping[str, str]) -> Arguments:
    """For the commit that makes ``entry``, kept ``at``, the head; ``metadata`` is of its table.

    With retries off the commit is refused when anybody committed since the handle was opened; with
    retries on delta-rs would let it follow a foreign commit, and never looks at the version given.
    """
    transactions = transactions_of(entry.pipeline, at)
    return {
        "commit_properties": CommitProperties(
            custom_metadata=commit_metadata(entry, metadata),
            max_commit_retries=0,
            app_transactions=[Transaction(name, value) for name, value in transactions.items()],
        ),
        "post_commithook_properties": _NO_HOOKS,
    }


def commit_files(
    table: DeltaTable, actions: Sequence[AddAction | RemoveAction], arguments: Arguments
) -> None:
    """One commit on this handle: files that come and go, perhaps none, and the ledger's head."""
    table.create_write_transaction(
        list(actions),
        mode="append",
        schema=table.schema(),
        partition_by=list(table.metadata().partition_columns),
        **arguments,
    )


@contextmanager
def commit_errors(uri: str, damage: Callable[[], DamagedError | None]) -> Iterator[None]:
    """Turns what delta-rs raises for a commit into what it means for the rows.

    ``CommitFailedError`` says that nothing landed because the log moved on. A failing disk says
    nothing, and passes, unless a file that had to be read is damaged. Anything else was raised
    before the log was written: a value, a name, a column that may not be null.
    """
    try:
        yield
    except CommitFailedError as error:
        raise CommitConflictError(str(error)) from error
    except (DeltaError, pa.ArrowException, ValueError, TypeError, OSError) as error:
        if not is_of_files(error):
            raise explained(uri, error) from error
        if fault := damage():
            raise fault from error
        raise


def merge(table: DeltaTable, source: pa.Table, rule: UpsertRule, arguments: Arguments) -> None:
    """One commit on this handle: ``source``, one row a key, replaces and adds rows. The table has
    all of its columns.
    """
    before = table.version()
    merger = table.merge(
        source,
        _same_key(rule, "old", "new"),
        source_alias="new",
        target_alias="old",
        streamed_exec=False,
        **arguments,
    )
    merger = merger.when_matched_update_all(_may_replace(rule, "old", "new"))
    merger.when_not_matched_insert_all().execute()
    if table.version() == before:
        # a merge that changes nothing makes no commit, and says nothing
        commit_files(table, [], arguments)


def newest_rows(table: pa.Table, rule: UpsertRule) -> pa.Table:
    """One row for each key: the newest.

    Raises:
        ConfigError: a column is absent.
        RefusedError: a row has no key, or nothing to be sequenced by; or nothing tells which of two
            rows is the newer; a name cannot be used.
    """
    rule.check_columns(table.schema.names)
    _refuse_names(table.schema.names)
    rule.check_nulls(table[name].null_count for name in rule.never_null)
    by_key = [(name, "ascending") for name in rule.key]
    newest_first = [(name, "descending") for name in rule.age_columns(table.schema.names)]
    ordered = table.sort_by([*by_key, *newest_first]).combine_chunks()
    is_first = _first_of_each_key(ordered, rule.key)
    if not rule.sequence_by:
        _refuse_mixed_keys(ordered, is_first, rule)
    return ordered.filter(is_first)


def refuse_moved_keys(table: DeltaTable, source: pa.Table, rule: UpsertRule) -> None:
    """Refuse a row of ``source`` whose predecessor in ``table`` came from another Kafka partition,
    where offsets alone would have to tell which is the newer. A batch of the table at a time.

    Raises:
        RefusedError: names the key and both places.
    """
    columns = [*rule.key, *ORIGIN]
    if rule.sequence_by or not {field.name for field in table.schema().fields} >= set(columns):
        return  # rows that do not say where they came from give way
    fresh = source.select(columns).rename_columns([*rule.key, *map("new {}".format, ORIGIN)])
    names = ", ".join(map(_quoted, columns))
    held = QueryBuilder().register("held", table).execute(f"SELECT {names} FROM held")
    for batch in pa.RecordBatchReader.from_stream(held):
        old = pa.table(batch).cast(pa.schema([source.schema.field(name) for name in columns]))
        both = old.join(fresh, keys=list(rule.key), join_type="inner")
        for row in both.to_pylist():
            before = tuple(row[name] for name in ORIGIN)
            after = tuple(row[f"new {name}"] for name in ORIGIN)
            if before != after and None not in before:
                raise rule.refuse_order([row[name] for name in rule.key], before, after)


def _refuse_mixed_keys(ordered: pa.Table, is_first: pa.Array, rule: UpsertRule) -> None:
    """Raise RefusedError if two rows of one key, which stand together, came from two places."""
    moved = None
    for name in ORIGIN:
        column = pc.not_equal(ordered[name].slice(1), ordered[name].slice(0, ordered.num_rows - 1))
        moved = column if moved is None else pc.or_(moved, column)
    if ordered.num_rows < 2 or moved is None:
        return
    position = pc.index(pc.and_not(moved, is_first.slice(1)), True).as_py()
    if position >= 0:
        one, other = ordered.slice(position, 2).to_pylist()
        key = [one[name] for name in rule.key]
        raise rule.refuse_order(key, [one[n] for n in ORIGIN], [other[n] for n in ORIGIN])


def _refuse_names(names: list[str]) -> None:
    """delta-rs's merge quotes names with backticks and does not see one in a name."""
    bad = [name for name in names if "`" in name]
    if bad:
        raise RefusedError(
            f"column {bad[0]!r}: a Delta table is not upserted by a name with a backtick. Nothing "
            "was written; rename it in the transform."
        )


def _first_of_each_key(ordered: pa.Table, key: tuple[str, ...]) -> pa.Array:
    if ordered.num_rows < 2:
        return pa.array([True] * ordered.num_rows, pa.bool_())
    above, below = ordered.slice(0, ordered.num_rows - 1), ordered.slice(1)
    differs = None
    for name in key:
        column = pc.not_equal(above[name], below[name])
        differs = column if differs is None else pc.or_(differs, column)
    assert differs is not None, "an upsert has a key"
    return pa.concat_arrays([pa.array([True]), *differs.chunks])


def _same_key(rule: UpsertRule, old: str, new: str) -> str:
    """SQL: two rows have one key."""
    return " AND ".join(f"{old}.{_quoted(n)} = {new}.{_quoted(n)}" for n in rule.key)


def _may_replace(rule: UpsertRule, old: str, new: str) -> str | None:
    """SQL: the new row may replace the old one. ``None``: it always may."""
    if not rule.sequence_by:
        return None
    pairs = [(f"{old}.{_quoted(n)}", f"{new}.{_quoted(n)}") for n in rule.sequence_by]
    within = "true"
    for mine, other in reversed(pairs):
        within = f"({mine} < {other} OR ({mine} = {other} AND {within}))"
    # a row that came from elsewhere may have nothing to be sequenced by: it gives way
    return " OR ".join([within, *(f"{mine} IS NULL" for mine, _ in pairs)])


def _quoted(name: str) -> str:
    escaped = name.replace('"', '""')
    return f'"{escaped}"'


_LOW, _HIGH = f"min.{CHECKPOINT_COLUMN}", f"max.{CHECKPOINT_COLUMN}"
_NULLS = f"null_count.{CHECKPOINT_COLUMN}"


def without(
    table: Snapshot, first: int, last: int | None, files: PublishedFiles
) -> list[AddAction | RemoveAction]:
    """Return the arguments that take the rows of checkpoints ``first`` to ``last`` (``None``: to
    the end) out of the table; some of its files are rewritten as ``files``. Rows of no
    checkpoint stay.
    """
    return [*_without(table, first, NO_CHECKPOINT if last is None else last, files)]


def _without(
    table: Snapshot, first: int, last: int, files: PublishedFiles
) -> Iterator[AddAction | RemoveAction]:
    writing: Writing | None = None
    for action in table.add_actions():
        holds = _holds(action, first, last)
        file = data_file(action, table.described.partition_by)
        if holds is None:
            writing = writing or Writing(table)
            holds = _looked_into(writing, file, first, last)
            if holds is None:
                place = files.new(file.folder if file.movable else "")
                yield writing.without(place, file, first, last)
        if holds is not False:
            yield removal_of(file, data_change=True)


def _holds(action: dict[str, Any], first: int, last: int) -> bool | None:
    """Return whether all rows of a file are of these checkpoints (True) or none (False), by the
    log. ``None``: some may be.
    """
    low, high, nulls = action.get(_LOW), action.get(_HIGH), action.get(_NULLS)
    if low is None or high is None:
        # without bounds, unless all rows are somebody else's: one must look into the file
        return None if nulls is None or nulls < (action["num_records"] or 0) else False
    if high < first or low > last:
        return False
    return True if low >= first and high <= last and nulls == 0 else None


def _looked_into(writing: Writing, file: DataFile, first: int, last: int) -> bool | None:
    """Return whether all rows of a file are of these checkpoints, by reading them."""
    among = is_among(writing.checkpoints(file), first, last)
    total = pc.sum(among).as_py() or 0
    return None if 0 < total < len(among) else total > 0


#: Commits of others that change no row.
_HARMLESS = frozenset({"OPTIMIZE", "VACUUM START", "VACUUM END"})


def _is_harmless(commit: dict[str, Any]) -> bool:
    return commit.get("operation") in _HARMLESS or MAINTENANCE in commit


class NotRestorableError(Exception):
    """The earlier state cannot be had back; its text says why. Raised only within the sink."""


@dataclass(frozen=True)
class Restore:
    """Finds the version of a Delta table that a ledger entry's target left."""

    table: Snapshot
    ledger: LedgerFiles
    head: LedgerFile
    options: dict[str, str]

    def version(self, entry: LedgerEntry) -> int | None:
        """The table's version, ``None`` if there was no table yet.

        Raises:
            NotRestorableError: rows would be lost that are not the pipeline's, or are lost already.
        """
        if entry.operation is Operation.REPLAY:
            raise NotRestorableError(
                "an upsert overwrote rows of other checkpoints too; rewind to "
                f"{target_of(entry) - 1} and run, which reads that checkpoint and all after it "
                "again"
            )
        target = target_of(entry)
        self._refuse_replayed(target)
        version = self._version_left_by(target)
        if version is not None:
            self._refuse_below_floor(version)
            self.check_files(version)
        return version

    def _refuse_below_floor(self, version: int) -> None:
        """Refuse versions below the floor: a maintenance that does not see a restore may be
        removing their files.
        """
        table = self.table.table
        floor = table.transaction_version(FLOOR)
        if floor is None or version == table.version():
            return
        left = min(
            int(commit["timestamp"])
            for commit in table.history()
            if int(commit.get("version", version)) > version
        )
        if left < floor:
            raise NotRestorableError(
                f"maintenance may have deleted files removed before {_moment(floor)}, such as "
                f"those of version {version} at {_moment(left)}. How long files are kept is set by "
                "`maintenance: {keep: ...}`"
            )

    def _refuse_replayed(self, target: int) -> None:
        """A replay since then, from when the table was appended to, is not in the old state."""
        for file in self.ledger.chain(self.head, target + 1):
            entry = file.entry
            if entry.operation is Operation.REPLAY and target_of(entry) <= target:
                raise NotRestorableError(
                    f"checkpoint {entry.target} was replayed by version {entry.version}, which "
                    "the older state does not hold"
                )

    def _version_left_by(self, target: int) -> int | None:
        commits = commits_of(self.table, None)
        expected = self.table.table.version()
        while (commit := commits.get(expected)) is not None:
            mine = commit.get("eo_pipeline") == self.table.pipeline
            if mine and int(commit["eo_version"]) <= target:
                return self._checked(expected, target)
            is_restore = not mine and commit.get("operation") == "RESTORE"
            if is_restore and (before := restored_to(commit, commits)) is not None:
                expected = before
                continue
            if not mine and not _is_harmless(commit):
                return self._foreign(expected, commit, target)
            expected -= 1
        if expected == -1:
            return None  # the table began with the pipeline, after the target
        raise NotRestorableError(
            f"the table's log of that time (version {expected} and before) is cleaned up"
        )

    def _foreign(self, version: int, commit: dict[str, Any], target: int) -> int:
        """A commit that is not the pipeline's: where it began if that is what is looked for."""
        at = self.ledger.at(self.head, target)
        if at is not None and at.at == FIRST and self._pointer(version) is None:
            return version
        raise NotRestorableError(
            f"version {version} of the table, a commit of somebody else "
            f"({commit.get('operation')}), came after it and would be lost"
        )

    def _checked(self, version: int, target: int) -> int:
        file = self.ledger.at(self.head, target)
        if file is None or self._pointer(version) != file.at:
            raise NotRestorableError(f"version {version} of the table is not what checkpoint left")
        return version

    def _pointer(self, version: int) -> Pointer | None:
        return self.at(version).pointer

    def at(self, version: int) -> Snapshot:
        """That version of the table."""
        uri = self.table.table.table_uri
        try:
            old = DeltaTable(uri, version=version, storage_options=self.options)
        except (DeltaError, OSError) as error:
            raise NotRestorableError(
                f"version {version} of the table cannot be read any more: {error}"
            ) from error
        return Snapshot(old, self.table.pipeline, self.table.root)

    def check_files(self, version: int) -> None:
        """Return if every file of ``version`` is there, and whole: at that delta-rs does not look.

        Raises:
            NotRestorableError: one is not.
        """
        root = self.ledger.folder.parent.parent
        actions = pa.table(self.at(version).table.get_add_actions())
        named = actions["path"].to_pylist()
        sizes = sizes_of(root, [variant for name in named for variant in (name, unquote(name))])
        for name, size in zip(named, actions["size_bytes"].to_pylist(), strict=True):
            if size not in (sizes.get(name), sizes.get(unquote(name))):
                raise NotRestorableError(
                    f"the file {name}, which held rows then, is not there or not whole (vacuumed?)"
                )


def _moment(milliseconds: int) -> str:
    return f"{datetime.fromtimestamp(milliseconds / 1000, UTC):%Y-%m-%d %H:%M}Z"


def restore(table: DeltaTable, version: int | None, arguments: Arguments) -> None:
    """One commit: the files of ``version`` are the table again, and the ledger's head moves.

    Conditional on this handle: refused if anybody committed since.
    """
    before = table.version()
    if version is None:
        table.delete(**arguments)
    elif version < before:
        try:
            table.restore(version, **arguments)
        except DeltaError as error:
            if "missing file" not in str(error):
                raise
            # it was there when it was looked for; looked for again, the reason is told
            raise CommitConflictError(str(error)) from error
        return
    if version == before or table.version() == before:
        commit_files(table, [], arguments)
