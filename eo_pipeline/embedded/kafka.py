"""A real Apache Kafka broker on this machine: KRaft, broker and controller in one JVM."""

from __future__ import annotations

import base64
import os
import shutil
import socket
import subprocess
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar, NamedTuple

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from eo_pipeline.embedded.jars import kafka_broker_jars
from eo_pipeline.embedded.ports import HOST, free_port
from eo_pipeline.embedded.server import EmbeddedServer
from eo_pipeline.errors import SetupError
from eo_pipeline.spark.java import find_java

_NODE = "1"
_FORMAT_TIMEOUT_S = 60

#: Properties of a single-node cluster with short timeouts; ``properties`` wins.
_DEFAULTS: Mapping[str, str] = {
    "process.roles": "broker,controller",
    "node.id": _NODE,
    "controller.listener.names": "CONTROLLER",
    "inter.broker.listener.name": "PLAINTEXT",
    # a misspelt topic is an error, not a new topic
    "auto.create.topics.enable": "false",
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "4",
    # ten years: a demo must keep its consumer offsets over weeks of inactivity
    "offsets.retention.minutes": "5256000",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "4",
    "transactional.id.expiration.ms": "2147483647",
    # short: tests wait for the abort of a dead producer's transaction
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "1000",
    # after SIGKILL the controller rejects the new broker until the old one's session has expired
    "broker.heartbeat.interval.ms": "500",
    "broker.session.timeout.ms": "3000",
}

#: Log4j configuration of the broker, which uses Spark's logging jars; without it nothing is logged.
_LOGGING = """\
status = error
appender.out.type = Console
appender.out.name = out
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %d %p %m (%c{1})%n
rootLogger.level = WARN
rootLogger.appenderRef.out.ref = out
logger.life.name = kafka.server.KafkaRaftServer
logger.life.level = INFO
"""

#: Listener for ``sasl_users``.
_FOR_USERS = "SASL_PLAINTEXT"


class Listener(NamedTuple):
    """An additional listener: its protocol (``SSL``, ``SASL_SSL`` ...) and its properties."""

    protocol: str
    properties: Mapping[str, str] = {}


