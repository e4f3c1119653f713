"""Google's storage as far as its emulator has it: fake-gcs-server knows one of its two dialects
whole, JSON, and no precondition in the other, XML, which object_store speaks. This says in JSON
what it is asked in XML. It decides nothing: who is let in is the emulator's to say.
"""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import ClassVar, NamedTuple, Self
from urllib.parse import parse_qs, quote, unquote, urlsplit
from xml.etree import ElementTree

HOST = "127.0.0.1"

#: Where a service account is given a token for what it signed, and the one that all are given.
TOKENS = "/token"
TOKEN = "token-of-the-gateway"

_PRESENTED = "/_presented"

#: Paths of the JSON dialect, which are passed on as they are.
_IN_JSON = ("/storage/", "/upload/", "/download/", "/batch/", "/resumable/")

#: What belongs to one connection and is not passed on.
_OF_A_LINK = {"connection", "keep-alive", "transfer-encoding", "content-length", "host"}


class Said(NamedTuple):
    """A request, as the emulator hears it."""

    method: str
    path: str
    headers: Mapping[str, str]


class GoogleGateway:
    """Stands before the emulator at ``emulator``; a client is told :attr:`endpoint`. A process of
    its own: some of delta-rs' calls keep the threads of this one from running until answered.
    """

    def __init__(self, emulator: int) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.google_gateway", str(emulator)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[2],
        )
        assert self._process.stdout is not None
        self.port = int(self._process.stdout.readline())

    @property
    def endpoint(self) -> str:
        return f"http://{HOST}:{self.port}"

    def presented(self) -> set[str]:
        """What clients said of who they are, since this was last asked."""
        with urllib.request.urlopen(self.endpoint + _PRESENTED, timeout=60) as said:
            return set(json.load(said))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._process.communicate("")  # ends it


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    #: a small answer is not held back for the client's acknowledgement
    disable_nagle_algorithm = True
    port: ClassVar[int]
    presented: ClassVar[set[str]] = set()
    link: ClassVar[threading.local] = threading.local()

    def _pass_on(self) -> None:
        content = self._content()
        if self.path == _PRESENTED:
            known = json.dumps(sorted(self.presented)).encode()
            self.presented.clear()
            self._answer(HTTPStatus.OK, {}, known)
            return
        if self.path == TOKENS:
            token = {"access_token": TOKEN, "expires_in": 3600, "token_type": "Bearer"}
            kind = {"Content-Type": "application/json"}
            self._answer(HTTPStatus.OK, kind, json.dumps(token).encode())
            return
        self.presented.add(self.headers.get("authorization", ""))
        headers = {
            name.lower(): value
            for name, value in self.headers.items()
            if name.lower() not in _OF_A_LINK
        }
        said = in_json(Said(self.command, self.path, headers))
        if said is None:
            self._answer(HTTPStatus.NOT_IMPLEMENTED, {}, b"not of this emulator")
            return
        answer, body = self._asked(said, content)
        told = dict(answer.getheaders())
        if said.path != self.path and self.command == "PUT" and answer.status == HTTPStatus.OK:
            made = json.loads(body)
            of = made.get("resource", made)
            told = {"ETag": f'"{of["etag"]}"', "x-goog-generation": of["generation"]}
            body = b""
        if after := parse_qs(urlsplit(self.path).query).get("start-after"):
            body = listed_after(after[0], body)
        self._answer(answer.status, told, body)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = do_PATCH = _pass_on  # noqa: N815

    def _content(self) -> bytes:
        if self.headers.get("transfer-encoding", "").lower() != "chunked":
            return self.rfile.read(int(self.headers.get("content-length", 0)))
        parts = []
        while size := int(self.rfile.readline().split(b";")[0], 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        while self.rfile.readline().strip():
            pass
        return b"".join(parts)

    def _asked(self, said: Said, content: bytes) -> tuple[http.client.HTTPResponse, bytes]:
        emulator: http.client.HTTPConnection | None = getattr(self.link, "emulator", None)
        if emulator is None:
            emulator = self.link.emulator = http.client.HTTPConnection(HOST, self.port)
        try:
            emulator.request(said.method, said.path, content, dict(said.headers))
            answer = emulator.getresponse()
            return answer, answer.read()
        except BaseException:
            emulator.close()
            self.link.emulator = None
            raise

    def _answer(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        self.send_response_only(status)
        length = str(len(body))
        for name, value in headers.items():
            if name.lower() == "content-length" and self.command == "HEAD":
                length = value
            if name.lower() not in _OF_A_LINK:
                self.send_header(name, value)
        self.send_header("Content-Length", length)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base's name
        """Nothing."""


def listed_after(name: str, page: bytes) -> bytes:
    """A list in XML without what comes before ``name``, or has it: the emulator leaves it in."""
    found = ElementTree.fromstring(page)
    for each in found.findall("Contents"):
        if (each.findtext("Key") or "") <= name:
            found.remove(each)
    return ElementTree.tostring(found)


def in_json(asked: Said) -> Said | None:
    """The same in the dialect that the emulator knows whole; ``None``: it has no such thing."""
    url = urlsplit(asked.path)
    if url.path.startswith(_IN_JSON):
        return asked
    bucket, _, key = url.path.removeprefix("/").partition("/")
    if not key:
        return asked  # a list, which the emulator has in XML
    named = f"b/{bucket}/o/{quote(unquote(key), safe='')}"
    if asked.method in ("GET", "HEAD"):
        return asked._replace(path=f"/download/storage/v1/{named}")
    if asked.method == "DELETE":
        return asked._replace(path=f"/storage/v1/{named}")
    condition = asked.headers.get("x-goog-if-generation-match")
    if source := asked.headers.get("x-goog-copy-source"):
        there, _, original = unquote(source).removeprefix("/").partition("/")
        copied = f"/storage/v1/b/{there}/o/{quote(original, safe='')}/rewriteTo/{named}"
        return None if condition else Said("POST", copied, {"content-type": "application/json"})
    if asked.method != "PUT" or url.query:
        return None  # parts of an upload
    only = f"&ifGenerationMatch={condition}" if condition else ""
    target = f"uploadType=media&name={quote(unquote(key), safe='')}{only}"
    return Said("POST", f"/upload/storage/v1/b/{bucket}/o?{target}", asked.headers)


def _serve(emulator: int) -> None:
    """Until whoever started this is gone, or closes what it says to it."""
    _Handler.port = emulator
    server = ThreadingHTTPServer((HOST, 0), _Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    sys.stdout.write(f"{server.server_address[1]}\n")
    sys.stdout.flush()
    sys.stdin.read()


if __name__ == "__main__":
    _serve(int(sys.argv[1]))
