"""What a look at Kafka found, as Dagster shows it: an observation of each topic, and the check that
says whether Kafka answers and how far the pipeline is behind.
"""

from __future__ import annotations

import json
import logging
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
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
    """Show the check as being evaluated by this run; should the run end without a result, the
    check shows that its evaluation failed. A step of a check has Dagster do this.
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
    """``result`` as an event that any step, or a sensor, may report.

    Args:
        of: the materialization that was looked at. Dagster shows a check as not evaluated once
            there is a newer one; without it, once there is one newer than the evaluation's start.
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


def _target(of: dg.EventLogRecord) -> AssetCheckEvaluationTargetMaterializationData:
    return AssetCheckEvaluationTargetMaterializationData(
        storage_id=of.storage_id, run_id=of.run_id, timestamp=of.timestamp
    )


_FORMAT = 1

#: Where nothing changes, a look is told so often, so that what is shown is not older than that.
TOLD_AT_LEAST_EVERY_S = 300.0

Event = dg.AssetObservation | dg.AssetCheckEvaluation


def lag_check(declared: DagsterPipeline, topic: dg.AssetKey) -> dg.AssetCheckKey:
    """The check of ``topic``. Pipelines that read one topic each have one of their own."""
    return dg.AssetCheckKey(topic, f"{declared.identifier}_follows")


@dataclass(frozen=True)
class Topic:
    """One topic asset at one moment; offsets are sums over its Kafka partitions.

    ``held`` are the offsets Kafka holds, ``lag`` those of them that wait to be read, ``unstable``
    those that wait besides until producers' transactions end.
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
    """What ``status`` says of each topic asset; one that Kafka does not have is not there."""
    positions = positions_of(status.head, status.cluster)
    behind: dict[dg.AssetKey, dict[TopicPartition, tuple[int, int, int]]] = defaultdict(dict)
    for tp, held in status.cluster.bounds.items():
        at = positions.get(tp, held.beginning)
        behind[declared.topic(tp.topic)][tp] = (held.beginning, at, held.end)
    unstable = Counter[dg.AssetKey]()
    for tp, held in status.cluster.bounds.items():
        unstable[declared.topic(tp.topic)] += held.unstable
    return {key: _topic(behind[key], unstable[key]) for key in declared.topics if key in behind}


def _topic(behind: Mapping[TopicPartition, tuple[int, int, int]], unstable: int) -> Topic:
    every = behind.values()
    return Topic(
        partitions=len(behind),
        end=sum(end for _, _, end in every),
        held=sum(end - beginning for beginning, _, end in every),
        lag=sum(max(0, end - at) for _, at, end in every),
        unstable=unstable,
        behind=behind,
    )


@dataclass(frozen=True)
class Told:
    """What was last said, so that it is not said again: a sensor's cursor. ``states`` are by topic
    asset.
    """

    at: float = 0.0
    states: Mapping[str, Sequence[int]] = field(default_factory=dict)

    def to_cursor(self) -> str:
        return json.dumps({"format": _FORMAT, "at": self.at, "states": self.states})

    @classmethod
    def from_cursor(cls, cursor: str | None) -> Told:
        """The inverse; as if nothing had been said if there is none of this format."""
        raw = json.loads(cursor) if cursor else {}
        return cls(raw["at"], raw["states"]) if raw.get("format") == _FORMAT else cls()


def tell(
    declared: DagsterPipeline,
    status: Status,
    told: Told,
    now: float,
    *,
    anew: bool = False,
    every_s: float = TOLD_AT_LEAST_EVERY_S,
    kept: Callable[[], Mapping[dg.AssetKey, str]] | None = None,
) -> tuple[list[Event], Told]:
    """The events of a look that found something new, or came ``every_s`` seconds after the last one
    that did; and what then was said. ``anew``: whatever was said, it is no longer what is shown.
    ``kept`` gives :func:`retention`, where somebody remembers it.
    """
    found = topics_of(declared, status)
    states = {key.to_user_string(): topic.state for key, topic in found.items()}
    if states == told.states and not anew and now - told.at < every_s:
        return [], told
    events: list[Event] = []
    retained = kept() if kept else retention(declared)
    for key, topic in found.items():
        arriving = _per_second(topic, told.states.get(key.to_user_string()), now - told.at)
        events.append(_observation(declared, key, topic, arriving, retained))
        events.append(evaluated(lag_check(declared, key), lag_result(declared, topic)))
    return events, Told(now, states)


def is_shown_as_away(declared: DagsterPipeline, instance: dg.DagsterInstance) -> bool:
    """Whether the check of the topics says now that Kafka does not answer."""
    key = lag_check(declared, declared.topics[0])
    found = instance.event_log_storage.get_latest_asset_check_execution_by_key([key]).get(key)
    said = found.evaluation if found else None
    if not isinstance(said, dg.AssetCheckEvaluation):
        return False
    return not said.passed and said.severity is dg.AssetCheckSeverity.ERROR


def away_events(declared: DagsterPipeline, error: EoPipelineError) -> list[dg.AssetCheckEvaluation]:
    """What a look that got no answer says of each topic."""
    result = away_result(declared, error)
    return [evaluated(lag_check(declared, key), result) for key in declared.topics]


def lag_result(declared: DagsterPipeline, topic: Topic) -> dg.AssetCheckResult:
    """Kafka answered: whether too much waits is the declaration's to say."""
    limit = declared.automation.lag_limit
    passed = limit is None or topic.lag < limit
    against = "" if limit is None else f", {'below' if passed else 'not below'} {limit:,}"
    return dg.AssetCheckResult(
        passed=passed,
        severity=dg.AssetCheckSeverity.WARN,
        description=f"Kafka is reachable; lag {topic.lag:,}{against}{_behind_transactions(topic)}",
        metadata={"lag": topic.lag, "unstable": topic.unstable},
    )