class EmbeddedKafka(EmbeddedServer):
    """A Kafka broker whose data, configuration and log are below ``folder``.

    ``port`` is taken if it is free when the object is made, and any free one otherwise. ``jars``
    is the broker's class path; without it the jars are resolved beside ``folder``. ``properties``
    are broker properties that win over this class's own. ``sasl_users`` (name to password) adds a
    listener that lets only them in, by SASL/PLAIN without TLS; ``listeners`` adds any others, by
    name. ``java_options`` are further ones of the broker's JVM.
    """

    NAME: ClassVar[str] = "Kafka"

    def __init__(
        self,
        folder: Path,
        *,
        port: int | None = None,
        jars: Sequence[Path] | None = None,
        properties: Mapping[str, str] | None = None,
        sasl_users: Mapping[str, str] | None = None,
        listeners: Mapping[str, Listener] | None = None,
        java_options: Sequence[str] = (),
    ) -> None:
        super().__init__(folder)
        self._port = free_port(port)
        self._controller_port = free_port(avoid=[self._port])
        self._jars = jars
        self._properties = dict(properties or {})
        self._listeners = dict(listeners or {})
        if sasl_users is not None:
            self._listeners[_FOR_USERS] = Listener(_FOR_USERS, _for_users(sasl_users))
        self._listening: dict[str, int] = {}
        for name in self._listeners:
            self._listening[name] = free_port(avoid=self._ports())
        self._java_options = java_options

    @property
    def bootstrap_servers(self) -> str:
        return f"{HOST}:{self._port}"

    @property
    def sasl_bootstrap_servers(self) -> str:
        """The address of the listener for ``sasl_users``.

        Raises:
            SetupError: there is no such listener, as no users were given.
        """
        if _FOR_USERS not in self._listening:
            raise SetupError("This Kafka has no SASL listener: give it sasl_users")
        return self.listening(_FOR_USERS)

    def listening(self, name: str) -> str:
        """Return ``host:port`` of one of ``listeners``."""
        return f"{HOST}:{self._listening[name]}"

    def _ports(self) -> Sequence[int]:
        return self._port, self._controller_port, *self._listening.values()

    def _prepare(self) -> None:
        find_java()
        (self.folder / "log4j2.properties").write_text(_LOGGING)
        data = self.folder / "data"
        if not data.is_dir():
            self._format(data)
        self._write_properties(self.folder / "server.properties", data)

    def _command(self) -> Sequence[str]:
        return self._java("kafka.Kafka", str(self.folder / "server.properties"))

    def _answers(self) -> bool:
        """Return whether the broker has a leader for each partition."""
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            if probe.connect_ex((HOST, self._port)) != 0:
                return False
        # log_level 0: failed connections to a starting broker are expected
        admin = AdminClient({"bootstrap.servers": self.bootstrap_servers, "log_level": 0})
        try:
            cluster = admin.list_topics(timeout=2.0)
        except KafkaException:
            return False
        # another broker may have taken the port between our check and our start
        is_ours = cluster.cluster_id == self._cluster_id()
        partitions = [p for topic in cluster.topics.values() for p in topic.partitions.values()]
        return is_ours and all(partition.leader >= 0 for partition in partitions)

    def _cluster_id(self) -> str:
        """Return the cluster id with which the storage was formatted."""
        lines = (self.folder / "data" / "meta.properties").read_text().splitlines()
        return dict(line.split("=", 1) for line in lines if "=" in line)["cluster.id"]

    def _java(self, main_class: str, *arguments: str) -> list[str]:
        jars = self._jars if self._jars is not None else kafka_broker_jars(self.folder.parent)
        return [
            *find_java().start,
            "-Xms128m",
            "-Xmx768m",
            "-XX:+ExitOnOutOfMemoryError",
            *self._java_options,
            f"-Dlog4j2.configurationFile={self.folder / 'log4j2.properties'}",
            "-cp",
            os.pathsep.join(map(str, jars)),
            main_class,
            *arguments,
        ]

    def _format(self, data: Path) -> None:
        """Format a new folder for the cluster, then rename it to ``data``: atomic."""
        new_data = data.with_suffix(".new")
        shutil.rmtree(new_data, ignore_errors=True)
        properties = self.folder / "format.properties"
        self._write_properties(properties, new_data)
        # Kafka's notation of a UUID; a leading hyphen would be parsed as an option
        cluster = base64.urlsafe_b64encode(b"\0" + uuid.uuid4().bytes[1:]).decode().rstrip("=")
        options = ["format", "--config", str(properties), "--cluster-id", cluster]
        with self.log.open("ab") as log:
            subprocess.run(
                self._java("kafka.tools.StorageTool", *options),
                stdout=log,
                stderr=log,
                timeout=_FORMAT_TIMEOUT_S,
                check=False,
            )
        if not (new_data / "meta.properties").is_file():
            raise SetupError(f"Kafka's storage could not be formatted.{self._log_tail(0)}")
        new_data.rename(data)

    def _write_properties(self, file: Path, data: Path) -> None:
        ports = {"PLAINTEXT": self._port, "CONTROLLER": self._controller_port, **self._listening}
        protocols = {"PLAINTEXT": "PLAINTEXT", "CONTROLLER": "PLAINTEXT"}
        protocols |= {name: listener.protocol for name, listener in self._listeners.items()}
        merged = {
            **_DEFAULTS,
            "log.dirs": str(data),
            "controller.quorum.voters": f"{_NODE}@{HOST}:{self._controller_port}",
        }
        for name, listener in self._listeners.items():
            for key, value in listener.properties.items():
                merged[f"listener.name.{name.lower()}.{key}"] = value
        merged["listeners"] = ",".join(f"{name}://{HOST}:{port}" for name, port in ports.items())
        merged["listener.security.protocol.map"] = ",".join(
            f"{name}:{protocol}" for name, protocol in protocols.items()
        )
        lines = [f"{name}={value}\n" for name, value in {**merged, **self._properties}.items()]
        file.write_text("".join(lines))


def _for_users(users: Mapping[str, str]) -> dict[str, str]:
    entries = "".join(f' user_{name}="{password}"' for name, password in users.items())
    module = "org.apache.kafka.common.security.plain.PlainLoginModule"
    return {
        "sasl.enabled.mechanisms": "PLAIN",
        "plain.sasl.jaas.config": f"{module} required{entries};",
    }
