"""Several tables of one pipeline in PostgreSQL: one read, one transaction, one ledger entry."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from psycopg.conninfo import make_conninfo

from eo_pipeline.audit import FindingKind
from eo_pipeline.batch.split import split
from eo_pipeline.batch.stage import Stager
from eo_pipeline.cli.checks import State, sink_checks
from eo_pipeline.crashpoints import CrashPoint
from eo_pipeline.embedded.kafka import EmbeddedKafka
from eo_pipeline.embedded.spark import EmbeddedSpark
from eo_pipeline.errors import (
    BadRecordError,
    ConfigError,
    EoPipelineError,
    LedgerBehindError,
    PastGoneError,
    RefusedError,
    TableReplacedError,
)
from eo_pipeline.ledger.entry import LedgerEntry
from eo_pipeline.monitoring.prometheus import Observed, PipelineMetrics
from eo_pipeline.pipeline import Pipeline
from eo_pipeline.sinks.postgres.connection import PostgresStore
from eo_pipeline.sinks.sql.connection import Question
from eo_pipeline.sinks.sql.ledger import SqlLedger
from tests.support.engine import Table
from tests.support.servers import MakeTopic
from tests.tables.shop import ORDER, killed

POINTS = [
    *(CrashPoint.STAGED, CrashPoint.PRE_COMMITTED, CrashPoint.ROWS_SENT, CrashPoint.ENTRY_SENT)
]


class Shop:
    """Orders with lines, and customers; tables ``orders``, ``order_lines`` and ``customers``."""

    def __init__(self, kafka: str, orders: str, customers: str, dsn: str, staging: Path) -> None:
        self.kafka, self.orders, self.customers, self.sent = kafka, orders, customers, 0
        self.table = Table(dsn)
        self.config = self.document({"type": "postgres", "dsn": dsn, "schema": "sales"}, staging)
        self.table.execute("create schema sales")

    def document(self, sink: dict[str, Any], staging: Path) -> dict[str, Any]:
        """Return the configuration of the pipeline into ``sink``."""
        decoded = {"topics": self.orders, "value_schema": ORDER}
        orders = {"name": "orders", "transform": "tests.tables.shop:orders", **decoded}
        lines = {"name": "order_lines", "transform": "tests.tables.shop:lines", **decoded}
        customers = {
            "name": "customers",
            "topics": self.customers,
            "value_schema": "id BIGINT NOT NULL, name STRING",
        }
        return {
            "name": "shop",
            "source": {
                "bootstrap_servers": self.kafka,
                "topics": [self.orders, self.customers],
                "max_records": 100,
            },
            "sink": sink,
            "tables": [orders, lines, customers],
            "staging": str(staging),
            "inline_records": 0,
            "overlap": False,
        }

    def pipeline(self, **changes: Any) -> Pipeline:
        return Pipeline.from_config({**self.config, **changes})

    def of_tables(self, **changes: Mapping[str, Any]) -> Pipeline:
        """The pipeline with other fields for some of its tables."""
        tables = [{**table, **changes.get(table["name"], {})} for table in self.config["tables"]]
        return self.pipeline(tables=tables)

    def write(self, count: int) -> None:
        """So many orders with two lines each, and a customer for each tenth."""
        producer = Producer({"bootstrap.servers": self.kafka})
        for number in range(self.sent, self.sent + count):
            order = {
                "id": number,
                "customer": number // 10,
                "lines": [{"item": f"item {line}", "amount": number + line} for line in (0, 1)],
            }
            producer.produce(self.orders, json.dumps(order).encode(), partition=number % 4)
            if number % 10 == 0:
                customer = {"id": number // 10, "name": f"customer {number // 10}"}
                producer.produce(self.customers, json.dumps(customer).encode(), partition=0)
        assert producer.flush(60) == 0
        self.sent += count

    def counts(self) -> tuple[int, ...]:
        """Rows of orders, lines, customers."""
        names = ("orders", "order_lines", "customers")
        return tuple(self.table.query(f"select count(*) from sales.{n}")[0][0] for n in names)

    def half_visible(self) -> list[tuple[Any, ...]]:
        """Orders whose number of lines is not two, in one snapshot."""
        return self.table.query(
            "select coalesce(o.id, l.order_id), count(l.item) from sales.orders o "
            "full join sales.order_lines l on l.order_id = o.id group by 1 "
            "having count(l.item) <> 2 or count(o.id) = 0"
        )

    def holds_once(self, count: int) -> None:
        """Every order once, with its two lines, and each customer once."""
        assert self.counts() == (count, 2 * count, (count + 9) // 10)
        assert self.half_visible() == []
        distinct = "select count(distinct id) from sales.orders"
        assert self.table.query(distinct) == [(count,)]


@pytest.fixture
def shop(
    spark_server: EmbeddedSpark,
    kafka: EmbeddedKafka,
    make_topic: MakeTopic,
    database: str,
    tmp_path: Path,
) -> Shop:
    topics = make_topic(partitions=4), make_topic()
    return Shop(kafka.bootstrap_servers, *topics, database, tmp_path / "staging")


@pytest.mark.core
def test_one_entry_fills_all_tables_and_goes_back_with_all(shop: Shop) -> None:
    shop.write(60)
    pipeline = shop.pipeline()
    pipeline.run()
    shop.holds_once(60)
    first = pipeline.head()
    assert first is not None
    assert (first.counts.records, first.counts.rows, first.counts.rest) == (66, 186, 0)
    assert first.counts.costs is not None
    assert first.counts.costs.bytes_out > 0
    rows = {name: counts.rows for name, counts in first.counts.tables.items()}
    assert rows == {"orders": 60, "order_lines": 120, "customers": 6}
    shop.write(30)
    pipeline.run()
    shop.holds_once(90)
    pipeline.replay(first.version)
    shop.holds_once(90)
    pipeline.rewind(first.version)
    shop.holds_once(60)
    pipeline.run()
    shop.holds_once(90)
    head = pipeline.head()
    assert head is not None
    assert head.counts.tables["order_lines"].rows_total == 180
    assert pipeline.ledger_damages() == []
    assert pipeline.status().lag == 0


@pytest.mark.core(only=["pre_committed-0"])
@pytest.mark.parametrize("inline_records", [0, 10_000])
@pytest.mark.parametrize(
    "point",
    [CrashPoint.STAGED, CrashPoint.PRE_COMMITTED, CrashPoint.ROWS_SENT, CrashPoint.ENTRY_SENT],
)
def test_killed_while_it_fills_tables_it_shows_none_or_all(
    shop: Shop, point: CrashPoint, inline_records: int
) -> None:
    shop.write(20)
    shop.pipeline(inline_records=inline_records).run()
    shop.write(80)
    killed({**shop.config, "inline_records": inline_records}, "--crash-at", point, "1")
    shop.holds_once(20)
    report = shop.pipeline(inline_records=inline_records).run()
    shop.holds_once(100)
    promised = point is not CrashPoint.STAGED and inline_records == 0
    assert any(checkpoint.recovered for checkpoint in report.checkpoints) == promised


def test_a_row_that_one_table_refuses_stops_all_or_is_a_dead_letter_of_that_table(
    shop: Shop,
) -> None:
    shop.write(20)
    shop.pipeline().run()
    shop.table.execute("alter table sales.order_lines add check (amount <> 25)")
    shop.write(20)
    with pytest.raises(EoPipelineError, match="order_lines"):
        shop.pipeline().run()
    shop.holds_once(20)
    lenient = shop.of_tables(order_lines={"on_bad_record": "dead_letter"})
    lenient.run()
    # of order 24 the second line, of order 25 the first
    assert shop.counts() == (40, 76, 4)
    letters = shop.table.query("select * from sales.order_lines_dead_letters")
    assert len(letters) == 2
    head = lenient.head()
    assert head is not None
    assert {n: c.dead_letters for n, c in head.counts.tables.items()} == {
        "orders": 0,
        "order_lines": 2,
        "customers": 0,
    }
    shown = [letter.to_json() for letter in lenient.dead_letter_rows()]
    assert [(letter["table"], letter["checkpoint"]) for letter in shown] == [("order_lines", 2)] * 2
    shop.table.execute("alter table sales.order_lines drop constraint order_lines_amount_check")
    lenient.plan_redrive().apply()
    shop.holds_once(40)


def test_each_table_is_read_as_of_a_version(shop: Shop) -> None:
    shop.write(20)
    shop.pipeline().run()
    shop.write(10)
    pipeline = shop.pipeline()
    pipeline.run()
    with pipeline.as_of(1, table="orders") as view:
        assert view.count() == 20
        rows = [row for batch in view.batches() for row in batch.to_pylist()]
    of_first = "select id from sales.orders where _eo_checkpoint = 1 order by id"
    assert sorted((row["id"],) for row in rows) == shop.table.query(of_first)
    with pytest.raises(PastGoneError, match=r"name one .--table"), pipeline.as_of(2) as view:
        view.first(1)
    with (
        pytest.raises(ConfigError, match="no table 'order': its tables are orders, order_lines"),
        pipeline.as_of(1, table="order"),
    ):
        pass


def test_an_audit_compares_each_table_and_the_rest(shop: Shop) -> None:
    shop.write(30)
    shop.pipeline().run()
    report = shop.pipeline().audit()
    assert report.passed, str(report)
    assert {*report.tables} == {"orders", "order_lines", "customers"}
    assert report.totals["rows_found"] == 93
    shop.table.execute("delete from sales.order_lines where order_id = 7 and item = 'item 1'")
    shop.table.execute("update sales.orders set customer = 5 where id = 3")
    failed = shop.pipeline().audit()
    named = {(finding.kind, finding.text.partition(":")[0]) for finding in failed.findings}
    assert {(FindingKind.MISSING, "order_lines"), (FindingKind.CHANGED, "orders")} <= named
    assert [repair.command for repair in failed.repairs] == ["eo replay 1 1"]
    shop.pipeline().replay(1)
    assert shop.pipeline().audit().passed


def test_an_audit_counts_the_records_that_no_table_takes(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.write(20)
    pipeline = shop.pipeline(tables=some_only(shop), rest="ignore")
    pipeline.run()
    reads, history = list[int](), SqlLedger.history

    def counted(ledger: SqlLedger, since: int) -> Iterator[LedgerEntry]:
        reads.append(since)
        return history(ledger, since)

    monkeypatch.setattr(SqlLedger, "history", counted)
    report = pipeline.audit()
    assert report.passed, str(report)
    assert reads.count(0) == 1, "the ledger is read once for all tables"
    assert "18 records are those that no table takes" in report.proves
    entry = "update sales.eo_ledger set counts = jsonb_set(counts, '{rest}', '17') where version=1"
    shop.table.execute(entry)
    texts = [finding.text for finding in pipeline.audit().findings]
    assert "no table takes 18 records, the ledger says 17" in texts


def test_a_user_who_may_not_write_one_table_reads_its_name_and_the_grant(shop: Shop) -> None:
    shop.write(10)
    shop.pipeline().run()
    role = f"writer_{os.getpid()}"
    shop.table.execute(
        f"create role {role} login; grant all on schema sales to {role}; "
        f"grant all on all tables in schema sales to {role}; "
        f"revoke insert, update on sales.customers from {role}"
    )
    try:
        sink = {**shop.config["sink"], "dsn": make_conninfo(shop.table.dsn, user=role)}
        pipeline = shop.pipeline(sink=sink)
        write = next(check for check in sink_checks(pipeline) if check.name == "write")
        assert write.state == State.FAIL
        assert write.message == f"{role} may not INSERT, UPDATE ON sales.customers"
        assert write.remedy == f'GRANT INSERT, UPDATE ON sales.customers TO "{role}".'
        shop.write(10)
        with pytest.raises(RefusedError, match=r"^sales\.customers: .*permission denied"):
            pipeline.run()
    finally:
        shop.table.execute(f"drop owned by {role}; drop role {role}")
    shop.holds_once(10)


def test_one_table_is_upserted_beside_others(shop: Shop) -> None:
    pipeline = shop.of_tables(customers={"mode": "upsert", "key": ["id"]})
    shop.write(20)
    pipeline.run()
    producer = Producer({"bootstrap.servers": shop.kafka})
    producer.produce(shop.customers, b'{"id": 1, "name": "another"}', partition=0)
    assert producer.flush(60) == 0
    shop.write(10)
    pipeline.run()
    shop.holds_once(30)
    assert shop.table.query("select name from sales.customers where id = 1") == [("another",)]
    with pytest.raises(RefusedError, match=r"sales\.customers is upserted"):
        pipeline.rewind(1)
    shop.holds_once(30)


def test_a_table_that_was_dropped_stops_all(shop: Shop) -> None:
    shop.write(20)
    shop.pipeline().run()
    shop.table.execute("drop table sales.customers")
    shop.write(10)
    with pytest.raises(TableReplacedError, match="is gone"):
        shop.pipeline().run()
    assert shop.table.query("select count(*) from sales.orders") == [(20,)]


def test_a_lost_ledger_is_missed_also_after_a_table_left(shop: Shop) -> None:
    shop.write(10)
    shop.pipeline().run()
    shop.table.execute("drop schema sales cascade; create schema sales")
    with pytest.raises(LedgerBehindError, match=r"version 1 .* was committed earlier"):
        shop.pipeline(tables=shop.config["tables"][1:], rest="ignore").run()


def test_a_table_that_is_added_begins_at_its_own_first_version(shop: Shop) -> None:
    shop.write(20)
    two = shop.config["tables"][1:]
    shop.pipeline(tables=two).run()
    shop.write(20)
    shop.pipeline().run()
    assert shop.counts() == (20, 80, 4)
    # a table that is taken out is kept, and no longer written
    shop.write(20)
    shop.pipeline(tables=two).run()
    assert shop.counts() == (20, 120, 6)


def test_a_table_that_missed_a_rewind_joins_again_without_its_later_rows(shop: Shop) -> None:
    shop.write(20)
    shop.pipeline().run()
    shop.write(10)
    shop.pipeline().run()
    shorter = shop.pipeline(tables=shop.config["tables"][1:])
    shorter.rewind(1)
    assert shop.counts() == (30, 40, 2)
    with pytest.raises(RefusedError, match="rewound to version 1 while table orders was out"):
        shop.pipeline().run()
    assert shop.counts() == (30, 40, 2)
    shop.table.execute("delete from sales.orders where _eo_checkpoint > 1")
    shop.pipeline().run()
    shop.holds_once(30)
    shop.pipeline().rewind(1)
    shop.pipeline().run()
    shop.holds_once(30)
    assert shop.pipeline().audit().passed


def test_a_table_that_left_the_document_is_not_filled_from_what_was_staged_for_it(
    shop: Shop,
) -> None:
    shop.write(20)
    shop.pipeline().run()
    shop.write(20)
    killed(shop.config, "--crash-at", CrashPoint.PRE_COMMITTED, "1")
    shorter = shop.pipeline(tables=shop.config["tables"][1:])
    report = shorter.run()
    assert not any(checkpoint.recovered for checkpoint in report.checkpoints)
    assert shop.counts() == (20, 80, 4)
    assert shorter.audit().passed


def test_metrics_have_the_rows_of_each_table(shop: Shop) -> None:
    shop.write(30)
    pipeline = shop.pipeline()
    pipeline.run()
    pipeline.replay(1)
    # one that leaves the document keeps its rows
    shorter = shop.pipeline(tables=shop.config["tables"][1:])
    shop.write(10)
    shorter.run()
    observed = Observed("shop", lambda: shorter, print)
    observed.look()
    samples = {
        (sample.name, sample.labels["table"]): sample.value
        for metric in PipelineMetrics([observed]).collect()
        for sample in metric.samples
        if "table" in sample.labels
    }
    assert samples["eo_table_rows", "orders"] == 30
    assert samples["eo_table_rows", "order_lines"] == 80
    assert samples["eo_rows_written_total", "order_lines"] == 140
    assert samples["eo_dead_letters_total", "customers"] == 0


def test_a_preview_compares_the_rows_of_each_table(shop: Shop) -> None:
    shop.write(30)
    shop.pipeline().run()
    shop.table.execute("delete from sales.order_lines where order_id = 7 and item = 'item 1'")
    shop.table.execute("update sales.orders set customer = 5 where id = 3")
    pipeline = shop.pipeline()
    found = pipeline.preview_replay(pipeline.plan_replay(1))
    assert (found.rows.before, found.rows.after) == (92, 93)
    assert (found.rows.changed, found.rows.added, found.rows.removed) == (1, 1, 0)
    assert found.rows.columns == {"orders.customer": 1}
    of_tables = {each.table: each.rows.after for each in found.checkpoints}
    assert of_tables == {"orders": 30, "order_lines": 60, "customers": 3}
    assert {example.key["table"] for example in found.rows.examples} == {"orders", "order_lines"}


def test_a_fork_fills_tables_of_its_own_from_a_version_on(shop: Shop) -> None:
    shop.write(20)
    pipeline = shop.pipeline()
    pipeline.run()
    shop.write(10)
    pipeline.run()
    with pytest.raises(ConfigError, match="Name another schema"):
        pipeline.fork(1, "shop_v2", shop.config["sink"])
    shop.table.execute("create schema sales_v2")
    forked = pipeline.fork(1, "shop_v2", {**shop.config["sink"], "schema": "sales_v2"})
    forked.run()
    assert shop.table.query("select count(*) from sales_v2.orders") == [(10,)]
    assert shop.table.query("select count(*) from sales_v2.order_lines") == [(20,)]
    shop.holds_once(30)
    assert forked.audit().passed


@pytest.mark.core
def test_records_that_no_table_takes_stop_the_run_or_are_counted(shop: Shop) -> None:
    shop.write(20)
    with pytest.raises(
        BadRecordError, match=r"no table takes 18 records, the first one .* offset 0"
    ):
        shop.pipeline(tables=some_only(shop)).run()
    assert not shop.table.query("select to_regclass('sales.orders')")[0][0]
    shop.pipeline(tables=some_only(shop), rest="ignore").run()
    head = shop.pipeline(tables=some_only(shop)).head()
    assert head is not None
    assert (head.counts.records, head.counts.rest, head.counts.rows) == (22, 18, 4)


def test_records_that_no_table_takes_are_dead_letters_of_their_own(shop: Shop) -> None:
    shop.write(20)
    pipeline = shop.pipeline(tables=some_only(shop), rest="dead_letter")
    pipeline.run()
    assert shop.table.query("select count(*) from sales.orders") == [(2,)]
    assert not shop.table.query("select to_regclass('sales.shop_rest')")[0][0]
    letters = [letter.to_json() for letter in pipeline.dead_letter_rows()]
    assert len(letters) == 18
    assert pipeline.sink.table_name == "sales.orders, sales.customers"
    with (
        pytest.raises(ConfigError, match="no table 'shop_rest'"),
        pipeline.as_of(1, table="shop_rest"),
    ):
        pass
    assert {(letter["table"], letter["error"]) for letter in letters} == {
        ("shop_rest", "no table takes it")
    }
    head = pipeline.head()
    assert head is not None
    assert (head.counts.records, head.counts.rest, head.counts.dead_letters) == (22, 18, 18)
    report = pipeline.audit()
    assert report.passed, str(report)
    shop.table.execute('delete from sales.shop_rest_dead_letters where "offset" = 0')
    assert not pipeline.audit().passed
    pipeline.replay(1)
    assert pipeline.audit().passed
    # a redrive decides anew
    orders, _, customers = shop.config["tables"]
    shop.pipeline(tables=[orders, customers], rest="dead_letter").plan_redrive().apply()
    assert shop.table.query("select count(*) from sales.orders") == [(20,)]
    assert shop.table.query("select count(*) from sales.shop_rest_dead_letters") == [(0,)]
    pipeline.rewind(0)
    pipeline.run()
    assert shop.table.query("select count(*) from sales.shop_rest_dead_letters") == [(18,)]
    limited = {**shop.config["source"], "dead_letter_limit": 5}
    shop.write(20)
    with pytest.raises(BadRecordError, match="dead_letter_limit"):
        shop.pipeline(tables=some_only(shop), rest="dead_letter", source=limited).run()


@pytest.mark.core(only=["0"])
@pytest.mark.parametrize("inline_records", [0, 10_000])
def test_one_read_serves_tables_that_overlap_each_as_if_it_were_alone(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, inline_records: int
) -> None:
    """Bad records are those of the tables that take them, and make no other table read again."""
    producer = Producer({"bootstrap.servers": shop.kafka})
    for number in range(90):
        value = b'{"id": %d, "more": 1}' % number if number % 30 else b"no JSON"
        headers: list[tuple[str, str | bytes | None]] = [("kind", "abc"[number % 3])]
        producer.produce(shop.orders, value, partition=number % 4, headers=headers)
    assert producer.flush(60) == 0
    decoded = {"topics": shop.orders, "value_schema": "id BIGINT NOT NULL"}
    lenient = {**decoded, "on_bad_record": "dead_letter"}
    tables = [
        {"name": "b", "where": "headers['kind'] = 'b'", **decoded},
        {"name": "a", "where": "headers['kind'] = 'a'", **lenient},
        {"name": "all_of_them", **lenient},
        {"name": "late", "where": "offset > 1000", **decoded},
    ]
    reads, alone = list[list[str]](), list[str]()
    stage = Stager.stage

    def noted(stager: Stager, *arguments: Any) -> Any:
        alone.append(stager.sink.table_name)
        return stage(stager, *arguments)

    def counted(*arguments: Any) -> Any:
        done = split(*arguments)
        assert done is not None
        reads.append(sorted(done.staged))
        return done

    monkeypatch.setattr(Stager, "stage", noted)
    monkeypatch.setattr("eo_pipeline.batch.split.split", counted)
    pipeline = shop.pipeline(tables=tables, rest="ignore", inline_records=inline_records)
    pipeline.run()
    ids = {
        name: [i for (i,) in shop.table.query(f"select id from sales.{name} order by id")]
        for name in ("b", "a", "all_of_them")
    }
    good = [number for number in range(90) if number % 30]
    assert ids == {
        "b": [n for n in good if n % 3 == 1],
        "a": [n for n in good if n % 3 == 0],
        "all_of_them": good,
    }
    head = pipeline.head()
    assert head is not None
    counts = {n: (c.records, c.rows, c.dead_letters) for n, c in head.counts.tables.items()}
    assert counts["b"] == (30, 30, 0)
    assert counts["a"] == (30, 27, 3)
    assert counts["all_of_them"] == (90, 87, 3)
    assert (head.counts.records, head.counts.rest) == (90, 0)
    assert reads == [["a", "all_of_them", "b"]], "records are judged from the start"
    assert alone == []
    assert pipeline.audit().passed
    producer.produce(shop.orders, b'{"id": 90}', partition=1, headers=[("kind", "a")])
    assert producer.flush(60) == 0
    pipeline.run()
    assert alone == [] if not inline_records else reads[1:]
    assert shop.table.query("select count(*) from sales.a where id = 90") == [(1,)]


@pytest.mark.parametrize(
    ("where", "words"),
    [
        ("cast(value as bigint) < 5", r"where of table orders fails: \[CAST.*try_cast"),
        ("valeu like '%3%'", r"where of table orders fails: \[UNRES.*valeu"),
    ],
)
def test_a_condition_that_fails_names_its_table(shop: Shop, where: str, words: str) -> None:
    orders, _, customers = shop.config["tables"]
    others = {**orders, "name": "others", "where": "true"}
    shop.write(3)
    pipeline = shop.pipeline(tables=[{**orders, "where": where}, others, customers])
    with pytest.raises(ConfigError, match=f"(?s){words}"):
        pipeline.run()
    assert not shop.table.query("select to_regclass('sales.orders')")[0][0]


def some_only(shop: Shop) -> list[dict[str, Any]]:
    """Customers, and orders of a customer by their text."""
    orders, _, customers = shop.config["tables"]
    where = "get_json_object(value, '$.id') in ('3', '4')"
    return [{**orders, "where": where}, customers]


def test_a_table_that_takes_no_record_costs_no_spark_job(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders, _, customers = shop.config["tables"]
    shares = [
        {
            **orders,
            "name": f"orders_{share}",
            "where": f"value like '%\"id\": {share}%' -- its share",
        }
        for share in range(10)
    ]
    staged: list[str] = []
    stage = Stager.stage

    def noted(stager: Stager, *arguments: Any) -> Any:
        staged.append(stager.sink.table_name)
        return stage(stager, *arguments)

    monkeypatch.setattr(Stager, "stage", noted)
    shop.write(3)
    pipeline = shop.pipeline(tables=[*shares, customers])
    pipeline.run()
    assert staged == [], "the read that counts stages them"
    assert shop.table.query("select to_regclass('sales.orders_3')") == [(None,)]
    head = pipeline.head()
    assert head is not None
    rows = {name: counts.rows for name, counts in head.counts.tables.items() if counts.rows}
    assert rows == {"orders_0": 1, "orders_1": 1, "orders_2": 1, "customers": 1}
    assert (head.counts.records, head.counts.rest) == (4, 0)


def test_tables_that_take_no_record_cost_neither_reads_nor_requests(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of many tables a run prepares those that took records before, and at first those of the first
    records; what it guessed wrong is read once more.
    """
    reads, requests = list[list[str]](), Counter[int]()
    execute, answers = PostgresStore.execute, PostgresStore.answers

    def counted(*arguments: Any) -> Any:
        done = split(*arguments)
        assert done is not None
        reads.append(sorted(done.staged))
        return done

    def requested(store: PostgresStore, *arguments: Any) -> Any:
        requests[len(reads)] += 1
        return execute(store, *arguments)

    def answered(store: PostgresStore, questions: Sequence[Question]) -> Any:
        before = requests.copy()
        found = answers(store, questions)
        requests.clear()
        requests.update(before)
        requests[len(reads)] += 1
        return found

    def customers(*numbers: int) -> None:
        for number in numbers:
            value = json.dumps({"id": number, "name": str(number)}).encode()
            producer.produce(shop.customers, value, key=str(number), partition=0)
        assert producer.flush(60) == 0

    def requests_of_a_run(tables: int) -> int:
        """Fill four tables once more, of so many."""
        requests.clear()
        customers(0, 1)
        shop.pipeline(tables=[*each[:2], *each[2 - tables :]]).run()
        return requests.total()

    monkeypatch.setattr("eo_pipeline.batch.split.split", counted)
    monkeypatch.setattr("eo_pipeline.batch.split._SAMPLE", 2)
    monkeypatch.setattr(PostgresStore, "execute", requested)
    monkeypatch.setattr(PostgresStore, "answers", answered)
    producer = Producer({"bootstrap.servers": shop.kafka})
    shared = {"topics": shop.customers, "value_schema": "id BIGINT NOT NULL, name STRING"}
    where = {"also_0": "key = '0'", "odd": "key in ('1', '7')"}  # not by its text alone
    where = {f"c{n}": f"key = '{n}'" for n in range(38)} | where
    each = [{"name": name, "where": where[name], **shared} for name in reversed(where)]
    customers(0, 1, 7)
    shop.pipeline(tables=each).run()
    assert reads == [[], ["also_0", "c0", "c1", "odd"], ["c7"]]
    assert shop.table.query("select id from sales.also_0") == [(0,)]
    assert shop.table.query("select id from sales.odd order by id") == [(1,), (7,)]
    assert shop.table.query("select id, _eo_offset from sales.c7") == [(7, 2)]
    assert not shop.table.query("select to_regclass('sales.c2')")[0][0]
    reads.clear()
    of_many = requests_of_a_run(40)
    assert reads == [["also_0", "c0", "c1", "odd"]]
    assert of_many <= requests_of_a_run(20) + 2
    assert shop.table.query("select count(*) from sales.c0") == [(3,)]
