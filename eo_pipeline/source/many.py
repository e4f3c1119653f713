"""Many sources of one Kafka cluster, looked at together: as many round trips as for one of them."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

from confluent_kafka import KafkaError, KafkaException

from eo_pipeline.ledger.offsets import TopicPartition
from eo_pipeline.source.admin import KafkaAdmin
from eo_pipeline.source.config import KafkaSource
from eo_pipeline.source.discovery import Bounds, Cluster

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


class ManyAdmin(KafkaAdmin):
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
        """What each of the sources subscribes to, in their order. None for one of whose topics the
        broker did not speak, or that changed while they were looked at: it is to be asked by
        itself, patiently, and then says what is wrong.
        """
        self._refused.clear()
        subscribed = self._subscriptions()
        found, unsure = self._look_at(sorted({name for names in subscribed for name in names}))
        unsure |= self._refused
        by_topic: dict[str, dict[TopicPartition, Bounds]] = {name: {} for name in found.topic_ids}
        for tp, held in found.bounds.items():
            by_topic[tp.topic][tp] = held
        return [
            None if unsure & {*names} else _part(found, by_topic, names) for names in subscribed
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
