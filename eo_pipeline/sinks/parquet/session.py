"""One pipeline's session with a folder of Parquet files: its ledger and its rows."""

from __future__ import annotations

import errno
import os
import shutil
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path

from eo_pipeline._lazy import pa, pq
from eo_pipeline.errors import (
    CommitUnknownError,
    ConfigError,
    EoPipelineError,
    FencedError,
    LedgerDamagedError,
    RefusedError,
    SinkUnavailableError,
)
from eo_pipeline.ledger.entry import LedgerEntry, new_transaction_id
from eo_pipeline.sinks.capabilities import Selected
from eo_pipeline.sinks.files import refuse_file, remove_folder
from eo_pipeline.sinks.parquet.config import TOO_SMALL, TYPES, ParquetSink, refuse_partition_name
from eo_pipeline.sinks.parquet.exchange import SwapFolder, locked, refuse_where_impossible
from eo_pipeline.sinks.parquet.ledger import (
    DEAD_LETTERS_FOLDER,
    ENTRY_FILE,
    HINT_FILE,
    CheckpointFolders,
    EntryFile,
    queries,
    read_lineage,
    read_values,
    write_rows,
)
from eo_pipeline.sinks.session import CommitOutcome, Publication, SinkSession, goes_back
from eo_pipeline.staging.rows import StagedOutput, batches_of
from eo_pipeline.storage.paths import fsync

#: Folders in the making, one a try, each for the one that makes it.
PUBLISHING_FOLDER = "_eo_publishing"
_VERSION_DIGITS = 12

#: What ``rename`` answers when the target is there (POSIX allows either), or the folder is no more:
#: renamed already (a network file system asks twice), or removed because its version is taken.
_TAKEN = frozenset({errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR, errno.ENOENT})

#: How the names of everything begin that this sink puts into the table's folder.
_OURS = ("checkpoint=", "_eo_", "._eo_")


