"""Kafka's state in Dagster: an observation of each topic, and the check that reports whether Kafka
is reachable and how large the pipeline's lag is.
"""

from __future__ import annotations

import json
import logging
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import dagster as dg
from dagster._core.definitions.asset_checks.asset_check_evaluation import (
    AssetCheckEvaluationPlanned,
    AssetCheckEvaluationTargetMaterializationData,
)
from dagster._core.events import DagsterEvent, DagsterEventType

from eo_pipeline.dagster.metadata import SHOWN_MAX, in_dagster, table, topic_metadata
from eo_pipeline.dagster.naming import DagsterPipeline
from eo_pipeline.errors import EoPipelineError, SourceUnavailableError
from eo_pipeline.kafka.admin import KafkaAdmin
from eo_pipeline.kafka.partitions import Cluster, positions_of
from eo_pipeline.kafka.source import KafkaSource
from eo_pipeline.ledger.entry import LedgerEntry
from eo_pipeline.ledger.offsets import TopicPartition
from eo_pipeline.operations.status import Status

log = logging.getLogger(__name__)
T = TypeVar("T")


def will_evaluate(context: dg.OpExecutionContext, key: dg.AssetCheckKey) -> None:
    """Show the check as being evaluated by this run; if the run ends without a result, the check
    shows that its evaluation failed. For a step of a check Dagster does this itself.
    """
    planned = AssetCheckEvaluationPlanned(asset_key=key.asset_key, check_name=key.name)
    event = DagsterEvent(
        event_type_value=DagsterEventType.ASSET_CHECK_EVALUATION_PLANNED.value,
        job_name=context.job_name,
        step_key=context.get_step_execution_context().step.key,
        message=f"evaluates the check {key.name!r} of {key.asset_key.to_user_string()}",
        event_specific_data=planned,
    )
    context.instance.report_dagster_event(event, context.run.run_id)


def evaluated(
    key: dg.AssetCheckKey, result: dg.AssetCheckResult, of: dg.EventLogRecord | None = None
) -> dg.AssetCheckEvaluation:
    """Return ``result`` as an event that any step or sensor may report.

    Args:
        of: the materialization that was checked. Dagster shows a check as not evaluated once there
            is a newer one; without it, once there is one newer than the evaluation's start.
    """
    return dg.AssetCheckEvaluation(
        asset_key=key.asset_key,
        check_name=key.name,
        passed=result.passed,
        severity=result.severity,
        description=result.description,
        metadata=result.metadata,
        target_materialization_data=_target(of) if of else None,
    )


#: Results of a check that are looked through for its last one.
_RECENT = 20


@contextmanager
def keeping_results(context: dg.AssetExecutionContext) -> Iterator[None]:
    """If the step fails or is ended, report again the last result of each check of its assets that
    the run had planned: Dagster shows a planned check without a result as failed.
    """
    with ExitStack() as unless_done:
        unless_done.callback(_report_last_results, context)
        try:
            yield
        except dg.RetryRequested:
            unless_done.pop_all()
            raise
        unless_done.pop_all()


def _report_last_results(context: dg.AssetExecutionContext) -> None:
    planned = context.instance.all_logs(
        context.run.run_id, of_type={DagsterEventType.ASSET_CHECK_EVALUATION_PLANNED}
    )
    for event in planned:
        assert event.dagster_event is not None
        data = event.dagster_event.asset_check_planned_data
        if data.asset_key not in context.assets_def.keys:
            continue  # of another step, which may still come to it
        key = dg.AssetCheckKey(data.asset_key, data.check_name)
        context.instance.report_runless_asset_event(
            _last_result(context.instance, key) or _no_result(key)
        )


def _last_result(
    instance: dg.DagsterInstance, key: dg.AssetCheckKey
) -> dg.AssetCheckEvaluation | None:
    storage = instance.event_log_storage
    for record in storage.get_asset_check_execution_history(key, limit=_RECENT):
        event = record.event.dagster_event if record.event else None
        if event and event.event_type is DagsterEventType.ASSET_CHECK_EVALUATION:
            return event.asset_check_evaluation_data
    return None


def _no_result(key: dg.AssetCheckKey) -> dg.AssetCheckEvaluation:
    return dg.AssetCheckEvaluation(
        asset_key=key.asset_key,
        check_name=key.name,
        passed=False,
        severity=dg.AssetCheckSeverity.WARN,
        description="Not evaluated: the run failed before this check.",
    )


def _target(of: dg.EventLogRecord) -> AssetCheckEvaluationTargetMaterializationData:
    return AssetCheckEvaluationTargetMaterializationData(
        storage_id=of.storage_id, run_id=of.run_id, timestamp=of.timestamp
    )


