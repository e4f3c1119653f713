"""A real MySQL on this machine: MariaDB shares its protocol, and not all of its promises.

``tests/install_mysql.sh`` unpacks it, with all that it is linked to, into ``.eo/mysql``.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from eo_pipeline.embedded.mariadb import EmbeddedMariaDB
from eo_pipeline.errors import SetupError

TREE = Path(__file__).parents[2] / ".eo" / "mysql"

_INITIALISE_TIMEOUT_S = 180

#: Whoever comes by TCP, since names are not looked up.
_INIT_FILE = """
CREATE USER IF NOT EXISTS 'root'@'127.0.0.1';
GRANT ALL ON *.* TO 'root'@'127.0.0.1' WITH GRANT OPTION;
"""


class EmbeddedMySql(EmbeddedMariaDB):
    """As :class:`EmbeddedMariaDB`, but the other server."""

    NAME: ClassVar[str] = "MySQL"

    def _command(self) -> Sequence[str]:
        init = self.folder / "init.sql"
        init.write_text(_INIT_FILE)
        settings = {
            "datadir": str(self._data),
            "tmpdir": str(self.folder / "tmp"),
            "bind-address": self.host,
            "port": str(self.port),
            # relative to the data: a socket's path may not exceed 107 bytes
            "socket": "mysqld.sock",
            "pid-file": "mysqld.pid",
            "init-file": str(init),
            "skip-name-resolve": "1",
            "mysqlx": "OFF",
            "secure-file-priv": "NULL",
            "local-infile": "ON",
            "performance-schema": "OFF",
            **self._settings,
        }
        return [*_program(), *(f"--{name}={value}" for name, value in settings.items())]

    def _initialise(self) -> None:
        fresh = self._data.with_suffix(".new")
        shutil.rmtree(fresh, ignore_errors=True)
        command = [*_program(), "--initialize-insecure", f"--datadir={fresh}"]
        with self.log.open("ab") as log:
            code = subprocess.run(
                command, stdout=log, stderr=log, timeout=_INITIALISE_TIMEOUT_S, check=False
            ).returncode
        if code != 0:
            raise SetupError(f"MySQL's data folder could not be made.{self._log_tail(0)}")
        fresh.rename(self._data)


def _program() -> list[str]:
    """The server as the dynamic linker starts it that came with it."""
    linkers = sorted(TREE.glob("usr/lib/*/ld-linux-*.so.*"))
    if not linkers:
        raise SetupError(f"There is no MySQL in {TREE}: sh tests/install_mysql.sh")
    share = TREE / "usr/share/mysql"
    return [
        str(linkers[0]),
        "--library-path",
        str(linkers[0].parent),
        str(TREE / "usr/sbin/mysqld"),
        "--no-defaults",
        f"--basedir={TREE / 'usr'}",
        f"--lc-messages-dir={share}",
        f"--character-sets-dir={share / 'charsets'}",
        f"--plugin-dir={TREE / 'usr/lib/mysql/plugin'}",
        *(["--user=root"] if os.geteuid() == 0 else []),
    ]
