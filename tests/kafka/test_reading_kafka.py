"""Where a pipeline starts to read, its fair share, credentials, and records that are bad."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime
from itertools import product
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import ConsumerGroupTopicPartitions
from confluent_kafka import TopicPartition as ClientTopicPartition
from confluent_kafka.admin import AdminClient
from pyspark.sql import functions as F

from eo_pipeline.batch.json_values import braced
from eo_pipeline.embedded.kafka import EmbeddedKafka
from eo_pipeline.embedded.spark import EmbeddedSpark
from eo_pipeline.errors import BadRecordError, ConfigError
from eo_pipeline.kafka.admin import KafkaAdmin
from eo_pipeline.kafka.source import KafkaSource
from eo_pipeline.ledger.entry import Operation
from eo_pipeline.spark import SparkSettings
from tests.support.engine import Bench, staged_attempts
from tests.support.servers import SASL_USERS, MakeTopic


@pytest.mark.core
@pytest.mark.parametrize(
    ("start", "expected"),
    [
        ("earliest", range(20)),
        ("latest", range(0)),
        ({"offsets": {"TOPIC": {"0": 15}}, "or_else": "latest"}, range(15, 20)),
    ],
)
def test_the_start_mode_is_resolved_once_and_stored(
    bench: Bench, start: object, expected: range
) -> None:
    bench.topic.write(20)
    if isinstance(start, dict):
        start = {**start, "offsets": {bench.topic.name: start["offsets"]["TOPIC"]}}
    first = bench.pipeline(source={"start": start}).run()
    expected_rows = {c for c in bench.topic.written if c[2] in expected}
    if expected_rows:
        bench.table.assert_holds_once(expected_rows)
    assert bench.pipeline().history()[0].operation is Operation.START
    assert first.lag == 0
    # the mode is never looked at again
    bench.topic.write(5)
    bench.pipeline(source={"start": "latest"}).run()
    late = {c for c in bench.topic.written if c[2] >= 20}
    bench.table.assert_holds_once(expected_rows | late)


@pytest.mark.core
def test_starting_at_a_timestamp_takes_the_first_record_not_older(bench: Bench) -> None:
    producer = bench.topic.producer()
    first_ms = int(time.time() * 1000) - 100_000
    for i in range(10):
        producer.produce(
            bench.topic.name,
            json.dumps({"id": i, "name": "x"}),
            partition=0,
            timestamp=first_ms + i * 1000,
        )
    producer.flush()
    when = datetime.fromtimestamp(first_ms / 1000 + 4.5, UTC).isoformat()
    with pytest.raises(ConfigError, match="has no record since"):
        bench.pipeline(source={"start": {"timestamp": when}}).run()
    bench.pipeline(source={"start": {"timestamp": when, "or_else": "latest"}}).run()
    assert bench.table.query("select min(id), count(*) from events") == [(5, 5)]


@pytest.mark.core
def test_starting_at_a_groups_offsets_and_telling_kafka_how_far_we_are(
    bench: Bench, admin: AdminClient
) -> None:
    group = f"lag-{bench.topic.name}"
    bench.topic.write(20)
    bench.pipeline(source={"commit_group": group}).run()

    asked = [ConsumerGroupTopicPartitions(group, [ClientTopicPartition(bench.topic.name, 0)])]
    told = admin.list_consumer_group_offsets(asked)[group].result().topic_partitions
    assert [tp.offset for tp in told] == [20]

    bench.topic.write(7)
    follower = bench.pipeline(
        name="follower",
        source={"start": {"group": group, "or_else": "earliest"}},
        sink={"table": "follower"},
    )
    follower.run()
    assert bench.table.query("select min(_eo_offset), count(*) from follower") == [(20, 7)]


def test_one_huge_partition_does_not_starve_the_small_ones(bench: Bench) -> None:
    bench.topic.write(300, partitions=[0])
    bench.topic.write(6, partitions=[1, 2, 3])
    first = bench.pipeline().run(max_checkpoints=1).head
    assert {r.partition: r.span for r in first.ranges} == {0: 94, 1: 2, 2: 2, 3: 2}


@pytest.mark.core
def test_credentials_given_once_serve_the_admin_client_and_spark(
    bench: Bench, kafka: EmbeddedKafka
) -> None:
    bench.topic.write(20)
    user, password = next(iter(SASL_USERS.items()))
    client = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": user,
        "sasl.password": password,
    }
    source = {"bootstrap_servers": kafka.sasl_bootstrap_servers, "client": client}
    pipeline = bench.pipeline(source=source)
    pipeline.run()
    bench.table.assert_holds_once(bench.topic.written)
    assert password not in repr(pipeline)
    assert password not in str(bench.table.query("select row_to_json(l)::text from eo_ledger l"))


def test_settings_that_change_are_no_matter_to_a_warm_spark(
    bench: Bench, kafka: EmbeddedKafka
) -> None:
    """Trap: Spark keeps a consumer for each group, and stops at one of other settings, for good;
    what it says then shows both sets, passwords and all.
    """
    user, password = next(iter(SASL_USERS.items()))
    client = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": user,
        "sasl.password": password,
    }
    changes: list[dict[str, Any]] = [
        {},
        {"isolation": "read_uncommitted"},
        {"bootstrap_servers": kafka.sasl_bootstrap_servers, "client": client},
        {"spark_options": {"kafka.fetch.min.bytes": "2"}},
    ]
    for source in changes:
        bench.topic.write(20)
        bench.pipeline(source=source).run()
    bench.table.assert_holds_once(bench.topic.written)


BAD = [
    (b"not json", "not a JSON object"),
    (b'[{"id": 1, "name": "x"}]', "not a JSON object"),
    (b'{"id": 1} and more', "not a JSON object"),
    (b'{"id": "one", "name": "x"}', "field 'id' is no whole number"),
    (b'{"name": "x"}', "required field 'id' is missing"),
    (None, "tombstone"),
    (b"", "not a JSON object"),
]


@pytest.mark.parametrize(("value", "error"), BAD)
def test_a_bad_record_fails_the_run_with_its_coordinates_and_nothing_is_committed(
    bench: Bench, value: bytes | None, error: str
) -> None:
    bench.topic.write(5)
    bench.topic.write_value(value)
    with pytest.raises(BadRecordError, match=error) as failed:
        bench.pipeline().run()
    assert f"{bench.topic.name}[0] offset 5" in str(failed.value)
    assert bench.table.versions() == [0]


@pytest.mark.parametrize("inline_records", [0, 10_000], ids=["files", "inline"])
def test_dead_letters_arrive_raw_with_the_rows_of_their_checkpoint(
    bench: Bench, inline_records: int
) -> None:
    source = {"on_bad_record": "dead_letter"}
    pipeline = bench.pipeline(source=source, inline_records=inline_records)
    bench.topic.write(5)
    pipeline.run()  # measures what a record takes, which decides what goes inline
    for value, _ in BAD:
        bench.topic.write_value(value, key=b"a key")
    bench.topic.write(5)

    report = pipeline.run()

    assert report.head.counts.dead_letters == len(BAD)
    bench.table.assert_holds_once(bench.topic.written)
    letters = bench.table.query(
        'select "offset", key, value, error, _eo_checkpoint from events_dead_letters order by 1'
    )
    assert [(o, bytes(k), bytes(v) if v is not None else None) for o, k, v, _, _ in letters] == [
        (5 + i, b"a key", value) for i, (value, _) in enumerate(BAD)
    ]
    assert all(expected in said for (*_, said, _), (_, expected) in zip(letters, BAD, strict=True))
    assert {checkpoint for *_, checkpoint in letters} == {2}


#: Put together in every way up to three, they are every end a value can have: JSON's white space
#: and what only looks like it, braces, quotes, and bytes that are no UTF-8.
PIECES: list[bytes | str] = [
    *(b"", b" ", b"\t", b"\r", b"\n", b"\r\n", b"\x0b", b"\x0c", b"\x00"),
    *("\u00a0", "\u2003", "\u2028", "\u3000", "\ufeff", "é", "\U0001f600"),
    *(b"\xff", b"\xc3", b"\xf0\x9f"),
    *(b"{", b"}", b"{}", b"[", b"]", b'"', b"x", b'{"id": 1}', b'{"o": {"id": 1}}'),
]


def test_what_is_a_json_object_is_told_as_if_every_value_were_trimmed(
    spark_server: EmbeddedSpark,
) -> None:
    pieces = [p.encode() if isinstance(p, str) else p for p in PIECES]
    values = [None, *(b"".join(parts) for parts in product(pieces, repeat=3))]
    frame = (
        SparkSettings(remote=spark_server.remote)
        .session()
        .createDataFrame(pa.table({"value": pa.array(values, pa.binary())}))
    )
    text = F.col("value").cast("string")
    trimmed = F.btrim(text, F.lit(" \t\r\n"))
    verdict = frame.select(
        "value",
        (trimmed.startswith("{") & trimmed.endswith("}")).alias("before"),
        braced(text).alias("now"),
    )
    assert verdict.where(~F.col("before").eqNullSafe(F.col("now"))).collect() == []
    counted = {row["now"]: row["count"] for row in verdict.groupBy("now").count().collect()}
    assert counted.keys() == {True, False, None}
    assert counted[True] > 500


@pytest.mark.core
def test_a_run_that_fails_while_it_stages_leaves_no_folder_behind(bench: Bench) -> None:
    bench.topic.write_value(b"not JSON")
    pipeline = bench.pipeline(inline_records=0)
    with pytest.raises(BadRecordError):
        pipeline.run()
    assert staged_attempts(bench) == []


def test_more_dead_letters_than_the_limit_fail_the_run(bench: Bench) -> None:
    for value, _ in BAD:
        bench.topic.write_value(value)
    source = {"on_bad_record": "dead_letter", "dead_letter_limit": len(BAD) - 1}
    with pytest.raises(BadRecordError, match=r"raise source.dead_letter_limit \(6 a checkpoint\)"):
        bench.pipeline(source=source).run()
    assert bench.table.versions() == [0]


def test_tombstones_can_be_skipped_and_are_counted(bench: Bench) -> None:
    bench.topic.write(5)
    bench.topic.write_value(None)
    report = bench.pipeline(source={"tombstones": "skip"}).run()
    assert report.head.counts.tombstones == 1
    bench.table.assert_holds_once(bench.topic.written)


@pytest.mark.core
def test_bad_records_count_also_when_the_transform_returns_nothing(bench: Bench) -> None:
    """The optimizer leaves reading out of a plan whose result is provably empty."""
    bench.topic.write_value(b"not json")
    with pytest.raises(BadRecordError):
        bench.pipeline(transform="tests.runs.transforms:nothing").run()


def test_raw_values_arrive_byte_for_byte(bench: Bench) -> None:
    bench.topic.write_value(b"\x00\xff raw \x80")
    source = {"value_format": "raw", "value_schema": None}
    bench.pipeline(source=source).run()
    assert bench.table.query("select value from events") == [(b"\x00\xff raw \x80",)]


@pytest.mark.slow
def test_partitions_that_are_just_getting_their_leaders_are_asked_again(
    kafka: EmbeddedKafka, make_topic: MakeTopic
) -> None:
    """A broker knows a new topic before it leads its partitions, and says so when asked."""
    for _ in range(30):
        source = KafkaSource(
            bootstrap_servers=kafka.bootstrap_servers,
            topics=(make_topic(partitions=4),),
            value_format="raw",
        )
        assert len(KafkaAdmin(source).cluster().bounds) == 4