_FORMAT = 1

#: Interval of reports while nothing changes: the maximum age of the shown state.
REPORT_INTERVAL_S = 300.0

#: Interval of reports while only numbers change: an observation is kept for ever.
CHANGE_INTERVAL_S = 60.0

Event = dg.AssetObservation | dg.AssetCheckEvaluation


def lag_check(declared: DagsterPipeline, topic: dg.AssetKey) -> dg.AssetCheckKey:
    """Return the key of the check of ``topic``. Pipelines that read the same topic have separate
    checks.
    """
    return dg.AssetCheckKey(topic, f"{declared.identifier}_follows")


@dataclass(frozen=True)
class Topic:
    """State of one topic asset; offsets are sums over its Kafka partitions.

    ``held`` are the offsets Kafka holds, ``lag`` those of them that wait to be read, ``unstable``
    those that additionally wait for producers' transactions to end.
    """

    partitions: int
    end: int
    held: int
    lag: int
    unstable: int = 0
    behind: Mapping[TopicPartition, tuple[int, int, int]] = field(repr=False, default_factory=dict)

    @property
    def state(self) -> list[int]:
        return [self.partitions, self.end, self.lag, self.unstable]


def topics_of(declared: DagsterPipeline, status: Status) -> dict[dg.AssetKey, Topic]:
    """Return the state of each topic asset by ``status``; Kafka lacks topics without one."""
    positions = positions_of(status.head, status.cluster)
    behind: dict[dg.AssetKey, dict[TopicPartition, tuple[int, int, int]]] = defaultdict(dict)
    for tp, bounds in status.cluster.bounds.items():
        position = positions.get(tp, bounds.beginning)
        behind[declared.topic(tp.topic)][tp] = (bounds.beginning, position, bounds.end)
    unstable = Counter[dg.AssetKey]()
    for tp, bounds in status.cluster.bounds.items():
        unstable[declared.topic(tp.topic)] += bounds.unstable
    return {key: _topic(behind[key], unstable[key]) for key in declared.topics if key in behind}


def _topic(behind: Mapping[TopicPartition, tuple[int, int, int]], unstable: int) -> Topic:
    rows = behind.values()
    return Topic(
        partitions=len(behind),
        end=sum(end for _, _, end in rows),
        held=sum(end - beginning for beginning, _, end in rows),
        lag=sum(max(0, end - at) for _, at, end in rows),
        unstable=unstable,
        behind=behind,
    )


@dataclass(frozen=True)
class LagCursor:
    """Last reported state per topic asset, kept as a sensor's cursor so that no state is reported
    twice.
    """

    at: float = 0.0
    states: Mapping[str, Sequence[int]] = field(default_factory=dict)

    def to_cursor(self) -> str:
        return json.dumps({"format": _FORMAT, "at": self.at, "states": self.states})

    @classmethod
    def from_cursor(cls, cursor: str | None) -> LagCursor:
        """Inverse of :meth:`to_cursor`; an empty state for any other format."""
        raw = json.loads(cursor) if cursor else {}
        return cls(raw["at"], raw["states"]) if raw.get("format") == _FORMAT else cls()


def topic_events(
    declared: DagsterPipeline,
    status: Status,
    reported: LagCursor,
    now: float,
    *,
    anew: bool = False,
    every_s: float = REPORT_INTERVAL_S,
    kept: Callable[[], Mapping[dg.AssetKey, str]] | None = None,
) -> tuple[list[Event], LagCursor]:
    """Return the events of a poll, and the state reported then; none of a poll too soon after the
    last reported one.

    New partitions and a check that turns are reported at once, other changes after
    :data:`CHANGE_INTERVAL_S`, an unchanged state after ``every_s`` seconds.

    Args:
        anew: report in any case, because Dagster shows another state.
        kept: returns :func:`retention` from a cache.
    """
    topics = topics_of(declared, status)
    states = {key.to_user_string(): topic.state for key, topic in topics.items()}
    wait = every_s if states == reported.states else CHANGE_INTERVAL_S
    turned = _outcomes(declared, states) != _outcomes(declared, reported.states)
    if not anew and not turned and now - reported.at < wait:
        return [], reported
    events: list[Event] = []
    retained = kept() if kept else retention(declared)
    for key, topic in topics.items():
        arriving = _per_second(topic, reported.states.get(key.to_user_string()), now - reported.at)
        events.append(_observation(declared, key, topic, arriving, retained))
        events.append(evaluated(lag_check(declared, key), lag_result(declared, topic)))
    return events, LagCursor(now, states)


