"""Atomic exchange of two folders, and a lock on the folder that currently has the name."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import logging
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from eo_pipeline.errors import RefusedError, SinkError, SinkUnavailableError
from eo_pipeline.ledger.entry import EntryId, LedgerEntry, Operation, new_transaction_id
from eo_pipeline.sinks.files import link_or_copy
from eo_pipeline.sinks.parquet.ledger import (
    DEAD_LETTERS_FOLDER,
    ENTRY_FILE,
    HINT_FILE,
    CheckpointFolders,
    EntryFile,
    version_of,
    write_rows,
)
from eo_pipeline.sinks.session import target_of
from eo_pipeline.staging.rows import StagedOutput
from eo_pipeline.storage.paths import fsync

log = logging.getLogger(__name__)

#: ``renameat2(2)``: paths relative to the working folder; both names must be there, and swap.
_AT_FDCWD = -100
_RENAME_EXCHANGE = 2

#: What a file system or an operating system answers that has no such thing, or not here.
NOT_POSSIBLE = frozenset(
    {
        *(errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EXDEV, errno.EBUSY),
        *(errno.EPERM, errno.EACCES, errno.EROFS, errno.ENOLCK, errno.EBADF),
    }
)

#: What ``flock`` of a folder answers where folders cannot be locked (network file systems).
_NO_LOCKS = frozenset({errno.EBADF, errno.EINVAL, errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP})

#: Seconds to wait for another run's lock, which is held for a few renames, and between two looks.
LOCK_SECONDS = 30.0
_LOOK_SECONDS = 0.01


def exchange(one: Path, other: Path) -> None:
    """Let the two folders change places: nobody ever finds either name missing.

    Raises:
        OSError: they did not; see :data:`NOT_POSSIBLE`.
    """
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if rename is None:
        raise OSError(errno.ENOSYS, "this operating system cannot exchange two folders")
    names = os.fsencode(one), os.fsencode(other)
    if rename(_AT_FDCWD, names[0], _AT_FDCWD, names[1], _RENAME_EXCHANGE):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), str(one), None, str(other))


def sync_file_system(folder: Path) -> None:
    """Everything written to the folder's file system is on the disk (``syncfs(2)``): one call for
    any number of files.

    Raises:
        OSError: it may not be.
    """
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        if ctypes.CDLL(None, use_errno=True).syncfs(handle):
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code), str(folder))
    finally:
        os.close(handle)


@contextmanager
def locked(folder: Path, *, exclusive: bool) -> Iterator[bool]:
    """Hold whatever folder has this name, so that it keeps it: who exchanges it locks it first.

    The kernel gives the lock back when the process dies. False where folders cannot be locked;
    there nobody can exchange them either.

    Raises:
        OSError: there is no such folder.
        SinkUnavailableError: another run has held it for :data:`LOCK_SECONDS`.
    """
    deadline = time.monotonic() + LOCK_SECONDS
    while True:
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            locks = _lock(handle, folder, deadline, exclusive=exclusive)
            # it may have been exchanged while we waited for it
            if not locks or os.path.samestat(os.fstat(handle), folder.stat()):
                yield locks
                return
        finally:
            os.close(handle)


def _lock(handle: int, folder: Path, deadline: float, *, exclusive: bool) -> bool:
    kind = fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH
    while True:
        try:
            fcntl.flock(handle, kind | fcntl.LOCK_NB)
        except BlockingIOError as error:
            if time.monotonic() > deadline:
                raise SinkUnavailableError(
                    f"{folder}: another run has held it for {LOCK_SECONDS:g} s. Nothing was "
                    "published; the next run tries again. If it hangs, end it."
                ) from error
            time.sleep(_LOOK_SECONDS)
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
            return False
        else:
            return True


_MARK = "eo_swap"


@dataclass(frozen=True)
class SwapFolder:
    """Another state of the table in ``root``, in a hidden folder next to it: the one to be, and
    after the exchange the one that was.
    """

    root: Path
    path: Path
    id: EntryId

    @classmethod
    def new(cls, root: Path, entry: LedgerEntry) -> SwapFolder:
        """For one attempt to publish ``entry``. A table that is a link is followed."""
        root = root.resolve()
        folder_name = f"{entry.version}-{entry.transaction_id}-{new_transaction_id()}"
        return cls(root, root.parent / f"{_prefix(root)}{folder_name}", entry.id)

    @classmethod
    def left(cls, root: Path) -> Iterator[SwapFolder]:
        """Folders that runs left there, dead or alive."""
        root = root.resolve()
        try:
            names = [name for name in os.listdir(root.parent) if name.startswith(_prefix(root))]
        except PermissionError:
            return  # then nobody could build anything there
        for name in names:
            version, _, rest = name.removeprefix(_prefix(root)).partition("-")
            if version.isdigit():
                yield cls(root, root.parent / name, EntryId(int(version), rest.partition("-")[0]))

    def build(self, file: EntryFile, staged: StagedOutput) -> None:
        """Everything but the new entry, which must be written last.

        Raises:
            SinkError: a version's folder is missing.
        """
        entry, folders = file.entry, CheckpointFolders(self.root)
        target, is_replay = target_of(entry), entry.operation is Operation.REPLAY
        self.path.mkdir()
        for version in range(entry.version):
            new = CheckpointFolders(self.path).path(version)
            if is_replay and version == target:
                _replayed(folders, version, file, staged, new)
            elif not is_replay and version > target:
                _emptied(folders, version, new, dead_letters=False)
            else:
                _linked(folders.path(version), new)
        CheckpointFolders(self.path).remember(entry.version)
        _owned_alike(self.root, self.path)

    def finish(self, file: EntryFile) -> None:
        """The new entry, and with it the folder is whole. All of it is flushed."""
        folder = CheckpointFolders(self.path).path(file.entry.version)
        folder.mkdir()
        # a replay's dead letters lie with the checkpoint that they belong to
        replace(file, dead_letters=False).write(folder)
        sync_file_system(self.path)

    def swap(self) -> None:
        """The one step. Both folders are locked, so that nobody publishes before all is in place.

        Raises:
            OSError: nothing changed.
        """
        with locked(self.path, exclusive=True):
            exchange(self.path, self.root)
            try:
                self._complete()
            except OSError as error:
                log.warning("%s is left to the next run: %s", self.path, error)

    def finish_or_drop(self, held: EntryId) -> None:
        """Finish, or clear away, what a run left for a version that ``held`` has taken."""
        if held == self.id:
            self._complete()
        else:
            self.drop()

    def _complete(self) -> None:
        """After the exchange: what is not the pipeline's stays in the table, the rest goes."""
        fsync(self.root.parent)
        if self.path.is_dir():
            _move_over(self.path, self.root)
            shutil.rmtree(self.path, ignore_errors=True)

    def drop(self) -> None:
        """Before the exchange: forget it."""
        shutil.rmtree(self.path, ignore_errors=True)


