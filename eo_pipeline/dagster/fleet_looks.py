"""One round over many pipelines: each broker is asked once, and each store, side by side.

Whoever does not answer costs the others nothing: what could not be asked is told for the pipelines
it concerns, and the round is over in time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import TypeVar

from eo_pipeline.boundary import boundary
from eo_pipeline.dagster.names import DagsterPipeline
from eo_pipeline.errors import EoPipelineError, SinkUnavailableError, SourceUnavailableError
from eo_pipeline.ledger.entry import LedgerEntry
from eo_pipeline.run.status import Status
from eo_pipeline.source.admin import KafkaAdmin
from eo_pipeline.source.discovery import Cluster
from eo_pipeline.source.many import ManyAdmin, reached_by
from eo_pipeline.wording import some_of

#: Seconds for a round's questions: Dagster ends a tick of 60 s, and there is more to do in it.
BUDGET_S = 25.0

#: Brokers and stores that are asked at the same time.
SIDE_BY_SIDE = 8

#: Pipelines named in a message before they are only counted.
NAMED_MAX = 20

T = TypeVar("T")

#: What is known of each pipeline, or why it is not.
Answers = dict[str, T | EoPipelineError]
Task = Callable[[], Answers[T]]


@dataclass(frozen=True)
class Round:
    """Where pipelines stand, by name, and of those that could not be looked at the reason."""

    statuses: Mapping[str, Status]
    failed: Mapping[str, EoPipelineError]


def look_at(members: Sequence[DagsterPipeline], *, budget_s: float = BUDGET_S) -> Round:
    """Ledgers first, then Kafka, as a look at one pipeline does it."""
    until = time.monotonic() + budget_s
    heads = heads_of(members, until=until)
    asked = [each for each in members if not isinstance(heads[_name(each)], EoPipelineError)]
    found = _clusters_of(asked, until)
    statuses: dict[str, Status] = {}
    failed: dict[str, EoPipelineError] = {}
    for name in map(_name, members):
        head, cluster = heads[name], found.get(name)
        if isinstance(head, EoPipelineError):
            failed[name] = head
        elif isinstance(cluster, Cluster):
            statuses[name] = Status(name, head, cluster)
        elif cluster is not None:
            failed[name] = cluster
    return Round(statuses, failed)


def heads_of(
    members: Sequence[DagsterPipeline], *, until: float | None = None
) -> Answers[LedgerEntry | None]:
    """The newest ledger entry of each; ``until`` (monotonic) answers are waited for."""
    groups = _grouped(members, lambda each: each.pipeline.sink.store or _name(each))
    tasks: list[tuple[Task[LedgerEntry | None], list[DagsterPipeline]]] = [
        (lambda group=group: _heads(group), group)  # type: ignore[misc]
        for group in groups
    ]
    until = until if until is not None else time.monotonic() + BUDGET_S
    return _answers(tasks, until, SinkUnavailableError)


def told(failed: Mapping[str, EoPipelineError]) -> str:
    """Which pipelines could not be looked at, and why: a clause for each reason."""
    by_reason: dict[str, list[str]] = {}
    for name, error in failed.items():
        by_reason.setdefault(str(error), []).append(name)
    return "; ".join(f"{some_of(each, NAMED_MAX)}: {why}" for why, each in by_reason.items())


def _clusters_of(members: Sequence[DagsterPipeline], until: float) -> Answers[Cluster]:
    groups = _grouped(members, lambda each: reached_by(each.pipeline.source))
    together: list[tuple[Task[Cluster | None], list[DagsterPipeline]]] = [
        (lambda group=group: _clusters(group), group)  # type: ignore[misc]
        for group in groups
    ]
    found = _answers(together, until, SourceUnavailableError)
    unsure = [each for each in members if found[_name(each)] is None]
    alone: list[tuple[Task[Cluster | None], list[DagsterPipeline]]] = [
        (lambda each=each: _cluster(each), [each])  # type: ignore[misc]
        for each in unsure
    ]
    found |= _answers(alone, until, SourceUnavailableError)
    return {name: answer for name, answer in found.items() if answer is not None}


def _heads(group: Sequence[DagsterPipeline]) -> Answers[LedgerEntry | None]:
    names = [_name(each) for each in group]
    try:
        with boundary(names[0]):
            return dict(group[0].pipeline.sink.heads(names))
    except SinkUnavailableError as error:
        return dict.fromkeys(names, error)
    except EoPipelineError as error:
        if len(group) == 1:
            return {names[0]: error}
    # one ledger that cannot be read says nothing of the others
    return {name: answer for each in group for name, answer in _heads([each]).items()}


def _clusters(group: Sequence[DagsterPipeline]) -> Answers[Cluster | None]:
    names = [_name(each) for each in group]
    try:
        with boundary(names[0]):
            found = ManyAdmin([each.pipeline.source for each in group]).clusters()
    except EoPipelineError as error:
        return dict.fromkeys(names, error)
    return dict(zip(names, found, strict=True))


def _cluster(member: DagsterPipeline) -> Answers[Cluster | None]:
    name = _name(member)
    try:
        with boundary(name):
            return {name: KafkaAdmin(member.pipeline.source).cluster()}
    except EoPipelineError as error:
        return {name: error}


def _answers(
    tasks: Collection[tuple[Task[T], list[DagsterPipeline]]],
    until: float,
    late: type[EoPipelineError],
) -> Answers[T]:
    """Those of all tasks; ``late`` for the pipelines of a task that is not done in time."""
    if not tasks:
        return {}
    began = time.monotonic()
    pool = ThreadPoolExecutor(SIDE_BY_SIDE, thread_name_prefix="fleet")
    asked: dict[Future[Answers[T]], list[DagsterPipeline]] = {
        pool.submit(task): group for task, group in tasks
    }
    wait(asked, max(0.0, until - began))
    pool.shutdown(wait=False, cancel_futures=True)
    answers: Answers[T] = {}
    for future, group in asked.items():
        if future.done() and not future.cancelled():
            answers |= future.result()
        else:
            spent = time.monotonic() - began
            error = late(f"no answer within {spent:.0f} s; the next round asks again")
            answers |= {_name(each): error for each in group}
    return answers


def _grouped(
    members: Iterable[DagsterPipeline], key: Callable[[DagsterPipeline], Hashable]
) -> list[list[DagsterPipeline]]:
    groups: dict[Hashable, list[DagsterPipeline]] = {}
    for each in members:
        groups.setdefault(key(each), []).append(each)
    return list(groups.values())


def _name(member: DagsterPipeline) -> str:
    return member.pipeline.name
