"""A standalone Spark cluster on this machine: a master, and workers that share no folder."""

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
    """One of Spark's own servers. Its page, which tells how it is, has a port of its own."""

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
            # its Python workers have the packages that this process has
            "PYSPARK_PYTHON": os.environ.get("PYSPARK_PYTHON", sys.executable),
        }
        return [
            # what this process imports from is nothing that another machine would have
            *("env", "--unset=PYTHONPATH", *(f"--unset={name}" for name in CLIENT_VARIABLES)),
            *(f"{name}={value}" for name, value in variables.items()),
            *(str(find_java().command), *_JAVA, "-cp", str(home / "jars" / "*")),
            *(f"org.apache.spark.deploy.{name}", "--host", HOST, "--port", str(self._port)),
            *("--webui-port", str(self._page), *arguments),
        ]

    def _told(self) -> dict[str, Any] | None:
        """What its page says; None: nothing yet."""
        connection = http.client.HTTPConnection(HOST, self._page, timeout=_ANSWER_S)
        try:
            connection.request("GET", "/json/")
            return dict(json.loads(connection.getresponse().read()))
        except (OSError, http.client.HTTPException, ValueError):
            return None
        finally:
            connection.close()


class SparkMaster(_Daemon):
    """It knows the workers, and shares them out."""

    NAME: ClassVar[str] = "Spark's master"

    @property
    def url(self) -> str:
        """What ``SparkSettings.master`` takes."""
        return f"spark://{HOST}:{self._port}"

    def _command(self) -> Sequence[str]:
        return self._java("master.Master")

    def _answers(self) -> bool:
        told = self._told()
        return told is not None and told["status"] == "ALIVE" and told["url"] == self.url

    def workers(self) -> int:
        """How many it can use."""
        told = self._told() or {"workers": []}
        return sum(each["state"] == "ALIVE" for each in told["workers"])


class SparkWorker(_Daemon):
    """It starts executors for ``master``, in its own ``folder``.

    Folders that are ``hidden`` are empty to it and its executors, as if they were on another
    machine: they see the file system through mounts of their own. That takes Linux, and root or
    user namespaces; elsewhere they see what everybody does.
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
        told = self._told()
        return told is not None and told["masterurl"] == self._master


class EmbeddedCluster:
    """A master and its workers, each with a folder of its own below ``folder``.

    ``cores`` and ``memory`` are what each worker has to give; ``hidden`` is what none can see, see
    :class:`SparkWorker`.
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
        """What ``SparkSettings.master`` takes."""
        return self.master.url

    def start(self) -> Self:
        """Start whatever of it does not run, and return once all workers can be used."""
        with ExitStack() as started:
            for each in (self.master, *self.workers):
                started.push(each.__exit__)
                each.start()
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
        for each in (*self.workers, self.master):
            each.stop()


#: An empty folder in the place of each of the first arguments, up to "--".
_EMPTY = 'while [ "$1" != -- ]; do mount -t tmpfs none "$1" || exit; shift; done; shift; exec "$@"'


def _hiding(folders: Sequence[Path]) -> list[str]:
    """What a command is put behind for which ``folders`` are empty; nothing where none can be."""
    alone = ["unshare", "--mount", *([] if os.getuid() == 0 else ["--map-root-user"])]
    behind = [*alone, "sh", "-c", _EMPTY, "hiding", *map(str, folders), "--"]
    try:
        tried = subprocess.run([*behind, "true"], capture_output=True, check=False)
    except OSError:
        return []
    return behind if tried.returncode == 0 else []
