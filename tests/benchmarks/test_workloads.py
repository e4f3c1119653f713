"""Each workload's records and rows belong together, and a quick run takes one of them a day."""

from __future__ import annotations

import io
import json
import socket
import time
from collections import Counter
from datetime import date, timedelta
from threading import Thread

import fastavro
import polars as pl
import pytest

from benchmarks.suite.__main__ import quickly
from benchmarks.suite.catalogue import TITLES
from benchmarks.suite.link import SlowLink
from benchmarks.suite.peers.flink import Flink
from benchmarks.suite.peers.hand_written import HandWritten
from benchmarks.suite.peers.structured_streaming import StructuredStreaming
from benchmarks.suite.records import frames
from benchmarks.suite.stores import Store
from benchmarks.suite.target import parsed, typed
from benchmarks.suite.verify import compare, expected
from benchmarks.suite.workloads import registered
from benchmarks.suite.workloads.all import WORKLOADS
from benchmarks.suite.workloads.avro import AVRO
from benchmarks.suite.workloads.dead_letters import DEAD_LETTERS
from benchmarks.suite.workloads.keys import KEYS
from benchmarks.suite.workloads.nested import NESTED
from benchmarks.suite.workloads.plain import PLAIN
from benchmarks.suite.workloads.protobuf import PROTOBUF_RECORDS
from benchmarks.suite.workloads.transform import TRANSFORM
from benchmarks.suite.workloads.upsert import UPSERT
from benchmarks.suite.workloads.workload import Workload

RECORDS = 2_000
EACH = pytest.mark.parametrize("workload", WORKLOADS, ids=lambda workload: workload.key)


def held(workload: Workload, records: int = RECORDS) -> pl.DataFrame:
    return workload.records(pl.concat(list(frames(0, records))))


def rows(workload: Workload) -> pl.DataFrame:
    """What a faithful peer leaves."""
    return (
        workload.rows(held(workload)).unique("id", keep="last").sample(fraction=1.0, shuffle=True)
    )


@EACH
def test_a_faithful_output_is_exact_and_one_that_lacks_a_row_is_not(workload: Workload) -> None:
    wanted, output = expected(workload, RECORDS), rows(workload)
    assert compare(output, wanted, workload).exact
    assert compare(output.slice(1), wanted, workload).lost == 1
    assert compare(pl.concat([output, output[:1]]), wanted, workload).doubled == 1


@EACH
@pytest.mark.parametrize("column", ["last", "first but the id"])
def test_a_changed_value_is_seen(workload: Workload, column: str) -> None:
    name = [each for each in workload.columns if each != "id"][-1 if column == "last" else 0]
    output = rows(workload)
    changed = output.with_columns(pl.lit(None, output.schema[name]).alias(name))
    kept = pl.concat([changed.filter(pl.col("id") == 8), output.filter(pl.col("id") != 8)])
    assert output.filter(pl.col("id") == 8)[name].null_count() == 0
    assert compare(kept, expected(workload, RECORDS), workload).changed == 1


@EACH
def test_a_workload_has_titles_stores_and_as_many_bytes_as_the_plain_one(
    workload: Workload,
) -> None:
    assert {f"{workload.key}-cold", f"{workload.key}-warm"} <= {*TITLES}
    values = workload.values(held(workload))
    assert len(values) == RECORDS
    size = sum(map(len, values)) / RECORDS
    if workload not in (AVRO, PROTOBUF_RECORDS):  # the same fields, but no names
        assert size == pytest.approx(workload.record_bytes, rel=0.05)
    assert workload.records_of(2_000_000) * workload.record_bytes == pytest.approx(4e8, rel=0.001)


def test_peers_take_the_workloads_that_they_can_do() -> None:
    assert Flink.takes(NESTED, Store.PARQUET)
    assert not Flink.takes(NESTED, Store.POSTGRES)
    assert not Flink.takes(PROTOBUF_RECORDS, Store.KAFKA)
    assert not StructuredStreaming.takes(PROTOBUF_RECORDS, Store.DELTA)
    assert StructuredStreaming.takes(UPSERT, Store.POSTGRES)
    assert not StructuredStreaming.takes(UPSERT, Store.DELTA)
    assert HandWritten.takes(TRANSFORM, Store.POSTGRES)
    assert not HandWritten.takes(DEAD_LETTERS, Store.POSTGRES)


