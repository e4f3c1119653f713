"""Files that outlive a power cut: what is flushed, and what appears whole or not at all."""

from __future__ import annotations

import errno
import io
import os
import uuid
import zipfile
from collections.abc import Mapping
from pathlib import Path

#: A moment for all files of an archive: the first that one can hold.
_MOMENT = (1980, 1, 1, 0, 0, 0)


#: What a file system answers for a while: a disk or a server that does not answer, too many open
#: files, a folder in which somebody still writes.
_PASSES = frozenset(
    {
        *(errno.EIO, errno.ESTALE, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN),
        *(errno.EBUSY, errno.EINTR, errno.ETIMEDOUT, errno.ENOTEMPTY, errno.EHOSTDOWN),
        *(errno.EHOSTUNREACH, errno.ENETUNREACH, errno.ENOTCONN, errno.ECONNRESET, errno.EDEADLK),
    }
)


def passes(error: OSError) -> bool:
    """Whether time may mend ``error``."""
    return error.errno in _PASSES


def sync(path: Path) -> None:
    """Flush a file; or a folder, which makes the names in it durable.

    Raises:
        OSError: it may not outlive a power cut.
    """
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_new(path: Path, text: str) -> None:
    """Make the file ``path``, flushed. Its name is durable once its folder is (:func:`sync`).

    Raises:
        FileExistsError: there is one.
    """
    with path.open("x") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def write_atomically(path: Path, text: str) -> None:
    """Make or replace the file ``path``: whole or not at all, and durable when this returns.

    Several processes may write the same file at once, on several hosts too: the last one stands.
    """
    aside = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    write_new(aside, text)
    aside.replace(path)
    sync(path.parent)


def zipped(files: Mapping[str, bytes]) -> bytes:
    """A ZIP archive of these contents by their names: of the same ones the same bytes."""
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w") as archive:
        for name, content in files.items():
            archive.writestr(zipfile.ZipInfo(name, _MOMENT), content)
    return held.getvalue()
