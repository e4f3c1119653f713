"""A real MariaDB server on this machine, from the system's own packages."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

import pymysql

from eo_pipeline.embedded.ports import HOST, free_port
from eo_pipeline.embedded.server import EmbeddedServer
from eo_pipeline.errors import SetupError

_INSTALL_TIMEOUT_S = 120
_CONNECT_TIMEOUT_S = 5
#: Folders of servers that are not on an ordinary user's path.
_ALSO_IN = ("/usr/sbin", "/usr/local/sbin", "/usr/libexec", "/usr/local/libexec")


class EmbeddedMariaDB(EmbeddedServer):
    """MariaDB with its data and log below ``folder``, and an empty database ``eo``.

    ``port`` is used if it is free when the object is created, else any free one.
    ``settings`` are server options (``{"innodb-flush-log-at-trx-commit": "2"}``). Whoever can reach
    127.0.0.1 is let in as ``root`` without a password: this is for a laptop and for tests.

    It runs as the current user, also as root (option ``--user=root``).
    """

    NAME: ClassVar[str] = "MariaDB"
    USER: ClassVar[str] = "root"
    DATABASE: ClassVar[str] = "eo"

    def __init__(
        self, folder: Path, *, port: int | None = None, settings: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(folder)
        self.port = free_port(port)
        self.host = HOST
        self._settings = dict(settings or {})
        self._data = self.folder / "data"

    def connect(self, database: str | None = None) -> pymysql.Connection:
        """Open a connection as ``root``, with autocommit."""
        return pymysql.connect(
            host=self.host,
            port=self.port,
            user=self.USER,
            database=database,
            charset="utf8mb4",
            autocommit=True,
            connect_timeout=_CONNECT_TIMEOUT_S,
        )

    def create_database(self, name: str) -> str:
        """Create ``name`` unless it exists; return ``name``."""
        with self.connect() as admin, admin.cursor() as cursor:
            escaped = name.replace("`", "``")
            cursor.execute(f"CREATE DATABASE IF NOT EXISTS `{escaped}` CHARACTER SET utf8mb4")
        return name

    def _ports(self) -> Sequence[int]:
        return (self.port,)

    def _prepare(self) -> None:
        (self.folder / "tmp").mkdir(exist_ok=True)
        if not self._data.is_dir():
            self._initialise()

    def _command(self) -> Sequence[str]:
        settings = {
            "datadir": str(self._data),
            "tmpdir": str(self.folder / "tmp"),
            "bind-address": self.host,
            "port": str(self.port),
            # relative to the data: a socket's path may not exceed 107 bytes
            "socket": "mariadbd.sock",
            "pid-file": "mariadbd.pid",
            "skip-name-resolve": "1",
            **self._settings,
        }
        options = [f"--{name}={value}" for name, value in settings.items()]
        return [_binary("mariadbd", "mysqld"), "--no-defaults", *_as_root(), *options]

    def _answers(self) -> bool:
        try:
            self.create_database(self.DATABASE)
        except pymysql.OperationalError:
            return False
        return True

    def _initialise(self) -> None:
        """Create the data folder, atomically."""
        new_data = self._data.with_suffix(".new")
        shutil.rmtree(new_data, ignore_errors=True)
        command = [
            _binary("mariadb-install-db", "mysql_install_db"),
            "--no-defaults",
            f"--datadir={new_data}",
            f"--tmpdir={self.folder / 'tmp'}",
            "--auth-root-authentication-method=normal",
            "--skip-name-resolve",
            "--skip-test-db",
            *_as_root(),
        ]
        with self.log.open("ab") as log:
            code = subprocess.run(
                command, stdout=log, stderr=log, timeout=_INSTALL_TIMEOUT_S, check=False
            ).returncode
        if code != 0:
            raise SetupError(f"MariaDB's data folder could not be made.{self._log_tail(0)}")
        new_data.rename(self._data)


def _as_root() -> list[str]:
    return ["--user=root"] if os.geteuid() == 0 else []


def _binary(*names: str) -> str:
    """Return the first installed program among ``names``.

    Raises:
        SetupError: none is installed.
    """
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), *_ALSO_IN])
    binary = next(filter(None, (shutil.which(name, path=path) for name in names)), None)
    if binary is None:
        raise SetupError(
            f"MariaDB's {names[0]} is not installed: apt-get install mariadb-server "
            "(macOS: brew install mariadb)"
        )
    return binary
