"""What is done to an operation while it works. Each fault ends with everything running again."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from eo_pipeline.embedded.server import EmbeddedServer
from tests.kills.plan import Step
from tests.kills.processes import Operation, Outcome
from tests.kills.targets import LOCK_TIMEOUT_S
from tests.support.proxy import Cut

if TYPE_CHECKING:
    from tests.kills.life import Life

_RIVALS_MAX = 8


class NotPossibleError(Exception):
    """This machine lacks what the fault takes."""


def none(life: Life, step: Step) -> Outcome:
    """Nothing."""
    operation = life.begin(step)
    life.write(step.meanwhile)
    return operation.wait()


def kill(life: Life, step: Step) -> Outcome:
    """SIGKILL at a random moment."""
    operation = life.begin(step)
    life.write(step.meanwhile)
    operation.kill_after(life.moment(step))
    return life.counted("run", operation.wait())


def kill_at_a_point(life: Life, step: Step) -> Outcome:
    """SIGKILL at a named point."""
    operation = life.begin(step, crash=(step.point.value, step.nth))
    life.write(step.meanwhile)
    return life.counted("run", operation.wait())


def freeze(life: Life, step: Step) -> Outcome:
    """SIGSTOP, past the time after which a store lets go of what a silent process holds; another
    run wins; SIGCONT.
    """
    operation = life.begin(step)
    _sleep(operation, life.moment(step))
    if not operation.signal(signal.SIGSTOP):
        return operation.wait()
    life.happened("frozen")
    life.write(step.meanwhile + 1)
    time.sleep(LOCK_TIMEOUT_S if step.after_the_request else 0.0)
    for _ in range(_RIVALS_MAX):
        if (rival := life.rival()).ok:
            break
    life.look_beside(operation, rival)
    operation.signal(signal.SIGCONT)
    return operation.wait()


def race(life: Life, step: Step) -> Outcome:
    """Two at the same time; the first is killed at a random moment, or not."""
    operation = life.begin(step)
    rival = life.begin_rival()
    life.happened("raced")
    if step.after_the_request:
        operation.kill_after(life.moment(step))
    outcome = life.counted("run", operation.wait())
    life.ended(rival.wait())
    return outcome


def kill_the_store(life: Life, step: Step) -> Outcome:
    """SIGKILL of the server that has the table, which is started again at once."""
    server = life.target.server
    assert server is not None
    return _kill_server(life, step, "store", server)


def kill_the_broker(life: Life, step: Step) -> Outcome:
    """SIGKILL of Kafka."""
    return _kill_server(life, step, "broker", life.world.broker)


def kill_spark(life: Life, step: Step) -> Outcome:
    """SIGKILL of Spark: driver, executor and Connect server are one process here."""
    return _kill_server(life, step, "Spark", life.world.spark)


def _kill_server(life: Life, step: Step, name: str, server: EmbeddedServer) -> Outcome:
    operation = life.begin(step)
    _sleep(operation, life.moment(step))
    if operation.alive():
        with life.world.changing:
            server.kill()
            life.killed(name)
            server.start()
    return operation.wait()


def lose_a_reply(life: Life, step: Step) -> Outcome:
    """The link to the store breaks when the commit is asked for: before the store hears of it, or
    before its answer is heard.
    """
    cut = Cut.BEFORE_THE_REPLY if step.after_the_request else Cut.BEFORE_THE_REQUEST
    with life.target.link() as proxy:
        proxy.cut_at(life.target.trigger(life.table), cut)
        operation = life.begin(step, port=proxy.port)
        outcome = operation.wait()
        if proxy.is_through:
            life.happened("reply lost" if step.after_the_request else "request lost")
    return outcome


def fill_the_disk(life: Life, step: Step) -> Outcome:
    """Not a byte is left where the store and staging keep their files."""
    with life.target.disk.full():
        life.happened("disk full")
        outcome = life.begin(step).wait()
    life.world.heal(life.target)
    return outcome


def turn_the_clock(life: Life, step: Step) -> Outcome:
    """The process has a clock that is hours or years off, and jumps back to the truth meanwhile."""
    clock = life.world.clock
    if clock is None:
        raise NotPossibleError(life.world.no_clock)
    clock.turn(step.hours * 3600)
    operation = life.begin(step)
    life.happened("clock turned")
    _sleep(operation, life.moment(step))
    clock.turn(0)
    if step.after_the_request:
        operation.kill_after(life.moment(step))
    return life.counted("run", operation.wait())


def _sleep(operation: Operation, seconds: float) -> None:
    """Or less, if it ends before."""
    until = time.monotonic() + seconds
    while operation.alive() and time.monotonic() < until:
        time.sleep(0.01)


FAULTS: Mapping[str, Callable[[Life, Step], Outcome]] = {
    "none": none,
    "kill": kill,
    "kill at a point": kill_at_a_point,
    "freeze": freeze,
    "race": race,
    "kill the store": kill_the_store,
    "kill the broker": kill_the_broker,
    "kill Spark": kill_spark,
    "lose a reply": lose_a_reply,
    "fill the disk": fill_the_disk,
    "turn the clock": turn_the_clock,
}
