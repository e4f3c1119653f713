"""The sensors of a fleet: one looks at Kafka for all its pipelines, one compares all ledgers with
Dagster's event log.

None of them decides what is read, as everywhere. A broker or a store that is away is told by name
and costs the other pipelines nothing; the tick fails only if nobody could be looked at.
"""

from __future__ import annotations

import json
import time
import zlib
from base64 import b85decode, b85encode
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, TypeVar

import dagster as dg

from eo_pipeline.boundary import boundary
from eo_pipeline.dagster.mirror import KeyRequest, Progress
from eo_pipeline.dagster.naming import DagsterPipeline, Fleet
from eo_pipeline.dagster.runs import pause_after_failures, unfinished_runs
from eo_pipeline.dagster.sensors import NAMED_MAX, reconcile, wanted_run
from eo_pipeline.dagster.topics import Event, Told, away_events, retention, tell
from eo_pipeline.errors import (
    EoPipelineError,
    SinkUnavailableError,
    SourceUnavailableError,
    some_of,
)
from eo_pipeline.kafka.admin import KafkaAdmin, ManyAdmin, reached_by
from eo_pipeline.kafka.partitions import Cluster
from eo_pipeline.ledger.entry import EntryId, LedgerEntry
from eo_pipeline.ledger.offsets import TopicPartition
from eo_pipeline.operations.status import Status

#: Seconds in which all stores have answered, and then all brokers, or are away: Dagster ends a tick
#: of 60 s, and there is more to do in it.
STORES_S = 15.0
BROKERS_S = 20.0

#: Brokers and stores that are asked at the same time.
SIDE_BY_SIDE = 8

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


_FORMAT = "1:"


def to_cursor(cursors: Mapping[str, str]) -> str:
    """``cursors`` by name; some 40 bytes each."""
    return _FORMAT + b85encode(zlib.compress(json.dumps(cursors).encode(), 9)).decode()


def cursors_of(cursor: str | None) -> dict[str, str]:
    """The inverse; empty if there is none of this format."""
    if not cursor or not cursor.startswith(_FORMAT):
        return {}
    packed = b85decode(cursor.removeprefix(_FORMAT))
    return dict(json.loads(zlib.decompress(packed)))


#: Where nothing changes, a topic's look is told so often: a fleet has a thousand topics, and every
#: event is kept.
TOLD_AT_LEAST_EVERY_S = 3_600.0

#: Events one tick hands over; the topics that were told longest ago come first.
EVENTS_A_TICK = 100

#: Seconds after which a tick compares no further ledger; the next one goes on.
RECONCILING_S = 20.0

#: A look that is due within this time is due now: ticks do not come to the second.
EARLY_S = 2.0

Kept = Mapping[dg.AssetKey, str]


@dataclass
class Memory:
    """What a code server remembers between ticks. It is only about what is shown, and when: a new
    server shows everything once more, a part each tick, and so may two.
    """

    looked: dict[str, float] = field(default_factory=dict)
    told: dict[str, Told] = field(default_factory=dict)
    away: set[str] = field(default_factory=set)
    kept: dict[str, tuple[float, Kept]] = field(default_factory=dict)
    settled: dict[str, EntryId] = field(default_factory=dict)


def build_fleet_sensors(
    fleet: Fleet,
    members: Sequence[DagsterPipeline],
    jobs: Sequence[dg.JobDefinition | dg.UnresolvedAssetJobDefinition],
) -> list[dg.SensorDefinition]:
    """Both. ``jobs`` are the members' that read on, as they are defined beside the sensors."""
    memory = Memory()
    return [
        dg.SensorDefinition(
            name=f"{fleet.name}_lag",
            evaluation_fn=lambda context: look_at_fleet(
                fleet, members, context.instance, memory, log=context.log.warning
            ),
            jobs=jobs,
            description=f"Checks the lag of {len(members):,} pipelines together, starts a run for "
            "each one that has new records, and records the lag on its topics.",
            minimum_interval_seconds=min(e.automation.lag_interval_seconds for e in members),
            default_status=fleet.sensor_status,
        ),
        dg.SensorDefinition(
            name=f"{fleet.name}_reconciler",
            evaluation_fn=lambda context: reconcile_fleet(
                members, context.instance, memory, context.cursor, log=context.log.warning
            ),
            description="Reports ledger versions that are missing in Dagster, for "
            f"{len(members):,} pipelines.",
            minimum_interval_seconds=min(e.automation.reconcile_interval_seconds for e in members),
            default_status=fleet.sensor_status,
        ),
    ]