def _outcomes(
    declared: DagsterPipeline, states: Mapping[str, Sequence[int]]
) -> dict[str, tuple[int, bool]]:
    """Return the number of partitions of each topic, and whether its check passes."""
    return {
        key: (partitions, _is_below_limit(declared, lag))
        for key, (partitions, _, lag, _) in states.items()
    }


def _is_below_limit(declared: DagsterPipeline, lag: int) -> bool:
    limit = declared.automation.lag_limit
    return limit is None or lag < limit


def is_reported_unreachable(declared: DagsterPipeline, instance: dg.DagsterInstance) -> bool:
    """Return whether the topics' check currently shows that Kafka is unreachable."""
    key = lag_check(declared, declared.topics[0])
    record = instance.event_log_storage.get_latest_asset_check_execution_by_key([key]).get(key)
    evaluation = record.evaluation if record else None
    if not isinstance(evaluation, dg.AssetCheckEvaluation):
        return False
    return not evaluation.passed and evaluation.severity is dg.AssetCheckSeverity.ERROR


def unreachable_events(
    declared: DagsterPipeline, error: EoPipelineError
) -> list[dg.AssetCheckEvaluation]:
    """Return the failed check of each topic, after a poll without an answer."""
    result = unreachable_result(declared, error)
    return [evaluated(lag_check(declared, key), result) for key in declared.topics]


def lag_result(declared: DagsterPipeline, topic: Topic) -> dg.AssetCheckResult:
    """Return the check result of a reachable topic; ``lag_limit`` decides whether it passes."""
    limit = declared.automation.lag_limit
    passed = _is_below_limit(declared, topic.lag)
    against = "" if limit is None else f", {'below' if passed else 'at or above'} limit {limit:,}"
    return dg.AssetCheckResult(
        passed=passed,
        severity=dg.AssetCheckSeverity.WARN,
        description=f"Kafka is reachable; lag {topic.lag:,}{against}{_behind_transactions(topic)}",
        metadata={"lag": topic.lag, "unstable": topic.unstable},
    )


def _behind_transactions(topic: Topic) -> str:
    return f"; {topic.unstable:,} offsets wait behind open transactions" * bool(topic.unstable)


def unreachable_result(declared: DagsterPipeline, error: EoPipelineError) -> dg.AssetCheckResult:
    """Return the check result while Kafka or the store does not answer; the lag is unknown."""
    servers = declared.pipeline.source.bootstrap_servers
    return dg.AssetCheckResult(
        passed=False,
        severity=dg.AssetCheckSeverity.ERROR,
        description=in_dagster(declared, str(error)),
        metadata={"bootstrap_servers": servers},
    )


def retention(declared: DagsterPipeline) -> dict[dg.AssetKey, str]:
    """Return how long each topic asset keeps records, in words; empty if the broker denies access
    to its settings.
    """
    admin = KafkaAdmin(declared.pipeline.source)
    try:
        by_topic = admin.retention(admin.topic_ids())
    except SourceUnavailableError as error:
        log.info(
            "%s: could not read the retention of the topics: %s", declared.pipeline.name, error
        )
        return {}
    by_key: dict[dg.AssetKey, set[str]] = {}
    for topic, kept in by_topic.items():
        by_key.setdefault(declared.topic(topic), set()).add(kept)
    return {key: "; ".join(sorted(kept)) for key, kept in by_key.items()}


def _observation(
    declared: DagsterPipeline,
    key: dg.AssetKey,
    topic: Topic,
    arriving: float | None,
    kept: Mapping[dg.AssetKey, str],
) -> dg.AssetObservation:
    return dg.AssetObservation(
        key,
        description=f"end offset {topic.end:,}; lag of {declared.pipeline.name} {topic.lag:,}",
        metadata={
            **({} if arriving is None else {"offsets_per_second": round(arriving, 2)}),
            **({"retention": kept[key]} if key in kept else {}),
            **state_metadata(declared, key, topic),
        },
    )


def state_metadata(declared: DagsterPipeline, key: dg.AssetKey, topic: Topic) -> dict[str, Any]:
    """Return plotted numbers first, then every partition's position, then the declared fields."""
    return {
        f"lag_of_{declared.identifier}": topic.lag,
        "end_offset": topic.end,
        "offsets_held": topic.held,
        "kafka_partitions": dg.MetadataValue.text(f"{topic.partitions:,}"),
        "positions": _positions(topic),
        **topic_metadata(declared, key),
    }


def _per_second(topic: Topic, before: Sequence[int] | None, seconds: float) -> float | None:
    """Return the topic's growth since the last poll; None if unknown."""
    if before is None or seconds <= 0 or before[1] > topic.end:
        return None
    return (topic.end - before[1]) / seconds


