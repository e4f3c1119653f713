"""One round over many pipelines: each broker is asked once, and each store, side by side.

Whoever does not answer costs the others nothing: what could not be asked is told for the pipelines
it concerns, and the round is over in time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

from eo_pipeline.boundary import boundary
from eo_pipeline.dagster.names import DagsterPipeline
from eo_pipeline.errors import EoPipelineError, SinkUnavailableError, SourceUnavailableError
from eo_pipeline.ledger.entry import LedgerEntry
from eo_pipeline.run.status import Status
from eo_pipeline.source.admin import KafkaAdmin
from eo_pipeline.source.discovery import Cluster
from eo_pipeline.source.many import ManyAdmin, reached_by
from eo_pipeline.wording import some_of

#: Seconds in which all stores have answered, and then all brokers, or are away: Dagster ends a tick
#: of 60 s, and there is more to do in it.
STORES_S = 15.0
BROKERS_S = 20.0

#: Brokers and stores that are asked at the same time.
SIDE_BY_SIDE = 8

#: Pipelines named in a message before they are only counted.
NAMED_MAX = 20

T = TypeVar("T")

#: What is known of each pipeline, or why it is not.
Answers = dict[str, T | EoPipelineError]


class _Question(NamedTuple, Generic[T]):
    """One to a broker or a store, for the pipelines ``group``; ``key`` says which it is."""

    key: Hashable
    group: list[DagsterPipeline]
    ask: Callable[[Sequence[DagsterPipeline]], Answers[T]]


#: Questions that an earlier round gave up, and that may wait for an answer even now.
_given_up: dict[Hashable, Future[Any]] = {}


@dataclass(frozen=True)
class Round:
    """Where pipelines stand, by name, and of those that could not be looked at the reason."""

    statuses: Mapping[str, Status]
    failed: Mapping[str, EoPipelineError]


def look_at(members: Sequence[DagsterPipeline]) -> Round:
    """Ledgers first, then Kafka, as a look at one pipeline does it."""
    heads = heads_of(members)
    asked = [each for each in members if not isinstance(heads[each.name], EoPipelineError)]
    found = _clusters_of(asked)
    statuses: dict[str, Status] = {}
    failed: dict[str, EoPipelineError] = {}
    for name in (each.name for each in members):
        head, cluster = heads[name], found.get(name)
        if isinstance(head, EoPipelineError):
            failed[name] = head
        elif isinstance(cluster, Cluster):
            statuses[name] = Status(name, head, cluster)
        elif cluster is not None:
            failed[name] = cluster
    return Round(statuses, failed)


def heads_of(members: Sequence[DagsterPipeline]) -> Answers[LedgerEntry | None]:
    """The newest ledger entry of each."""
    groups = _grouped(members, lambda each: each.pipeline.sink.store or each.name)
    questions = [_Question(("heads", key), group, _heads) for key, group in groups.items()]
    return _answers(questions, time.monotonic() + STORES_S, SinkUnavailableError)


def told(failed: Mapping[str, EoPipelineError]) -> str:
    """Which pipelines could not be looked at, and why: a clause for each reason."""
    by_reason: dict[str, list[str]] = {}
    for name, error in failed.items():
        by_reason.setdefault(str(error), []).append(name)
    return "; ".join(f"{some_of(each, NAMED_MAX)}: {why}" for why, each in by_reason.items())


def _clusters_of(members: Sequence[DagsterPipeline]) -> Answers[Cluster | None]:
    until = time.monotonic() + BROKERS_S
    groups = _grouped(members, lambda each: reached_by(each.pipeline.source))
    together = [_Question(("topics", key), group, _clusters) for key, group in groups.items()]
    found = _answers(together, until, SourceUnavailableError)
    alone = [
        _Question(("topics of", each.name), [each], _cluster)
        for each in members
        if found[each.name] is None
    ]
    return found | _answers(alone, until, SourceUnavailableError)


def _heads(group: Sequence[DagsterPipeline]) -> Answers[LedgerEntry | None]:
    names = [each.name for each in group]
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
    names = [each.name for each in group]
    try:
        with boundary(names[0]):
            found = ManyAdmin([each.pipeline.source for each in group]).clusters()
    except EoPipelineError as error:
        return dict.fromkeys(names, error)
    return dict(zip(names, found, strict=True))


def _cluster(group: Sequence[DagsterPipeline]) -> Answers[Cluster | None]:
    [member] = group
    try:
        with boundary(member.name):
            return {member.name: KafkaAdmin(member.pipeline.source).cluster()}
    except EoPipelineError as error:
        return {member.name: error}


def _answers(
    questions: Sequence[_Question[T]], until: float, late: type[EoPipelineError]
) -> Answers[T]:
    """Those that come ``until`` then (monotonic), and ``late`` for the other pipelines. What one
    round gave up the next does not ask again before it has ended: connections that hang would
    otherwise become more with every round.
    """
    hanging = {key for key, asked in _given_up.items() if not asked.done()}
    pool = ThreadPoolExecutor(SIDE_BY_SIDE, thread_name_prefix="fleet")
    asked = {
        each.key: pool.submit(each.ask, each.group) for each in questions if each.key not in hanging
    }
    wait(asked.values(), max(0.0, until - time.monotonic()))
    pool.shutdown(wait=False, cancel_futures=True)
    answers: Answers[T] = {}
    for each in questions:
        answer = asked.get(each.key)
        if answer is not None and answer.done() and not answer.cancelled():
            answers |= answer.result()
            continue
        if answer is not None:
            _given_up[each.key] = answer
        error = late("no answer in time; asked again once the question has ended")
        answers |= {member.name: error for member in each.group}
    return answers


def _grouped(
    members: Iterable[DagsterPipeline], key: Callable[[DagsterPipeline], Hashable]
) -> dict[Hashable, list[DagsterPipeline]]:
    groups: dict[Hashable, list[DagsterPipeline]] = {}
    for each in members:
        groups.setdefault(key(each), []).append(each)
    return groups
