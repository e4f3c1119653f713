"""Queries to the Kafka cluster: partitions, their bounds, and start offsets."""

from __future__ import annotations

import time
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
from datetime import timedelta
from difflib import get_close_matches
from typing import Any, NamedTuple

from confluent_kafka import (
    ConsumerGroupTopicPartitions,
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicCollection,
)
from confluent_kafka import TopicPartition as ClientTopicPartition
from confluent_kafka.admin import (
    ClusterMetadata,
    ConfigResource,
    ListOffsetsResultInfo,
    OffsetSpec,
    ResourceType,
)

from eo_pipeline.errors import ConfigError, SourceError, SourceUnavailableError
from eo_pipeline.kafka.client import LEADER_MOVES
from eo_pipeline.kafka.diagnostics import DiagnosingAdminClient, NoAnswerError
from eo_pipeline.kafka.logs import Logs
from eo_pipeline.kafka.partitions import Bounds, Cluster, missing_topics
from eo_pipeline.kafka.source import (
    KafkaSource,
    StartAtGroup,
    StartAtOffsets,
    StartAtTimestamp,
    librdkafka_settings,
)
from eo_pipeline.ledger.offsets import Offsets, TopicPartition
from eo_pipeline.progress import Phase, phase


def explicit(
    wanted: Mapping[str, Mapping[int, int]], cluster: Cluster
) -> dict[TopicPartition, int]:
    """The offsets that the configuration names.

    Raises:
        ConfigError: one lies outside what its partition holds.
    """
    topics = {
        TopicPartition(topic, partition): offset
        for topic, partitions in wanted.items()
        for partition, offset in partitions.items()
    }
    for tp, offset in topics.items():
        bounds = cluster.bounds.get(tp)
        if bounds is None:
            raise ConfigError(f"source.start.offsets: {tp} does not exist or is not subscribed")
        if not bounds.beginning <= offset <= bounds.end:
            raise ConfigError(
                f"source.start.offsets: {tp} holds [{bounds.beginning}, {bounds.end}), "
                f"{offset} lies outside"
            )
    return topics


def completed(
    cluster: Cluster, offsets: Offsets, or_else: str, what: str
) -> dict[TopicPartition, int]:
    """``offsets`` for the partitions that have it, the others by ``or_else``.

    Raises:
        ConfigError: one has none, and ``or_else`` is ``error``; ``what`` is what it lacks.
    """
    missing = sorted(cluster.bounds.keys() - offsets.keys())
    if missing and or_else == "error":
        raise ConfigError(
            f"source.start: {missing[0]} has no {what} ({len(missing)} of {len(cluster.bounds)} "
            "partitions have none). Set or_else to say where such a partition starts."
        )
    ends = or_else == "latest"
    return {
        tp: offsets.get(tp, bounds.end if ends else bounds.beginning)
        for tp, bounds in cluster.bounds.items()
    }


def retention_in_words(settings: Mapping[str, str]) -> str:
    """Return what a topic's ``settings`` say of it."""
    kept = []
    if "compact" in settings["cleanup.policy"]:
        kept.append("compacted: the last record of each key")
    if "delete" in settings["cleanup.policy"]:
        milliseconds, size = int(settings["retention.ms"]), int(settings["retention.bytes"])
        # as days: some keep records for Long.MAX of milliseconds, which is no timedelta
        days = milliseconds / 86_400_000
        kept.append("for ever" if milliseconds < 0 else f"{days:,.2f} days")
        if size >= 0:
            kept.append(f"at most {size:,} bytes a partition")
    return ", ".join(kept)


#: What a missing topic looks like while it is looked up.
_ABSENT = frozenset({KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC})

#: ... and what all partitions asked for may answer while their topics are deleted.
_GONE = _ABSENT | {KafkaError._NOENT}

_ISOLATION = {
    "read_committed": IsolationLevel.READ_COMMITTED,
    "read_uncommitted": IsolationLevel.READ_UNCOMMITTED,
}

_LOOK_AGAIN_S = 0.2

_Answers = dict[TopicPartition, ListOffsetsResultInfo]


class _Topic(NamedTuple):
    """A topic as one answer describes it: its UUID and the numbers of its partitions."""

    uuid: str
    numbers: tuple[int, ...]


class _Asked(NamedTuple):
    """A question for offsets that is on its way."""

    spec: OffsetSpec
    level: IsolationLevel
    futures: Mapping[ClientTopicPartition, Future[Any]]


