"""Class-data sharing (CDS) archive of Spark's classes, mapped by a JVM in place of 280 jars.

It saves a third of a cold Spark's start-up time. ``eo spark archive`` creates it once, with a JVM
that writes its loaded classes at exit. An archive fits one Java, one class path and one set of
flags. The file name is their hash, so another jar or Java finds no archive and starts without one.
The JVM checks the rest itself, and ignores an unfit archive silently.
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

#: Environment variable of the cache folder.
CACHE_VARIABLE = "EO_CACHE"

#: Archives (150 MB each) unused for this long are removed when another one is created.
_UNUSED_S = 30 * 24 * 3600.0
_SUFFIX = ".jsa"
#: Prefix of the folder in which an archive is being written.
UNFINISHED = ".making-"

_FLAG = "-XX:SharedArchiveFile="

#: Without these the JVM reports an unfit archive on stdout.
_SILENCE = ("-Xshare:auto", "-Xlog:cds*=off", "-Xlog:class+path=off")

#: From this heap size on, pointers are uncompressed, in the heap and in an archive.
_WIDE_HEAP_BYTES = 32 * 1024**3
_HEAP = re.compile(r"-Xmx(\d+)([kmgt]?)", re.IGNORECASE)

#: Prefixes of flags that do not affect an archive.
_NO_MATTER = ("-Xmx", "-Xms", "-Xss", "-XX:TieredStopAtLevel=", "-XX:Tier4", "-D")

#: Archives that this process lacks, and has logged.
_lacking: set[Path] = set()

log = logging.getLogger(__name__)


class NoArchiveError(Exception):
    """No archive can exist for a command; the text has the reason, ``remedy`` the action."""

    def __init__(self, text: str, remedy: str) -> None:
        super().__init__(text)
        self.remedy = remedy


def folder() -> Path:
    """Return this user's folder of archives, below EO_CACHE, ``XDG_CACHE_HOME`` or ``~/.cache``.

    Raises:
        SetupError: none of them is set, and this user has no home.
    """
    override = os.environ.get(CACHE_VARIABLE)
    if override:
        return Path(override).absolute() / "jvm"
    cache = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"))
    if not cache.is_absolute():
        raise SetupError(f"This user has no home: set HOME, or {CACHE_VARIABLE} to a folder.")
    return cache / "eo-pipeline" / "jvm"


def with_archive(command: Sequence[str]) -> list[str]:
    """Return ``command``, which starts a JVM, with its archive. If this user's archives do not fit
    (any more), log that once.
    """
    try:
        archive = archive_of(command)
    except NoArchiveError:
        return list(command)
    if not fits(archive):
        _log_once(archive)
        return list(command)
    with suppress(OSError):
        os.utime(archive)  # marks it as used
    return [command[0], f"{_FLAG}{archive}", *_SILENCE, *command[1:]]


def _log_once(archive: Path) -> None:
    if archive not in _lacking and exists_for_another():
        _lacking.add(archive)
        log.info(
            "Spark starts more slowly: no class archive fits this Java and these jars. "
            "`eo spark archive` makes one."
        )


def exists_for_another() -> bool:
    """Return whether this user has archives, for other jars, another Java, or of before."""
    return any(folder().glob(f"*{_SUFFIX}"))


def recording(command: Sequence[str], archive: Path) -> list[str]:
    """Return ``command`` with the flag that makes the JVM write ``archive`` at exit."""
    return [command[0], f"-XX:ArchiveClassesAtExit={archive}", *_SILENCE, *command[1:]]


def archive_in(flags: Iterable[str]) -> str:
    """Return the archive among the ``flags`` of a JVM; empty if there is none."""
    paths = (flag.removeprefix(_FLAG) for flag in flags if flag.startswith(_FLAG))
    return next(paths, "")


def archive_of(command: Sequence[str]) -> Path:
    """Return the path of the archive for ``command``, which need not exist.

    Raises:
        NoArchiveError: no archive is possible. A jar is unreadable, a folder with files is on the
            class path, or this Java (as the wheel's) has no base archive of its own classes.
    """
    java, wide_heap = Path(command[0]).resolve(), _has_wide_heap(command)
    base_archive = "classes_nocoops.jsa" if wide_heap else "classes.jsa"
    if not (java.parents[1] / "lib" / "server" / base_archive).is_file():
        raise NoArchiveError(
            f"{java} has no base CDS archive (nor has the Java of the wheel)",
            "A JDK or JRE of this system has one: put it on the path, or name it in JAVA_HOME.",
        )
    try:
        files = [
            _look(path) for path in (java.parents[1] / "lib" / "modules", *_class_path(command))
        ]
        archives = folder()
    except (OSError, SetupError) as error:
        raise NoArchiveError(str(error), "Correct that; then `eo spark archive`.") from error
    digest_input = json.dumps([str(java), wide_heap, list(_flags(command)), files]).encode()
    return archives / f"spark-{hashlib.sha256(digest_input).hexdigest()[:24]}{_SUFFIX}"


def fits(archive: Path) -> bool:
    """Return whether ``archive`` exists, is complete, and is owned by this user."""
    return is_ours(archive) and is_complete(archive)


def forget_unused() -> None:
    """Remove archives unused for a month, and the folders of killed processes.

    The caller holds the lock of :func:`make_archive`. A running JVM keeps its mapped archive.
    """
    for unfinished in folder().glob(f"{UNFINISHED}*"):
        shutil.rmtree(unfinished, ignore_errors=True)
    oldest = time.time() - _UNUSED_S
    for archive in folder().glob(f"*{_SUFFIX}"):
        if _used(archive) >= oldest:
            continue
        with suppress(OSError):
            archive.unlink(missing_ok=True)
            _size_of(archive).unlink(missing_ok=True)


def _used(archive: Path) -> float:
    """Return the time of last use, in seconds since 1970; 0 if the file is missing."""
    try:
        return archive.stat().st_mtime
    except OSError:
        return 0.0


def is_complete(archive: Path) -> bool:
    """Return whether the file has its sealed size: a JVM that maps a truncated archive crashes."""
    try:
        return archive.stat().st_size == int(_size_of(archive).read_text())
    except (OSError, ValueError):
        return False


def seal(archive: Path) -> None:
    """Record the size of the complete ``archive``."""
    _size_of(archive).write_text(str(archive.stat().st_size))


def _size_of(archive: Path) -> Path:
    return archive.with_suffix(".size")


def is_ours(path: Path) -> bool:
    """Return whether only this user can write the file: its classes run as this user."""
    try:
        status = path.stat()
    except OSError:
        return False
    return status.st_uid == os.getuid() and not status.st_mode & 0o022


def _has_wide_heap(command: Sequence[str]) -> bool:
    matches = [match for match in map(_HEAP.fullmatch, command) if match]
    sizes = [int(match[1]) * 1024 ** " kmgt".index(match[2].lower() or " ") for match in matches]
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
    """List the files of the class path in order; a wildcard's jars sorted by name.

    Raises:
        NoArchiveError: a folder with files is on it; the JVM does not archive its classes.
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
                "If it is Spark's `conf`, move its settings to `spark.config` and remove it.",
            )


def _look(path: Path) -> tuple[str, int, int]:
    """Return path, size and modification time, in seconds as the JVM compares it: container image
    layers have no finer times.
    """
    status = path.stat()
    return (str(path), status.st_size, int(status.st_mtime))