class ParquetSession(SinkSession):
    """The steps are those of :meth:`SinkSession.publish`. What is a folder's own: the commit is a
    rename to ``checkpoint=<version>``, a name that can be taken once; or, where rows are taken
    back, an exchange of the whole table for another, which compares nothing. So the commit holds a
    lock on the table's folder and looks again: exclusive for an exchange, shared for a rename.

    Between this look and the rename the head can only move by somebody taking that same name. What
    was not renamed is removed by :meth:`recover` once its version is taken.
    """

    keeps_itself = TOO_SMALL
    keeps_ledger = "an entry is a file in its checkpoint's folder, and is there as long as its rows"

    def __init__(self, sink: ParquetSink, pipeline: str) -> None:
        super().__init__(pipeline)
        self.root = sink.root
        self.folders = CheckpointFolders(sink.root)
        refuse_file(self.root, "path")
        head = self.folders.newest()
        if head is not None and head.entry.pipeline != pipeline:
            raise ConfigError(
                f"sink.path: {self.root} belongs to the pipeline {head.entry.pipeline!r}. One "
                "folder holds one pipeline; give this one another."
            )

    def recover(self) -> LedgerEntry | None:
        """Removes the folders of dead publications whose version is taken; see the class."""
        head = self.folders.newest()
        if head is None:
            return None
        self._finish_exchanges()
        self.folders.remember(head.entry.version)
        for path in self._unfinished():
            version = path.name.partition("-")[0]
            if version.isdigit() and int(version) <= head.entry.version:
                shutil.rmtree(path, ignore_errors=True)
        return head.entry

    def _finish_exchanges(self) -> None:
        """Finish what a run began that died in an exchange, or just before or after it."""
        try:
            for left in SwapFolder.left(self.root):
                with locked(self.root, exclusive=True):
                    held = self.folders.file(left.id.version)
                    if held is not None:
                        left.finish_or_drop(held.entry.id)
        except OSError as error:
            raise self.explain(error) from error

    def _unfinished(self) -> list[Path]:
        folder = self.root / PUBLISHING_FOLDER
        return list(folder.iterdir()) if folder.is_dir() else []

    def head(self) -> LedgerEntry | None:
        head = self.folders.newest()
        return head.entry if head else None

    def entry(self, version: int) -> LedgerEntry | None:
        path = self.folders.file(version)
        return path.entry if path else None

    def history(self, since: int = 0) -> Iterator[LedgerEntry]:
        return (file.entry for file in self._files(since))

    def _files(self, since: int) -> Iterator[EntryFile]:
        head = self.folders.newest()
        for version in range(max(since, 0), head.entry.version + 1 if head else 0):
            file = self.folders.file(version)
            if file is None:
                path = self.folders.path(version)
                fault = f"is missing: {path}, and later versions are there. To drop old rows remove"
                raise LedgerDamagedError(
                    self.pipeline, version, f"{fault} the Parquet files and leave the folder"
                )
            yield file

    def read_dead_letters(self, since: int = 0) -> pa.Table:
        """Every record that could not be read, of the checkpoints from version ``since``."""
        tables = [pq.ParquetFile(file).read() for file in self._dead_letter_files(since)]
        return pa.concat_tables(tables) if tables else pa.table({})

    def dead_letter_values(self, since: int = 0) -> Iterator[pa.RecordBatch]:
        """Dead letters that are left, file by file."""
        for file in self._dead_letter_files(since):
            yield from TYPES.shown(batches_of(pq.ParquetFile(file)))

    def _dead_letter_files(self, since: int) -> Iterator[Path]:
        for file in self._files(since):
            if file.dead_letters:
                folder = self.folders.path(file.entry.version) / DEAD_LETTERS_FOLDER
                yield from sorted(folder.glob("*.parquet"))

    def reset(self, *, dry_run: bool) -> tuple[str, ...]:
        """The whole folder, unless there is something in it that is none of ours. The newest
        version goes first: whatever is left when this is interrupted is a whole ledger.
        """
        head = self.folders.newest()
        if head is None:
            return ()
        if foreign := [p.name for p in self.root.iterdir() if not p.name.startswith(_OURS)]:
            raise RefusedError(
                f"{self.root} also holds {', '.join(sorted(foreign)[:3])}, which no checkpoint "
                "wrote. Nothing was dropped; move it away, or delete the rest by hand."
            )
        try:
            if not dry_run:
                with locked(self.root, exclusive=True):
                    (self.root / HINT_FILE).unlink(missing_ok=True)
                    for version in range(head.entry.version, -1, -1):
                        shutil.rmtree(self.folders.path(version), ignore_errors=True)
                remove_folder(self.root, first=PUBLISHING_FOLDER, last=HINT_FILE)
        except OSError as error:
            raise self.explain(error) from error
        return (f"the folder {self.root}: {head.entry.counts.rows_total:,} rows, and the ledger",)

    def lineage(self, since: int = 0) -> Iterator[pa.RecordBatch]:
        """Of the folder as it is now, file by file."""
        head = self.folders.newest()
        return read_lineage(self.root, head, since) if head else iter(())

    def values(self, since: int = 0) -> Iterator[pa.RecordBatch]:
        """Of the folder as it is now, file by file."""
        head = self.folders.newest()
        return read_values(self.root, head, since) if head else iter(())

    def queries(self, selected: Selected) -> Mapping[str, str]:
        return queries(self.root, selected)

    def check_going_back(self, entry: LedgerEntry) -> None:
        refuse_where_impossible(self.root, entry, self.new_folder(entry))

    def has_later_rows(self, *, thorough: bool) -> bool:  # noqa: ARG002
        return self.folders.has_rows_above()

    def begin(self, entry: LedgerEntry, staged: StagedOutput) -> Publication:
        make = ExchangePublication if goes_back(entry) else RenamePublication
        return make(self, entry, staged, self.folders.newest())

    def has_landed(self, entry: LedgerEntry) -> bool:
        return self.has_landed_below(self.folders.newest(), entry)

    def has_landed_below(self, head: EntryFile | None, entry: LedgerEntry) -> bool:
        """:meth:`has_landed`, where the head was ``head``; whoever came later is found under the
        entry's version. A version that is missing below the head is never filled.
        """
        if super().has_landed(entry):
            return True
        if not entry.is_child_of(head.entry if head else None):
            raise FencedError(self.pipeline, entry.version, winner=None)
        return False

    def already_committed(self, entry: LedgerEntry, staged: StagedOutput) -> CommitOutcome:
        """Whoever renamed it may have died before the name was durable."""
        self.flush(entry)
        return super().already_committed(entry, staged)

    def explain(self, error: Exception) -> EoPipelineError:
        if isinstance(error, OSError):
            message = f"{self.root} cannot be written: {error}. Nothing was published."
            return SinkUnavailableError(message)
        return super().explain(error)

    def flush(self, entry: LedgerEntry) -> None:
        """Make the name durable under which ``entry`` is visible.

        Raises:
            CommitUnknownError: it may not be.
        """
        try:
            fsync(self.root.resolve().parent if goes_back(entry) else self.root)
        except OSError as error:
            raise CommitUnknownError(
                f"{self.root}: whether the new folder's name would outlive a power cut is not "
                f"known: {error.strerror}"
            ) from error

    def new_folder(self, entry: LedgerEntry) -> Path:
        """A name for one try, where no reader looks; not made yet."""
        name = f"{entry.version:0{_VERSION_DIGITS}d}-{new_transaction_id()}"
        return self.root / PUBLISHING_FOLDER / name

    def close(self) -> None: ...


