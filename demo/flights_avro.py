"""The same flights as Avro behind a schema registry, by confluent-kafka's own serializer."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime
from typing import Any

_NEVER_NULL = {
    **dict.fromkeys(("flight_id", "carrier", "origin", "dest"), "string"),
    **dict.fromkeys(("year", "month", "day"), "int"),
}
_NULLABLE = {
    **dict.fromkeys(("dep_time", "sched_dep_time", "dep_delay"), "int"),
    **dict.fromkeys(("arr_time", "sched_arr_time", "arr_delay"), "int"),
    **dict.fromkeys(("flight", "air_time", "distance", "hour", "minute"), "int"),
    "tailnum": "string",
    "time_hour": {"type": "long", "logicalType": "timestamp-millis"},
}

#: As a producer has it in its repository.
SCHEMA: dict[str, Any] = {
    "type": "record",
    "name": "Flight",
    "namespace": "nycflights",
    "fields": [
        *({"name": name, "type": kind} for name, kind in _NEVER_NULL.items()),
        *(
            {"name": name, "type": ["null", kind], "default": None}
            for name, kind in _NULLABLE.items()
        ),
    ],
}

#: Makes a value's bytes of its JSON text.
Encode = Callable[[str], bytes]


def encoder(registry: str, topic: str) -> Encode:
    """What a flight in ``topic`` is as Avro. The schema is registered with the first one."""
    # here: without a registry the packages need not be there
    from confluent_kafka.schema_registry import SchemaRegistryClient
    from confluent_kafka.schema_registry.avro import AvroSerializer
    from confluent_kafka.serialization import MessageField, SerializationContext

    serialize = AvroSerializer(SchemaRegistryClient({"url": registry}), json.dumps(SCHEMA))
    context = SerializationContext(topic, MessageField.VALUE)

    def encode(value: str) -> bytes:
        flight = json.loads(value)
        flight["time_hour"] = datetime.fromisoformat(flight["time_hour"])
        encoded: bytes = serialize(flight, context)
        return encoded

    return encode
