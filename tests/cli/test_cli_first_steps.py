"""`eo init` and `eo doctor`: a document out of a topic, and what is broken, with its remedy."""

from __future__ import annotations

import json
import os
import signal
import threading
from datetime import UTC, datetime
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient
from psycopg.conninfo import make_conninfo

from eo_pipeline import Pipeline
from eo_pipeline.cli import demo
from eo_pipeline.embedded.kafka import EmbeddedKafka
from tests.cli.shell import Shell, eo
from tests.support.servers import MakeDatabase, MakeTopic

__all__ = ["eo"]


@pytest.mark.core
def test_the_doctor_finds_what_is_broken_and_goes_on_to_the_next(
    eo: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    eo.document()
    eo.bench.topic.write(5)
    assert eo("run").code == 0
    well = eo("doctor")
    assert well.code == 0, well.out
    assert "fail" not in well.out
    assert "Kafka 2.8 or newer" in well.out

    source = eo.bench.config["source"]
    away = {**source, "bootstrap_servers": "127.0.0.1:1"}
    absent = {**source, "topics": ["no-such-topic"]}
    eo.document("a.yaml", name="away", source=away)
    eo.document("b.yaml", name="absent", source=absent, sink={**eo.sink(), "table": "b"})
    eo.document("c.yaml", name="closed", sink={**eo.sink(), "dsn": "host=127.0.0.1 port=1"})
    eo.document("d.yaml", name="wrong", transform="no_such_module:f")
    tables = [{"name": "e", "value_format": "avro"}]
    registry = {**absent, "registry": {"url": "http://127.0.0.1:1"}}
    del registry["value_schema"]
    several = {name: value for name, value in eo.sink().items() if name != "table"}
    eo.document("e.yaml", name="several", source=registry, sink=several, tables=tables)
    monkeypatch.setenv("JAVA_HOME", str(eo.folder))
    monkeypatch.setenv("SPARK_REMOTE", "sc://127.0.0.1:1")
    files = [part for name in "abcde" for part in ("-f", f"{name}.yaml")]
    ill = eo("doctor", "--timeout", "2", "--json", *files)
    assert ill.code == 3
    found = ill.json()
    states = {
        name: {check["name"] for check in checks if check["state"] == "fail"}
        for name, checks in found["pipelines"].items()
    }
    # the table belongs to the pipeline `events`, which away is not
    assert states == {
        "away": {"spark", "broker", "sink"},
        "absent": {"spark", "topic"},
        "closed": {"spark", "sink"},
        "wrong": {"document"},
        "several": {"spark", "topic", "registry"},
    }
    assert [c["name"] for c in found["machine"] if c["state"] == "fail"] == ["java"]
    checks = [c for part in found["pipelines"].values() for c in part]
    assert all(check["remedy"] for check in checks if check["state"] in ("fail", "warn"))


def test_the_doctor_finds_a_user_who_may_not_write_and_a_ledger_with_a_gap(
    eo: Shell, make_database: MakeDatabase
) -> None:
    table = eo.bench.table
    eo.document()
    for _ in range(3):
        eo.bench.topic.write(5)
        assert eo("run").code == 0
    role = f"reader_{os.getpid()}"
    table.execute(f"create role {role} login; grant select on eo_ledger, events to {role}")
    try:
        sink = {**eo.sink(), "dsn": make_conninfo(table.dsn, user=role)}
        eo.document("reader.yaml", sink=sink)
        reader = eo("doctor", "-f", "reader.yaml")
        assert reader.code == 3
        assert f"{role} may not" in reader.out
        assert "INSERT, UPDATE, DELETE ON eo_ledger TO" in reader.out
    finally:
        table.execute(f"drop owned by {role}; drop role {role}")
    table.execute("alter table eo_ledger drop constraint eo_ledger_parent")
    table.execute("update eo_ledger set ranges = '{}' where version = 2")
    gap = {c["name"]: c for c in eo("doctor", "--json").json()["pipelines"]["events"]}
    assert gap["ledger"]["state"] == "fail"
    assert "version 2" in gap["ledger"]["said"]


def test_init_reads_what_people_put_into_topics_and_the_document_runs(eo: Shell) -> None:
    topic = eo.bench.topic
    now = datetime.now(UTC)
    good = [
        {
            "id": n,
            "at": now.isoformat(),
            "day": f"{now:%Y-%m-%d}",
            "share": n / 2 if n else 1,
            "odd name": {"in": [n, 2**40], "$ref": None},
            "mixed": n if n % 2 else "text",
        }
        for n in range(6)
    ]
    for n, value in enumerate(good):
        topic.write_value(json.dumps(value).encode(), partition=n % 4)
    topic.write_value(b"not json", partition=1)
    topic.write_value(None, partition=2)
    begun = eo(
        *("init", "--bootstrap", topic.bootstrap_servers, "--topic", topic.name, "--json"),
        *("--sink", "postgres", "--name", "events", "--schema-file", "schemas/events.ddl"),
    )
    assert begun.code == 0, begun.out
    assert "file: ../schemas/events.ddl" in Path("pipelines/events.yaml").read_text()
    said = begun.json()
    assert (said["records"], said["bad"], said["tombstones"]) == (8, 1, 1)
    assert said["unset_variables"] == ["EO_EVENTS_DSN"]
    assert said["document"] == "pipelines/events.yaml"

    os.environ["EO_EVENTS_DSN"] = os.environ["EO_TEST_DSN"]
    try:
        ran = eo("run")
    finally:
        del os.environ["EO_EVENTS_DSN"]
    assert ran.code == 0, ran.err
    rows = eo.bench.table.query(
        """select id, at, day::text, share, "odd name"->'in'->>1, mixed from events order by id"""
    )
    assert rows[1] == (1, now, f"{now:%Y-%m-%d}", 0.5, str(2**40), "1")
    assert len(rows) == 6
    assert eo.bench.table.query("select count(*) from events_dead_letters") == [(1,)]


def test_init_keeps_bytes_where_there_is_no_json(eo: Shell, make_topic: MakeTopic) -> None:
    topic = eo.bench.topic
    topic.write_value(b"\x00\x00\x00\x00\x01avro")
    kafka = ("--bootstrap", topic.bootstrap_servers, "--sink", "console")
    begun = eo("init", *kafka, "--topic", topic.name, "--out", "raw.yaml")
    assert "start with a schema id" in begun.out
    assert Pipeline.from_yaml("raw.yaml").source.value_format == "raw"
    empty = eo("init", *kafka, "--topic", make_topic(), "--out", "empty.yaml")
    assert "The topic is empty" in empty.out
    gone = eo("init", *kafka, "--topic", "no-such-topic", "--out", "gone.yaml")
    assert gone.code == 1
    assert not Path("gone.yaml").exists()
    assert eo("init", *kafka).code == 2, "nobody can be asked for the topic"


@pytest.mark.slow
def test_a_broker_that_is_slower_than_its_orders_gets_them_all(
    eo: Shell, kafka: EmbeddedKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_order = demo._order

    def frozen_at_ten(number: int) -> bytes:
        if number == 10:
            os.kill(kafka.pid, signal.SIGSTOP)
            threading.Timer(3, os.kill, (kafka.pid, signal.SIGCONT)).start()
        return make_order(number)

    monkeypatch.setattr(demo, "_order", frozen_at_ten)
    produced = eo("demo", "produce", "250000", "--bootstrap", kafka.bootstrap_servers)
    assert "Topic orders has 250,000 records." in produced.out
    assert demo._written(kafka.bootstrap_servers) == 250_000
    AdminClient({"bootstrap.servers": kafka.bootstrap_servers}).delete_topics(["orders"])
