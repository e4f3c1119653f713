"""The OAuth server of tests, in a process of its own, over TLS."""

from __future__ import annotations

import json
import ssl
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from joserfc.jwk import RSAKey

from eo_pipeline.embedded.ports import HOST, free_port
from eo_pipeline.embedded.server import EmbeddedServer
from tests.support.certificates import Authority

AUDIENCE = "kafka"
SCOPE = "read-kafka"


class OAuthServer(EmbeddedServer):
    """Gives ``clients`` (secrets by name) tokens that last ``seconds``."""

    NAME: ClassVar[str] = "OAuth"

    def __init__(
        self, folder: Path, authority: Authority, clients: Mapping[str, str], seconds: int
    ) -> None:
        super().__init__(folder)
        self._port = free_port()
        self._authority = authority
        self._clients = dict(clients)
        self._seconds = seconds
        self._key = RSAKey.generate_key(2048, {"kid": "1", "use": "sig", "alg": "RS256"})

    @property
    def url(self) -> str:
        return f"https://{HOST}:{self._port}/token"

    def jwks(self) -> Path:
        """The file of public keys, which those who check tokens read."""
        self.folder.mkdir(parents=True, exist_ok=True)
        file = self.folder / "jwks.json"
        file.write_text(json.dumps({"keys": [self._key.as_dict(private=False)]}))
        return file

    def issued(self, agent: str = "") -> list[dict[str, Any]]:
        """``status``, ``agent`` and ``at`` of each answer to who has ``agent`` in its name."""
        context = ssl.create_default_context(cafile=self._authority.certificate)
        with urllib.request.urlopen(self.url.replace("/token", "/issued"), context=context) as got:
            return [each for each in json.load(got) if agent in each["agent"]]

    def _prepare(self) -> None:
        certificate = self._authority.signed("oauth")
        settings = {
            "key": self._key.as_dict(private=True),
            "audience": AUDIENCE,
            "scope": SCOPE,
            "seconds": self._seconds,
            "clients": self._clients,
            "port": self._port,
            "certificate": str(certificate.certificate),
            "private": str(certificate.key),
        }
        (self.folder / "settings.json").write_text(json.dumps(settings))

    def _command(self) -> Sequence[str]:
        return [sys.executable, "-m", "tests.support.oauth_app", str(self.folder / "settings.json")]

    def _answers(self) -> bool:
        try:
            self.issued()
        except (urllib.error.URLError, OSError):
            return False
        return True

    def _ports(self) -> Sequence[int]:
        return (self._port,)