def look_at_fleet(
    fleet: Fleet,
    members: Sequence[DagsterPipeline],
    instance: dg.DagsterInstance,
    memory: Memory,
    *,
    log: Callable[[str], None],
) -> dg.SensorResult:
    """One tick of the lag sensor: whoever is due by its own interval is looked at.

    Raises:
        EoPipelineError: nobody could be looked at.
    """
    now = time.time()
    due = [each for each in members if _is_due(each, memory, now)]
    found = look_at(due)
    memory.looked |= {each.name: now for each in due}
    events = _told_of_failed(due, found, memory)
    if found.failed:
        log(f"not looked at: {told(found.failed)}")
    if due and not found.statuses:
        for event in events:
            instance.report_runless_asset_event(event)  # of a tick that fails Dagster takes none
        raise next(iter(found.failed.values()))
    events += _told_of_seen(due, found, memory, now, EVENTS_A_TICK - len(events))
    requests = _runs(fleet, due, instance, found)
    return dg.SensorResult(
        run_requests=requests,
        skip_reason=None if requests else _summary(found, "nothing to read"),
        asset_events=events,
    )


def _is_due(member: DagsterPipeline, memory: Memory, now: float) -> bool:
    since = now - memory.looked.get(member.name, 0.0)
    return since > member.automation.lag_interval_seconds - EARLY_S


def _told_of_failed(
    members: Sequence[DagsterPipeline], found: Round, memory: Memory
) -> list[Event]:
    """That nobody knows what waits; once, until it is known again, and as far as there is room."""
    events: list[Event] = []
    for member in members:
        name = member.name
        if len(events) >= EVENTS_A_TICK:
            break
        if name in found.failed and name not in memory.away:
            events += away_events(member, found.failed[name])
            memory.away.add(name)
    return events


def _told_of_seen(
    members: Sequence[DagsterPipeline], found: Round, memory: Memory, now: float, room: int
) -> list[Event]:
    """What is new, as far as there is room: first whoever was away, then by what was told last."""

    def turn(member: DagsterPipeline) -> tuple[bool, float]:
        name = member.name
        return name not in memory.away, memory.told.get(name, Told()).at

    events: list[Event] = []
    for member in sorted((e for e in members if e.name in found.statuses), key=turn):
        name = member.name
        status, before = found.statuses[name], memory.told.get(name, Told())
        if len(events) >= room:
            break
        said, memory.told[name] = tell(
            member,
            status,
            before,
            now,
            anew=name in memory.away,
            every_s=TOLD_AT_LEAST_EVERY_S,
            kept=lambda member=member: _kept(member, memory, now),  # type: ignore[misc]
        )
        memory.away.discard(name)
        events += said
    return events


def _kept(member: DagsterPipeline, memory: Memory, now: float) -> Kept:
    """How long its topics keep records; asked once an hour."""
    at, kept = memory.kept.get(member.name, (0.0, {}))
    if now - at > TOLD_AT_LEAST_EVERY_S:
        kept = retention(member)
        memory.kept[member.name] = now, kept
    return kept


def _runs(
    fleet: Fleet, members: Sequence[DagsterPipeline], instance: dg.DagsterInstance, found: Round
) -> list[dg.RunRequest]:
    """By level, as for one pipeline; those whose newest version is the oldest come first."""
    wanted = {
        each.name: request
        for each in members
        if (status := found.statuses.get(each.name)) and (request := _wanted(each, status))
    }
    if not wanted:
        return []
    unfinished = unfinished_runs(instance, wanted)
    by_name = {each.name: each for each in members}
    requests: list[dg.RunRequest] = []
    for name in sorted(wanted.keys() - unfinished.keys(), key=lambda n: _age(found.statuses[n])):
        if len(requests) == fleet.runs_a_tick:
            break
        if pause_after_failures(instance, by_name[name], now=time.time()) is None:
            requests.append(wanted[name])
    return requests