def _behind_transactions(topic: Topic) -> str:
    return f"; {topic.unstable:,} offsets wait behind open transactions" * bool(topic.unstable)


def away_result(declared: DagsterPipeline, error: EoPipelineError) -> dg.AssetCheckResult:
    """Kafka, or the store, did not answer, and so nobody knows what waits."""
    servers = declared.pipeline.source.bootstrap_servers
    return dg.AssetCheckResult(
        passed=False,
        severity=dg.AssetCheckSeverity.ERROR,
        description=in_dagster(declared, str(error)),
        metadata={"bootstrap_servers": servers},
    )


def retention(declared: DagsterPipeline) -> dict[dg.AssetKey, str]:
    """How long each topic asset keeps records, in words; empty where the broker lets nobody look at
    its settings.
    """
    admin = KafkaAdmin(declared.pipeline.source)
    try:
        found = admin.retention(admin.topic_ids())
    except SourceUnavailableError as error:
        log.info("%s: how long records are kept is not known: %s", declared.pipeline.name, error)
        return {}
    by_key: dict[dg.AssetKey, set[str]] = {}
    for topic, kept in found.items():
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
        description=f"end {topic.end:,}; {declared.pipeline.name} has {topic.lag:,} to read",
        metadata={
            **({} if arriving is None else {"offsets_per_second": round(arriving, 2)}),
            **({"retention": kept[key]} if key in kept else {}),
            **seen_metadata(declared, key, topic),
        },
    )


def seen_metadata(declared: DagsterPipeline, key: dg.AssetKey, topic: Topic) -> dict[str, Any]:
    """What plots first, then where every partition stands, then what the declaration says."""
    return {
        f"lag_of_{declared.identifier}": topic.lag,
        "end_offset": topic.end,
        "offsets_held": topic.held,
        "kafka_partitions": dg.MetadataValue.text(f"{topic.partitions:,}"),
        "positions": _positions(topic),
        **topic_metadata(declared, key),
    }


