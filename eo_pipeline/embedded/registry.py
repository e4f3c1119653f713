"""A real schema registry on this machine: Apicurio, with Confluent's interface."""

from __future__ import annotations

import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from eo_pipeline.embedded.jars import registry_jar
from eo_pipeline.embedded.ports import HOST, free_port
from eo_pipeline.embedded.server import EmbeddedServer
from eo_pipeline.spark.java import find_java

_ANSWER_TIMEOUT_S = 5.0


class EmbeddedRegistry(EmbeddedServer):
    """A schema registry. It stores schemas in memory, until a restart; or, with ``keep``, in
    ``folder``.

    ``port`` is used if it is free when the object is created, else any free one. ``jar`` is the
    program, by default downloaded beside ``folder``. There is no authentication and no
    compatibility check: this is for a laptop and for tests.
    """

    NAME: ClassVar[str] = "Apicurio"

    def __init__(
        self,
        folder: Path,
        *,
        port: int | None = None,
        jar: Path | None = None,
        keep: bool = False,
    ) -> None:
        super().__init__(folder)
        self._port = free_port(port)
        self._jar = jar
        self._keep = keep

    @property
    def url(self) -> str:
        """The URL for Confluent's clients."""
        return f"http://{HOST}:{self._port}/apis/ccompat/v7"

    def _ports(self) -> Sequence[int]:
        return (self._port,)

    def _prepare(self) -> None:
        find_java()

    def _command(self) -> Sequence[str]:
        jar = self._jar if self._jar is not None else registry_jar(self.folder.parent)
        settings = {
            "quarkus.http.host": HOST,
            "quarkus.http.port": str(self._port),
            # one id for a schema in all its subjects, as in Confluent's registry
            "registry.ccompat.legacy-id-mode.enabled": "true",
        }
        if self._keep:
            settings["quarkus.datasource.jdbc.url"] = (
                f"jdbc:h2:file:{self.folder / 'schemas'};WRITE_DELAY=0"
            )
        return [
            *find_java().start,
            *("-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"),
            *(f"-D{name}={value}" for name, value in settings.items()),
            *("-jar", str(jar)),
        ]

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(
                f"{self.url}/subjects", timeout=_ANSWER_TIMEOUT_S
            ) as response:
                return bool(response.status == 200)
        except (urllib.error.URLError, OSError):
            return False
