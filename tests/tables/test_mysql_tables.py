"""Several tables of one pipeline in MySQL and MariaDB, where DDL is no part of a transaction."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from eo_pipeline.embedded.kafka import EmbeddedKafka
from eo_pipeline.embedded.mariadb import EmbeddedMariaDB
from eo_pipeline.embedded.spark import EmbeddedSpark
from eo_pipeline.errors import ConfigError
from tests.support.servers import MakeTopic
from tests.support.stores import MySqlDatabase
from tests.tables.test_postgres_tables import Shop

HALVES = (
    "select o.id from orders o left join order_lines l on l.order_id = o.id group by o.id "
    "having count(l.item) <> 2"
)


class MySqlShop(Shop):
    """The shop in a database of MySQL or MariaDB."""

    def __init__(
        self, kafka: str, orders: str, customers: str, database: MySqlDatabase, staging: Path
    ) -> None:
        self.database = database
        self.kafka, self.orders, self.customers, self.sent = kafka, orders, customers, 0
        self.config = self.document(database.settings(), staging)

    def query(self, query: str) -> list[tuple[Any, ...]]:
        with self.database.connect() as reader, reader.cursor() as cursor:
            cursor.execute(query)
            return list(cursor.fetchall())

    def holds_once(self, count: int) -> None:
        counted = [
            self.query(f"select count(*) from {name}")[0][0]
            for name in ("orders", "order_lines", "customers")
        ]
        assert counted == [count, 2 * count, (count + 9) // 10]
        assert self.query(HALVES) == []


@pytest.fixture
def mysql_shop(
    spark_server: EmbeddedSpark,
    kafka: EmbeddedKafka,
    make_topic: MakeTopic,
    mysql_database: MySqlDatabase,
    tmp_path: Path,
) -> MySqlShop:
    topics = make_topic(partitions=4), make_topic()
    return MySqlShop(kafka.bootstrap_servers, *topics, mysql_database, tmp_path / "staging")


def test_one_entry_fills_all_tables_and_goes_back_with_all(mysql_shop: MySqlShop) -> None:
    mysql_shop.write(40)
    pipeline = mysql_shop.pipeline()
    pipeline.run()
    mysql_shop.holds_once(40)
    first = pipeline.head()
    assert first is not None
    mysql_shop.write(20)
    pipeline.run()
    mysql_shop.holds_once(60)
    pipeline.replay(first.version)
    mysql_shop.holds_once(60)
    pipeline.rewind(first.version)
    mysql_shop.holds_once(40)
    pipeline.run()
    mysql_shop.holds_once(60)


def test_names_that_the_server_takes_for_one_are_refused(
    mysql_shop: MySqlShop, tmp_path: Path
) -> None:
    orders = mysql_shop.config["tables"][0]
    tables = [*mysql_shop.config["tables"], {**orders, "name": "Orders"}]
    with EmbeddedMariaDB(tmp_path / "folds", settings={"lower-case-table-names": "1"}) as server:
        server.connect().query("CREATE DATABASE shop")
        sink = {**mysql_shop.config["sink"], "port": server.port, "database": "shop"}
        pipeline = mysql_shop.pipeline(tables=tables, sink=sink)
        with pytest.raises(ConfigError, match="orders and Orders are one table"):
            pipeline.run()
    mysql_shop.write(10)
    report = mysql_shop.pipeline(tables=tables).run()
    assert report.head is not None
    assert report.head.counts.tables["Orders"].rows_total == 10
    mysql_shop.holds_once(10)
