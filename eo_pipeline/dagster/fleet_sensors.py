"""Sensors of a fleet: one checks the lag of all its pipelines, one compares all ledgers with
Dagster's event log.

The ledger decides which offsets are read, as everywhere. An unreachable broker or store is reported
by name and does not affect the other pipelines; the tick fails only if no pipeline could be
checked.
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
from eo_pipeline.dagster.topics import Event, LagCursor, retention, topic_events, unreachable_events
from eo_pipeline.errors import (
    EoPipelineError,
    SinkUnavailableError,
    SourceUnavailableError,
    some_of,
)
from eo_pipeline.kafka.admin import KafkaAdmin, SharedKafkaAdmin, reached_by
from eo_pipeline.kafka.partitions import Cluster
from eo_pipeline.ledger.entry import EntryId, LedgerEntry
from eo_pipeline.ledger.offsets import TopicPartition
from eo_pipeline.operations.status import Status

#: Time limits in seconds of the queries to all stores, and then to all brokers: Dagster ends a tick
#: after 60 s, which must suffice for the rest as well.
STORES_S = 15.0
BROKERS_S = 20.0

#: Brokers and stores that are queried at the same time.
PARALLEL_QUERIES = 8

T = TypeVar("T")

#: Result or error of each pipeline.
Answers = dict[str, T | EoPipelineError]


class _Query(NamedTuple, Generic[T]):
    """Query to a broker or a store for the pipelines of ``group``; ``key`` identifies it."""

    key: Hashable
    group: list[DagsterPipeline]
    run: Callable[[Sequence[DagsterPipeline]], Answers[T]]


#: Abandoned queries of earlier ticks, which may still wait for an answer.
_abandoned: dict[Hashable, Future[Any]] = {}


@dataclass(frozen=True)
class PollResult:
    """Status of pipelines by name, and the errors of those that could not be checked."""

    statuses: Mapping[str, Status]
    failed: Mapping[str, EoPipelineError]


def poll(members: Sequence[DagsterPipeline]) -> PollResult:
    """Read the ledgers first, then Kafka, in the order of a single pipeline's status."""
    heads = heads_of(members)
    reachable = [m for m in members if not isinstance(heads[m.name], EoPipelineError)]
    clusters = _clusters_of(reachable)
    statuses: dict[str, Status] = {}
    failed: dict[str, EoPipelineError] = {}
    for name in (member.name for member in members):
        head, cluster = heads[name], clusters.get(name)
        if isinstance(head, EoPipelineError):
            failed[name] = head
        elif isinstance(cluster, Cluster):
            statuses[name] = Status(name, head, cluster)
        elif cluster is not None:
            failed[name] = cluster
    return PollResult(statuses, failed)


def heads_of(members: Sequence[DagsterPipeline]) -> Answers[LedgerEntry | None]:
    """Return the newest ledger entry of each pipeline."""
    groups = _grouped(members, lambda member: member.pipeline.sink.store or member.name)
    queries = [_Query(("heads", key), group, _heads) for key, group in groups.items()]
    return _answers(queries, time.monotonic() + STORES_S, SinkUnavailableError)


def failure_text(failed: Mapping[str, EoPipelineError]) -> str:
    """Return the pipelines that could not be checked, with a clause per reason."""
    by_reason: dict[str, list[str]] = {}
    for name, error in failed.items():
        by_reason.setdefault(str(error), []).append(name)
    return "; ".join(
        f"{some_of(names, NAMED_MAX)}: {reason}" for reason, names in by_reason.items()
    )


def _clusters_of(members: Sequence[DagsterPipeline]) -> Answers[Cluster | None]:
    until = time.monotonic() + BROKERS_S
    groups = _grouped(members, lambda member: reached_by(member.pipeline.source))
    shared = [_Query(("topics", key), group, _clusters) for key, group in groups.items()]
    clusters = _answers(shared, until, SourceUnavailableError)
    separate = [
        _Query(("topics of", member.name), [member], _cluster)
        for member in members
        if clusters[member.name] is None
    ]
    return clusters | _answers(separate, until, SourceUnavailableError)


