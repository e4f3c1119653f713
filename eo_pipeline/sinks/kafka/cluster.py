"""Questions to the target cluster, and the topics this sink makes there."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from typing import Any, NamedTuple, TypeVar

from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicCollection
from confluent_kafka import TopicPartition as ClientTopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, OffsetSpec

from eo_pipeline.errors import ConfigError, SinkUnavailableError
from eo_pipeline.sinks.kafka.errors import error_of, while_asking
from eo_pipeline.source.client_options import silent_logger

_T = TypeVar("_T")

_ABSENT = frozenset({KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC})
_FORBIDDEN = frozenset(
    {
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.POLICY_VIOLATION,
    }
)

#: Seconds between two looks at offsets that are about to move; doubled up to the second.
_LOOK_SECONDS = 0.002
_LOOK_SECONDS_MAX = 0.1

#: Seconds in which a new topic becomes known to every broker.
_NEW_TOPIC_SECONDS = 3.0


class Place(NamedTuple):
    """One partition of a topic."""

    topic: str
    partition: int


class Cluster:
    """The admin client of one session.

    Raises (all methods):
        SinkUnavailableError: no answer within ``timeout`` seconds.
        ConfigError: the cluster answers and refuses the credentials.
    """

    def __init__(self, settings: Mapping[str, Any], timeout: float) -> None:
        self.timeout = timeout
        self._refusal: KafkaError | None = None
        own: dict[str, Any] = {"error_cb": self._remember}
        self._client = AdminClient({**settings, **own}, logger=silent_logger())

    def partitions(self, topics: Iterable[str]) -> dict[str, int]:
        """How many partitions each of ``topics`` has, 0 for one that does not exist.

        Described, not asked for as metadata: that would create a topic where brokers may.
        """
        futures = self._client.describe_topics(
            TopicCollection(list(topics)), request_timeout=self.timeout
        )
        return {topic: self._described(topic, future) for topic, future in futures.items()}

    def appears(self, topic: str) -> bool:
        """True if ``topic`` exists. One that was made a moment ago is not known everywhere yet."""
        return self._wait(lambda: self.partitions([topic])[topic] > 0, _NEW_TOPIC_SECONDS)

    def _described(self, topic: str, future: Future[Any]) -> int:
        try:
            return len(future.result(timeout=self.timeout + 5).partitions)
        except KafkaException as error:
            if error_of(error).code() in _ABSENT:
                return 0
            raise while_asking(self._refusal or error_of(error), topic) from error

    def create(self, topic: str, replication: int, config: Mapping[str, str]) -> None:
        """Create ``topic`` with one partition unless it is there.

        Raises:
            ConfigError: this principal may not.
        """
        wanted = NewTopic(topic, 1, replication, config=dict(config))
        future = self._client.create_topics([wanted], request_timeout=self.timeout)[topic]
        try:
            future.result(timeout=self.timeout + 5)
        except KafkaException as error:
            said = error_of(error)
            if said.code() in _FORBIDDEN:
                settings = ", ".join(f"{key}={value}" for key, value in config.items())
                raise ConfigError(
                    f"the topic {topic!r} does not exist and may not be created: {said.str()}. "
                    f"Have it created with one partition ({settings or 'default settings'})."
                ) from error
            if said.code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise while_asking(said, topic) from error
        self.appears(topic)

    def config(self, topic: str) -> dict[str, str]:
        """The topic's settings; empty where this principal may not see them."""
        resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
        future = self._client.describe_configs([resource], request_timeout=self.timeout)[resource]
        try:
            return {k: v.value for k, v in future.result(timeout=self.timeout + 5).items()}
        except KafkaException as error:
            if error_of(error).code() in _FORBIDDEN:
                return {}
            raise while_asking(error_of(error), topic) from error

    def beginning(self, place: Place) -> int:
        return self._offsets([place], OffsetSpec.earliest(), committed=False)[place]

    def ends(self, places: Iterable[Place], *, committed: bool) -> dict[Place, int]:
        """The last stable offsets (what read_committed readers reach), or the high watermarks."""
        return self._offsets(places, OffsetSpec.latest(), committed=committed)

    def has_open_transactions(self, places: Iterable[Place]) -> bool:
        """True if read_committed readers are held back at one of ``places``."""
        asked = list(places)
        stable = self.ends(asked, committed=True)
        return any(stable[p] < end for p, end in self.ends(asked, committed=False).items())

    def wait_until_readable(self, marks: Mapping[Place, int], seconds: float) -> bool:
        """Wait until read_committed readers reach every mark; False if they do not in time."""

        def reached() -> bool:
            stable = self.ends(marks, committed=True)
            return all(stable[place] >= mark for place, mark in marks.items())

        return self._wait(reached, seconds)

    def _offsets(
        self, places: Iterable[Place], spec: OffsetSpec, *, committed: bool
    ) -> dict[Place, int]:
        asked = {ClientTopicPartition(*place): spec for place in places}
        if not asked:
            return {}
        level = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED
        futures = self._client.list_offsets(
            asked, isolation_level=level, request_timeout=self.timeout
        )
        return {
            Place(tp.topic, tp.partition): self._result(tp.topic, future).offset
            for tp, future in futures.items()
        }

    def _result(self, topic: str, future: Future[Any]) -> Any:
        return self._call(topic, lambda: future.result(timeout=self.timeout + 5))

    def _call(self, topic: str, action: Callable[[], _T]) -> _T:
        try:
            return action()
        except KafkaException as error:
            # that the login was refused reaches the error callback only; the call itself times out
            raise while_asking(self._refusal or error_of(error), topic) from error
        except TimeoutError as error:
            raise SinkUnavailableError(f"{topic}: Kafka gave no answer in time") from error

    def _remember(self, error: KafkaError) -> None:
        if error.code() == KafkaError._AUTHENTICATION:
            self._refusal = error

    def _wait(self, condition: Callable[[], bool], seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        pause = _LOOK_SECONDS
        while not condition():
            if time.monotonic() > deadline:
                return False
            time.sleep(pause)
            pause = min(2 * pause, _LOOK_SECONDS_MAX)
        return True
