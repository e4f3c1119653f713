"""Small disks that can be filled: a file system in memory, mounted where a store keeps its data."""

from __future__ import annotations

import contextlib
import errno
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

_FILLER = ".filler"
_PIECE = 1 << 20


class Disk:
    """Mounted below ``folder``; ``why_not`` says why it is an ordinary folder instead."""

    def __init__(self, folder: Path, megabytes: int) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.why_not = self._mounted(megabytes)

    def _mounted(self, megabytes: int) -> str:
        options = f"size={megabytes}m,mode=755"
        command = ["mount", "-t", "tmpfs", "-o", options, "eo-kills", str(self.folder)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        except OSError as error:
            return str(error)
        return done.stderr.strip() if done.returncode else ""

    @contextlib.contextmanager
    def full(self) -> Iterator[None]:
        """Not a byte is left, inside."""
        filler = self.folder / _FILLER
        with filler.open("wb") as file:
            end, piece = 0, _PIECE
            while piece:
                try:
                    os.posix_fallocate(file.fileno(), end, piece)
                    end += piece
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise
                    piece //= 2
            try:
                yield
            finally:
                file.truncate(0)
        filler.unlink()

    def close(self) -> None:
        if not self.why_not:
            # lazily: a server that is about to end may still have files there
            subprocess.run(["umount", "-l", str(self.folder)], check=False)