class KafkaAdmin:
    """The admin client of one source. Every call is one round trip for all partitions.

    Raises (all methods):
        SourceUnavailableError: the cluster does not answer within ``request_timeout`` seconds or
            refuses the credentials.
    """

    def __init__(self, source: KafkaSource) -> None:
        self._source = source
        self._asked = DiagnosingAdminClient(librdkafka_settings(source), source.request_timeout)
        self._client = self._asked.client
        self._ahead: Mapping[str, Future[Any]] | None = None
        self.logs = Logs(source)

    def look_ahead(self) -> None:
        """Ask what :meth:`cluster` asks first, so that the answer comes while something else is
        done. Nothing is raised: what fails is asked again. Of a pattern's topics nothing is asked.
        """
        if self._source.topics:
            self._ahead = self._ask_for(self._source.topics)

    def cluster(self) -> Cluster:
        """The subscribed topics, their UUIDs and the offsets their partitions hold now.

        Topics are described before and after their offsets are asked for, by name: only of one
        that was the same both times do the offsets belong to its UUID. One that is gone the second
        time is gone, as if the look had come later.
        """
        deadline = time.monotonic() + self._source.request_timeout
        with self._asking():
            while (cluster := self._look()) is None:
                if time.monotonic() > deadline:
                    raise SourceUnavailableError(
                        f"The topics of {self._source.bootstrap_servers} changed at every look for "
                        f"{self._source.request_timeout:g} s. Nothing was read. Run again when "
                        "their partitions have leaders and nobody creates or deletes them."
                    )
                time.sleep(_LOOK_AGAIN_S)
        return cluster

    def topic_ids(self) -> dict[str, str]:
        """The UUIDs of the subscribed topics that exist now; one round trip."""
        with self._asking():
            return _topic_ids(self._describe(self._subscribed()))

    def _asking(self) -> AbstractContextManager[Phase]:
        return phase(f"asking Kafka at {self._source.bootstrap_servers}", usually_short=True)

    def _look(self) -> Cluster | None:
        """None if what was asked first does not fit what was asked last."""
        topics, unsure = self._look_at(self._subscribed())
        return None if unsure else topics

    def _look_at(self, topics: list[str]) -> tuple[Cluster, set[str]]:
        """Of ``topics`` those that exist, but for those that changed while they were looked at."""
        before = self._first_described(topics)
        queried = [TopicPartition(name, p) for name, topic in before.items() for p in topic.numbers]
        beginnings, ends, highs = self._bounds_of(queried)
        after = self._describe(list(before))
        partitions = {tp for tp in queried if tp.topic in after}
        answered = beginnings.keys() & ends.keys() & highs.keys()
        unsure = {name for name, topic in after.items() if before[name] != topic}
        unsure |= {tp.topic for tp in partitions - answered}
        sure = sorted(tp for tp in partitions if tp.topic not in unsure)
        snapshot = Cluster(
            bounds={tp: _bounds(beginnings[tp].offset, ends[tp], highs[tp].offset) for tp in sure},
            topic_ids={name: topic.uuid for name, topic in after.items() if name not in unsure},
        )
        return snapshot, unsure

    def refuse_missing_topics(self, cluster: Cluster, read_before: Collection[str] = ()) -> None:
        """Return if every topic of the source is in the ``cluster``, or was ``read_before``.

        Raises:
            SourceError: one is not.
        """
        missing = missing_topics(self._source.topics, cluster, read_before)
        if not missing:
            return
        there = self._listed()
        near = [n for name in missing for n in get_close_matches(name, there.topics, 1)]
        hint = f" Is {' and '.join(near)} meant?" if near else ""
        raise SourceError(
            f"no topic matches {', '.join(missing)} on {self._source.bootstrap_servers}: it does "
            f"not exist, or this user may not see it. Nothing was read.{hint} Correct "
            "source.topics, or create the topic; on_vanished: continue goes on without it."
        )

    def start_offsets(self, cluster: Cluster) -> dict[TopicPartition, int]:
        """The source's start mode as numbers, one for every partition of ``cluster``.

        Raises:
            ConfigError: a partition has no offset by this mode and ``or_else`` is ``error``, or an
                explicit offset lies outside what the partition holds.
            SourceError: no topic matches the pattern.
        """
        if not cluster.bounds:
            raise SourceError(
                f"no topic matches {self._source.topic_pattern!r} on "
                f"{self._source.bootstrap_servers}. Create the topic, or correct the pattern."
            )
        start = self._source.start
        if isinstance(start, StartAtTimestamp):
            # a negative timestamp would mean the log's end or beginning to Kafka
            since = max(0, int(start.timestamp.timestamp() * 1000))
            offsets = self._at_timestamp(cluster.bounds, since)
            return completed(cluster, offsets, start.or_else, f"record since {start.timestamp}")
        if isinstance(start, StartAtGroup):
            offsets = self._committed(cluster.bounds, start.group)
            return completed(cluster, offsets, start.or_else, f"offset of group {start.group!r}")
        if isinstance(start, StartAtOffsets):
            offsets = explicit(start.offsets, cluster)
            return completed(cluster, offsets, start.or_else, "explicit start offset")
        return completed(cluster, {}, start, "")

    def offsets_kept_for(
        self, partitions: Iterable[TopicPartition], margin: timedelta
    ) -> dict[TopicPartition, int]:
        """The first offset retention by time will spare for ``margin`` more, per partition.

        Only partitions that have such a limit and where it bites. A broker deletes whole segments
        once all their records are older than ``retention.ms``, so records may live longer.
        """
        by_retention: dict[int, list[TopicPartition]] = {}
        partitions = list(partitions)
        settings = self._topic_settings({tp.topic for tp in partitions})
        for tp in partitions:
            retention = int(settings[tp.topic]["retention.ms"])
            if "delete" in settings[tp.topic]["cleanup.policy"] and retention >= 0:
                by_retention.setdefault(retention, []).append(tp)
        floors: dict[TopicPartition, int] = {}
        for retention, concerned in by_retention.items():
            # as whole milliseconds: some keep records for Long.MAX of them
            oldest = int(time.time() * 1000) - retention + margin // timedelta(milliseconds=1)
            if oldest <= 0:
                continue
            young = self._at_timestamp(concerned, oldest)
            # where no record is that young, all there are may go
            floors |= self._offsets(
                [tp for tp in concerned if tp not in young], OffsetSpec.latest()
            )
            floors |= young
        return floors

    def retention(self, topics: Iterable[str]) -> dict[str, str]:
        """Describe how long each of ``topics`` keeps its records."""
        settings = self._topic_settings(set(topics))
        return {topic: retention_in_words(values) for topic, values in settings.items()}

    def compacted(self, topics: Iterable[str]) -> set[str]:
        """Those of ``topics`` whose ``cleanup.policy`` compacts them."""
        settings = self._topic_settings(set(topics))
        return {
            topic for topic, values in settings.items() if "compact" in values["cleanup.policy"]
        }

    def _topic_settings(self, topics: set[str]) -> dict[str, dict[str, str]]:
        resources = [ConfigResource(ResourceType.TOPIC, topic) for topic in sorted(topics)]
        if not resources:
            return {}
        futures = self._client.describe_configs(
            resources, request_timeout=self._source.request_timeout
        )
        return {
            resource.name: {name: entry.value for name, entry in config.items()}
            for resource, config in self._results(futures).items()
        }

    def commit_back(self, group: str, offsets: Offsets) -> None:
        """Tell Kafka ``offsets`` under ``group``, for lag tools; nothing here ever reads them."""
        moved = [ClientTopicPartition(tp.topic, tp.partition, o) for tp, o in offsets.items()]
        futures = self._client.alter_consumer_group_offsets(
            [ConsumerGroupTopicPartitions(group, moved)],
            request_timeout=self._source.request_timeout,
        )
        for answered in self._results(futures).values():
            for tp in answered.topic_partitions:
                if tp.error is not None:
                    raise SourceUnavailableError(f"group {group!r}: {tp.error.str()}")

    def _subscribed(self) -> list[str]:
        if self._source.topics:
            return list(self._source.topics)
        return sorted(topic for topic in self._listed().topics if self._source.matches(topic))

    def _describe(self, topics: list[str]) -> dict[str, _Topic]:
        """Those of ``topics`` that exist."""
        return self._described(self._ask_for(topics)) if topics else {}

    def _first_described(self, topics: list[str]) -> dict[str, _Topic]:
        """Describe the topics, by the answer to the question asked ahead unless that failed."""
        ahead, self._ahead = self._ahead, None
        harmless = _ABSENT | {None}
        if ahead and all(
            not future.done() or _failure(future) in harmless for future in ahead.values()
        ):
            return self._described(ahead)
        return self._describe(topics)

    def _ask_for(self, topics: Iterable[str]) -> Mapping[str, Future[Any]]:
        futures: Mapping[str, Future[Any]] = self._client.describe_topics(
            TopicCollection([*topics]), request_timeout=self._source.request_timeout
        )
        return futures

    def _described(self, futures: Mapping[str, Future[Any]]) -> dict[str, _Topic]:
        return {
            name: _Topic(
                str(description.topic_id), tuple(sorted(p.id for p in description.partitions))
            )
            for name, description in self._results(futures, absent=_ABSENT).items()
        }

    def _bounds_of(self, partitions: list[TopicPartition]) -> list[_Answers]:
        """Beginnings, ends and high watermarks; all are asked for before one is waited for."""
        earliest, latest = OffsetSpec.earliest(), OffsetSpec.latest()
        levels = (earliest, None), (latest, None), (latest, "read_uncommitted")
        requests = [self._ask_offsets(partitions, spec, isolation) for spec, isolation in levels]
        return [self._answered(request, absent=_GONE) for request in requests]

    def _offsets(
        self, partitions: Iterable[TopicPartition], spec: OffsetSpec
    ) -> dict[TopicPartition, int]:
        answers = self._answered(self._ask_offsets(partitions, spec))
        return {tp: answer.offset for tp, answer in answers.items()}

    def _ask_offsets(
        self, partitions: Iterable[TopicPartition], spec: OffsetSpec, isolation: str | None = None
    ) -> _Asked:
        requests = [ClientTopicPartition(tp.topic, tp.partition) for tp in partitions]
        level = _ISOLATION[isolation or self._source.isolation]
        return _Asked(spec, level, self._ask_once(requests, spec, level))

    def _ask_once(
        self, requested: Collection[ClientTopicPartition], spec: OffsetSpec, level: IsolationLevel
    ) -> Mapping[ClientTopicPartition, Future[Any]]:
        if not requested:
            return {}
        futures: Mapping[ClientTopicPartition, Future[Any]] = self._client.list_offsets(
            dict.fromkeys(requested, spec),
            isolation_level=level,
            request_timeout=self._source.request_timeout,
        )
        return futures

    def _answered(self, request: _Asked, absent: frozenset[int] = frozenset()) -> _Answers:
        """Of all that were ``request`` for, but for those that answer by one of the errors
        ``absent``.
        """
        deadline = time.monotonic() + self._source.request_timeout
        answers: dict[ClientTopicPartition, Any] = {}
        futures = request.futures
        while futures:
            patient = time.monotonic() < deadline
            answers |= self._results(futures, absent | (LEADER_MOVES if patient else frozenset()))
            again = self._again(futures)
            if again:
                time.sleep(_LOOK_AGAIN_S)
            futures = self._ask_once(again, request.spec, request.level)
        return {TopicPartition(tp.topic, tp.partition): answer for tp, answer in answers.items()}

    def _again(self, futures: Mapping[Any, Future[Any]]) -> set[Any]:
        """Those to ask again, whose leader moves."""
        return {tp for tp, asking in futures.items() if _failure(asking) in LEADER_MOVES}

    def _at_timestamp(
        self, partitions: Iterable[TopicPartition], milliseconds: int
    ) -> dict[TopicPartition, int]:
        spec = OffsetSpec.for_timestamp(milliseconds)
        # the broker answers -1 where no record is that young
        return {tp: o for tp, o in self._offsets(partitions, spec).items() if o >= 0}

    def _committed(
        self, partitions: Iterable[TopicPartition], group: str
    ) -> dict[TopicPartition, int]:
        requests = [ClientTopicPartition(tp.topic, tp.partition) for tp in partitions]
        futures = self._client.list_consumer_group_offsets(
            [ConsumerGroupTopicPartitions(group, requests)],
            request_timeout=self._source.request_timeout,
        )
        answers = [tp for a in self._results(futures).values() for tp in a.topic_partitions]
        # a negative offset is librdkafka's "nothing committed"
        return {
            TopicPartition(tp.topic, tp.partition): tp.offset for tp in answers if tp.offset >= 0
        }

    def _results(
        self, futures: Mapping[Any, Future[Any]], absent: frozenset[int] = frozenset()
    ) -> dict[Any, Any]:
        results = {}
        try:
            self._asked.wait_for(futures.values())
        except NoAnswerError as error:
            raise self._unavailable(error) from error
        for key, future in futures.items():
            try:
                results[key] = future.result()
            except KafkaException as error:
                if _code(error) not in absent:
                    raise self._unavailable(error) from error
        return results

    def _listed(self) -> ClusterMetadata:
        try:
            return self._asked.topics()
        except (KafkaException, NoAnswerError) as error:
            raise self._unavailable(error) from error

    def _unavailable(self, error: Exception) -> SourceUnavailableError:
        diagnosis = self._asked.why(error)
        return SourceUnavailableError(
            f"Could not reach Kafka at {self._source.bootstrap_servers}: {diagnosis.reason}. "
            f"Nothing was read. {diagnosis.remedy}"
        )


