"""A warm Spark Connect server on this machine: one JVM for many short runs."""

from __future__ import annotations

import os
import secrets
import socket
import sys
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from eo_pipeline.embedded.ports import HOST, free_port
from eo_pipeline.embedded.server import EmbeddedServer
from eo_pipeline.spark.class_archive import with_archive
from eo_pipeline.spark.connector import spark_connector_jars
from eo_pipeline.spark.java import find_java
from eo_pipeline.spark.jvm import (
    CLIENT_VARIABLES,
    KAFKA_SETTINGS,
    pyspark_home,
    submit_command,
    submit_environment,
)
from eo_pipeline.spark.launch import jars_settings

_TOKEN = "spark.connect.authenticate.token"  # noqa: S105 - a setting's name

#: Setting that identifies a server, and the timeout of a request for it.
_OWNER = "spark.eo.owner"
_ANSWER_S = 5.0

_CLASS = "org.apache.spark.sql.connect.service.SparkConnectServer"


class EmbeddedSpark(EmbeddedServer):
    """A Spark Connect server with the Kafka connector on its class path.

    Clients need its token, and may run any code as this user; it listens on the loopback address
    only. ``jars`` is the connector, by default downloaded beside ``folder``. ``settings`` are
    further ones of Spark. With a ``master`` it is the driver of executors elsewhere, which get the
    jars from it; else it uses ``cores`` of this machine.
    """

    NAME: ClassVar[str] = "Spark Connect"

    def __init__(
        self,
        folder: Path,
        *,
        port: int | None = None,
        jars: Sequence[Path] | None = None,
        cores: str = "*",
        master: str | None = None,
        memory: str = "2g",
        settings: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(folder)
        self._port = free_port(port)
        self._jars = jars
        self._master = master or f"local[{cores}]"
        self._memory = memory
        self._settings = dict(settings or {})
        self._token = self._settings.pop(_TOKEN, secrets.token_urlsafe(32))
        self._owner = uuid.uuid4().hex

    @property
    def remote(self) -> str:
        """The address for ``SparkSettings.remote`` or SPARK_REMOTE, with the token. pyspark sends
        a token without TLS to localhost alone.
        """
        return f"sc://localhost:{self._port}/;token={self._token}"

    def _ports(self) -> Sequence[int]:
        return (self._port,)

    def _prepare(self) -> None:
        find_java()

    def _command(self) -> Sequence[str]:
        jars = self._jars if self._jars is not None else spark_connector_jars(self.folder.parent)
        settings = {
            "spark.connect.grpc.binding.address": HOST,
            "spark.connect.grpc.binding.port": str(self._port),
            "spark.driver.bindAddress": HOST,
            "spark.driver.host": HOST,
            **jars_settings(self._master, jars),
            # a reused worker would keep old versions of a transform's modules
            "spark.python.worker.reuse": "false",
            "spark.log.level": "ERROR",
            "spark.sql.session.timeZone": "UTC",
            "spark.sql.warehouse.dir": str(self.folder / "warehouse"),
            "spark.ui.enabled": "false",
            **KAFKA_SETTINGS,
            **self._settings,
            _OWNER: self._owner,
        }
        arguments = [
            *("--master", self._master, "--driver-memory", self._memory),
            *("--driver-java-options", "-XX:+UseParallelGC", "--class", _CLASS),
            *(part for key, value in settings.items() for part in ("--conf", f"{key}={value}")),
            "spark-internal",
        ]
        home = pyspark_home()
        # its Python workers have this process's packages
        python = os.environ.get("PYSPARK_PYTHON", sys.executable)
        environment = submit_environment(home) | {"PYSPARK_PYTHON": python}
        variables = (f"{name}={value}" for name, value in environment.items())
        # it must not become a client of another server
        unset = (f"--unset={name}" for name in CLIENT_VARIABLES)
        java, *command = with_archive(submit_command(find_java(), home, arguments))
        return ["env", *unset, *variables, java, f"@{self._secrets()}", *command]

    def _secrets(self) -> Path:
        """Write the token to a file of Java arguments: a command line is readable by all users."""
        file = self.folder / "java.secret"
        file.unlink(missing_ok=True)
        file.touch(mode=0o600)
        file.write_text(f"-D{_TOKEN}={self._token}\n")
        return file

    def _answers(self) -> bool:
        """Return whether the server answers with its identifying setting: another program may have
        taken the port between our check and our start.
        """
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            if probe.connect_ex((HOST, self._port)) != 0:
                return False
        # imported here: takes a second
        import grpc
        from pyspark.sql.connect.proto import ConfigRequest, SparkConnectServiceStub

        request = ConfigRequest(session_id=str(uuid.uuid4()))
        request.user_context.user_id = _OWNER
        request.operation.get_option.keys.append(_OWNER)
        with grpc.insecure_channel(f"{HOST}:{self._port}") as channel:
            try:
                stub = SparkConnectServiceStub(channel)  # type: ignore[no-untyped-call]
                metadata = [("authorization", f"Bearer {self._token}")]
                response = stub.Config(request, timeout=_ANSWER_S, metadata=metadata)
            except grpc.RpcError:
                return False
        return any(pair.value == self._owner for pair in response.pairs)
