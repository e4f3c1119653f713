"""A Delta table as it is at one moment: what it says of the ledger, what it can take, and what an
error of delta-rs means.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from deltalake import DeltaTable, Schema
from deltalake.exceptions import (
    DeltaError,
    DeltaProtocolError,
    TableNotFoundError,
)
from deltalake.table import ProtocolVersions

from eo_pipeline._lazy import pa, pads
from eo_pipeline.errors import (
    ConfigError,
    DamagedError,
    EoPipelineError,
    RefusedError,
    SinkUnavailableError,
    TableRolledBackError,
)
from eo_pipeline.ledger.entry import CHECKPOINT_COLUMN, LedgerEntry
from eo_pipeline.sinks.capabilities import lineage_of_batches, lineage_schema
from eo_pipeline.sinks.delta.log import (
    APP_PREFIX,
    LOG_FOLDER,
    TOKEN_SUFFIX,
    DeltaMetadata,
    commit_file,
    file_name,
    is_removable,
    stored_schema,
    transactions_in,
)
from eo_pipeline.sinks.delta.types import TYPES
from eo_pipeline.sinks.lake.ledger import Pointer
from eo_pipeline.storage.paths import Place, fingerprint

#: Of maintenance: the number of the newest one, and the moment (milliseconds since 1970) before
#: which what left the table may be removed. No pipeline's name has a colon.
TURN, FLOOR = "eo::turn", "eo::floor"

#: Words in an error of delta-rs that says a disk or a transport failed; it has no type for these.
#: "Generic S3 error" is one, and "Generic DeltaTable error" anything.
_OF_FILES = re.compile(
    r"\(os error \d+\)|LocalFileSystem|Generic (?!DeltaTable)\w+ error|Object at location"
    r"|error sending request|connection|timed? ?out",
    re.IGNORECASE,
)

#: Rows of a table looked at in one go.
_SCANNED = 50_000


class _WithoutVectors(DeltaTable):
    """A table of which it is known that no file has a deletion vector: read by whoever
    reads none.
    """

    def __init__(self, table: DeltaTable) -> None:
        vars(self).update(vars(table))

    def protocol(self) -> ProtocolVersions:
        versions = super().protocol()
        features = [name for name in versions.reader_features or () if name != "deletionVectors"]
        return versions._replace(reader_features=features)


@dataclass(frozen=True)
class Snapshot:
    """A handle on one version of the table; a commit on it is refused once it moved on."""

    table: DeltaTable
    pipeline: str
    root: Place

    @classmethod
    def open(cls, root: Place, options: dict[str, str], pipeline: str) -> Snapshot | None:
        """The newest version, ``None`` where there is no table.

        Raises:
            SinkUnavailableError: it cannot be read just now.
            ConfigError: a catalog commits to it.
            DamagedError: its log is not whole.
        """
        uri = str(root)
        try:
            return cls(DeltaTable(uri, storage_options=options), pipeline, root)
        except TableNotFoundError:
            return None
        except (DeltaError, OSError, ValueError) as error:
            if is_of_files(error):
                raise SinkUnavailableError(
                    f"{uri}: the Delta table cannot be read: {error}"
                ) from error
            if "catalog-managed" in str(error):
                raise ConfigError(
                    f"sink.path: {uri} is a catalog-managed table (the feature "
                    "catalogManaged, formerly catalogOwned-preview), which can be written "
                    "only through its catalog. Write to a table without that feature."
                ) from error
            raise DamagedError(
                f"{uri}: the log of the Delta table cannot be read: {error}. Bring its folder "
                "_delta_log back from a backup of the same moment as the rest, or, if its newest "
                "commit alone is the one that cannot be read, from before that commit."
            ) from error

    @cached_property
    def pointer(self) -> Pointer | None:
        """The head of this pipeline's ledger, ``None`` if no commit of it is in the table."""
        app, newest = APP_PREFIX + self.pipeline, self._newest
        version, token = (
            newest[name] if name in newest else self.table.transaction_version(name)
            for name in (app, app + TOKEN_SUFFIX)
        )
        return None if version is None or token is None else Pointer(version, token)

    @property
    def is_own(self) -> bool:
        """Return whether this version is a commit of the pipeline that moved its ledger."""
        return APP_PREFIX + self.pipeline in self._newest

    @cached_property
    def _newest(self) -> dict[str, int]:
        return transactions_in(commit_file(self.root / LOG_FOLDER, self.table.version()))

    def add_actions(self) -> list[dict[str, Any]]:
        """Return the log's action for each file of this version."""
        actions: list[dict[str, Any]] = pa.table(
            self.table.get_add_actions(flatten=True)
        ).to_pylist()
        return actions

    @cached_property
    def has_deleted_rows(self) -> bool:
        """Return whether a file of this version holds rows that a deletion vector takes out. The
        table's feature says only that it may: it stays when the vectors are gone.
        """
        may = "deletionVectors" in self.described.features
        return may and any(batch.num_rows for batch in self.table.deletion_vectors())

    def dataset(self) -> pads.Dataset:
        """The rows, a fragment each file.

        Raises:
            DeltaProtocolError: this is not how such a table is read.
        """
        may = "deletionVectors" in self.described.features and not self.has_deleted_rows
        return (_WithoutVectors(self.table) if may else self.table).to_pyarrow_dataset()

    @cached_property
    def described(self) -> DeltaMetadata:
        """Metadata of the table."""
        return DeltaMetadata.of(self.table)

    def lineage(self, since: int) -> Iterator[pa.RecordBatch]:
        """See ``SinkSession.lineage``.

        Raises:
            RefusedError: the table has deletion vectors.
            SinkUnavailableError: a file was vacuumed meanwhile.
            DamagedError: a file, or what the log says of it, makes no rows.
        """
        columns = self.described.columns
        schema = lineage_schema(columns)
        batches = self._read([n for n in schema.names if n in columns], since)
        return lineage_of_batches(batches, schema, since)

    def values(self, since: int) -> Iterator[pa.RecordBatch]:
        """See ``SinkSession.values``; raises as :meth:`lineage`."""
        return TYPES.shown(self._read([*self.described.columns], since))

    def _read(self, columns: list[str], since: int) -> Iterator[pa.RecordBatch]:
        try:
            yield from self._batches(columns, since)
        except DeltaProtocolError as error:
            raise RefusedError(f"the rows cannot be read back: {error}") from error
        except (DeltaError, pa.ArrowException, OSError) as error:
            message = f"{self.table.table_uri} cannot be read: {error}."
            if is_of_files(error):
                raise SinkUnavailableError(
                    f"{message} Was it vacuumed meanwhile? Ask again."
                ) from error
            raise DamagedError(
                f"{message} This is permanent. Restore damaged files from a backup; files that "
                "delta-rs cannot read must be rewritten by another engine."
            ) from error

    def _batches(self, columns: list[str], since: int) -> Iterator[pa.RecordBatch]:
        """Rows of every file that may hold some of checkpoint ``since`` or later, or of none.

        No filter is given to the scan: delta-rs tells pyarrow of a file without the column that the
        column is not null there (``>= null``), so that its rows would be left out.
        """
        rows = self.dataset()
        older = self._older_files(since)
        for file in rows.get_fragments():
            if file.path not in older:
                scanner = file.scanner(
                    schema=rows.schema, columns=columns or None, batch_size=_SCANNED
                )
                yield from scanner.to_batches()

    def _older_files(self, since: int) -> set[str]:
        """Files whose rows all belong to checkpoints before ``since``, by the log."""
        highest, nulls = f"max.{CHECKPOINT_COLUMN}", f"null_count.{CHECKPOINT_COLUMN}"
        return {
            file_name(action["path"])
            for action in self.add_actions()
            if action.get(nulls) == 0 and (action.get(highest) or since) < since
        }

    def refuse_removal(self) -> None:
        """Refuse to take rows out of a table where that is forbidden, or would go wrong.

        Raises:
            RefusedError: says why. Nothing was changed.
        """
        reason = self.reason_not_to_remove()
        if reason:
            raise RefusedError(f"no row can be taken out of the table: {reason}")

    def reason_not_to_remove(self) -> str | None:
        """Reason why no file can be removed from the table; None if it can."""
        if self.described.configuration.get("delta.appendOnly") == "true":
            return "it has delta.appendOnly=true. Nothing was changed"
        if self.has_deleted_rows:
            return (
                "files of it have deletion vectors, which delta-rs does not write. Nothing was "
                "changed; Spark's REORG TABLE ... APPLY (PURGE) rewrites them without"
            )
        paths = pa.table(self.table.get_add_actions())["path"].to_pylist()
        # delta-rs writes a path's letters beyond ASCII encoded and Spark writes them as they are.
        # The log compares the two as text: the file would stay, with every row that was rewritten
        odd = next((path for path in paths if not is_removable(path)), None)
        return odd and (
            f"the file {odd!r} was written by another engine, below a folder whose name has "
            "letters that delta-rs cannot remove again (not ASCII): its rows would be there "
            "twice. Nothing was changed; rewrite that partition with values in ASCII"
        )


