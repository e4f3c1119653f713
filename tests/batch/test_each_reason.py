"""What makes a JSON record a bad one, and what arrives of a good one: all in one Spark job."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from eo_pipeline.batch.decode import decode
from eo_pipeline.embedded.spark import EmbeddedSpark
from eo_pipeline.kafka.source import KafkaSource
from eo_pipeline.spark import SparkSettings, staging_settings
from tests.batch.frames import kafka_frame

SCHEMA = (
    "id BIGINT NOT NULL, amount DECIMAL(10,2), tiny TINYINT, at TIMESTAMP, day DATE, name STRING, "
    "place STRUCT<city: STRING NOT NULL>, lines ARRAY<STRUCT<price: DECIMAL(4,1)>>"
)

#: The value of a record, and what is said of it; None: it is good.
VALUES: list[tuple[bytes | None, str | None]] = [
    (b'{"id": 0, "amount": 12345678.90, "tiny": -128, "name": "}{"}', None),
    (b'{"id": 1, "at": "2026-01-31T08:30:00", "lines": [{"price": 1.5}, null]}', None),
    (None, "the value is null (a tombstone)"),
    (b"not JSON", "the value is not a JSON object"),
    (b'[{"id": 4}]', "the value is not a JSON object"),
    (b'{"id": "four"}', "field 'id' is no whole number"),
    (b'{"id": 5}\n{"id": 6}', "the value is more than one JSON object"),
    (b'{"id": 6, "name": "a", "name": "b"}', "a field is written twice"),
    (b'{"id": 7, "name": "\xff"}', "the value is not valid UTF-8"),
    (b'{"id": 8, "name": "\\ud83d"}', "the value has half a character (a lone surrogate)"),
    (b'{"name": "x"}', "required field 'id' is missing or null"),
    (b'{"id": 9, "place": {}}', "required field 'place.city' is missing or null"),
    (b'{"id": 10, "amount": 1.005}', "or has more decimal places or digits than DECIMAL(10,2)"),
    (b'{"id": 11, "amount": 123456789}', "field 'amount' is no decimal number, or has more"),
    (b'{"id": 12, "lines": [{"price": 1.25}]}', "field 'lines[].price' is no decimal"),
    (b'{"id": 13, "tiny": 200}', "field 'tiny' is no whole number, or is out of range for TINYINT"),
    (
        b'{"id": 14, "at": 1700000000000}',
        "is outside the years 1 to 9999 (a number is seconds since 1970",
    ),
    (b'{"id": 16, "lines": {"price": 1}}', "field 'lines' is no array"),
    (b'{"id": 17, "place": ""}', "field 'place' is no object"),
    (b'{"id": 18, "lines": ["x"]}', "the value does not fit the schema"),
    (b'{"id": 15, "day": "20260131"}', "field 'day' is no date as 2026-01-31"),
]


@pytest.fixture
def elsewhere(spark_server: EmbeddedSpark) -> Iterator[SparkSession]:
    """A session whose own time zone is another."""
    session, zone = (
        SparkSettings(remote=spark_server.remote).session(),
        "spark.sql.session.timeZone",
    )
    before = session.conf.get(zone) or "UTC"
    session.conf.set(zone, "Asia/Tokyo")
    with staging_settings(session):
        yield session
    session.conf.set(zone, before)


@pytest.mark.core
def test_each_reason_and_what_arrives_of_the_good_ones(elsewhere: SparkSession) -> None:
    common = {"bootstrap_servers": "h:1", "topics": ["t"], "value_schema": SCHEMA}
    raw = kafka_frame(elsewhere, [value for value, _ in VALUES])
    decoded = decode(raw, KafkaSource.model_validate(common))
    skipping = decode(raw, KafkaSource.model_validate({**common, "tombstones": "skip"}))
    row = F.to_json(F.struct("*")).alias("said")
    good = decoded.good(decoded.all).withColumn("_kafka", F.col("_kafka.offset"))
    rows = (
        good.select(F.col("_kafka").alias("at"), F.lit("good").alias("as"), row)
        .union(decoded.dead_letters(1).select("offset", F.lit("bad"), "error"))
        .union(skipping.marks().where("skipped").select("offset", F.lit("skipped"), F.lit("")))
        .union(decoded.marks().where("skipped").select("offset", F.lit("unasked"), F.lit("")))
        .collect()
    )
    verdicts: dict[str, dict[int, Any]] = {"good": {}, "bad": {}, "skipped": {}, "unasked": {}}
    for offset, kind, error in rows:
        verdicts[kind][offset] = error
    reasons = {n: reason for n, (_, reason) in enumerate(VALUES) if reason is not None}
    assert verdicts["bad"].keys() == reasons.keys()
    assert verdicts["good"].keys() == {*range(len(VALUES))} - reasons.keys()
    assert not verdicts["unasked"]
    assert {n: error for n, error in verdicts["bad"].items() if reasons[n] not in error} == {}
    assert verdicts["skipped"].keys() == {n for n, (value, _) in enumerate(VALUES) if value is None}
    first, second = (json.loads(verdicts["good"][n]) for n in (0, 1))
    assert (first["amount"], first["tiny"], first["name"]) == (12345678.90, -128, "}{")
    assert second["lines"] == [{"price": 1.5}, {}] or second["lines"] == [{"price": 1.5}, None]
    assert second["at"] == "2026-01-31T08:30:00.000Z"