def _heads(group: Sequence[DagsterPipeline]) -> Answers[LedgerEntry | None]:
    names = [member.name for member in group]
    try:
        with boundary(names[0]):
            return dict(group[0].pipeline.sink.heads(names))
    except SinkUnavailableError as error:
        return dict.fromkeys(names, error)
    except EoPipelineError as error:
        if len(group) == 1:
            return {names[0]: error}
    # one unreadable ledger must not hide the others
    return {name: answer for member in group for name, answer in _heads([member]).items()}


def _clusters(group: Sequence[DagsterPipeline]) -> Answers[Cluster | None]:
    names = [member.name for member in group]
    try:
        with boundary(names[0]):
            clusters = SharedKafkaAdmin([member.pipeline.source for member in group]).clusters()
    except EoPipelineError as error:
        return dict.fromkeys(names, error)
    return dict(zip(names, clusters, strict=True))


def _cluster(group: Sequence[DagsterPipeline]) -> Answers[Cluster | None]:
    [member] = group
    try:
        with boundary(member.name):
            return {member.name: KafkaAdmin(member.pipeline.source).cluster()}
    except EoPipelineError as error:
        return {member.name: error}


def _answers(queries: Sequence[_Query[T]], until: float, late: type[EoPipelineError]) -> Answers[T]:
    """Return the answers that come before ``until`` (monotonic), and the error ``late`` for the
    other pipelines.

    A query abandoned by one tick is not repeated before it ends; otherwise every tick would add a
    hanging connection.
    """
    hanging = {key for key, future in _abandoned.items() if not future.done()}
    pool = ThreadPoolExecutor(PARALLEL_QUERIES, thread_name_prefix="fleet")
    futures = {
        query.key: pool.submit(query.run, query.group)
        for query in queries
        if query.key not in hanging
    }
    wait(futures.values(), max(0.0, until - time.monotonic()))
    pool.shutdown(wait=False, cancel_futures=True)
    answers: Answers[T] = {}
    for query in queries:
        future = futures.get(query.key)
        if future is not None and future.done() and not future.cancelled():
            answers |= future.result()
            continue
        if future is not None:
            _abandoned[query.key] = future
        error = late("no response in time; retried once the pending request has ended")
        answers |= {member.name: error for member in query.group}
    return answers


def _grouped(
    members: Iterable[DagsterPipeline], key: Callable[[DagsterPipeline], Hashable]
) -> dict[Hashable, list[DagsterPipeline]]:
    groups: dict[Hashable, list[DagsterPipeline]] = {}
    for member in members:
        groups.setdefault(key(member), []).append(member)
    return groups


_FORMAT = "1:"


def to_cursor(cursors: Mapping[str, str]) -> str:
    """Return the sensor cursor of the pipelines' ``cursors``, by name; some 40 bytes each."""
    return _FORMAT + b85encode(zlib.compress(json.dumps(cursors).encode(), 9)).decode()


def cursors_of(cursor: str | None) -> dict[str, str]:
    """Inverse of :func:`to_cursor`; empty for any other format."""
    if not cursor or not cursor.startswith(_FORMAT):
        return {}
    packed = b85decode(cursor.removeprefix(_FORMAT))
    return dict(json.loads(zlib.decompress(packed)))


#: Interval of a topic's reports while nothing changes: a fleet has a thousand topics, and every
#: event is kept.
REPORT_INTERVAL_S = 3_600.0

#: Maximum number of events per tick; the topics reported longest ago come first.
EVENTS_A_TICK = 100

#: Seconds after which a tick compares no further ledger; the next one continues.
RECONCILING_S = 20.0

#: Polls that are due within this time are due now: ticks are not exact to the second.
EARLY_S = 2.0

Retention = Mapping[dg.AssetKey, str]


@dataclass
class Memory:
    """State of a code server between ticks, about shown events only: a new or second server reports
    everything once more, a part on each tick.
    """

    polled_at: dict[str, float] = field(default_factory=dict)
    reported: dict[str, LagCursor] = field(default_factory=dict)
    unreachable: set[str] = field(default_factory=set)
    retention: dict[str, tuple[float, Retention]] = field(default_factory=dict)
    settled: dict[str, EntryId] = field(default_factory=dict)


