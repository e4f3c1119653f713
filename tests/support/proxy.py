"""A TCP proxy whose link a test can cut, at once or at a word that the client sends."""

from __future__ import annotations

import contextlib
import re
import socket
from dataclasses import dataclass
from enum import Enum
from threading import Lock, Thread
from types import TracebackType
from typing import Self

_CHUNK = 65536
_HOST = "127.0.0.1"


class Cut(Enum):
    """Where the link breaks, seen from the word that triggers it."""

    BEFORE_THE_REQUEST = "the server never hears it"
    BEFORE_THE_REPLY = "the server did it, the client never hears"


@dataclass
class _Reply:
    """What becomes of the next one on a link."""

    lost: bool = False
    instead: bytes | None = None


class Proxy:
    """Listens on ``port`` and passes everything on to a server, until told otherwise.

    The link heals by itself: a cut breaks the connections there are, and new ones are accepted,
    unless ``refuse`` was called.
    """

    def __init__(self, host: str, port: int) -> None:
        self._server = (host, port)
        self._lock = Lock()
        self._links: list[socket.socket] = []
        self._trigger: tuple[re.Pattern[bytes], Cut] | None = None
        self._refusing = False
        self._answers: list[tuple[bytes, bytes, bool]] = []
        self._stalling = False
        self._stall: bytes | None = None
        self._changed: tuple[bytes, bytes] | None = None
        #: how often the client sent something
        self.sent = 0
        #: what it sent, from when a test puts bytes here
        self.recorded: bytearray | None = None
        self._listener = socket.create_server((_HOST, 0))
        self.port: int = self._listener.getsockname()[1]
        Thread(target=self._accept, daemon=True).start()

    def cut_at(self, word: bytes | re.Pattern[bytes], cut: Cut) -> None:
        """Break the link the next time the client sends ``word``, or what it describes."""
        words = re.compile(re.escape(word)) if isinstance(word, bytes) else word
        with self._lock:
            self._trigger = (words, cut)

    def forget(self) -> None:
        """What it was to do at a word is not to be done any more."""
        with self._lock:
            self._trigger, self._stall = None, None
            self._answers.clear()

    def answer_at(self, word: bytes, answer: bytes, times: int = 1, *, heard: bool = False) -> None:
        """Give ``answer`` the next times the client sends ``word``; then the link breaks. Unless it
        is ``heard``, and its own answer lost, the server knows nothing of it.
        """
        with self._lock:
            self._answers += [(word, answer, heard)] * times

    def stall(self, stalling: bool = True) -> None:
        """Take what comes and pass nothing on, while connections stay open; or go on. What was sent
        meanwhile is lost with its connection.
        """
        self._stalling = stalling
        if not stalling:
            self.cut()

    def stall_at(self, word: bytes) -> None:
        """:meth:`stall` as soon as the client sends ``word``."""
        with self._lock:
            self._stall = word

    def change(self, said: bytes, heard: bytes) -> None:
        """From now on the client hears one thing where the server says another."""
        self._changed = (said, heard)

    @property
    def is_through(self) -> bool:
        """Whether all that it was told to do at a word was done."""
        return self._trigger is None and not self._answers and self._stall is None

    def cut(self) -> None:
        """Break every connection now."""
        with self._lock:
            links, self._links = self._links, []
        for link in links:
            with contextlib.suppress(OSError):
                link.shutdown(socket.SHUT_RDWR)
            link.close()

    def refuse(self, refusing: bool = True) -> None:
        """Turn new connections away, or let them in again."""
        self._refusing = refusing

    def close(self) -> None:
        self._listener.close()
        self.cut()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return  # closed
            if self._refusing:
                client.close()
                continue
            try:
                server = socket.create_connection(self._server)
            except OSError:
                client.close()  # the server is away; the next client may find it again
                continue
            with self._lock:
                self._links += [client, server]
            reply = _Reply()
            for pump in (self._requests, self._replies):
                Thread(target=pump, args=(client, server, reply), daemon=True).start()

    def _requests(self, client: socket.socket, server: socket.socket, reply: _Reply) -> None:
        with contextlib.suppress(OSError):
            while data := client.recv(_CHUNK):
                self.sent += 1
                if self.recorded is not None:
                    self.recorded += data
                if self._stalls(data):
                    continue
                if found := self._answer(data):
                    _, answer, heard = found
                    if not heard:
                        client.sendall(answer)
                        client.shutdown(socket.SHUT_WR)
                        _drain(client)
                        return
                    reply.instead = answer
                cut = self._triggered(data)
                if cut is Cut.BEFORE_THE_REQUEST:
                    self.cut()
                    return
                if cut is Cut.BEFORE_THE_REPLY:
                    reply.lost = True
                server.sendall(data)
            server.shutdown(socket.SHUT_WR)

    def _replies(self, client: socket.socket, server: socket.socket, reply: _Reply) -> None:
        with contextlib.suppress(OSError):
            while data := server.recv(_CHUNK):
                if reply.lost:
                    self.cut()
                    return
                if reply.instead is not None:
                    client.sendall(reply.instead)
                    break
                client.sendall(data.replace(*self._changed) if self._changed else data)
        with contextlib.suppress(OSError):
            client.shutdown(socket.SHUT_WR)

    def _stalls(self, data: bytes) -> bool:
        with self._lock:
            if self._stall is not None and self._stall in data:
                self._stall, self._stalling = None, True
        return self._stalling

    def _answer(self, data: bytes) -> tuple[bytes, bytes, bool] | None:
        with self._lock:
            found = next((each for each in self._answers if each[0] in data), None)
            if found:
                self._answers.remove(found)
        return found

    def _triggered(self, data: bytes) -> Cut | None:
        with self._lock:
            if self._trigger is None or not self._trigger[0].search(data):
                return None
            (_, cut), self._trigger = self._trigger, None
            return cut


def _drain(client: socket.socket) -> None:
    """One that still sends would wait for ever for somebody to take it, and never see the end."""
    while client.recv(_CHUNK):
        pass
