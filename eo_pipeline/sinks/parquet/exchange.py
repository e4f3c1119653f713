"""Two folders that change places in one step, and a lock on the folder that has a name now."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from eo_pipeline.errors import SinkUnavailableError

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
