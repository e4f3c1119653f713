"""What is written down of a warm Spark: where it listens, who it is, and what it was started with.

One file for each folder in which ``eo spark start`` was called, in this user's state folder
(``XDG_STATE_HOME``, else ``~/.local/state``). It holds what lets others in, and so nobody else may
read it. A pid alone says nothing after a reboot: with it stands when its process began.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from eo_pipeline.jvm.processes import start_of

#: Raised when a record means something else than before.
_FORMAT = 1


class UnreadableRecordError(ValueError):
    """A record that says nothing: cut, of another version of this package, or not ours alone."""


@dataclass(frozen=True)
class ServerRecord:
    """A Spark Connect server, its watcher, and what lets us in."""

    #: where it was started: found from there and below, and where its Python workers run
    folder: str
    host: str
    port: int
    token: str
    gateway_port: int
    gateway_secret: str
    pid: int
    started: str
    watcher_pid: int
    watcher_started: str
    #: when, as ISO 8601 in UTC
    since: str
    idle_timeout_s: float
    log: str
    #: what a run compares with its own; see :func:`eo_pipeline.spark.warm.terms.terms`
    terms: Mapping[str, str]
    versions: Mapping[str, str]
    format: int = _FORMAT

    @property
    def remote(self) -> str:
        """The address for a client; pyspark sends a token without TLS to localhost alone."""
        return f"sc://localhost:{self.port}/;token={self.token}"

    @property
    def alive(self) -> bool:
        """Whether its process is there, and is still the same one."""
        return start_of(self.pid) == self.started

    @property
    def watched(self) -> bool:
        """Whether its watcher is there."""
        return start_of(self.watcher_pid) == self.watcher_started

    def __str__(self) -> str:
        return f"The warm Spark of {self.folder} (localhost:{self.port}, process {self.pid})"


def records() -> Path:
    """The folder of this user's records."""
    state = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    return Path(state) / "eo-pipeline" / "spark"


def path_of(folder: Path) -> Path:
    """Where the record of the server of ``folder`` is, on this machine."""
    place = f"{platform.node()}:{folder.resolve()}"
    return records() / f"{hashlib.sha256(place.encode()).hexdigest()[:16]}.json"


def nearest(folder: Path) -> ServerRecord | None:
    """The record of ``folder``, or of the nearest one above it; None if there is none.

    Raises:
        UnreadableRecordError: the nearest one says nothing.
    """
    for each in _upwards(folder):
        found = read(path_of(each))
        if found is not None:
            return found
    return None


def _upwards(folder: Path) -> Iterator[Path]:
    there = folder.resolve()
    yield from (there, *there.parents)


def read(path: Path) -> ServerRecord | None:
    """The record in ``path``; None if there is no such file.

    Raises:
        UnreadableRecordError: it says nothing.
    """
    try:
        with path.open() as file:
            status = os.fstat(file.fileno())
            text = file.read()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise UnreadableRecordError(f"{path} cannot be read: {error}") from error
    if status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise UnreadableRecordError(f"{path} is not this user's alone")
    return _parsed(path, text)


def _parsed(path: Path, text: str) -> ServerRecord:
    names = {field.name for field in fields(ServerRecord)}
    try:
        values = json.loads(text)
        if values.get("format") != _FORMAT or values.keys() != names:
            raise UnreadableRecordError(f"{path} was written by another version of eo-pipeline")
        return ServerRecord(**values)
    except (ValueError, AttributeError) as error:
        if isinstance(error, UnreadableRecordError):
            raise
        raise UnreadableRecordError(f"{path} is not a record: {error}") from error


def write(record: ServerRecord) -> None:
    """Write ``record`` down, whole or not at all.

    Raises:
        OSError: it cannot be written.
    """
    path = path_of(Path(record.folder))
    aside = path.with_suffix(".new")
    aside.unlink(missing_ok=True)
    handle = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "w") as file:
        json.dump(asdict(record), file, indent=1)
    aside.replace(path)


def forget(folder: Path) -> None:
    """Remove the record of ``folder``, whatever it says."""
    with suppress(FileNotFoundError):
        path_of(folder).unlink()
