"""An OAuth 2.0 server: Authlib's, with the grant of client credentials (RFC 6749, 4.4) and signed
tokens (RFC 9068). ``python -m tests.support.oauth_app SETTINGS`` serves it; see
:mod:`tests.support.oauth`.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from authlib.integrations.flask_oauth2 import AuthorizationServer
from authlib.oauth2.rfc6749.grants import ClientCredentialsGrant
from authlib.oauth2.rfc6749.models import ClientMixin
from authlib.oauth2.rfc9068 import JWTBearerTokenGenerator
from flask import Flask, Response, jsonify, request

METHODS = ("client_secret_basic", "client_secret_post")


class Client(ClientMixin):  # type: ignore[misc]
    """Somebody who may ask for tokens, of one scope."""

    def __init__(self, name: str, secret: str, scope: str) -> None:
        self._name, self._secret, self._scope = name, secret, scope

    def get_client_id(self) -> str:
        return self._name

    def get_allowed_scope(self, scope: str) -> str:
        return " ".join(each for each in scope.split() if each == self._scope)

    def check_client_secret(self, client_secret: str) -> bool:
        return client_secret == self._secret

    def check_endpoint_auth_method(self, method: str, endpoint: str) -> bool:
        return endpoint != "token" or method in METHODS

    def check_grant_type(self, grant_type: str) -> bool:
        return grant_type == "client_credentials"


class Grant(ClientCredentialsGrant):  # type: ignore[misc]
    """The secret in the header or in the form: librdkafka and Java use the header."""

    TOKEN_ENDPOINT_AUTH_METHODS = METHODS


class Tokens(JWTBearerTokenGenerator):  # type: ignore[misc]
    """Signed tokens for one audience, that last some seconds."""

    def __init__(self, key: dict[str, Any], audience: str, seconds: int) -> None:
        super().__init__("https://issuer.test", expires_generator=lambda *_: seconds)
        self._key, self._audience = key, audience

    def get_jwks(self) -> dict[str, Any]:
        return {"keys": [self._key]}

    def get_audiences(self, client: Client, user: object, scope: str) -> str:
        return self._audience


def app(settings: dict[str, Any]) -> Flask:
    """Of ``key``, ``audience``, ``seconds``, ``scope`` and ``clients`` (secrets by name)."""
    made = Flask(__name__)
    clients = {n: Client(n, s, settings["scope"]) for n, s in settings["clients"].items()}
    server = AuthorizationServer(made, query_client=clients.get, save_token=lambda *_: None)
    server.register_grant(Grant)
    tokens = Tokens(settings["key"], settings["audience"], settings["seconds"])
    server.register_token_generator("default", tokens)
    issued: list[dict[str, Any]] = []

    @made.post("/token")
    def token() -> Response:
        answer: Response = server.create_token_response()
        asked_by = request.headers.get("User-Agent", "")
        issued.append({"status": answer.status_code, "agent": asked_by, "at": time.time()})
        return answer

    @made.get("/issued")
    def told() -> Response:
        return jsonify(issued)

    return made


if __name__ == "__main__":
    told = json.loads(Path(sys.argv[1]).read_text())
    app(told).run("127.0.0.1", told["port"], ssl_context=(told["certificate"], told["private"]))
