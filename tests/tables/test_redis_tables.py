"""Several tables of one pipeline in Redis: one script, one slot, one ledger entry."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import redis
import yaml
from redis.crc import key_slot
from typer.testing import CliRunner

from eo_pipeline.cli.app import app
from eo_pipeline.crashpoints import CrashPoint
from eo_pipeline.embedded.kafka import EmbeddedKafka
from eo_pipeline.embedded.spark import EmbeddedSpark
from eo_pipeline.errors import ConfigError, LedgerDamagedError, RefusedError, TableReplacedError
from eo_pipeline.pipeline import Pipeline
from eo_pipeline.sinks.redis import RedisSink
from eo_pipeline.sinks.tables import TablesSink
from eo_pipeline.staging.rows import StagedOutput
from eo_pipeline.testing import first_entry
from tests.sinks.redis.redis_world import tables_in
from tests.support.chaos import rest_is_chaos
from tests.support.servers import MakeTopic
from tests.tables.shop import hold_once, killed
from tests.tables.test_appearing import Events, rows_by_table
from tests.tables.test_postgres_tables import Shop

FORMS = {"orders": "hash", "order_lines": "json", "customers": "hash"}
KEYS = {"orders": "{id}", "order_lines": "{order_id}/{item}", "customers": "{id}"}


class RedisShop(Shop):
    """The shop in Redis."""

    def __init__(
        self, kafka: str, orders: str, customers: str, redis_url: str, staging: Path
    ) -> None:
        self.url = redis_url
        self.kafka, self.orders, self.customers, self.sent = kafka, orders, customers, 0
        self.config = self.document({"type": "redis", "url": redis_url}, staging)
        for table in self.config["tables"]:
            table["sink"] = {"key": KEYS[table["name"]], "as": FORMS[table["name"]]}

    @property
    def client(self) -> redis.Redis:
        return redis.Redis.from_url(self.url, protocol=2)

    def rows(self) -> dict[str, list[dict[str, Any]]]:
        return tables_in(self.url, "shop", FORMS)

    def counts(self) -> tuple[int, ...]:
        return tuple(map(len, self.rows().values()))

    def letters(self, table: str) -> int:
        with self.client as client:
            return int(client.xlen(f"{{shop}}:eo_dead_letters:{table}"))

    def holds_once(self, count: int) -> None:
        hold_once(count, *self.rows().values())


@pytest.fixture
def shop(
    spark_server: EmbeddedSpark,
    kafka: EmbeddedKafka,
    make_topic: MakeTopic,
    redis_url: str,
    tmp_path: Path,
) -> RedisShop:
    topics = make_topic(partitions=4), make_topic()
    return RedisShop(kafka.bootstrap_servers, *topics, redis_url, tmp_path / "staging")


def test_one_script_fills_all_tables(shop: RedisShop) -> None:
    shop.write(60)
    pipeline = shop.pipeline()
    pipeline.run()
    shop.holds_once(60)
    shop.write(30)
    pipeline.run()
    shop.holds_once(90)
    with shop.client as client:
        names: Any = client.keys()
        assert len({key_slot(name) for name in names}) == 1
        assert client.hget("{shop}:eo_schema:customers", "name") == b"text"
    head = pipeline.head()
    assert head is not None
    assert {name: counts.rows_total for name, counts in head.counts.tables.items()} == {
        "orders": 90,
        "order_lines": 180,
        "customers": 9,
    }
    assert pipeline.status().lag == 0
    with pytest.raises(RefusedError, match="what a key held at version 1 is not kept"):
        pipeline.rewind(1)
    with pytest.raises(RefusedError, match="what a key held at version 1 is not kept"):
        pipeline.replay(1)
    # one leaves, and does not come back with other keys
    shop.write(10)
    shop.pipeline(tables=shop.config["tables"][1:]).run()
    assert shop.counts() == (90, 200, 10)
    with pytest.raises(ConfigError, match="give the table with the new setting a name of its own"):
        shop.of_tables(orders={"sink": {"key": "{customer}"}}).run()
    shop.write(10)
    pipeline.run()
    assert shop.counts() == (100, 220, 11)
    pipeline.reset()
    with shop.client as client:
        assert client.keys() == []


def test_a_ledger_is_of_one_table_or_of_several(shop: RedisShop) -> None:
    single = {name: value for name, value in shop.config.items() if name != "tables"}
    single["source"] = {**shop.config["source"], "value_schema": "id BIGINT"}
    single["sink"] = {**shop.config["sink"], "key": "{id}"}
    with shop.pipeline().sink.open("shop") as session:
        start = session.identified(first_entry("shop"))
        session.publish(start, StagedOutput())
    with pytest.raises(ConfigError, match="writes several tables, by its ledger"):
        Pipeline.from_config(single).run()
    with shop.client as client:
        client.flushdb()
    Pipeline.from_config(single).run()
    with pytest.raises(ConfigError, match=r"not several tables.*give the pipeline with"):
        shop.pipeline().run()


@pytest.mark.parametrize("inline_records", [0, 10_000])
@pytest.mark.parametrize(
    "point",
    rest_is_chaos(
        [
            *(CrashPoint.STAGED, CrashPoint.PRE_COMMITTED, CrashPoint.ROWS_SENT),
            *(CrashPoint.ENTRY_SENT, CrashPoint.COMMITTED),
        ],
        but=[CrashPoint.PRE_COMMITTED, CrashPoint.ENTRY_SENT],
    ),
)
def test_killed_while_it_fills_tables_it_shows_none_or_all(
    shop: RedisShop, point: CrashPoint, inline_records: int
) -> None:
    config = {**shop.config, "inline_records": inline_records}
    shop.write(20)
    shop.pipeline().run()
    shop.write(80)
    killed(config, "--crash-at", point, "1")
    shop.holds_once(shop.counts()[0])
    report = shop.pipeline(inline_records=inline_records).run()
    shop.holds_once(100)
    if point is not CrashPoint.COMMITTED:
        promised = point is not CrashPoint.STAGED and inline_records == 0
        assert any(checkpoint.recovered for checkpoint in report.checkpoints) == promised


def test_a_key_of_another_type_in_one_table_stops_all(shop: RedisShop) -> None:
    """Also where it is of the last table, after the rows of the others in the script."""
    shop.write(20)
    pipeline = shop.pipeline()
    pipeline.run()
    with shop.client as client:
        client.rpush("{shop}:customers:3", "mine")
    shop.write(20)
    with pytest.raises(RefusedError, match=r"shop}:customers:3' holds a list.*another name"):
        pipeline.run()
    assert pipeline.status().lag > 0
    with shop.client as client:
        client.delete("{shop}:customers:3")
    shop.holds_once(20)
    pipeline.run()
    shop.holds_once(40)


def test_limits_are_of_all_tables_together(shop: RedisShop) -> None:
    shop.write(20)
    few = shop.pipeline(sink={**shop.config["sink"], "max_rows": 61})
    with pytest.raises(RefusedError, match=r"has 62 rows, and sink\.max_rows is 61"):
        few.run()
    small = {**shop.config["sink"], "max_bytes": 6500}
    with pytest.raises(RefusedError, match=r"sink\.max_bytes \(6500\)"):
        shop.pipeline(sink=small).run()
    assert shop.counts() == (0, 0, 0)
    # the largest table alone fits
    shop.pipeline(sink=small, tables=shop.config["tables"][1:2], rest="ignore").run()
    assert shop.counts() == (0, 40, 0)


def test_each_table_has_dead_letters_and_those_of_the_rest_a_stream_of_their_own(
    shop: RedisShop,
) -> None:
    shop.write(20)
    orders, lines, customers = shop.config["tables"]
    few = {**orders, "where": "get_json_object(value, '$.id') in ('3', '4')"}
    strict = {**customers, "value_schema": "id BIGINT NOT NULL, name INT NOT NULL"}
    strict |= {"on_bad_record": "dead_letter", "sink": {"key": ["id"], "ttl": 60}}
    pipeline = shop.pipeline(tables=[few, strict], rest="dead_letter")
    pipeline.run()
    assert shop.counts() == (2, 0, 0)
    assert (shop.letters("customers"), shop.letters("shop_rest")) == (2, 18)
    with pytest.raises(RefusedError, match=r"XRANGE \{shop\}:eo_dead_letters:<table>"):
        list(pipeline.dead_letter_rows())
    head = pipeline.head()
    assert head is not None
    assert (head.counts.rest, head.counts.dead_letters) == (18, 20)
    shop.write(1)
    pipeline.run()
    assert shop.letters("shop_rest") == 19
    shop.pipeline(tables=[few, lines, customers], rest="dead_letter").run()


def test_a_table_whose_schema_is_gone_is_another_one(shop: RedisShop) -> None:
    shop.write(20)
    pipeline = shop.pipeline()
    pipeline.run()
    with shop.client as client:
        client.delete("{shop}:eo_schema:order_lines")
    with pytest.raises(TableReplacedError):
        pipeline.run()


def document(table: dict[str, Any], **sink: Any) -> dict[str, Any]:
    """A pipeline with one of several tables, which has these fields too."""
    return {
        "name": "shop",
        "source": {"bootstrap_servers": "localhost:9092", "topics": ["orders"]},
        "sink": {"type": "redis", "url": "redis://h", "key": ["id"], **sink},
        "tables": [{"name": "a", "value_schema": "id BIGINT, n INT", **table}],
    }


@pytest.mark.parametrize(
    ("table", "sink", "words"),
    [
        ({"name": "a:b"}, {}, r"tables\.0: 'a:b': the name of one of several tables has no ':'"),
        ({"name": "eo_a"}, {}, r"tables\.0\.prefix: .*own keys"),
        ({"sink": {"max_rows": 1}}, {}, "max_rows is the same for all tables"),
        ({"key": "id"}, {}, r"tables\.0\.key: .*in braces"),
        ({"mode": "upsert"}, {}, r"tables\.0\.mode"),
        ({}, {"prefix": "b"}, "sink: prefix: not allowed with tables"),
    ],
)
def test_a_table_that_redis_cannot_have_is_refused(
    table: dict[str, Any], sink: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        Pipeline.from_config(document(table, **sink))


def test_a_rest_named_as_the_pipelines_own_keys_is_refused_by_its_name() -> None:
    with pytest.raises(ConfigError, match=r"rest\.prefix: 'eo_shop_rest' starts with 'eo_'"):
        Pipeline.from_config({**document({}), "name": "eo_shop", "rest": "dead_letter"})


@pytest.mark.parametrize(
    ("table", "target"),
    [
        ({}, {"as": "hash", "key": "{id}", "prefix": "a"}),
        (
            {"key": "{id}/{n}", "sink": {"as": "json"}},
            {"as": "json", "key": "{id}/{n}", "prefix": "a"},
        ),
    ],
)
def test_a_table_has_a_key_and_form_of_its_own_or_those_of_the_sink(
    table: dict[str, Any], target: dict[str, str]
) -> None:
    sink = Pipeline.from_config(document(table)).sink
    assert isinstance(sink, TablesSink)
    member = sink.members["a"]
    assert isinstance(member, RedisSink)
    assert member.targets == {"target": "several tables", "target:a": json.dumps(target)}


def test_tables_appear(
    spark_server: EmbeddedSpark,
    kafka: EmbeddedKafka,
    make_topic: MakeTopic,
    redis_url: str,
    tmp_path: Path,
) -> None:
    def ids(*names: str, pipeline: str = "events") -> list[list[int]]:
        found = tables_in(redis_url, pipeline, dict.fromkeys(names, "hash"))
        return [sorted(row["id"] for row in rows) for rows in found.values()]

    sink = {"type": "redis", "url": redis_url}
    topic = make_topic(partitions=2)
    events = Events(kafka.bootstrap_servers, topic, sink, tmp_path / "staging")
    events.config["tables"]["sink"] = {"key": "{id}"}
    events.write({"order": 20})
    events.pipeline().run()
    events.write({"order": 5, "not:e": 60})
    killed({**events.config, "inline_records": 0}, "--crash-at", CrashPoint.PRE_COMMITTED, "1")
    assert ids("raw_order", "raw_not_e") == [[*range(20)], []]
    report = events.pipeline().run()
    assert any(checkpoint.recovered for checkpoint in report.checkpoints)
    assert ids("raw_order", "raw_not_e") == [[*range(25)], [*range(60)]]
    assert rows_by_table(events.pipeline()) == {"raw_order": 25, "raw_not_e": 60}
    # a fork needs no other place: keys begin with its name
    path = tmp_path / "events.yaml"
    path.write_text(yaml.safe_dump(events.config))
    fork = ("fork", "-f", str(path), "--at", "1", "--name", "again", "--yes", "--write")
    begun = CliRunner().invoke(app, [*fork, str(tmp_path / "again.yaml")])
    assert begun.exit_code == 0, begun.output
    Pipeline.from_yaml(tmp_path / "again.yaml").run()
    assert ids("raw_order", pipeline="again") == [[*range(20, 25)]]
    with redis.Redis.from_url(redis_url) as client:
        client.delete("{events}:eo_ledger")
    with pytest.raises(LedgerDamagedError, match="the ledger is empty"):
        events.pipeline(staging=str(tmp_path / "new")).run()
