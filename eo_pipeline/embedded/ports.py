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

#: Ports below the ephemeral range (Linux from 32768, macOS from 49152). An outgoing connection may
#: take a port of that range while its server is down: even a reconnecting client, which then
#: connects to itself.
_FIRST, _LAST = 20_000, 31_999
_TRIES_MAX = 200

#: Held locks of reserved ports, by port, until this process ends.
_reserved: dict[int, contextlib.ExitStack] = {}


def is_free(port: int) -> bool:
    """Return whether a server could listen on 127.0.0.1:``port`` now.

    Two checks: macOS lets a second socket bind while a server listens on 0.0.0.0; and a connection
    does not detect a port that is bound but not yet listening.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as client:
        client.settimeout(1.0)
        if client.connect_ex((HOST, port)) == 0:
            return False
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as server:
        # as servers do: ignore connections of an earlier server in TIME_WAIT
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            server.bind((HOST, port))
        except OSError:
            return False
    return True


def free_port(preferred: int | None = None, *, avoid: Collection[int] = ()) -> int:
    """Reserve ``preferred`` if possible, else a free port that is not in ``avoid``.

    The reservation holds until this process ends, since a server may take seconds until it listens.
    No other process gets the port, nor a later call in this one, unless it is preferred.

    Raises:
        SetupError: no free port was found.
    """
    if preferred is not None and preferred not in avoid and _reserve(preferred):
        return preferred
    for _ in range(_TRIES_MAX):
        port = random.randint(_FIRST, _LAST)
        if port not in avoid and port not in _reserved and _reserve(port):
            return port
    raise SetupError(
        f"No free TCP port on {HOST} between {_FIRST} and {_LAST} in {_TRIES_MAX} tries. "
        "End some of the programs that listen there."
    )


def _reserve(port: int) -> bool:
    """Reserve ``port``; return False if it is in use or reserved by another process."""
    if not is_free(port):
        return False
    if port not in _reserved:
        reservation = contextlib.ExitStack()
        try:
            reservation.enter_context(hold(_lock_folder() / str(port), wait_s=0))
        except BlockingIOError:
            return False
        _reserved[port] = reservation
    return True


def _lock_folder() -> Path:
    """Return the folder of this user's lock files."""
    folder = Path(tempfile.gettempdir()) / f"eo-ports-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder
