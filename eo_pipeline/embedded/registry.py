"""A real schema registry on this machine: Apicurio, which speaks Confluent's interface too."""

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
    """A schema registry. It keeps what it is told in memory, so that a restart forgets it; or, with
    ``keep``, in ``folder``.

    ``port`` is taken if it is free when the object is made, and any free one otherwise. ``jar`` is
    the program; without it, it is fetched beside ``folder``. Whoever can reach 127.0.0.1 is let in,
    and no schema is refused for what it changes: this is for a laptop and for tests.
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
        """What a client of Confluent's takes."""
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
            # one number for a schema, whatever its subjects, as Confluent's has it
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
            with urllib.request.urlopen(f"{self.url}/subjects", timeout=_ANSWER_TIMEOUT_S) as said:
                return bool(said.status == 200)
        except (urllib.error.URLError, OSError):
            return False
