"""One operation of the product in a process of its own, which somebody may kill or freeze.

The process tells through a pipe what it aims at (``told``) before it changes anything, and how it
ended. Processes begin as copies of one that has imported everything: a kill costs a run, not
Python's start.
"""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from eo_pipeline.crashpoints import CrashPoint, reaching
from eo_pipeline.errors import EoPipelineError, GoingBackError
from eo_pipeline.ledger.history import checkpoints, live_branch
from eo_pipeline.pipeline import Pipeline
from eo_pipeline.testing import crash_at

Say = Callable[[str, Any], None]

T = TypeVar("T")

_PR_SET_PDEATHSIG = 1
_LATELY = 8


def operate(config: dict[str, Any], asked: dict[str, Any], said: Any) -> None:
    """``asked``: ``operation``, what it takes, and perhaps ``crash``, a point and its number."""
    # also if it is frozen when the program that started it goes
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    _quiet(asked["log"])
    _tell_how_it_ends(config, asked, lambda kind, value: said.send((kind, value)))


def _tell_how_it_ends(config: dict[str, Any], asked: dict[str, Any], say: Say) -> None:
    try:
        if crash := asked.get("crash"):
            with reaching(crash_at(CrashPoint(crash[0]), crash[1])):
                done = _OPERATIONS[asked["operation"]](config, asked, say)
        else:
            done = _OPERATIONS[asked["operation"]](config, asked, say)
    except EoPipelineError as error:
        kind = type(error).__name__
        say("fail", {"error": kind, "text": str(error)[:600], "retryable": error.retryable})
    else:
        say("ok", done)


def _run(config: dict[str, Any], asked: dict[str, Any], say: Say) -> dict[str, Any]:
    report = Pipeline.from_config(config).run()
    return {
        "head": report.head.version,
        "checkpoints": [each.entry.version for each in report.checkpoints],
        "recovered": sum(each.recovered for each in report.checkpoints),
    }


def _rewind(config: dict[str, Any], asked: dict[str, Any], say: Say) -> dict[str, Any]:
    pipeline = Pipeline.from_config(config)
    pipeline.recover()
    live = live_branch(pipeline.history())
    to = _lately(live, asked["fraction"]).version
    say("told", {"to": to})
    pipeline.plan_rewind(to).apply()
    return {"to": to}


def _replay(config: dict[str, Any], asked: dict[str, Any], say: Say) -> dict[str, Any]:
    pipeline = Pipeline.from_config(config)
    pipeline.recover()
    found = [each.version for each in checkpoints(pipeline.history())]
    if not found:
        return {"checkpoints": []}
    first = found.index(_lately(found, asked["fraction"]))
    versions = found[first : first + 3]
    say("told", {"versions": versions, "rev": asked["rev"]})
    pipeline.plan_replay(versions[0], versions[-1]).apply()
    return {"checkpoints": versions, "rev": asked["rev"]}


def _fork(config: dict[str, Any], asked: dict[str, Any], say: Say) -> dict[str, Any]:
    pipeline = Pipeline.from_config(config)
    if (at := asked.get("at")) is None:
        pipeline.recover()
        live = live_branch(pipeline.history())
        at = _lately(live, asked["fraction"]).version
        say("told", {"at": at})
    try:
        pipeline.fork(at, asked["name"], asked["sink"])
    except GoingBackError:
        if "at" not in asked or pipeline.forked(asked["name"], asked["sink"]).head() is None:
            raise
    return {"at": at}


def _maintain(config: dict[str, Any], asked: dict[str, Any], say: Say) -> dict[str, Any]:
    report = Pipeline.from_config(config).maintain()
    return {each.work: [each.files, each.files_after] for each in report.work}


_OPERATIONS: dict[str, Callable[[dict[str, Any], dict[str, Any], Say], dict[str, Any]]] = {
    "run": _run,
    "rewind": _rewind,
    "replay": _replay,
    "fork": _fork,
    "maintain": _maintain,
}


def _lately(versions: Sequence[T], share: float) -> T:
    """One of the last ones, but the very last if there is another: what comes after it is read
    again, and a life has to end.
    """
    return versions[max(0, len(versions) - 2 - int(share * _LATELY))]


def _quiet(log: str) -> None:
    """What the libraries print goes to a file."""
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(file, stream)
