"""A wall clock for processes, which is turned while they work: see ``clock.c``."""

from __future__ import annotations

import struct
import subprocess
from collections.abc import Mapping
from pathlib import Path

_SOURCE = Path(__file__).with_name("clock.c")


class Clock:
    """Its dial and its library lie in ``folder``."""

    def __init__(self, folder: Path) -> None:
        self._dial = folder / "clock"
        self._library = built(folder)

    def turn(self, seconds: int) -> None:
        """Off by so much from now on, for whoever has it."""
        with self._dial.open("r+b" if self._dial.exists() else "wb") as dial:
            dial.write(struct.pack("=q", seconds))

    def environment(self) -> Mapping[str, str]:
        """Of a process that has this clock."""
        return {"LD_PRELOAD": str(self._library), "EO_CLOCK": str(self._dial)}


def built(folder: Path) -> Path:
    """The library.

    Raises:
        OSError: there is no C compiler here, or it does not do it.
    """
    library = folder / "clock.so"
    command = ["cc", "-shared", "-fPIC", "-O2", "-o", str(library), str(_SOURCE), "-ldl"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"the clock cannot be built: {done.stderr.strip()[:200]}")
    return library