def is_of_files(error: Exception) -> bool:
    """Return whether delta-rs reports that a disk or a file failed, and not the rows."""
    return isinstance(error, OSError) or _OF_FILES.search(str(error)) is not None


def explained(uri: str, error: Exception) -> EoPipelineError:
    """Translate an error that delta-rs raised, if nothing of its commit was written."""
    if is_of_files(error):
        return SinkUnavailableError(f"{uri} cannot be used: {error}. Nothing was published.")
    return RefusedError(
        f"{uri}: delta-rs does not write this: {error}. Nothing was written; change the rows in "
        "the transform."
    )


def delta_schema(schema: pa.Schema) -> Schema:
    """Return the schema for delta-rs."""
    return Schema.from_arrow(stored_schema(schema))


class _Opened(NamedTuple):
    """A snapshot, its version, and what tells the file of that version from any other."""

    table: Snapshot
    version: int
    file: tuple[object, ...]


class SnapshotCache:
    """Opening a table costs as much as it has files, and a run asks for it many times. Whether the
    one that is open is still the newest is told by two names in ``log``: the file of its version is
    the one that was there, and there is none of the next version.

    This spares time and is no promise: what makes a commit safe is that it can only follow the
    version of its handle.
    """

    def __init__(self, log: Place) -> None:
        self._log = log
        self._opened: _Opened | None = None

    def known(self) -> Snapshot | None:
        """The newest version, if that is the one which is open."""
        opened = self._opened
        return opened.table if opened is not None and self._is_newest(opened) else None

    def get(self, opened_anew: Callable[[], Snapshot | None]) -> Snapshot | None:
        """The newest version, ``None`` where there is no table."""
        if newest := self.known():
            return newest
        self.forget()
        table = opened_anew()
        if table is not None:
            version = table.table.version()
            file = fingerprint(self._file(version))
            self._opened = _Opened(table, version, file) if file else None
        return table

    def forget(self) -> None:
        """Open the table anew, whatever is found: before a commit, after which a file system that
        others share may show for a while what was there before.
        """
        self._opened = None

    def _is_newest(self, opened: _Opened) -> bool:
        """Not if a commit on this handle has moved it on."""
        return (
            opened.table.table.version() == opened.version
            and fingerprint(self._file(opened.version)) == opened.file
            and not self._file(opened.version + 1).is_file()
        )

    def _file(self, version: int) -> Place:
        return commit_file(self._log, version)