def build_fleet_sensors(
    fleet: Fleet,
    members: Sequence[DagsterPipeline],
    jobs: Sequence[dg.JobDefinition | dg.UnresolvedAssetJobDefinition],
) -> list[dg.SensorDefinition]:
    """Build both sensors. ``jobs`` are the members' forward jobs, as defined beside the sensors."""
    memory = Memory()
    return [
        dg.SensorDefinition(
            name=f"{fleet.name}_lag",
            evaluation_fn=lambda context: check_fleet(
                fleet, members, context.instance, memory, log=context.log.warning
            ),
            jobs=jobs,
            description=f"Checks the lag of {len(members):,} pipelines together, starts a run for "
            "each one with new records, and reports the lag on its topics.",
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


def check_fleet(
    fleet: Fleet,
    members: Sequence[DagsterPipeline],
    instance: dg.DagsterInstance,
    memory: Memory,
    *,
    log: Callable[[str], None],
) -> dg.SensorResult:
    """Run one tick of the lag sensor, which checks the members that are due by their own interval.

    Raises:
        EoPipelineError: no pipeline could be checked.
    """
    now = time.time()
    due = [member for member in members if _is_due(member, memory, now)]
    result = poll(due)
    memory.polled_at |= {member.name: now for member in due}
    events = _failure_events(due, result, memory)
    if result.failed:
        log(f"could not check {failure_text(result.failed)}")
    if due and not result.statuses:
        for event in events:
            instance.report_runless_asset_event(event)  # Dagster drops the events of a failed tick
        raise next(iter(result.failed.values()))
    events += _status_events(due, result, memory, now, EVENTS_A_TICK - len(events))
    requests = _runs(fleet, due, instance, result)
    return dg.SensorResult(
        run_requests=requests,
        skip_reason=None if requests else _summary(result, "no run to start"),
        asset_events=events,
    )


def _is_due(member: DagsterPipeline, memory: Memory, now: float) -> bool:
    since = now - memory.polled_at.get(member.name, 0.0)
    return since > member.automation.lag_interval_seconds - EARLY_S


def _failure_events(
    members: Sequence[DagsterPipeline], result: PollResult, memory: Memory
) -> list[Event]:
    """Return the failed checks of pipelines that became unreachable; once per outage, up to the
    limit of a tick.
    """
    events: list[Event] = []
    for member in members:
        name = member.name
        if len(events) >= EVENTS_A_TICK:
            break
        if name in result.failed and name not in memory.unreachable:
            events += unreachable_events(member, result.failed[name])
            memory.unreachable.add(name)
    return events


def _status_events(
    members: Sequence[DagsterPipeline], result: PollResult, memory: Memory, now: float, room: int
) -> list[Event]:
    """Return the events of new states, up to ``room``: recovered pipelines first, then by the time
    of their last report.
    """

    def priority(member: DagsterPipeline) -> tuple[bool, float]:
        name = member.name
        return name not in memory.unreachable, memory.reported.get(name, LagCursor()).at

    events: list[Event] = []
    for member in sorted(
        (candidate for candidate in members if candidate.name in result.statuses), key=priority
    ):
        name = member.name
        status, before = result.statuses[name], memory.reported.get(name, LagCursor())
        if len(events) >= room:
            break
        topic_updates, memory.reported[name] = topic_events(
            member,
            status,
            before,
            now,
            anew=name in memory.unreachable,
            every_s=REPORT_INTERVAL_S,
            kept=lambda member=member: _cached_retention(member, memory, now),  # type: ignore[misc]
        )
        memory.unreachable.discard(name)
        events += topic_updates
    return events


def _cached_retention(member: DagsterPipeline, memory: Memory, now: float) -> Retention:
    """Return how long the topics keep records, read once an hour."""
    at, days = memory.retention.get(member.name, (0.0, {}))
    if now - at > REPORT_INTERVAL_S:
        days = retention(member)
        memory.retention[member.name] = now, days
    return days


def _runs(
    fleet: Fleet,
    members: Sequence[DagsterPipeline],
    instance: dg.DagsterInstance,
    result: PollResult,
) -> list[dg.RunRequest]:
    """Return the runs to start, by level as for one pipeline; the pipelines with the oldest newest
    version first.
    """
    wanted = {
        member.name: request
        for member in members
        if (status := result.statuses.get(member.name)) and (request := _wanted(member, status))
    }
    if not wanted:
        return []
    unfinished = unfinished_runs(instance, wanted)
    by_name = {member.name: member for member in members}
    requests: list[dg.RunRequest] = []
    for name in sorted(wanted.keys() - unfinished.keys(), key=lambda n: _age(result.statuses[n])):
        if len(requests) == fleet.runs_a_tick:
            break
        if pause_after_failures(instance, by_name[name], now=time.time()) is None:
            requests.append(wanted[name])
    return requests


def _wanted(member: DagsterPipeline, status: Status) -> dg.RunRequest | None:
    """Return a run for waiting records, or for new partitions that have records."""
    new = _new_partitions(status)
    tags = {"eo/new_partitions": some_of(new, NAMED_MAX)} if new else {}
    if member.automation.lag_threshold is not None:
        request = wanted_run(member, status)
        if isinstance(request, dg.RunRequest):
            return request.with_replaced_attrs(job_name=member.job, tags={**request.tags, **tags})
    return dg.RunRequest(job_name=member.job, tags=member.run_tags | tags) if new else None


def _new_partitions(status: Status) -> list[TopicPartition]:
    if status.head is None:  # the first run reads every partition
        return []
    offsets, bounds = status.head.offsets, status.cluster.bounds
    return sorted(tp for tp, b in bounds.items() if tp not in offsets and b.end > 0)


def _age(status: Status) -> tuple[float, str]:
    at = status.head.committed_at if status.head else None
    return (at.timestamp() if at else 0.0), status.pipeline


def _summary(result: PollResult, message: str) -> str:
    missing = f"; could not check {failure_text(result.failed)}" if result.failed else ""
    return f"{len(result.statuses):,} pipelines: {message}{missing}"


def reconcile_fleet(
    members: Sequence[DagsterPipeline],
    instance: dg.DagsterInstance,
    memory: Memory,
    cursor: str | None,
    *,
    log: Callable[[str], None],
) -> dg.SensorResult:
    """Run one tick of the reconciler, which compares only ledgers that moved.

    Raises:
        EoPipelineError: no ledger could be read.
    """
    until = time.monotonic() + RECONCILING_S
    heads = heads_of(members)
    failed = {name: head for name, head in heads.items() if isinstance(head, EoPipelineError)}
    if len(failed) == len(members):
        raise next(iter(failed.values()))
    cursors = cursors_of(cursor)
    progress = _Reconciled(cursors)
    working = unfinished_runs(instance, heads, working=True)
    moved = [
        candidate
        for candidate in members
        if candidate.name not in failed
        and candidate.name not in working
        and _has_moved(candidate, heads[candidate.name], cursors.get(candidate.name), memory)
    ]
    for member in moved:
        if time.monotonic() > until or len(progress.events) >= EVENTS_A_TICK:
            break
        try:
            progress.compare(member, instance, memory)
        except EoPipelineError as error:
            failed[member.name] = error
    if failed:
        log(f"not compared: {failure_text(failed)}")
    missing = f"; not compared: {failure_text(failed)}" if failed else ""
    remaining = f", {len(moved) - progress.count:,} are left" if progress.count < len(moved) else ""
    return dg.SensorResult(
        skip_reason=f"{len(members):,} ledgers, {progress.count:,} compared{remaining}{missing}",
        asset_events=progress.events,
        dynamic_partitions_requests=progress.keys,
        cursor=to_cursor(progress.cursors),
    )


@dataclass
class _Reconciled:
    """Results of one tick's comparisons, and the cursors of all pipelines."""

    cursors: dict[str, str]
    events: list[dg.AssetMaterialization | Event] = field(default_factory=list)
    keys: list[KeyRequest] = field(default_factory=list)
    count: int = 0

    def compare(
        self, member: DagsterPipeline, instance: dg.DagsterInstance, memory: Memory
    ) -> None:
        name = member.name
        before = Progress.from_cursor(self.cursors.get(name)).entry
        answer = reconcile(member, instance, self.cursors.get(name))
        self.count += 1
        if not isinstance(answer, dg.SensorResult) or answer.cursor is None:
            return  # a run that began meanwhile reports its own commits
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
    """Return whether there is something to compare: the ledger's head was not compared yet, or the
    live checkpoints were not shown yet.
    """
    progress = Progress.from_cursor(cursor)
    if not isinstance(head, LedgerEntry):
        return progress.entry is not None
    settled = head.id in (progress.shown, memory.settled.get(member.name))
    return not (head.id == progress.entry and settled)