def refuse_where_impossible(root: Path, entry: LedgerEntry, probes: Path) -> None:
    """Try an exchange where no reader looks.

    Args:
        root: the table's folder.
        entry: what is to be published.
        probes: a hidden folder of the table, in which this may make others.

    Raises:
        RefusedError: this file system, operating system or folder cannot do it; says why.
        SinkUnavailableError: it cannot be tried just now.
    """
    target_of(entry)
    if not root.exists():
        return
    reason = _reason(root.resolve(), probes)
    if reason:
        raise RefusedError(
            f"{root}: {entry.operation} is not possible: {reason}. Nothing was changed. A table "
            "of files can be rewound only where Linux can exchange two folders (a local disk). Use "
            "type: delta or type: iceberg to rewind anywhere, or start a new pipeline "
            "and folder from that checkpoint (fork)."
        )


def _reason(root: Path, probes: Path) -> str | None:
    if os.path.ismount(root):
        return "the folder is a mount point, which keeps its place; use a folder below it"
    if not os.access(root.parent, os.W_OK | os.X_OK):
        return f"{root.parent}, in which the new state must be built, cannot be written"
    one, other = probes / "one", probes / "other"
    try:
        for folder in (one, other):
            folder.mkdir(parents=True)
        exchange(one, other)
        with locked(one, exclusive=True) as locks:
            return None if locks else "the file system cannot lock a folder"
    except OSError as error:
        if error.errno in NOT_POSSIBLE:
            return f"the file system does not exchange two folders: {error.strerror}"
        raise SinkUnavailableError(f"{root} cannot be written: {error.strerror}") from error
    finally:
        shutil.rmtree(probes, ignore_errors=True)


def _prefix(root: Path) -> str:
    return f".{root.name}.{_MARK}-"


def _linked(source: Path, target: Path) -> None:
    """A folder as it is, its files under second names."""
    try:
        shutil.copytree(source, target, symlinks=True, copy_function=_link)
    except FileNotFoundError as error:
        raise _missing(source) from error


def _link(source: str, target: str) -> None:
    link_or_copy(Path(source), Path(target))


def _emptied(folders: CheckpointFolders, version: int, target: Path, *, dead_letters: bool) -> None:
    """A folder that keeps nothing but its version's entry."""
    file = folders.file(version)
    if file is None:
        raise _missing(folders.path(version))
    target.mkdir(exist_ok=True)
    if file.dead_letters == dead_letters:
        link_or_copy(folders.path(version) / ENTRY_FILE, target / ENTRY_FILE)
    else:
        replace(file, dead_letters=dead_letters).write(target)


def _replayed(
    folders: CheckpointFolders, version: int, file: EntryFile, staged: StagedOutput, target: Path
) -> None:
    """A folder with the staged rows, under names that no file of the checkpoint ever had: a reader
    that listed the folder before must miss a file, and not take the new one for the old.
    """
    stem = f"part-{file.entry.version}"
    target.mkdir()
    if staged.rows is not None:
        write_rows(staged.rows, target, stem)
    if file.dead_letters and staged.dead_letters is not None:
        (target / DEAD_LETTERS_FOLDER).mkdir()
        write_rows(staged.dead_letters, target / DEAD_LETTERS_FOLDER, stem)
    _emptied(folders, version, target, dead_letters=file.dead_letters)


def _missing(path: Path) -> SinkError:
    return SinkError(
        f"{path} is missing, and later versions are there. Nothing was changed. To drop old rows "
        "remove the Parquet files and leave the folder."
    )


def _owned_alike(old: Path, new: Path) -> None:
    """Give the second file the owner and mode of the first."""
    shutil.copystat(old, new)
    before, after = old.stat(), new.stat()
    if (before.st_uid, before.st_gid) != (after.st_uid, after.st_gid):
        os.chown(new, before.st_uid, before.st_gid)


def _move_over(old: Path, new: Path) -> None:
    """Move what lies in the old folder besides checkpoints: staging, files of users."""
    for item in list(old.iterdir()):
        if version_of(item.name) is None and item.name != HINT_FILE:
            _move(item, new / item.name)


def _move(item: Path, target: Path) -> None:
    """To where it was. What somebody made there meanwhile stays, and folders are put together."""
    if not os.path.lexists(target):
        item.rename(target)
    elif item.is_dir() and not item.is_symlink() and target.is_dir():
        for inner in list(item.iterdir()):
            _move(inner, target / inner.name)
