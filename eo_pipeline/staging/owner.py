"""Who stages in a folder, and whether that process is dead: a lock tells, without a clock.

``owner.lock`` is locked (``flock``) by the process that made the attempt, from the moment it can be
seen until that process ends, however it ends. Only a process of the same running kernel can be
judged by it: elsewhere a lock may not be seen, and then nobody is called dead.
"""

from __future__ import annotations

import os
import platform
import sys
import uuid
from contextlib import suppress
from pathlib import Path
from typing import IO

from eo_pipeline.places import Place, write_atomically

if sys.platform != "win32":
    import fcntl

_LOCK = "owner.lock"
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def own(folder: Place) -> IO[str] | None:
    """Lock ``folder`` for as long as what is returned is open. None where there are no locks: in a
    bucket, too, where the file is all that makes the attempt be found before it has rows.

    Raises:
        OSError: the folder cannot be written.
    """
    if not isinstance(folder, Path):
        write_atomically(folder / _LOCK, _kernel())
        return None
    if sys.platform == "win32":
        return None
    aside = folder / f".{_LOCK}.{uuid.uuid4().hex}"
    lock = aside.open("x")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        lock.write(_kernel())
        lock.flush()
        aside.rename(folder / _LOCK)  # it is locked before it can be found
    except OSError:
        lock.close()
        with suppress(OSError):
            aside.unlink()
        return None  # a file system without locks: the old rule holds
    return lock


def is_dead(folder: Place) -> bool:
    """Whether the process that staged here ran on this kernel, and has ended."""
    if sys.platform == "win32" or not isinstance(folder, Path):
        return False
    with suppress(OSError), (folder / _LOCK).open() as lock:
        if lock.read() == _kernel():
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return True
    return False


def _kernel() -> str:
    """What this run of this machine's kernel is known by."""
    with suppress(OSError):
        return _BOOT_ID.read_text().strip()
    return f"{platform.node()} {os.getuid()}"
