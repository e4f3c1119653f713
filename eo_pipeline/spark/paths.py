"""Local folders as Spark takes them, whatever characters their names have."""

from __future__ import annotations

import re
from pathlib import Path

#: What Spark takes for a pattern in the name of something to read.
_PATTERN = re.compile(r"[][{}*?\\]")


def path_to_write(path: Path) -> str:
    """``path`` for a write. Spark wants Hadoop's Path, which looks like a URI and is none: nothing
    in it is escaped, so that ``Path.as_uri`` would name another folder (``a%20b`` for ``a b``).
    """
    return f"file://{path.absolute()}"


def path_to_read(path: Path) -> str:
    """``path`` for a read, where Spark also looks for patterns."""
    return _PATTERN.sub(r"\\\g<0>", path_to_write(path))
