"""One pipeline's ledger and rows in a folder of Parquet files."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from eo_pipeline.checkpoint import LedgerEntry, Operation, new_transaction_id
from eo_pipeline.crashpoints import CrashPoint, Reach, keep_going
from eo_pipeline.errors import (
    CommitUnknownError,
    ConfigError,
    FencedError,
    RefusedError,
    SinkError,
    SinkUnavailableError,
)
from eo_pipeline.sinks.base import CommitOutcome, SinkSession
from eo_pipeline.sinks.lake.ledger import sync
from eo_pipeline.sinks.parquet.folders import DEAD_LETTERS_FOLDER, CheckpointFolders, Record
from eo_pipeline.sinks.parquet.sink import TYPES, ParquetSink, refuse_partition_name
from eo_pipeline.sinks.parquet.types import new_columns, widened
from eo_pipeline.staged import StagedOutput, StagedTable

#: Folders in the making, one a try, each for the one that makes it.
PUBLISHING_FOLDER = "_eo_publishing"

_VERSION_DIGITS = 12

#: What ``rename`` answers when the target is there (POSIX allows either), or the folder is no more:
#: renamed already (a network file system asks twice), or removed because its version is taken.
_LOOK_AGAIN = frozenset({errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR, errno.ENOENT})

#: What ``link`` answers where there are no hard links, or not to there.
_NO_LINKS = frozenset({errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EXDEV, errno.EMLINK})


class ParquetSession(SinkSession):
    """A publication:

    1. **look**: the head must be the entry's parent, and the result must fit the columns so far.
    2. **fill** a folder of its own, where no reader looks: hard links to the staged files, or
       files for rows in memory; then the ledger entry. All of it is flushed.
    3. **rename** the folder to ``checkpoint=<version>``. That name can be taken once.

    Between 1 and 3 the head can only move by somebody taking that same name. A folder that was not
    renamed is removed by :meth:`recover` once its version is taken.
    """

    def __init__(self, sink: ParquetSink, pipeline: str) -> None:
        self.pipeline = pipeline
        self.root = sink.root
        self._folders = CheckpointFolders(sink.root)
        if self.root.exists() and not self.root.is_dir():
            raise ConfigError(f"sink.path: {self.root} is not a folder")
        head = self._folders.newest()
        if head is not None and head.entry.pipeline != pipeline:
            raise ConfigError(
                f"sink.path: {self.root} belongs to the pipeline {head.entry.pipeline!r}. One "
                "folder holds one pipeline; give this one another."
            )

    def recover(self) -> LedgerEntry | None:
        """Removes the folders of dead publications whose version is taken; see the class."""
        head = self._folders.newest()
        if head is None:
            return None
        self._folders.remember(head.entry.version)
        for path in self._unfinished():
            version = path.name.partition("-")[0]
            if version.isdigit() and int(version) <= head.entry.version:
                shutil.rmtree(path, ignore_errors=True)
        return head.entry

    def _unfinished(self) -> list[Path]:
        folder = self.root / PUBLISHING_FOLDER
        return list(folder.iterdir()) if folder.is_dir() else []

    def head(self) -> LedgerEntry | None:
        head = self._folders.newest()
        return head.entry if head else None

    def entry(self, version: int) -> LedgerEntry | None:
        found = self._folders.record(version)
        return found.entry if found else None

    def history(self, since: int = 0) -> Iterator[LedgerEntry]:
        return (record.entry for record in self._records(since))

    def _records(self, since: int) -> Iterator[Record]:
        head = self._folders.newest()
        for version in range(max(since, 0), head.entry.version + 1 if head else 0):
            record = self._folders.record(version)
            if record is None:
                raise SinkError(
                    f"{self._folders.path(version)} is missing, and later versions are there. To "
                    "drop old rows remove the Parquet files and leave the folder."
                )
            yield record

    def read_dead_letters(self, since: int = 0) -> pa.Table:
        """Every record that could not be read, of the checkpoints from version ``since``."""
        found = [record.entry.version for record in self._records(since) if record.dead_letters]
        folders = [self._folders.path(version) / DEAD_LETTERS_FOLDER for version in found]
        tables = [pq.ParquetFile(file).read() for f in folders for file in sorted(f.iterdir())]
        return pa.concat_tables(tables) if tables else pa.table({})

    def publish(
        self, entry: LedgerEntry, staged: StagedOutput, reach: Reach = keep_going
    ) -> CommitOutcome:
        if entry.pipeline != self.pipeline:
            raise ValueError(f"an entry of {entry.pipeline!r} in a session of {self.pipeline!r}")
        head = self._folders.newest()  # step 1
        if self._has_landed(entry, head):
            return self._already()
        try:
            return self._publish(self._record(entry, staged, head), staged, reach)
        except (RefusedError, FileNotFoundError) as error:
            # the staged files are gone: perhaps with the manifest that somebody else committed
            if self._has_landed(entry, self._folders.newest()):
                return self._already()
            if isinstance(error, RefusedError):
                raise
            raise self._unavailable(error) from error

    def _record(self, entry: LedgerEntry, staged: StagedOutput, head: Record | None) -> Record:
        if entry.operation in (Operation.REWIND, Operation.REPLAY):
            raise RefusedError(
                f"{self.root}: {entry.operation} is not possible: the folders of several "
                "checkpoints cannot be changed in one step, so that a reader would see half of "
                "it. Nothing was changed. Use type: delta or type: iceberg for a table that goes "
                "back, or start a new pipeline and folder from that checkpoint (fork)."
            )
        columns = head.columns if head else pa.schema([])
        if staged.rows is not None:
            result = TYPES.schema(staged.rows.schema)
            refuse_partition_name(result.names)
            columns = widened(columns, result, new_columns(columns, result))
        staged.verify()
        letters = staged.dead_letters
        entry = replace(entry, committed_at=datetime.now(UTC))
        return Record(entry, columns, dead_letters=letters is not None and letters.rows > 0)

    def _publish(self, record: Record, staged: StagedOutput, reach: Reach) -> CommitOutcome:
        name = f"{record.entry.version:0{_VERSION_DIGITS}d}-{new_transaction_id()}"
        folder = self.root / PUBLISHING_FOLDER / name
        try:
            self._fill(folder, record, staged, reach)
            return self._rename(folder, record.entry)
        except FileNotFoundError:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        except OSError as error:
            shutil.rmtree(folder, ignore_errors=True)
            raise self._unavailable(error) from error

    def _fill(self, folder: Path, record: Record, staged: StagedOutput, reach: Reach) -> None:
        """Step 2."""
        folder.mkdir(parents=True)
        if staged.rows is not None:
            _put(staged.rows, folder)
        if record.dead_letters and staged.dead_letters is not None:
            (folder / DEAD_LETTERS_FOLDER).mkdir()
            _put(staged.dead_letters, folder / DEAD_LETTERS_FOLDER)
        reach(CrashPoint.ROWS_SENT)
        record.write(folder)
        reach(CrashPoint.ENTRY_SENT)

    def _rename(self, folder: Path, entry: LedgerEntry) -> CommitOutcome:
        """Step 3."""
        target = self._folders.path(entry.version)
        try:
            os.rename(folder, target)
        except OSError as error:
            if error.errno in _LOOK_AGAIN:
                shutil.rmtree(folder, ignore_errors=True)
                return self._taken(entry)
            # on a network file system the reply may be lost: the folder must stay whole
            raise CommitUnknownError(
                f"{target}: whether the folder was renamed is not known: {error}"
            ) from error
        self._flush()
        self._folders.remember(entry.version)
        return CommitOutcome.COMMITTED

    def _taken(self, entry: LedgerEntry) -> CommitOutcome:
        if self._has_landed(entry, self._folders.newest()):
            return self._already()
        path = self._folders.path(entry.version)
        raise SinkUnavailableError(
            f"{path} exists and has no ledger file: it was not made by this pipeline. Nothing was "
            "published; move it away."
            if path.exists()
            else f"{path} could not be made. Nothing was published; the next run tries again."
        )

    def _has_landed(self, entry: LedgerEntry, head: Record | None) -> bool:
        """True if the ledger holds ``entry`` itself.

        Raises:
            FencedError: its version is taken, or its parent is not the head.
        """
        held = self._folders.record(entry.version)
        if held is not None:
            if held.entry.id == entry.id:
                return True
            raise FencedError(self.pipeline, entry.version, winner=held.entry.transaction_id)
        if not entry.is_child_of(head.entry if head else None):
            raise FencedError(self.pipeline, entry.version, winner=None)
        return False

    def _already(self) -> CommitOutcome:
        """Whoever renamed it may have died before the name was durable."""
        self._flush()
        return CommitOutcome.ALREADY_COMMITTED

    def _flush(self) -> None:
        try:
            sync(self.root)
        except OSError as error:
            raise CommitUnknownError(
                f"{self.root}: whether the new folder's name would outlive a power cut is not "
                f"known: {error}"
            ) from error

    def _unavailable(self, error: OSError) -> SinkUnavailableError:
        return SinkUnavailableError(
            f"{self.root} cannot be written: {error}. Nothing was published."
        )

    def close(self) -> None:
        """Nothing is held open."""


def _put(staged: StagedTable, folder: Path) -> None:
    """The rows as files of ``folder``, flushed. Staged files are not copied but given a second
    name, so that they stay whole for whoever else publishes them, and may go afterwards.
    """
    for number, source in enumerate(staged.paths()):
        _link(source, folder / f"part-{number:05}.parquet")
    if staged.table is not None and staged.rows:
        path = folder / "part-00000.parquet"
        pq.write_table(TYPES.table(staged.table), path, compression="snappy")
        sync(path)
    sync(folder)


def _link(source: Path, target: Path) -> None:
    try:
        target.hardlink_to(source)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        shutil.copyfile(source, target)
        sync(target)
