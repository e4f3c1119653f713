"""Ends all that a test session has started once the session is over, however it ended.

    pytest ──(a pipe)──> reaper

An orderly end leaves nothing, but pytest may be killed, and a test's process is no child of its
servers' guard: a demo would live on with servers of its own. Every process that the session starts
inherits a variable with its id, also one in a session of its own whose parent is gone. When the
kernel closes the pipe, the reaper asks what has the variable to end, and kills what does not.
Servers that write another title over their environment (Redis, PostgreSQL) end with their guards.
"""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import sys
import time
import uuid

import psutil

#: In the environment of all that a session starts.
VARIABLE = "EO_TEST_SESSION"

#: How long a process may take to end in its own way: Dagster, then its servers.
_GRACE_S = 5.0
#: A child forked by the session may hold the pipe open: then its parent's pid tells.
_LOOK_S = 1.0


def start() -> subprocess.Popen[bytes]:
    """The reaper of this process and of all that it starts from now on. Keep it: it is the pipe."""
    os.environ[VARIABLE] = uuid.uuid4().hex
    return subprocess.Popen(
        [sys.executable, __file__, os.environ[VARIABLE]],
        stdin=subprocess.PIPE,
        start_new_session=True,  # Ctrl-C at the terminal is for pytest
    )


def started_by(session: str) -> list[psutil.Process]:
    """What is alive of the session, without this process."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):  # it has ended, or is another user's
            if process.environ().get(VARIABLE) == session and process.pid != os.getpid():
                found.append(process)
    return found


def main(session: str) -> None:
    """Wait for the end of the session, and end what is left of it."""
    owner = os.getppid()
    while os.getppid() == owner and not select.select([sys.stdin], [], [], _LOOK_S)[0]:
        pass
    deadline = time.monotonic() + _GRACE_S
    asked: set[int] = set()
    while left := started_by(session):
        for process in left:
            with contextlib.suppress(psutil.Error):
                if time.monotonic() > deadline:
                    process.kill()
                elif process.pid not in asked:
                    process.terminate()
        asked |= {process.pid for process in left}
        time.sleep(0.1)
    if asked:
        sys.stderr.write(f"The tests had left {len(asked)} processes; they were ended.\n")


if __name__ == "__main__":
    main(sys.argv[1])