def _positions(topic: Topic) -> dg.MetadataValue:
    columns = {"topic": "string"} | dict.fromkeys(
        ("partition", "beginning", "read_to", "end", "lag"), "int"
    )
    rows = [
        {
            "topic": tp.topic,
            "partition": tp.partition,
            "beginning": beginning,
            "read_to": at,
            "end": end,
            "lag": max(0, end - at),
        }
        for tp, (beginning, at, end) in sorted(topic.behind.items())[:SHOWN_MAX]
    ]
    return table(columns, rows)


#: Seconds for which an unreachable cluster is not queried again: about one round of sensors.
OUTAGE_TTL_S = 10.0

#: Expiry (monotonic) and error message of each unreachable cluster.
_outages: dict[Any, tuple[float, str]] = {}


def with_outage_cache(source: KafkaSource, query: Callable[[], T]) -> T:
    """Return the result of ``query``, which is skipped for a cluster that just did not answer, so
    that later sensors need not wait for it as well.

    Raises:
        SourceUnavailableError: the cluster does not answer, or just did not.
    """
    # other credentials may succeed, so they are part of the key
    cluster = (source.bootstrap_servers, tuple(sorted(source.client.items(), key=lambda i: i[0])))
    until, message = _outages.get(cluster, (0.0, ""))
    if time.monotonic() < until:
        raise SourceUnavailableError(message)
    try:
        return query()
    except SourceUnavailableError as error:
        _outages[cluster] = (time.monotonic() + OUTAGE_TTL_S, str(error))
        raise


#: Half-open spans of partition numbers, ``[[0, 8]]``: 10,000 partitions stay a few bytes.
Spans = list[list[int]]


@dataclass(frozen=True)
class KnownPartitions:
    """Partitions already announced, with their topic's UUID: a topic that was deleted and created
    again is new, whatever its name.
    """

    topic_ids: Mapping[str, str]
    partitions: frozenset[TopicPartition]

    @classmethod
    def of_ledger(cls, head: LedgerEntry) -> KnownPartitions:
        """Return the partitions that runs have read: the start for a sensor without a cursor."""
        return cls(dict(head.topic_ids), frozenset(head.offsets))

    @classmethod
    def of_cluster(cls, cluster: Cluster) -> KnownPartitions:
        return cls(dict(cluster.topic_ids), frozenset(cluster.bounds))

    def new_in(self, cluster: Cluster) -> list[TopicPartition]:
        """Return the partitions of ``cluster`` that are not known."""
        return sorted(tp for tp in cluster.bounds if not self._holds(tp, cluster))

    def including(self, cluster: Cluster) -> KnownPartitions:
        """Return the union; the cluster's UUID replaces an older one. A topic that is briefly not
        visible stays known, so that it is not announced again.
        """
        topic_ids = cluster.topic_ids
        kept = {
            tp for tp in self.partitions if tp.topic not in topic_ids or self._holds(tp, cluster)
        }
        return KnownPartitions(
            {**self.topic_ids, **topic_ids}, frozenset(kept | cluster.bounds.keys())
        )

    def _holds(self, tp: TopicPartition, cluster: Cluster) -> bool:
        topic_id = self.topic_ids.get(tp.topic)
        return tp in self.partitions and topic_id in (None, cluster.topic_ids.get(tp.topic))

    def to_cursor(self) -> str:
        """Return the sensor cursor, topics sorted."""
        numbers: dict[str, list[int]] = {}
        for tp in self.partitions:
            numbers.setdefault(tp.topic, []).append(tp.partition)
        topics = {
            topic: {"id": self.topic_ids.get(topic), "partitions": _spans(partitions)}
            for topic, partitions in sorted(numbers.items())
        }
        return json.dumps({"format": _FORMAT, "topics": topics})

    @classmethod
    def from_cursor(cls, cursor: str | None) -> KnownPartitions | None:
        """Inverse of :meth:`to_cursor`; None for any other format."""
        raw = json.loads(cursor) if cursor else {}
        if raw.get("format") != _FORMAT:
            return None
        topics = raw["topics"]
        return cls(
            {topic: fields["id"] for topic, fields in topics.items() if fields["id"]},
            frozenset(
                TopicPartition(topic, number)
                for topic, fields in topics.items()
                for start, end in fields["partitions"]
                for number in range(start, end)
            ),
        )


def _spans(numbers: Iterable[int]) -> Spans:
    spans: Spans = []
    for number in sorted(numbers):
        if spans and spans[-1][1] == number:
            spans[-1][1] += 1
        else:
            spans.append([number, number + 1])
    return spans
