"""Several Iceberg tables of one pipeline: one transaction of the SQL catalog, one ledger entry."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import sqlalchemy
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.table import StaticTable

from eo_pipeline.crashpoints import CrashPoint
from eo_pipeline.embedded.kafka import EmbeddedKafka
from eo_pipeline.embedded.spark import EmbeddedSpark
from eo_pipeline.errors import ConfigError, RefusedError, TableReplacedError, TableRolledBackError
from eo_pipeline.pipeline import Pipeline
from eo_pipeline.sinks.iceberg.catalogs import KnowingSqlCatalog
from tests.support.chaos import rest_is_chaos
from tests.support.servers import MakeTopic
from tests.support.stores import Bucket
from tests.tables.shop import hold_once, killed
from tests.tables.test_postgres_tables import Shop

POINTERS = (
    "select table_name, metadata_location from iceberg_tables where table_namespace = 'sales'"
)


class IcebergShop(Shop):
    """The shop in a warehouse; ``uri`` is that of the catalog's database."""

    def __init__(
        self, kafka: str, orders: str, customers: str, warehouse: Path, uri: str, staging: Path
    ) -> None:
        self.kafka, self.orders, self.customers, self.sent = kafka, orders, customers, 0
        self.warehouse = warehouse
        self.properties = {"type": "sql", "uri": uri, "warehouse": str(warehouse)}
        self.config = self.document(self.sink(self.properties), staging)

    @staticmethod
    def sink(properties: dict[str, str]) -> dict[str, Any]:
        catalog = {"name": "shop", "properties": properties}
        return {"type": "iceberg", "namespace": "sales", "catalog": catalog}

    def catalog(self) -> Catalog:
        return load_catalog("shop", **self.properties)

    def tables(self) -> dict[str, pa.Table]:
        """Rows of every table, as one transaction of the catalog's database has them."""
        engine = sqlalchemy.create_engine(self.properties["uri"])
        with engine.connect() as reader:
            places = reader.execute(sqlalchemy.text(POINTERS)).all()
        engine.dispose()
        return {name: StaticTable.from_metadata(at).scan().to_arrow() for name, at in places}

    def holds_once(self, count: int) -> None:
        tables = self.tables()
        names = ("orders", "order_lines", "customers")
        hold_once(count, *(tables[name].to_pylist() for name in names))

    def files(self) -> set[str]:
        """Files of the tables and the ledger, rows apart."""
        found = (self.warehouse / "sales").rglob("*")
        return {str(file) for file in found if file.is_file() and "eo_rows" not in file.parts}


@pytest.fixture(params=["sqlite"])
def iceberg_shop(
    request: pytest.FixtureRequest,
    spark_server: EmbeddedSpark,
    kafka: EmbeddedKafka,
    make_topic: MakeTopic,
    tmp_path: Path,
) -> IcebergShop:
    topics = make_topic(partitions=4), make_topic()
    warehouse = tmp_path / "a warehouse"
    warehouse.mkdir()
    if request.param == "sqlite":
        uri = f"sqlite:///{warehouse}/catalog.db"
    else:
        dsn: str = request.getfixturevalue("database")
        uri = (
            sqlalchemy.engine.make_url(dsn)
            .set(drivername="postgresql+psycopg")
            .render_as_string(hide_password=False)
        )
    staging = tmp_path / "staging"
    return IcebergShop(kafka.bootstrap_servers, *topics, warehouse, uri, staging)


on_either = pytest.mark.parametrize("iceberg_shop", ["sqlite", "postgres"], indirect=True)


@on_either
def test_one_commit_fills_all_tables_and_goes_back_with_all(iceberg_shop: IcebergShop) -> None:
    shop = iceberg_shop
    shop.write(60)
    pipeline = shop.pipeline()
    pipeline.run()
    shop.holds_once(60)
    shop.write(30)
    pipeline.run()
    shop.holds_once(90)
    assert pipeline.audit().passed
    pipeline.replay(1)
    shop.holds_once(90)
    pipeline.rewind(1)
    shop.holds_once(60)
    pipeline.run()
    shop.holds_once(90)
    assert pipeline.audit().passed
    head = pipeline.head()
    assert head is not None
    rows = {name: counts.rows_total for name, counts in head.counts.tables.items()}
    assert rows == {"orders": 90, "order_lines": 180, "customers": 9}
    assert pipeline.status().lag == 0
    with pipeline.as_of(1, table="order_lines") as view:
        assert view.count() == 120


