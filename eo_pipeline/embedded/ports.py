"""TCP ports on 127.0.0.1 for embedded servers."""

from __future__ import annotations

import contextlib
import os
import random
import socket
import tempfile
from collections.abc import Collection
from pathlib import Path

from eo_pipeline._process import hold
from eo_pipeline.errors import SetupError

HOST = "127.0.0.1"

#: Below the range from which kernels take the client's end of a connection (Linux from 32768,
#: macOS from 49152). A port from that range may be taken by any outgoing connection while its
#: server is down: even by a client that tries to reconnect, and so connects to itself.
_FIRST, _LAST = 20_000, 31_999
_TRIES_MAX = 200

#: What holds a promised port's lock, by port, until this process ends.
_promised: dict[int, contextlib.ExitStack] = {}


def is_free(port: int) -> bool:
    """Whether a server could listen on 127.0.0.1:``port`` now.

    Both ways are needed: macOS lets a second socket bind where a server listens on 0.0.0.0, and
    a connection does not reveal a port that is bound and not yet listening.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as client:
        client.settimeout(1.0)
        if client.connect_ex((HOST, port)) == 0:
            return False
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as server:
        # as servers do: connections of an earlier server in TIME_WAIT are no hindrance
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            server.bind((HOST, port))
        except OSError:
            return False
    return True


def free_port(preferred: int | None = None, *, avoid: Collection[int] = ()) -> int:
    """``preferred`` if it can be had, else some free port that is not in ``avoid``.

    It is promised to this process until it ends: a server may take seconds until it listens, and
    no other process is given the port meanwhile. Nor is it given here again, unless preferred.

    Raises:
        SetupError: no port was found free.
    """
    if preferred is not None and preferred not in avoid and _is_ours(preferred):
        return preferred
    for _ in range(_TRIES_MAX):
        port = random.randint(_FIRST, _LAST)
        if port not in avoid and port not in _promised and _is_ours(port):
            return port
    raise SetupError(
        f"No free TCP port on {HOST} between {_FIRST} and {_LAST} in {_TRIES_MAX} tries. "
        "End some of the programs that listen there."
    )


def _is_ours(port: int) -> bool:
    """Whether ``port`` is free, and promised to no other process."""
    if not is_free(port):
        return False
    if port not in _promised:
        promise = contextlib.ExitStack()
        try:
            promise.enter_context(hold(_promises() / str(port), wait_s=0))
        except BlockingIOError:
            return False
        _promised[port] = promise
    return True


def _promises() -> Path:
    """The locks of this user's processes; they are empty files."""
    folder = Path(tempfile.gettempdir()) / f"eo-ports-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder
