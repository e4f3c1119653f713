"""A class-data archive: the JVM's own picture of Spark's classes, read in place of 280 jars.

It saves a third of what a cold Spark takes to start, and is made once (``eo spark archive``), by a
JVM that writes down at its end what it had loaded. It fits one Java, one class path and one set of
flags: the file is named by them, so that another jar or another Java finds none and starts as ever.
What the name does not tell the JVM checks itself, and goes on without, silently.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

#: A folder for what can be made again.
CACHE_VARIABLE = "EO_CACHE"

#: An archive that nobody has used for so long is removed when another one is made: 150 MB.
_UNUSED_S = 30 * 24 * 3600.0
_SUFFIX = ".jsa"

#: The JVM tells on stdout that an archive does not fit; there is nothing to do about that.
_SILENCE = ("-Xshare:auto", "-Xlog:cds*=off", "-Xlog:class+path=off")

#: What says nothing of classes.
_NO_MATTER = ("-Xmx", "-Xms", "-Xss", "-XX:TieredStopAtLevel=", "-XX:Tier4", "-D")


def folder() -> Path:
    """Where this user's archives are: below EO_CACHE, ``XDG_CACHE_HOME``, or else ``~/.cache``."""
    own = os.environ.get(CACHE_VARIABLE)
    if own:
        return Path(own) / "jvm"
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(cache) / "eo-pipeline" / "jvm"


def with_archive(command: Sequence[str]) -> list[str]:
    """``command``, which starts a JVM, with the archive that was made for it, if there is one."""
    archive = archive_of(command)
    if archive is None or not (is_ours(archive) and is_whole(archive)):
        return list(command)
    with suppress(OSError):
        os.utime(archive)  # in use
    return [command[0], f"-XX:SharedArchiveFile={archive}", *_SILENCE, *command[1:]]


def making(command: Sequence[str], archive: Path) -> list[str]:
    """``command``, with which the JVM writes ``archive`` when it ends."""
    return [command[0], f"-XX:ArchiveClassesAtExit={archive}", *_SILENCE, *command[1:]]


def archive_of(command: Sequence[str]) -> Path | None:
    """Where the archive for ``command`` is, or would be; None if there can be none: a jar cannot be
    looked at, or this Java comes without an archive of its own classes to put ours on, as that of
    the wheel does.
    """
    java = Path(command[0]).resolve()
    if not (java.parents[1] / "lib" / "server" / "classes.jsa").is_file():
        return None
    try:
        look = [
            _look(path) for path in (java.parents[1] / "lib" / "modules", *_class_path(command))
        ]
    except OSError:
        return None
    told = json.dumps([str(java), list(_flags(command)), look]).encode()
    return folder() / f"spark-{hashlib.sha256(told).hexdigest()[:24]}{_SUFFIX}"


def forget_unused() -> None:
    """Remove archives that were not used for a month."""
    before = time.time() - _UNUSED_S
    for each in folder().glob(f"*{_SUFFIX}"):
        with suppress(OSError):
            if each.stat().st_mtime < before:
                each.unlink()
                _size_of(each).unlink(missing_ok=True)


def is_whole(archive: Path) -> bool:
    """Whether it is there, and as long as when it was made: a JVM that maps less dies of it."""
    try:
        return archive.stat().st_size == int(_size_of(archive).read_text())
    except (OSError, ValueError):
        return False


def seal(archive: Path) -> None:
    """Write down how long ``archive`` is, now that it is whole."""
    _size_of(archive).write_text(str(archive.stat().st_size))


def _size_of(archive: Path) -> Path:
    return archive.with_suffix(".size")


def is_ours(path: Path) -> bool:
    """Whether it is there. Classes that somebody else wrote would run as us."""
    try:
        status = path.stat()
    except OSError:
        return False
    return status.st_uid == os.getuid() and not status.st_mode & 0o022


def _flags(command: Sequence[str]) -> Iterator[str]:
    for before, word in pairwise(command):
        if before == "-cp":
            continue
        if not word.startswith("-"):
            return  # the class that is run, and its arguments
        if word != "-cp" and not word.startswith(_NO_MATTER):
            yield word


def _class_path(command: Sequence[str]) -> Iterator[Path]:
    """Every file of it, in its order; a JVM reads a folder's in the order the disk has them."""
    parts = command[list(command).index("-cp") + 1] if "-cp" in command else ""
    for part in parts.split(os.pathsep):
        if part.endswith("*"):
            yield from sorted(Path(part[:-1]).glob("*.jar"))
        elif Path(part).is_file():
            yield Path(part)


def _look(path: Path) -> tuple[str, int, int]:
    found = path.stat()
    return (str(path), found.st_size, found.st_mtime_ns)