@pytest.mark.parametrize(
    ("point", "inline_records"),
    rest_is_chaos(
        product(
            [
                *(CrashPoint.STAGED, CrashPoint.PRE_COMMITTED),
                *(CrashPoint.ROWS_SENT, CrashPoint.ENTRY_SENT),
            ],
            [0, 10_000],
        ),
        but=[(CrashPoint.PRE_COMMITTED, 0), (CrashPoint.ENTRY_SENT, 10_000)],
    ),
)
def test_killed_while_it_fills_tables_it_shows_none_or_all(
    iceberg_shop: IcebergShop, point: CrashPoint, inline_records: int
) -> None:
    shop = iceberg_shop
    shop.write(20)
    shop.pipeline(inline_records=inline_records).run()
    before = shop.files()
    shop.write(80)
    killed({**shop.config, "inline_records": inline_records}, "--crash-at", point, "1")
    shop.holds_once(20)
    left = shop.files() - before
    report = shop.pipeline(inline_records=inline_records).run()
    shop.holds_once(100)
    promised = point is not CrashPoint.STAGED and inline_records == 0
    assert any(checkpoint.recovered for checkpoint in report.checkpoints) == promised
    shop.pipeline().run()
    ours = {
        name for name in left & shop.files() if {"_eo_ledger", "_eo_staging"} & {*Path(name).parts}
    }
    assert not ours, "the ledger's and the staging's files of the killed one are gone"


