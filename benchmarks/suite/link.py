"""A slower way to a server on this machine."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from threading import Thread

_CHUNK = 1 << 18
_HOST = "127.0.0.1"


@dataclass
class _Connection:
    client: socket.socket
    server: socket.socket
    #: whether the server spoke last: what the client sends next is a request
    answered: bool = True


class SlowLink:
    """A port that passes everything on to a server, each request ``delay`` seconds later.

    Args:
        port: the server's.
        delay: the round trip to it.
        heard: is given the first bytes of each request.
    """

    def __init__(
        self, port: int, delay: float, heard: Callable[[bytes], object] | None = None
    ) -> None:
        self._server = (_HOST, port)
        self._delay = delay
        self._heard = heard
        self._listener = socket.create_server((_HOST, 0))
        self.port: int = self._listener.getsockname()[1]
        Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Take no new connections; those there are end with the server."""
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
                server = socket.create_connection(self._server)
            except OSError:
                return  # closed, or the server has ended
            for end in (client, server):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection = _Connection(client, server)
            for pump in (self._requests, self._answers):
                Thread(target=pump, args=(connection,), daemon=True).start()

    def _requests(self, connection: _Connection) -> None:
        with contextlib.suppress(OSError):
            while data := connection.client.recv(_CHUNK):
                if connection.answered:
                    connection.answered = False
                    if self._heard:
                        self._heard(data)
                    time.sleep(self._delay)
                connection.server.sendall(data)
        _end(connection.server)

    def _answers(self, connection: _Connection) -> None:
        with contextlib.suppress(OSError):
            while data := connection.server.recv(_CHUNK):
                connection.answered = True
                connection.client.sendall(data)
        _end(connection.client)


def _end(receiver: socket.socket) -> None:
    with contextlib.suppress(OSError):
        receiver.shutdown(socket.SHUT_WR)
