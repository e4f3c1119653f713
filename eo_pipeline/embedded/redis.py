"""A real Redis server on this machine, from the system's own packages."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from eo_pipeline.embedded.ports import HOST, free_port
from eo_pipeline.embedded.server import EmbeddedServer
from eo_pipeline.errors import SetupError

_CONNECT_TIMEOUT_S = 5
_BINARY = "redis-server"
#: Folders of servers that are not on an ordinary user's path.
_ALSO_IN = ("/usr/sbin", "/usr/local/sbin", "/usr/local/bin", "/opt/homebrew/bin")


class EmbeddedRedis(EmbeddedServer):
    """Redis with its append-only file and log below ``folder``.

    ``port`` is used if it is free when the object is created, else any free one.
    ``settings`` are directives of ``redis.conf`` (``{"appendfsync": "always"}``; the default,
    ``everysec``, loses nothing when the process dies, and up to a second when power does).
    Whoever can reach 127.0.0.1 is let in: this is for a laptop and for tests.
    """

    NAME: ClassVar[str] = "Redis"
    #: one for each test
    DATABASES: ClassVar[int] = 1024

    def __init__(
        self, folder: Path, *, port: int | None = None, settings: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(folder)
        self.port = free_port(port)
        self.host = HOST
        self._settings = dict(settings or {})
        self._data = self.folder / "data"

    def url(self, database: int = 0) -> str:
        """Return the URL of ``database``."""
        return f"redis://{self.host}:{self.port}/{database}"

    def connect(self, database: int = 0) -> redis.Redis:
        """Create a client without retries."""
        return redis.Redis.from_url(
            self.url(database),
            retry=Retry(NoBackoff(), 0),
            socket_connect_timeout=_CONNECT_TIMEOUT_S,
            protocol=2,
        )

    def _ports(self) -> Sequence[int]:
        return (self.port,)

    def _prepare(self) -> None:
        self._data.mkdir(exist_ok=True)

    def _command(self) -> Sequence[str]:
        settings = {
            "bind": self.host,
            "port": str(self.port),
            "dir": str(self._data),
            "databases": str(self.DATABASES),
            "daemonize": "no",
            "appendonly": "yes",
            "save": "",
            **self._settings,
        }
        options = [word for name, value in settings.items() for word in (f"--{name}", value)]
        return [_binary(), *options]

    def _answers(self) -> bool:
        try:
            with self.connect() as client:
                return bool(client.ping())
        except redis.RedisError:  # starting, or loading its file
            return False


def _binary() -> str:
    """Return the server's executable.

    Raises:
        SetupError: it is not installed.
    """
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), *_ALSO_IN])
    binary = shutil.which(_BINARY, path=path)
    if binary is None:
        raise SetupError(
            "Redis is not installed: apt-get install redis-server (macOS: brew install redis)"
        )
    return binary