def test_a_transform_keeps_seven_of_eight_with_what_it_looked_up() -> None:
    output = rows(TRANSFORM)
    assert len(output) == RECORDS * 7 // 8
    assert {*output["region"]} == {"Europe", "America", "Asia"}
    assert output.filter(pl.col("id") == 1)["amount_cents"].item() == 775


def test_a_fifth_of_the_upserts_have_an_earlier_key_of_their_own_partition() -> None:
    ids = held(UPSERT)["id"].to_list()
    first: dict[int, int] = {}
    for number, key in enumerate(ids):
        assert first.setdefault(key, number) % 8 == number % 8
    assert len(ids) - len(first) == RECORDS // 5
    assert max(Counter(ids).values()) == 3


def test_bad_records_are_no_json_and_as_many_as_is_said() -> None:
    bad = 0
    for value in DEAD_LETTERS.values(held(DEAD_LETTERS)):
        try:
            json.loads(value)
        except json.JSONDecodeError:
            bad += 1
    assert DEAD_LETTERS.bad is not None
    assert bad == DEAD_LETTERS.bad(RECORDS) == RECORDS // 100


def test_each_record_has_a_key() -> None:
    assert KEYS.keys is not None
    made = KEYS.keys(held(KEYS))
    assert json.loads(made[17]) == {"key_id": 17, "key_shard": "shard-1"}
    assert len(made) == RECORDS


def test_each_partition_has_records_of_both_writers() -> None:
    values = AVRO.values(held(AVRO, 64))
    numbers = [int.from_bytes(value[1:5], "big") for value in values]
    assert {(n % 8, number) for n, number in enumerate(numbers)} == {
        (part, number) for part in range(8) for number in (1, 2)
    }
    schema = json.loads(registered.AVRO_NEW.text)
    record = fastavro.schemaless_reader(io.BytesIO(values[8][5:]), schema, None)
    assert isinstance(record, dict)
    assert (record["id"], record["channel"]) == (8, "channel-3")


@pytest.mark.parametrize("text", ["2023-11-14T22:13:20.001Z", "2023-11-14 22:13:20.001"])
def test_a_time_is_read_as_each_peer_writes_it(text: str) -> None:
    kind = {"at": pl.Datetime("us", "UTC")}
    of_json = parsed([json.dumps({"at": text}).encode()], kind)
    of_parquet = pl.DataFrame({"at": [text]}).select(
        pl.col("at").str.strip_suffix("Z").str.to_datetime(time_unit="ns")
    )
    assert typed(of_json, kind).equals(typed(of_parquet, kind))


def test_what_was_nested_comes_back_from_json_and_from_maps_of_parquet() -> None:
    sent = held(NESTED, 10)
    assert typed(parsed(NESTED.values(sent), NESTED.columns), NESTED.columns).equals(sent)
    entries = pl.Map(pl.String(), pl.Int64())
    maps = pl.DataFrame({"scores": [[{"key": "b", "value": 2}, {"key": "a", "value": 1}]]})
    columns = {"scores": NESTED.columns["scores"]}
    assert typed(maps.cast({"scores": entries}), columns)["scores"].to_list() == [{"a": 1, "b": 2}]


def test_a_quick_run_takes_each_workload_on_its_day() -> None:
    days = [quickly(date(2026, 1, 1) + timedelta(days=n)) for n in range(len(WORKLOADS))]
    taken = {key for day in days for key in day if key.endswith("-warm")}
    assert taken == {f"{workload.key}-warm" for workload in WORKLOADS}
    assert {*days[0]} <= {*TITLES}
    assert PLAIN not in WORKLOADS


def test_a_request_takes_as_long_as_the_link_says_and_a_long_one_no_longer() -> None:
    server = socket.create_server(("127.0.0.1", 0))

    def answer() -> None:
        connection, _ = server.accept()
        while connection.recv(1_000, socket.MSG_WAITALL):
            connection.sendall(b"done")

    Thread(target=answer, daemon=True).start()
    link = SlowLink(server.getsockname()[1], 0.1)
    client = socket.create_connection(("127.0.0.1", link.port))
    for _ in range(2):
        started = time.monotonic()
        for _ in range(10):
            client.sendall(b"x" * 100)
            time.sleep(0.001)
        assert client.recv(10) == b"done"
        assert 0.1 <= time.monotonic() - started < 0.5
    client.close()
    link.close()
    server.close()
