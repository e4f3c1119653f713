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

from eo_pipeline.crashpoints import CrashPoint, Reach, keep_going
from eo_pipeline.errors import (
    CommitUnknownError,
    ConfigError,
    EoPipelineError,
    FencedError,
    RefusedError,
    SinkError,
    SinkUnavailableError,
)
from eo_pipeline.files import sync
from eo_pipeline.ledger.entry import LedgerEntry, new_transaction_id
from eo_pipeline.sinks.lake.types import new_columns, widened
from eo_pipeline.sinks.parquet.exchange import locked
from eo_pipeline.sinks.parquet.files import put
from eo_pipeline.sinks.parquet.folders import DEAD_LETTERS_FOLDER, CheckpointFolders, Record
from eo_pipeline.sinks.parquet.going_back import Beside, refuse_where_impossible
from eo_pipeline.sinks.parquet.lineage import read_lineage
from eo_pipeline.sinks.parquet.sink import TYPES, ParquetSink, refuse_partition_name
from eo_pipeline.sinks.protocol import CommitOutcome, SinkSession
from eo_pipeline.sinks.removal import goes_back
from eo_pipeline.staging.rows import StagedOutput

#: Folders in the making, one a try, each for the one that makes it.
PUBLISHING_FOLDER = "_eo_publishing"

_VERSION_DIGITS = 12

#: What ``rename`` answers when the target is there (POSIX allows either), or the folder is no more:
#: renamed already (a network file system asks twice), or removed because its version is taken.
_LOOK_AGAIN = frozenset({errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR, errno.ENOENT})


class ParquetSession(SinkSession):
    """A publication:

    1. **look**: the head must be the entry's parent, and the result must fit the columns so far.
    2. **fill** a folder of its own, where no reader looks: hard links to the staged files, or
       files for rows in memory; then the ledger entry. All of it is flushed.
    3. **rename** the folder to ``checkpoint=<version>``. That name can be taken once.

    A rewind or replay fills a whole table in step 2, beside the table, and step 3 lets the two
    change places (:mod:`eo_pipeline.sinks.parquet.going_back`). An exchange compares nothing, so
    that step 3 holds a lock on the table's folder and looks again: exclusive for an exchange,
    shared for a rename.

    Between this look and the rename the head can only move by somebody taking that same name. What
    was not renamed is removed by :meth:`recover` once its version is taken.
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
        self._settle()
        self._folders.remember(head.entry.version)
        for path in self._unfinished():
            version = path.name.partition("-")[0]
            if version.isdigit() and int(version) <= head.entry.version:
                shutil.rmtree(path, ignore_errors=True)
        return head.entry

    def _settle(self) -> None:
        """Finish what a run began that died in an exchange, or just before or after it."""
        try:
            for left in Beside.left(self.root):
                with locked(self.root, exclusive=True):
                    held = self._folders.record(left.id.version)
                    if held is not None:
                        left.settle(held.entry.id)
        except OSError as error:
            raise self._unavailable(error) from error

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

    def check_going_back(self, entry: LedgerEntry) -> None:
        refuse_where_impossible(self.root, entry, self._in_the_making(entry))

    def lineage(self, since: int = 0) -> Iterator[pa.RecordBatch]:
        """Of the folder as it is now, file by file."""
        head = self._folders.newest()
        return read_lineage(self.root, head, since) if head else iter(())

    def publish(
        self, entry: LedgerEntry, staged: StagedOutput, reach: Reach = keep_going
    ) -> CommitOutcome:
        if entry.pipeline != self.pipeline:
            raise ValueError(f"an entry of {entry.pipeline!r} in a session of {self.pipeline!r}")
        head = self._folders.newest()  # step 1
        if self._has_landed(entry, head):
            return self._already(entry)
        try:
            record = self._record(entry, staged, head)
            return (self._go_back if goes_back(entry) else self._publish)(record, staged, reach)
        except (RefusedError, OSError) as error:
            # the staged files are gone: perhaps with the manifest that somebody else committed
            if self._has_landed(entry, self._folders.newest()):
                return self._already(entry)
            if isinstance(error, RefusedError):
                raise
            raise self._unavailable(error) from error

    def _record(self, entry: LedgerEntry, staged: StagedOutput, head: Record | None) -> Record:
        if goes_back(entry):
            self.check_going_back(entry)
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
        folder = self._in_the_making(record.entry)
        try:
            self._fill(folder, record, staged, reach)
            with locked(self.root, exclusive=False):
                if self._has_landed(record.entry, self._folders.newest()):
                    shutil.rmtree(folder, ignore_errors=True)
                    return self._already(record.entry)
                return self._rename(folder, record.entry)
        except (FencedError, OSError):
            shutil.rmtree(folder, ignore_errors=True)
            raise

    def _in_the_making(self, entry: LedgerEntry) -> Path:
        name = f"{entry.version:0{_VERSION_DIGITS}d}-{new_transaction_id()}"
        return self.root / PUBLISHING_FOLDER / name

    def _go_back(self, record: Record, staged: StagedOutput, reach: Reach) -> CommitOutcome:
        beside, entry = Beside.new(self.root, record.entry), record.entry
        try:
            beside.build(record, staged)  # step 2
            reach(CrashPoint.ROWS_SENT)
            beside.finish(record)
            reach(CrashPoint.ENTRY_SENT)
            with locked(self.root, exclusive=True):  # step 3
                if self._has_landed(entry, self._folders.newest()):
                    beside.drop()
                    return self._already(entry)
                beside.swap()
        except (EoPipelineError, OSError):
            beside.drop()
            raise
        self._flush(entry)
        return CommitOutcome.COMMITTED

    def _fill(self, folder: Path, record: Record, staged: StagedOutput, reach: Reach) -> None:
        """Step 2."""
        folder.mkdir(parents=True)
        if staged.rows is not None:
            put(staged.rows, folder)
        if record.dead_letters and staged.dead_letters is not None:
            (folder / DEAD_LETTERS_FOLDER).mkdir()
            put(staged.dead_letters, folder / DEAD_LETTERS_FOLDER)
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
        self._flush(entry)
        self._folders.remember(entry.version)
        return CommitOutcome.COMMITTED

    def _taken(self, entry: LedgerEntry) -> CommitOutcome:
        if self._has_landed(entry, self._folders.newest()):
            return self._already(entry)
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

    def _already(self, entry: LedgerEntry) -> CommitOutcome:
        """Whoever renamed it may have died before the name was durable."""
        self._flush(entry)
        return CommitOutcome.ALREADY_COMMITTED

    def _flush(self, entry: LedgerEntry) -> None:
        try:
            sync(self.root.resolve().parent if goes_back(entry) else self.root)
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