def _per_second(topic: Topic, before: Sequence[int] | None, seconds: float) -> float | None:
    """How fast the topic grew since the last look; None where it is not known."""
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


#: Seconds for which nobody asks a cluster again that did not answer: about one round of sensors.
TOLD_SECONDS = 10.0

#: Until when (monotonic), and what was said; by how the cluster is reached.
_away: dict[Any, tuple[float, str]] = {}


def asked_once(source: KafkaSource, look: Callable[[], T]) -> T:
    """What ``look`` at the cluster of ``source`` gives; at one that just did not answer nobody
    looks, so that the sensors behind need not wait for it as well.

    Raises:
        SourceUnavailableError: it does not answer, or just did not.
    """
    # with other credentials it is another matter
    cluster = (source.bootstrap_servers, tuple(sorted(source.client.items(), key=lambda i: i[0])))
    until, said = _away.get(cluster, (0.0, ""))
    if time.monotonic() < until:
        raise SourceUnavailableError(said)
    try:
        return look()
    except SourceUnavailableError as error:
        _away[cluster] = (time.monotonic() + TOLD_SECONDS, str(error))
        raise


#: Half-open spans of partition numbers, ``[[0, 8]]``: 10,000 partitions stay a few bytes.
Spans = list[list[int]]


@dataclass(frozen=True)
class KnownPartitions:
    """Partitions already announced, and the topic's UUID each belonged to: a topic that was
    deleted and created again is new, whatever its name.
    """

    topic_ids: Mapping[str, str]
    partitions: frozenset[TopicPartition]

    @classmethod
    def of_ledger(cls, head: LedgerEntry) -> KnownPartitions:
        """Where a sensor without a memory starts: what the runs have taken up."""
        return cls(dict(head.topic_ids), frozenset(head.offsets))

    @classmethod
    def of_cluster(cls, cluster: Cluster) -> KnownPartitions:
        return cls(dict(cluster.topic_ids), frozenset(cluster.bounds))

    def new_in(self, cluster: Cluster) -> list[TopicPartition]:
        """Partitions of ``cluster`` that are not known."""
        return sorted(tp for tp in cluster.bounds if not self._holds(tp, cluster))

    def including(self, cluster: Cluster) -> KnownPartitions:
        """Both; where a topic has another UUID, the cluster's. A topic that is briefly not seen
        stays known, so that it is not announced again.
        """
        now = cluster.topic_ids
        kept = {tp for tp in self.partitions if tp.topic not in now or self._holds(tp, cluster)}
        return KnownPartitions({**self.topic_ids, **now}, frozenset(kept | cluster.bounds.keys()))

    def _holds(self, tp: TopicPartition, cluster: Cluster) -> bool:
        known = self.topic_ids.get(tp.topic)
        return tp in self.partitions and known in (None, cluster.topic_ids.get(tp.topic))

    def to_cursor(self) -> str:
        """As a sensor cursor, topics sorted."""
        numbers: dict[str, list[int]] = {}
        for tp in self.partitions:
            numbers.setdefault(tp.topic, []).append(tp.partition)
        topics = {
            topic: {"id": self.topic_ids.get(topic), "partitions": _spans(found)}
            for topic, found in sorted(numbers.items())
        }
        return json.dumps({"format": _FORMAT, "topics": topics})

    @classmethod
    def from_cursor(cls, cursor: str | None) -> KnownPartitions | None:
        """The inverse of :meth:`to_cursor`; None if there is none of this format."""
        raw = json.loads(cursor) if cursor else {}
        if raw.get("format") != _FORMAT:
            return None
        topics = raw["topics"]
        return cls(
            {topic: held["id"] for topic, held in topics.items() if held["id"]},
            frozenset(
                TopicPartition(topic, number)
                for topic, held in topics.items()
                for start, end in held["partitions"]
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
