"""A class-data archive: the JVM's own picture of Spark's classes, read in place of 280 jars.

It saves a third of what a cold Spark takes to start, and is made once (``eo spark archive``), by a
JVM that writes down at its end what it had loaded. It fits one Java, one class path and one set of
flags: the file is named by them, so that another jar or another Java finds none and starts as ever,
which is said. What the name does not tell the JVM checks itself, and goes on without, silently.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import shutil
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

from eo_pipeline.errors import SetupError

#: A folder for what can be made again.
CACHE_VARIABLE = "EO_CACHE"

#: An archive that nobody has used for so long is removed when another one is made: 150 MB.
_UNUSED_S = 30 * 24 * 3600.0
_SUFFIX = ".jsa"
#: How a folder begins in which one is being written.
UNFINISHED = ".making-"

_FLAG = "-XX:SharedArchiveFile="

#: The JVM tells on stdout that an archive does not fit; there is nothing to do about that.
_SILENCE = ("-Xshare:auto", "-Xlog:cds*=off", "-Xlog:class+path=off")

#: From here on a heap's pointers are wider, and those of an archive with them.
_WIDE_HEAP_BYTES = 32 * 1024**3
_HEAP = re.compile(r"-Xmx(\d+)([kmgt]?)", re.IGNORECASE)

#: What says nothing of classes.
_NO_MATTER = ("-Xmx", "-Xms", "-Xss", "-XX:TieredStopAtLevel=", "-XX:Tier4", "-D")


#: For what no archive fitted in this process: arguments of ``spark-submit``, by the archive that
#: they would make.
_lacking: dict[Path, tuple[str, ...]] = {}

log = logging.getLogger(__name__)


class NoArchiveError(Exception):
    """There can be no archive for a command: the text says why, and ``remedy`` what to do."""

    def __init__(self, text: str, remedy: str) -> None:
        super().__init__(text)
        self.remedy = remedy


def folder() -> Path:
    """Where this user's archives are: below EO_CACHE, ``XDG_CACHE_HOME``, or else ``~/.cache``.

    Raises:
        SetupError: none of them is set, and this user has no home.
    """
    own = os.environ.get(CACHE_VARIABLE)
    if own:
        return Path(own).absolute() / "jvm"
    cache = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"))
    if not cache.is_absolute():
        raise SetupError(f"This user has no home: set HOME, or {CACHE_VARIABLE} to a folder.")
    return cache / "eo-pipeline" / "jvm"


def with_archive(command: Sequence[str], arguments: Sequence[str] = ()) -> list[str]:
    """``command``, which starts a JVM, with the archive that was made for it. If none fits, and
    there could be one, that is said, once.

    ``arguments`` are those of ``spark-submit`` that end in this command, for :func:`lacking`.
    """
    try:
        archive = archive_of(command)
    except NoArchiveError:
        return list(command)
    if not fits(archive):
        _tell(archive, arguments)
        return list(command)
    with suppress(OSError):
        os.utime(archive)  # in use
    return [command[0], f"{_FLAG}{archive}", *_SILENCE, *command[1:]]


def _tell(archive: Path, arguments: Sequence[str]) -> None:
    if archive not in _lacking:
        _lacking[archive] = tuple(arguments)
        log.info(
            "Spark starts without an archive of its classes, more slowly: none fits this Java and "
            "these jars. `eo spark archive` makes one, once."
        )


def lacking() -> tuple[str, ...]:
    """The arguments of ``spark-submit`` for which this process found no archive that fits, the
    first if there were several; empty if it missed none.
    """
    return next(iter(_lacking.values()), ())


def making(command: Sequence[str], archive: Path) -> list[str]:
    """``command``, with which the JVM writes ``archive`` when it ends."""
    return [command[0], f"-XX:ArchiveClassesAtExit={archive}", *_SILENCE, *command[1:]]


def archive_in(flags: Iterable[str]) -> str:
    """The archive that a JVM with these ``flags`` was started with; empty if with none."""
    given = (each.removeprefix(_FLAG) for each in flags if each.startswith(_FLAG))
    return next(given, "")


def archive_of(command: Sequence[str]) -> Path:
    """Where the archive for ``command`` is, or would be.

    Raises:
        NoArchiveError: there can be none. A jar cannot be looked at, a folder with files is on the
            class path, or this Java comes without an archive of its own classes to put ours on, as
            that of the wheel does.
    """
    java, wide = Path(command[0]).resolve(), _has_wide_heap(command)
    its_own = "classes_nocoops.jsa" if wide else "classes.jsa"
    if not (java.parents[1] / "lib" / "server" / its_own).is_file():
        raise NoArchiveError(
            f"{java} comes without an archive of its own classes, as that of the wheel does",
            "A JDK or JRE of this system has one: put it on the path, or name it in JAVA_HOME.",
        )
    try:
        look = [
            _look(path) for path in (java.parents[1] / "lib" / "modules", *_class_path(command))
        ]
        place = folder()
    except (OSError, SetupError) as error:
        raise NoArchiveError(str(error), "Correct that; then `eo spark archive`.") from error
    told = json.dumps([str(java), wide, list(_flags(command)), look]).encode()
    return place / f"spark-{hashlib.sha256(told).hexdigest()[:24]}{_SUFFIX}"


def fits(archive: Path) -> bool:
    """Whether ``archive`` is there, and a JVM of ours may take it."""
    return is_ours(archive) and is_whole(archive)


def has_any() -> bool:
    """Whether there is an archive of ours, whatever it was made for."""
    return any(is_ours(each) for each in folder().glob(f"*{_SUFFIX}"))


def forget_unused(number_max: int | None = None) -> None:
    """Remove archives that were not used for a month, and what a making that was killed left; of
    ``number_max`` archives or more the one that was not used for longest, to make room for another.

    Whoever calls it holds the lock that a making holds. A JVM keeps what it has mapped.
    """
    for left in folder().glob(f"{UNFINISHED}*"):
        shutil.rmtree(left, ignore_errors=True)
    used = sorted((_used(each), each) for each in folder().glob(f"*{_SUFFIX}"))
    before = time.time() - _UNUSED_S
    old = [each for when, each in used if when < before]
    if number_max is not None and len(used) >= number_max:
        old.append(used[0][1])
    for each in old:
        with suppress(OSError):
            each.unlink(missing_ok=True)
            _size_of(each).unlink(missing_ok=True)


def _used(archive: Path) -> float:
    """When it was used last, in seconds since the epoch; long ago if it is gone."""
    try:
        return archive.stat().st_mtime
    except OSError:
        return 0.0


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


def _has_wide_heap(command: Sequence[str]) -> bool:
    found = [each for each in map(_HEAP.fullmatch, command) if each]
    sizes = [int(each[1]) * 1024 ** " kmgt".index(each[2].lower() or " ") for each in found]
    return max(sizes, default=0) >= _WIDE_HEAP_BYTES


def _flags(command: Sequence[str]) -> Iterator[str]:
    for before, word in pairwise(command):
        if before == "-cp":
            continue
        if not word.startswith("-"):
            return  # the class that is run, and its arguments
        if word != "-cp" and not word.startswith(_NO_MATTER):
            yield word


def _class_path(command: Sequence[str]) -> Iterator[Path]:
    """Every file of it, in its order; a JVM reads a folder's in the order the disk has them.

    Raises:
        NoArchiveError: a folder with files is on it, of which a JVM writes down nothing.
    """
    parts = command[list(command).index("-cp") + 1] if "-cp" in command else ""
    for part in filter(None, parts.split(os.pathsep)):
        path = Path(part)
        if part.endswith("*"):
            yield from sorted(Path(part[:-1]).glob("*.jar"))
        elif path.is_file():
            yield path
        elif path.is_dir() and any(path.iterdir()):
            raise NoArchiveError(
                f"the folder {path}, which has files, is on the class path",
                "If it is Spark's `conf`: say in `spark.config` what it says, and take it away.",
            )


def _look(path: Path) -> tuple[str, int, int]:
    """In seconds, as the JVM itself compares times: an image's layers have none finer."""
    found = path.stat()
    return (str(path), found.st_size, int(found.st_mtime))
