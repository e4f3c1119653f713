"""Programs that a test's user has."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def path_without_java(folder: Path) -> Path:
    """All programs on the path but ``java``."""
    folder.mkdir()
    for place in os.environ["PATH"].split(os.pathsep):
        for program in Path(place).glob("*"):
            if program.name != "java":
                with contextlib.suppress(FileExistsError):  # an earlier place goes first
                    (folder / program.name).symlink_to(program)
    return folder
