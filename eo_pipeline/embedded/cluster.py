"""A standalone Spark cluster on this machine: a master, and workers without shared folders."""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Self

from eo_pipeline.embedded.ports import HOST, free_port
from eo_pipeline.embedded.server import EmbeddedServer
from eo_pipeline.spark.java import find_java
from eo_pipeline.spark.jvm import CLIENT_VARIABLES, pyspark_home, submit_environment

_ANSWER_S = 5
_JAVA = ("-Xmx192m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")


class _Daemon(EmbeddedServer):
    """A daemon of Spark. Its web page, with its status, has a separate port."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._port = free_port()
        self._page = free_port(avoid=[self._port])

    def _ports(self) -> Sequence[int]:
        return (self._port, self._page)

    def _prepare(self) -> None:
        find_java()

    def _java(self, name: str, *arguments: str) -> list[str]:
        home = pyspark_home()
        variables = {
            **submit_environment(home),
            "SPARK_LOCAL_IP": HOST,
            "SPARK_LOCAL_DIRS": str(self.folder / "local"),
            # its Python workers have this process's packages
            "PYSPARK_PYTHON": os.environ.get("PYSPARK_PYTHON", sys.executable),
        }
        return [
            # another machine would not have this process's import path
            *("env", "--unset=PYTHONPATH", *(f"--unset={name}" for name in CLIENT_VARIABLES)),
            *(f"{name}={value}" for name, value in variables.items()),
            *(str(find_java().command), *_JAVA, "-cp", str(home / "jars" / "*")),
            *(f"org.apache.spark.deploy.{name}", "--host", HOST, "--port", str(self._port)),
            *("--webui-port", str(self._page), *arguments),
        ]

    def _status(self) -> dict[str, Any] | None:
        """Return the status from the web page; None while it does not answer."""
        connection = http.client.HTTPConnection(HOST, self._page, timeout=_ANSWER_S)
        try:
            connection.request("GET", "/json/")
            return dict(json.loads(connection.getresponse().read()))
        except (OSError, http.client.HTTPException, ValueError):
            return None
        finally:
            connection.close()


class SparkMaster(_Daemon):
    """The master, which assigns workers to applications."""

    NAME: ClassVar[str] = "Spark's master"

    @property
    def url(self) -> str:
        """The URL for ``SparkSettings.master``."""
        return f"spark://{HOST}:{self._port}"

    def _command(self) -> Sequence[str]:
        return self._java("master.Master")

    def _answers(self) -> bool:
        status = self._status()
        return status is not None and status["status"] == "ALIVE" and status["url"] == self.url

    def workers(self) -> int:
        """Return the number of live workers."""
        status = self._status() or {"workers": []}
        return sum(worker["state"] == "ALIVE" for worker in status["workers"])


class SparkWorker(_Daemon):
    """A worker, which starts executors for ``master`` in its own ``folder``.

    ``hidden`` folders appear empty to it and its executors, as on another machine, by a private
    mount namespace. That requires Linux, and root or user namespaces; elsewhere nothing is hidden.
    """

    NAME: ClassVar[str] = "Spark's worker"

    def __init__(
        self,
        folder: Path,
        master: str,
        cores: int = 1,
        memory: str = "1g",
        hidden: Sequence[Path] = (),
    ) -> None:
        super().__init__(folder)
        self._master, self._cores, self._memory = master, cores, memory
        self._hidden = tuple(hidden)

    def _command(self) -> Sequence[str]:
        share = ("-c", str(self._cores), "-m", self._memory, "-d", str(self.folder / "work"))
        command = self._java("worker.Worker", *share, self._master)
        return [*_hiding(self._hidden), *command] if self._hidden else command

    def _answers(self) -> bool:
        status = self._status()
        return status is not None and status["masterurl"] == self._master


class EmbeddedCluster:
    """A master and its workers, each with a folder below ``folder``.

    ``cores`` and ``memory`` are those of each worker; ``hidden`` see :class:`SparkWorker`.
    """

    def __init__(
        self,
        folder: Path,
        *,
        workers: int = 2,
        cores: int = 1,
        memory: str = "1g",
        hidden: Sequence[Path] = (),
    ) -> None:
        self.master = SparkMaster(folder / "master")
        self.workers = [
            SparkWorker(folder / f"worker-{n}", self.master.url, cores, memory, hidden)
            for n in range(workers)
        ]

    @property
    def url(self) -> str:
        """The URL for ``SparkSettings.master``."""
        return self.master.url

    def start(self) -> Self:
        """Start all daemons that do not run; return once all workers can be used."""
        with ExitStack() as started:
            for daemon in (self.master, *self.workers):
                started.push(daemon.__exit__)
                daemon.start()
            started.pop_all()
        return self

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for daemon in (*self.workers, self.master):
            daemon.stop()


#: Mounts an empty folder over each argument up to "--", then executes the rest.
_EMPTY = 'while [ "$1" != -- ]; do mount -t tmpfs none "$1" || exit; shift; done; shift; exec "$@"'


def _hiding(folders: Sequence[Path]) -> list[str]:
    """Return the command prefix that hides ``folders``; empty where this is not possible."""
    unshare = ["unshare", "--mount", *([] if os.getuid() == 0 else ["--map-root-user"])]
    prefix = [*unshare, "sh", "-c", _EMPTY, "hiding", *map(str, folders), "--"]
    try:
        trial = subprocess.run([*prefix, "true"], capture_output=True, check=False)
    except OSError:
        return []
    return prefix if trial.returncode == 0 else []