def _wanted(member: DagsterPipeline, status: Status) -> dg.RunRequest | None:
    """A run for what waits, or for partitions that have records and that no run has taken up."""
    fresh = _fresh(status)
    tags = {"eo/new_partitions": some_of(fresh, NAMED_MAX)} if fresh else {}
    if member.automation.lag_threshold is not None:
        request = wanted_run(member, status)
        if isinstance(request, dg.RunRequest):
            return request.with_replaced_attrs(job_name=member.job, tags={**request.tags, **tags})
    return dg.RunRequest(job_name=member.job, tags=member.run_tags | tags) if fresh else None


def _fresh(status: Status) -> list[TopicPartition]:
    if status.head is None:  # the first run takes every partition there is
        return []
    known, bounds = status.head.offsets, status.cluster.bounds
    return sorted(tp for tp, held in bounds.items() if tp not in known and held.end > 0)


def _age(status: Status) -> tuple[float, str]:
    at = status.head.committed_at if status.head else None
    return (at.timestamp() if at else 0.0), status.pipeline


def _summary(found: Round, said: str) -> str:
    missing = f"; not looked at: {told(found.failed)}" if found.failed else ""
    return f"{len(found.statuses):,} pipelines: {said}{missing}"


def reconcile_fleet(
    members: Sequence[DagsterPipeline],
    instance: dg.DagsterInstance,
    memory: Memory,
    cursor: str | None,
    *,
    log: Callable[[str], None],
) -> dg.SensorResult:
    """One tick of the reconciler: ledgers that moved since are compared, and no others.

    Raises:
        EoPipelineError: no ledger could be asked.
    """
    until = time.monotonic() + RECONCILING_S
    heads = heads_of(members)
    failed = {name: head for name, head in heads.items() if isinstance(head, EoPipelineError)}
    if len(failed) == len(members):
        raise next(iter(failed.values()))
    cursors = cursors_of(cursor)
    done = _Reconciled(cursors)
    working = unfinished_runs(instance, heads, working=True)
    moved = [
        each
        for each in members
        if each.name not in failed
        and each.name not in working
        and _has_moved(each, heads[each.name], cursors.get(each.name), memory)
    ]
    for member in moved:
        if time.monotonic() > until or len(done.events) >= EVENTS_A_TICK:
            break
        try:
            done.take(member, instance, memory)
        except EoPipelineError as error:
            failed[member.name] = error
    if failed:
        log(f"not compared: {told(failed)}")
    missing = f"; not compared: {told(failed)}" if failed else ""
    left = f", {len(moved) - done.count:,} are left" if done.count < len(moved) else ""
    return dg.SensorResult(
        skip_reason=f"{len(members):,} ledgers, {done.count:,} compared{left}{missing}",
        asset_events=done.events,
        dynamic_partitions_requests=done.keys,
        cursor=to_cursor(done.cursors),
    )


@dataclass
class _Reconciled:
    """What one tick's comparisons came to, beside the cursors of all pipelines."""

    cursors: dict[str, str]
    events: list[dg.AssetMaterialization | Event] = field(default_factory=list)
    keys: list[KeyRequest] = field(default_factory=list)
    count: int = 0

    def take(self, member: DagsterPipeline, instance: dg.DagsterInstance, memory: Memory) -> None:
        name = member.name
        before = Progress.from_cursor(self.cursors.get(name)).entry
        answer = reconcile(member, instance, self.cursors.get(name))
        self.count += 1
        if not isinstance(answer, dg.SensorResult) or answer.cursor is None:
            return  # a run that began meanwhile reports itself
        self.cursors[name] = answer.cursor
        self.events += answer.asset_events
        self.keys += answer.dynamic_partitions_requests or []
        after = Progress.from_cursor(answer.cursor).entry
        if after is not None and after == before:
            memory.settled[name] = after


def _has_moved(
    member: DagsterPipeline,
    head: LedgerEntry | EoPipelineError | None,
    cursor: str | None,
    memory: Memory,
) -> bool:
    """Whether there is something to compare: the ledger's head is not what was compared last, or
    what stands was not shown yet.
    """
    progress = Progress.from_cursor(cursor)
    if not isinstance(head, LedgerEntry):
        return progress.entry is not None
    settled = head.id in (progress.shown, memory.settled.get(member.name))
    return not (head.id == progress.entry and settled)
