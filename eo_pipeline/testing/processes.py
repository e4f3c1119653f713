"""Processes that die in the middle of something."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable
from typing import Any

#: Seconds for one to reach its end, on a machine that is busy with other things.
_WAIT_S = 240.0

#: Each process begins as a copy of one that has imported what all need and done nothing: a second
#: and more of imports less than for a new one, and without this process's threads and connections.
_COPIES = multiprocessing.get_context("forkserver")
_COPIES.set_forkserver_preload(["eo_pipeline.testing.contract"])


def dies(target: Callable[..., object], *arguments: Any, prints: bool = False) -> None:
    """Call ``target`` in a process of its own, which has to die of SIGKILL.

    ``target`` is a function of a module, and what it is given can be pickled. What it ``prints``
    comes out here: copies have the standard output that there was when the first one was made.
    """
    context = multiprocessing.get_context("spawn") if prints else _COPIES
    process = context.Process(target=target, args=arguments)
    process.start()
    process.join(_WAIT_S)
    if process.exitcode is None:
        process.kill()
        raise AssertionError(f"still running after {_WAIT_S:.0f} s")
    assert process.exitcode == -signal.SIGKILL, f"ended with {process.exitcode} instead"
