"""Record of a warm Spark: its address, its processes and its settings.

One file for each folder in which ``eo spark start`` was called, in this user's state folder
(``XDG_STATE_HOME``, else ``~/.local/state``). It contains the token, so only this user may read it.
A pid may be reused, after a reboot for example: the record has the process's start time, too.
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

#: Version of the record's format; raised with each incompatible change.
_FORMAT = 1


class UnreadableRecordError(ValueError):
    """An unusable record: truncated, of another release, or accessible to other users."""


@dataclass(frozen=True)
class ServerRecord:
    """A Spark Connect server, its watcher, and the credentials."""

    #: the folder in which it was started: used by runs in it or below; its Python workers run there
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
    #: start time, ISO 8601 in UTC
    since: str
    idle_timeout_s: float
    log: str
    #: settings that a run compares with its own; see :func:`terms`
    terms: Mapping[str, str]
    versions: Mapping[str, str]
    format: int = _FORMAT

    @property
    def remote(self) -> str:
        """The address for a client; pyspark sends a token without TLS to localhost alone."""
        return f"sc://localhost:{self.port}/;token={self.token}"

    @property
    def alive(self) -> bool:
        """Return whether the process still runs, with the recorded start time."""
        return start_of(self.pid) == self.started

    @property
    def watched(self) -> bool:
        """Return whether the watcher still runs."""
        return start_of(self.watcher_pid) == self.watcher_started

    def __str__(self) -> str:
        return f"The warm Spark of {self.folder} (localhost:{self.port}, process {self.pid})"


def records() -> Path:
    """Return the folder of this user's records."""
    state = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    return Path(state) / "eo-pipeline" / "spark"


def path_of(folder: Path) -> Path:
    """Return the path of the record for the server of ``folder`` on this machine."""
    location = f"{platform.node()}:{folder.resolve()}"
    return records() / f"{hashlib.sha256(location.encode()).hexdigest()[:16]}.json"


def nearest(folder: Path) -> ServerRecord | None:
    """Return the record of ``folder`` or of its nearest ancestor; None if there is none.

    Raises:
        UnreadableRecordError: the nearest record is unusable.
    """
    for ancestor in _ancestors(folder):
        record = read(path_of(ancestor))
        if record is not None:
            return record
    return None


def _ancestors(folder: Path) -> Iterator[Path]:
    resolved = folder.resolve()
    yield from (resolved, *resolved.parents)


def read(path: Path) -> ServerRecord | None:
    """Return the record in ``path``; None if there is no such file.

    Raises:
        UnreadableRecordError: it is unusable.
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
    """Write ``record`` atomically.

    Raises:
        OSError: it cannot be written.
    """
    path = path_of(Path(record.folder))
    new_file = path.with_suffix(".new")
    new_file.unlink(missing_ok=True)
    handle = os.open(new_file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "w") as file:
        json.dump(asdict(record), file, indent=1)
    new_file.replace(path)


def forget(folder: Path) -> None:
    """Remove the record of ``folder``."""
    with suppress(FileNotFoundError):
        path_of(folder).unlink()


_JAR_SETTINGS = {"spark.jars": ",", "spark.driver.extraClassPath": os.pathsep}


#: Variables that select another Spark or its settings.
_SPARK_VARIABLES = ("SPARK_HOME", "SPARK_CONF_DIR", "PYSPARK_SUBMIT_ARGS")


def terms(master: str, launch: Mapping[str, str]) -> dict[str, str]:
    """Return the settings of a Spark started now by this process, under readable names.

    Spark settings may contain secrets, and are compared by a hash.
    """
    settings = json.dumps({"spark.master": master, **launch}, sort_keys=True)
    return {
        "version of pyspark": importlib.metadata.version("pyspark"),
        "Python": _python(),
        "document's spark settings": _hash(settings),
        "connector's jars": _hash(json.dumps([_fingerprint(jar) for jar in _jars(launch)])),
        **{name: os.environ.get(name, "") for name in _SPARK_VARIABLES},
        # import path of the transform's functions in Python workers
        "PYTHONPATH": os.environ.get("PYTHONPATH", ""),
        # local time of Python functions
        "time zone (TZ)": os.environ.get("TZ", ""),
        # permissions of a lake table's files
        "umask": f"{_umask():03o}",
    }


def differences(server: Mapping[str, str], run: Mapping[str, str]) -> list[str]:
    """Return the names of settings that differ."""
    return [name for name in {**server, **run} if server.get(name) != run.get(name)]


def _python() -> str:
    """Return the folder of the workers' Python: a virtual environment has several names for one."""
    python = os.environ.get("PYSPARK_PYTHON") or sys.executable
    return str(Path(python).parent) if os.sep in python else python


def _jars(launch: Mapping[str, str]) -> list[str]:
    lists = (launch.get(key, "").split(separator) for key, separator in _JAR_SETTINGS.items())
    return [jar for jars in lists for jar in jars if jar]


def _fingerprint(jar: str) -> tuple[str, int, int]:
    """Return name, size and time of a jar, which change if it is replaced."""
    try:
        status = Path(jar).stat()
    except OSError:  # on another machine: only the name is known
        return (jar, 0, 0)
    return (jar, status.st_size, status.st_mtime_ns)


def _umask() -> int:
    """Return the umask from ``/proc`` on Linux; elsewhere Python can only read it by setting it."""
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
    """Return the live server of the working directory or an ancestor, if its settings match.

    Logs a warning with the reason if a server exists and is not used.
    """
    server, why_not = find_server(master, launch)
    if why_not:
        log.warning("%s", why_not)
    return server


def has_warm_server(master: str, launch: Mapping[str, str]) -> bool:
    """Return whether :func:`warm_server` would find a server; logs nothing."""
    return find_server(master, launch)[0] is not None


def find_server(master: str, launch: Mapping[str, str]) -> tuple[ServerRecord | None, str]:
    """Return the server, or the reason why an existing one is not used; empty if none exists."""
    try:
        server = nearest(Path.cwd())
    except (UnreadableRecordError, OSError) as error:
        return None, f"No warm Spark is used: {error}; `eo spark start` writes it anew."
    if server is None:
        return None, ""
    if not server.alive:
        return None, (
            f"{server} has ended without being asked to; `eo spark start` starts another, `eo "
            f"spark stop` forgets it, its log is {server.log}. {_INSTEAD}"
        )
    if changed := differences(server.terms, terms(master, launch)):
        return None, (
            f"{server} is not used: it was started with other settings ({', '.join(changed)}); `eo "
            f"spark stop`, then `eo spark start` from here. {_INSTEAD}"
        )
    if _has_classic_udf():
        return None, (
            f"{server} is not used: the transform's module makes a Python function for Spark (udf) "
            "when it is imported, and pyspark makes that for the kind of Spark the process has by "
            f"then; make it in the transform. {_INSTEAD}"
        )
    return server, ""


def _has_classic_udf() -> bool:
    """Return whether a ``udf`` exists: created without Spark Connect, it fails on a server."""
    # importing pyspark takes a sixth of a second; without it no udf can exist
    if "pyspark.sql.udf" not in sys.modules:
        return False
    from pyspark.sql.udf import UserDefinedFunction

    referrers = gc.get_referrers(UserDefinedFunction)
    return any(isinstance(referrer, UserDefinedFunction) for referrer in referrers)


def warn_unused(server: ServerRecord, error: Exception) -> None:
    """Log the reason why a matching server is not used."""
    log.warning(
        "%s does not answer as it should; `eo spark stop` ends it. %s %s", server, _INSTEAD, error
    )
