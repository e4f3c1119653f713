"""The demo's flights: each of them once, in order, whatever happens to the publisher."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from dagster_defs.defs.flights import reference
from demo import flights, planes
from eo_pipeline.embedded.kafka import EmbeddedKafka
from eo_pipeline.errors import SourceUnavailableError

FEW = 30_000


def messages(kafka: EmbeddedKafka, topic: str) -> Iterator[Message]:
    """Every committed message of the topic."""
    consumer = Consumer(
        {
            "bootstrap.servers": kafka.bootstrap_servers,
            "group.id": f"{topic}-test",
            "enable.partition.eof": True,
            "fetch.queue.backoff.ms": 10,
        }
    )
    consumer.assign([TopicPartition(topic, p, 0) for p in range(flights.PARTITIONS)])
    unfinished = flights.PARTITIONS
    while unfinished:
        message = consumer.poll(120)
        assert message is not None
        if message.error() is None:
            yield message
        else:  # the end of a partition
            unfinished -= 1
    consumer.close()


def published_ids(kafka: EmbeddedKafka, topic: str) -> list[str]:
    return sorted(json.loads(m.value() or b"")["flight_id"] for m in messages(kafka, topic))


def expected_ids(count: int) -> list[str]:
    return sorted(json.loads(event.value)["flight_id"] for event in flights.events(0, count))


@pytest.mark.slow
def test_every_flight_of_the_year_has_an_id_of_its_own_and_the_next_year_new_ones() -> None:
    ids = [json.loads(event.value)["flight_id"] for event in flights.events(0, flights.FLIGHTS)]
    assert len(flights.flights()) == len(set(ids)) == flights.FLIGHTS
    [next_year] = flights.events(flights.FLIGHTS, 1)
    assert json.loads(next_year.value)["flight_id"] == ids[0].replace("2013", "2014")


def test_flights_come_in_the_order_of_departure_also_over_new_year() -> None:
    departures = [e.timestamp_ms for e in flights.events(flights.FLIGHTS - 5_000, 10_000)]
    assert departures == sorted(departures)


def test_a_flight_that_never_left_has_nulls_and_one_that_did_has_whole_numbers() -> None:
    values = [json.loads(event.value) for event in flights.events(0, 5_000)]
    cancelled = next(value for value in values if value["dep_time"] is None)
    assert cancelled["air_time"] is None
    assert values[0]["dep_time"] == 517
    assert isinstance(values[0]["dep_time"], int)


def test_the_key_is_the_aircraft_or_else_carrier_and_number() -> None:
    first = next(flights.events(0, 1))
    assert first.key == json.loads(first.value)["tailnum"]
    unassigned = next(e for e in flights.events(0, 5_000) if '"tailnum":null' in e.value)
    assert unassigned.key == "AA-133"


def test_every_airline_and_most_aircraft_of_the_flights_are_known() -> None:
    year = flights.flights()
    assert set(year["carrier"]) == set(reference.airlines()["carrier"].to_pylist())
    aircraft = [*planes.events(0, planes.PLANES)]
    assert len({event.key for event in aircraft}) == planes.PLANES
    assert [*planes.events(planes.PLANES - 1, 5)] == aircraft[-1:]
    known = year["tailnum"].isin({event.key for event in aircraft})
    assert (~known).sum() == 52_606


@pytest.mark.slow
def test_a_publisher_killed_again_and_again_leaves_every_flight_exactly_once(
    kafka: EmbeddedKafka,
) -> None:
    topic = "flights-killed"
    script = (
        "import sys; from demo import flights\n"
        f"flights.publish(sys.argv[1], topic={topic!r}, total={FEW}, chunk=2_000,"
        " progress=lambda done: print(done, flush=True))"
    )
    command = [sys.executable, "-c", script, kafka.start().bootstrap_servers]
    for _ in range(3):
        with subprocess.Popen(command, stdout=subprocess.PIPE) as publisher:
            assert publisher.stdout is not None
            publisher.stdout.readline()  # somewhere in the transaction behind the first
            publisher.kill()
    resumed = flights.publish(kafka.bootstrap_servers, topic=topic, total=FEW)
    assert 0 < resumed < FEW
    assert published_ids(kafka, topic) == expected_ids(FEW)
    assert flights.publish(kafka.bootstrap_servers, topic=topic, total=FEW) == 0


@pytest.mark.parametrize(
    "code",
    [
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.NOT_COORDINATOR,
    ],
)
def test_a_group_whose_coordinator_is_not_there_yet_is_asked_again(
    kafka: EmbeddedKafka, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """As that of the first group of a new broker."""
    late = [KafkaException(KafkaError(code))] * 2

    class Late(Consumer):
        def committed(self, *arguments: Any) -> list[TopicPartition]:
            if late:
                raise late.pop()
            return super().committed(*arguments)

    monkeypatch.setattr(flights, "Consumer", Late)
    topic = f"flights-late-{code}"
    assert flights.publish(kafka.start().bootstrap_servers, topic=topic, total=10) == 10
    assert flights.publish(kafka.bootstrap_servers, topic=topic, total=10) == 0
    assert not late


def test_the_feed_goes_on_behind_what_is_published_until_it_is_stopped(
    kafka: EmbeddedKafka,
) -> None:
    topic, stop, counts = "flights-fed", threading.Event(), list[int]()

    def stop_after_two(done: int) -> None:
        counts.append(done)
        if len(counts) == 2:
            stop.set()

    flights.publish(kafka.start().bootstrap_servers, topic=topic, total=100)
    flights.feed(
        kafka.bootstrap_servers, topic=topic, rate_per_s=20, stop=stop, progress=stop_after_two
    )
    assert counts == [120, 140]
    assert published_ids(kafka, topic) == expected_ids(140)


def test_a_message_carries_its_carrier_and_its_departure(kafka: EmbeddedKafka) -> None:
    topic = "flights-headers"
    flights.publish(kafka.start().bootstrap_servers, topic=topic, total=1)
    [message] = messages(kafka, topic)
    [event] = flights.events(0, 1)
    [(name, carrier)] = event.headers
    assert message.headers() == [(name, carrier.encode())]
    assert message.timestamp()[1] == event.timestamp_ms


def test_a_second_publisher_ends_the_first(kafka: EmbeddedKafka) -> None:
    """Only one publishes at a time: two would each begin at the number that both read."""
    topic = "flights-fenced"

    def meddle(done: int) -> None:
        if done == 10:
            flights.publish(kafka.bootstrap_servers, topic=topic, total=20, chunk=10)

    with pytest.raises(SourceUnavailableError, match="fenced"):
        flights.publish(
            kafka.start().bootstrap_servers, topic=topic, total=50, chunk=10, progress=meddle
        )
    assert published_ids(kafka, topic) == expected_ids(20)