class _FolderPublication(Publication):
    """Publication by a rename or an exchange: a folder is filled where no reader looks (4),
    its ledger entry is its last file (5), and it gets a reader's name under a lock (6).
    """

    session: ParquetSession
    #: whether the commit needs the table's folder for itself
    exclusive: bool
    _file: EntryFile

    def __init__(
        self,
        session: ParquetSession,
        entry: LedgerEntry,
        staged: StagedOutput,
        head: EntryFile | None,
    ) -> None:
        super().__init__(session, entry, staged)
        self._head = head
        #: False from the moment in which a reader may see what was made
        self._invisible = True

    def has_landed(self) -> bool:
        return self.session.has_landed_below(self._head, self.entry)

    def write(self) -> None:
        letters = self.staged.dead_letters
        has_letters = letters is not None and letters.rows > 0
        self._file = EntryFile(self.entry, self._columns(), dead_letters=has_letters)
        self._fill(self._file)

    def enter(self) -> None:
        stamped = replace(self.entry, committed_at=datetime.now(UTC))
        self._finish(replace(self._file, entry=stamped))

    def commit(self) -> None:
        try:
            with locked(self.session.root, exclusive=self.exclusive):
                if self.session.has_landed(self.entry):
                    # published by somebody else meanwhile: publish step 7 finds it in the ledger
                    raise SinkUnavailableError(f"version {self.entry.version} is there already")
                self._appear()
        except OSError as error:
            # no lock, or no exchange: nothing changed. A rename says itself what its errors mean
            raise self.session.explain(error) from error
        self.session.flush(self.entry)

    def close(self, error: BaseException | None) -> None:
        """Removes what nobody sees. Interrupted, it leaves that to ``recover``, as a killed one
        does.
        """
        if self._invisible and (error is None or isinstance(error, Exception)):
            self._remove()

    def _columns(self) -> pa.Schema:
        """The table's columns once the entry is there."""
        columns = self._head.columns if self._head else pa.schema([])
        if self.staged.rows is None:
            return columns
        result = TYPES.schema(self.staged.rows.schema)
        refuse_partition_name(result.names)
        return TYPES.following(columns, result)

    @abstractmethod
    def _fill(self, file: EntryFile) -> None:
        """Everything but the new entry."""

    @abstractmethod
    def _finish(self, file: EntryFile) -> None:
        """The new entry, flushed with all that :meth:`_fill` made."""

    @abstractmethod
    def _appear(self) -> None:
        """The one step, in which :attr:`_invisible` becomes False.

        Raises:
            OSError: nothing changed.
        """

    @abstractmethod
    def _remove(self) -> None:
        """Before that step: remove what was made."""


class RenamePublication(_FolderPublication):
    """A checkpoint's folder, of hard links to the staged files or files for rows in memory."""

    exclusive = False

    @cached_property
    def _folder(self) -> Path:
        return self.session.new_folder(self.entry)

    def committed(self) -> None:
        self.session.folders.remember(self.entry.version)

    def _fill(self, file: EntryFile) -> None:
        self._folder.mkdir(parents=True)
        if self.staged.rows is not None:
            write_rows(self.staged.rows, self._folder)
        if file.dead_letters and self.staged.dead_letters is not None:
            (self._folder / DEAD_LETTERS_FOLDER).mkdir()
            write_rows(self.staged.dead_letters, self._folder / DEAD_LETTERS_FOLDER)

    def _finish(self, file: EntryFile) -> None:
        file.write(self._folder)

    def _appear(self) -> None:
        path = self.session.folders.path(self.entry.version)
        self._invisible = False
        try:
            os.rename(self._folder, path)
        except OSError as error:
            if error.errno in _TAKEN:
                self._invisible = True
                # by this very entry, perhaps: the ledger is looked at again
                raise self._not_renamed(path) from error
            # on a network file system the reply may be lost: the folder must stay whole
            raise CommitUnknownError(
                f"{path}: whether the folder was renamed is not known: {error.strerror}"
            ) from error

    def _not_renamed(self, path: Path) -> EoPipelineError:
        if path.exists() and not (path / ENTRY_FILE).exists():
            fault = f"has no ledger file: {path / ENTRY_FILE} is gone, or {path} was not made by "
            fault += "this pipeline, and is to be moved away"
            return LedgerDamagedError(self.session.pipeline, self.entry.version, fault)
        message = f"{path} could not be made. Nothing was published; the next run tries again."
        return SinkUnavailableError(message)

    def _remove(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)


class ExchangePublication(_FolderPublication):
    """A rewind or replay: a whole table is filled, beside the table, and the two change places."""

    exclusive = True

    @cached_property
    def _swap(self) -> SwapFolder:
        return SwapFolder.new(self.session.root, self.entry)

    def _fill(self, file: EntryFile) -> None:
        self._swap.build(file, self.staged)

    def _finish(self, file: EntryFile) -> None:
        self._swap.finish(file)

    def _appear(self) -> None:
        self._invisible = False
        try:
            self._swap.swap()
        except (EoPipelineError, OSError):
            self._invisible = True
            raise

    def _remove(self) -> None:
        self._swap.drop()