def _bounds(beginning: int, end: ListOffsetsResultInfo, high: int) -> Bounds:
    # of answers that passed each other the younger one may say that the older is past
    return Bounds(beginning, max(beginning, end.offset), high, end.leader_epoch)


def _topic_ids(topics: Mapping[str, _Topic]) -> dict[str, str]:
    return {name: topic.uuid for name, topic in topics.items()}


def _failure(answered: Future[Any]) -> int | None:
    """The code of the error that a future holds; None if it holds an answer."""
    error = answered.exception()
    return _code(error) if isinstance(error, Exception) else None


def _code(error: Exception) -> int | None:
    return error.args[0].code() if isinstance(error, KafkaException) else None


#: What a broker answers of one topic or partition, and what says nothing of the others.
_ANSWERS = frozenset(
    code
    for name, code in vars(KafkaError).items()
    if name.isupper() and isinstance(code, int) and code > 0
)


def reached_by(source: KafkaSource) -> Hashable:
    """Equal for sources that one client can ask for: the same cluster, as the same user."""
    client = tuple(sorted(source.client.items(), key=lambda item: item[0]))
    return source.bootstrap_servers, client, source.isolation, source.request_timeout


class SharedKafkaAdmin(KafkaAdmin):
    """The admin client of all ``sources``, which are :func:`reached_by` the same.

    Raises (all methods):
        SourceUnavailableError: see :class:`KafkaAdmin`; of one topic alone nothing is raised.
    """

    def __init__(self, sources: Sequence[KafkaSource]) -> None:
        super().__init__(sources[0])
        self._sources = sources
        #: Topics that the broker has refused to speak of since the look began.
        self._refused: set[str] = set()

    def clusters(self) -> list[Cluster | None]:
        """Return the cluster of each of the sources, in their order. None for one of whose
        topics the broker did not speak, or that changed meanwhile: it is to be asked by itself,
        patiently, and then says what is wrong.
        """
        self._refused.clear()
        subscribed = self._subscriptions()
        topics, unsure = self._look_at(sorted({name for names in subscribed for name in names}))
        unsure |= self._refused
        by_topic: dict[str, dict[TopicPartition, Bounds]] = {name: {} for name in topics.topic_ids}
        for tp, held in topics.bounds.items():
            by_topic[tp.topic][tp] = held
        return [
            None if unsure & {*names} else _part(topics, by_topic, names) for names in subscribed
        ]

    def _subscriptions(self) -> list[list[str]]:
        """The topics of each source; a list of all is asked for once, if somebody has a pattern."""
        by_pattern = any(source.topic_pattern for source in self._sources)
        there = sorted(self._listed().topics) if by_pattern else []
        return [
            list(source.topics) or [name for name in there if source.matches(name)]
            for source in self._sources
        ]

    def _results(
        self, futures: Mapping[Any, Future[Any]], absent: frozenset[int] = frozenset()
    ) -> dict[Any, Any]:
        results = super()._results(futures, absent | _ANSWERS)
        for key in futures.keys() - results.keys():
            error = futures[key].exception()
            if isinstance(error, KafkaException) and error.args[0].code() not in absent:
                self._refused.add(key if isinstance(key, str) else key.topic)
        return results

    def _again(self, futures: Mapping[Any, Future[Any]]) -> set[Any]:  # noqa: ARG002
        """Nobody waits here for one partition's leader."""
        return set()


def _part(
    cluster: Cluster,
    by_topic: Mapping[str, Mapping[TopicPartition, Bounds]],
    topics: Sequence[str],
) -> Cluster:
    there = [name for name in topics if name in by_topic]
    bounds = {tp: held for name in there for tp, held in by_topic[name].items()}
    return Cluster(bounds, {name: cluster.topic_ids[name] for name in there})