@on_either
def test_a_strangers_commit_to_one_table_refuses_all_and_the_next_try_has_both(
    iceberg_shop: IcebergShop, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = iceberg_shop
    shop.write(20)
    shop.pipeline().run()
    swap, met = KnowingSqlCatalog._swap, list[Any]()

    def overtaken(catalog: KnowingSqlCatalog, prepared: Sequence[Any]) -> None:
        if not met:
            met.append({each.name for each in prepared})
            table = shop.catalog().load_table("sales.customers")
            schema = pa.schema([("id", pa.int64()), ("name", pa.string())])
            table.append(pa.table({"id": [77], "name": ["a stranger"]}, schema))
            files = shop.files()
            with pytest.raises(Exception, match="changed by somebody else"):
                swap(catalog, prepared)
            assert {name: rows.num_rows for name, rows in shop.tables().items()} == {
                "orders": 20,
                "order_lines": 40,
                "customers": 3,
                "shop_eo_ledger": 0,
            }
            met.append(files)
        swap(catalog, prepared)

    monkeypatch.setattr(KnowingSqlCatalog, "_swap", overtaken)
    shop.write(20)
    shop.pipeline().run()
    assert met[0] == {f"sales.{name}" for name in shop.tables()}
    rows = shop.tables()["customers"].to_pylist()
    assert sorted(row["id"] for row in rows) == [0, 1, 2, 3, 77]
    assert shop.tables()["order_lines"].num_rows == 80
    given_up = {name for name in met[1] if name.endswith("metadata.json")} - shop.files()
    assert len(given_up) == len(met[0]), "what the refused try wrote is gone"
    assert shop.pipeline().audit().passed


def test_a_table_set_back_by_its_own_means_stops_all_unless_nothing_of_it_is_gone(
    iceberg_shop: IcebergShop,
) -> None:
    shop = iceberg_shop
    shop.write(20)
    shop.pipeline().run()
    orders = shop.config["tables"][:2]
    shop.write(10)
    shop.pipeline(tables=orders, rest="ignore").run()  # customers is as it was
    shop.write(10)
    shop.pipeline().run()
    table = shop.catalog().load_table("sales.orders")
    first = table.history()[1].snapshot_id
    table.manage_snapshots().rollback_to_snapshot(first).commit()
    shop.write(10)
    with pytest.raises(TableRolledBackError):
        shop.pipeline().run()
    assert shop.tables()["order_lines"].num_rows == 80


def test_letters_and_leftovers_are_those_of_a_table_and_go_with_the_floor(
    iceberg_shop: IcebergShop,
) -> None:
    shop = iceberg_shop
    shop.write(10)
    strict = {"value_schema": "id BIGINT NOT NULL, name INT", "on_bad_record": "dead_letter"}
    orders, lines, customers = shop.config["tables"]
    few = {**orders, "where": "get_json_object(value, '$.id') in ('3', '4')"}
    only = {**lines, "where": few["where"]}
    shop.pipeline(tables=[few, only, {**customers, **strict}], rest="dead_letter").run()
    assert {n: t.num_rows for n, t in shop.tables().items()} == {
        "orders": 2,
        "order_lines": 4,
        "customers": 0,
        "shop_eo_ledger": 0,
    }
    shop.pipeline(rest="dead_letter").rewind(0)
    assert len(shop.tables()) == 4, "the rest has dead letters and no table"
    remarks = [done.remark for done in shop.pipeline(rest="dead_letter").maintain().work]
    assert len(remarks) >= 4
    assert not [remark for remark in remarks if "no table" in remark], remarks
    pipeline = shop.of_tables(customers=strict)
    pipeline.run()
    assert {n: t.num_rows for n, t in shop.tables().items()}["order_lines"] == 20
    letters = [letter.to_json() for letter in pipeline.dead_letter_rows()]
    assert [(letter["table"], letter["checkpoint"]) for letter in letters] == [("customers", 3)]
    shop.write(10)
    pipeline.run()
    assert pipeline.audit().passed
    report = pipeline.maintain()
    assert report.work, report
    assert len([*pipeline.dead_letter_rows()]) == 2
    planned = pipeline.plan_reset()
    assert len(planned.drops) == 4, planned
    assert len(shop.tables()) == 4
    pipeline.reset()
    assert shop.tables() == {}
    assert not (shop.warehouse / "sales" / "orders").exists()
    pipeline.run()
    assert shop.tables()["orders"].num_rows == 20


def test_tables_in_a_bucket_are_filled_and_kept_as_in_folders(
    iceberg_shop: IcebergShop, bucket: Bucket
) -> None:
    shop = iceberg_shop
    properties = {**shop.properties, "warehouse": f"{bucket.uri}/warehouse"}
    shop.config = {**shop.config, "sink": shop.sink(properties), "storage": bucket.document()}
    del shop.config["staging"]
    shop.write(20)
    shop.pipeline().run()
    shop.write(20)
    killed(shop.config, "--crash-at", CrashPoint.PRE_COMMITTED, "1")
    report = shop.pipeline().run()
    assert any(checkpoint.recovered for checkpoint in report.checkpoints)
    pipeline = shop.pipeline()
    assert pipeline.audit().passed
    pipeline.rewind(1)
    pipeline.run()
    assert [*pipeline.maintain().work]
    assert [*pipeline.maintain().work], "a second one, too"
    head = pipeline.head()
    assert head is not None
    rows = {name: counts.rows_total for name, counts in head.counts.tables.items()}
    assert rows == {"orders": 40, "order_lines": 80, "customers": 4}
    assert pipeline.audit().passed
    pipeline.reset()
    assert pipeline.head() is None


def test_a_table_that_was_dropped_stops_all(iceberg_shop: IcebergShop) -> None:
    iceberg_shop.write(20)
    iceberg_shop.pipeline().run()
    iceberg_shop.catalog().drop_table("sales.customers")
    iceberg_shop.write(10)
    with pytest.raises(TableReplacedError, match="is gone"):
        iceberg_shop.pipeline().run()
    assert iceberg_shop.tables()["orders"].num_rows == 20


def test_a_catalog_that_commits_one_table_at_a_time_is_refused(
    iceberg_shop: IcebergShop,
) -> None:
    other = {**iceberg_shop.properties, "py-catalog-impl": "pyiceberg.catalog.sql.SqlCatalog"}
    del other["type"]
    pipeline = iceberg_shop.pipeline(sink=iceberg_shop.sink(other))
    with pytest.raises(ConfigError, match="commits one table at a time"):
        pipeline.run()


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"namespace": None}, "namespace: required with tables"),
        ({"location": "/somewhere"}, "write rows or dead letters into"),
        ({"ledger_table": "sales.orders"}, "is one of the tables"),
        ({"table": "sales.orders"}, "not allowed with tables"),
    ],
)
def test_settings_that_several_tables_cannot_have(changed: dict[str, Any], words: str) -> None:
    sink = {"type": "iceberg", "namespace": "sales", "warehouse": "w", **changed}
    document = {
        "name": "shop",
        "source": {"bootstrap_servers": "nobody:1", "topics": "t", "value_schema": "id INT"},
        "sink": {name: value for name, value in sink.items() if value is not None},
        "tables": [{"name": "orders"}, {"name": "order_lines"}],
    }
    with pytest.raises(ConfigError, match=words):
        Pipeline.from_config(document)


def test_going_back_is_refused_for_all_where_another_pipeline_shares_a_table(
    iceberg_shop: IcebergShop,
) -> None:
    shop = iceberg_shop
    shop.write(20)
    shop.pipeline().run()
    alone = {
        **shop.config,
        "name": "other",
        "source": {**shop.config["source"], "topics": shop.customers}
        | {"value_schema": "id BIGINT NOT NULL, name STRING"},
        "sink": {
            "type": "iceberg",
            "table": "sales.customers",
            "catalog": shop.config["sink"]["catalog"],
        },
    }
    del alone["tables"]
    Pipeline.from_config(alone).run()
    assert shop.tables()["customers"].num_rows == 4
    with pytest.raises(RefusedError, match="share it"):
        shop.pipeline().rewind(0)
    with pytest.raises(RefusedError, match=r"share it|number their rows"):
        Pipeline.from_config(alone).rewind(0)
    assert shop.tables()["customers"].num_rows == 4
