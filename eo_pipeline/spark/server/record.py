"""What is written down of a warm Spark: where it listens, who it is, and what it was started with.

One file for each folder in which ``eo spark start`` was called, in this user's state folder
(``XDG_STATE_HOME``, else ``~/.local/state``). It holds what lets others in, and so nobody else may
read it. A pid alone says nothing after a reboot: with it stands when its process began.
"""

from __future__ import annotations

import gc
import hashlib
import importlib.metadata
import json
import logging
import os
import platform
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from eo_pipeline._process import start_of

log = logging.getLogger(__name__)

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
    #: what a run compares with its own; see :func:`eo_pipeline.spark.server.record.terms`
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


_JAR_SETTINGS = {"spark.jars": ",", "spark.driver.extraClassPath": os.pathsep}


#: Variables by which Spark itself is another one.
_OF_SPARK = ("SPARK_HOME", "SPARK_CONF_DIR", "PYSPARK_SUBMIT_ARGS")


def terms(master: str, launch: Mapping[str, str]) -> dict[str, str]:
    """By name in words: what a Spark started now, in this process, would have.

    Settings may hold secrets, and are told apart by a hash.
    """
    told = json.dumps({"spark.master": master, **launch}, sort_keys=True)
    return {
        "version of pyspark": importlib.metadata.version("pyspark"),
        "Python": _python(),
        "document's spark settings": _hash(told),
        "connector's jars": _hash(json.dumps([_look(jar) for jar in _jars(launch)])),
        **{name: os.environ.get(name, "") for name in _OF_SPARK},
        # Python's workers import the transform's functions by these
        "PYTHONPATH": os.environ.get("PYTHONPATH", ""),
        # what Python functions take for local time
        "time zone (TZ)": os.environ.get("TZ", ""),
        # who may read the files of a lake's table
        "umask": f"{_umask():03o}",
    }


def differences(server: Mapping[str, str], run: Mapping[str, str]) -> list[str]:
    """The names of what differs."""
    return [name for name in {**server, **run} if server.get(name) != run.get(name)]


def _python() -> str:
    """That of the workers; a virtual environment has several names for its one."""
    named = os.environ.get("PYSPARK_PYTHON") or sys.executable
    return str(Path(named).parent) if os.sep in named else named


def _jars(launch: Mapping[str, str]) -> list[str]:
    named = (launch.get(key, "").split(mark) for key, mark in _JAR_SETTINGS.items())
    return [jar for jars in named for jar in jars if jar]


def _look(jar: str) -> tuple[str, int, int]:
    """A jar that was replaced under the same name is another one."""
    try:
        found = Path(jar).stat()
    except OSError:  # on another machine: its name must do
        return (jar, 0, 0)
    return (jar, found.st_size, found.st_mtime_ns)


def _umask() -> int:
    """Python can only tell it by setting it; where Linux tells, nothing is set."""
    try:
        status = Path("/proc/self/status").read_text()
        [line] = [line for line in status.splitlines() if line.startswith("Umask:")]
        return int(line.split()[1], 8)
    except (OSError, ValueError):
        before = os.umask(0o077)
        os.umask(before)
        return before


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


_INSTEAD = "This run starts a Spark of its own."


def warm_server(master: str, launch: Mapping[str, str]) -> ServerRecord | None:
    """The server of the working directory, or of a folder above it, that is there and fits.

    Why one is not used is logged as a warning.
    """
    found, why_not = _looked(master, launch)
    if why_not:
        log.warning("%s", why_not)
    return found


def has_warm_server(master: str, launch: Mapping[str, str]) -> bool:
    """Whether there is one for :func:`warm_server`, which will tell why not."""
    return _looked(master, launch)[0] is not None


def _looked(master: str, launch: Mapping[str, str]) -> tuple[ServerRecord | None, str]:
    """The server, or why one that is there is not used; empty: there is none."""
    try:
        found = nearest(Path.cwd())
    except (UnreadableRecordError, OSError) as error:
        return None, f"No warm Spark is used: {error}; `eo spark start` writes it anew."
    if found is None:
        return None, ""
    if not found.alive:
        return None, (
            f"{found} has ended without being asked to; `eo spark start` starts another, `eo spark "
            f"stop` forgets it, its log is {found.log}. {_INSTEAD}"
        )
    if differ := differences(found.terms, terms(master, launch)):
        return None, (
            f"{found} is not used: it was started with other settings ({', '.join(differ)}); `eo "
            f"spark stop`, then `eo spark start` from here. {_INSTEAD}"
        )
    if _has_functions_for_its_own_spark():
        return None, (
            f"{found} is not used: the transform's module makes a Python function for Spark (udf) "
            "when it is imported, and pyspark makes that for the kind of Spark the process has by "
            f"then; make it in the transform. {_INSTEAD}"
        )
    return found, ""


def _has_functions_for_its_own_spark() -> bool:
    """A ``udf`` that was made without Spark Connect fails when it is called with it."""
    # pyspark takes a sixth of a second to import, and who has not done so has made none
    if "pyspark.sql.udf" not in sys.modules:
        return False
    from pyspark.sql.udf import UserDefinedFunction

    referrers = gc.get_referrers(UserDefinedFunction)
    return any(isinstance(each, UserDefinedFunction) for each in referrers)


def tell_that_it_fails(server: ServerRecord, error: Exception) -> None:
    """Log why a server that is there and fits is not used after all."""
    log.warning(
        "%s does not answer as it should; `eo spark stop` ends it. %s %s", server, _INSTEAD, error
    )