# A table that somebody set back by RESTORE to before the pipeline's newest commit. The ledger's
# head stays where it is: RESTORE brings back files and no application transactions. So the rows of
# some versions are gone, or those are there again that a rewind had taken back.

#: Commits that are read at once: nearly always the pipeline's own is the first, or among the first.
_READ = (20, 400, None)

Commits = Mapping[int, dict[str, Any]]


def set_back(table: Snapshot, head: LedgerEntry) -> TableRolledBackError | None:
    """Look through the commits behind the pipeline's newest, if there are any.

    Returns:
        None if its newest commit is in the table as it is, or the log no longer tells.
    """
    if table.is_own:
        return None
    newest = table.table.version()
    for most in _READ:
        commits = commits_of(table, most)
        ours = next((v for v in sorted(commits, reverse=True) if _is_of(table, commits[v])), None)
        stands = _stands(table, commits, newest)
        if ours is None or (stands is None and most is not None):
            continue
        if stands is not None and stands >= ours:
            return None
        version = int(commits[stands]["eo_version"]) if stands is not None else 0
        forward = f"Set it to its version {ours} again (RESTORE)"
        return TableRolledBackError(table.pipeline, head.version, version, forward)
    return None


def commits_of(table: Snapshot, most: int | None) -> Commits:
    """The newest commits in the log, at ``most`` so many, by their versions.

    Raises:
        SinkUnavailableError, DamagedError: the log cannot be read.
    """
    expected, commits = table.table.version(), dict[int, dict[str, Any]]()
    try:
        for commit in table.table.history(most):
            commits[int(commit.get("version", expected))] = commit
            expected = min(commits) - 1
    except (DeltaError, OSError) as error:
        raise explained(table.table.table_uri, error) from error
    return commits


def _stands(table: Snapshot, commits: Commits, at: int) -> int | None:
    """The version of the table with the newest commit of the pipeline that the version ``at`` is
    made of; None if none is, or these commits do not tell.
    """
    version: int | None = at
    while version is not None and (commit := commits.get(version)) is not None:
        if _is_of(table, commit):
            return version
        is_restore = commit.get("operation") == "RESTORE"
        version = restored_to(commit, commits) if is_restore else version - 1
    return None


def restored_to(commit: Mapping[str, Any], commits: Commits) -> int | None:
    """The version that a RESTORE went back to, None if that is not known: delta-rs says a number
    or milliseconds, Spark a number or a time of its session's zone.
    """
    how = commit.get("operationParameters", {})
    if (version := how.get("version")) is not None:
        return int(version)
    if (moment := how.get("datetime")) is None:
        return None
    before = (v for v, commit in commits.items() if int(commit["timestamp"]) <= int(moment))
    return max(before, default=None)


def _is_of(table: Snapshot, commit: Mapping[str, Any]) -> bool:
    return bool(commit.get("eo_pipeline") == table.pipeline)
