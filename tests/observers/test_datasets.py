"""Topics and tables by the names that OpenLineage gives them."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from eo_pipeline.observers.openlineage import LineageEvents, topic_name, written_name
from eo_pipeline.pipeline import Pipeline
from eo_pipeline.runs.report import ObservedRun

SOURCE = {"bootstrap_servers": "a:9092", "topics": ["orders"], "value_schema": "id BIGINT"}


@pytest.mark.parametrize(
    ("servers", "namespace"),
    [
        ("a:9092", "kafka://a:9092"),
        ("b-2.example:9094, b-1.example:9094", "kafka://b-2.example:9094"),
        ("[::1]:9092", "kafka://[::1]:9092"),
        ("only-a-host", "kafka://only-a-host:9092"),
    ],
)
def test_a_topic_is_named_by_its_first_broker(servers: str, namespace: str) -> None:
    assert topic_name(servers, "orders") == (namespace, "orders")


@pytest.mark.parametrize(
    ("sink", "name"),
    [
        (
            {"type": "postgres", "dsn": "postgresql://u:hunter2@db:5433/shop", "table": "orders"},
            ("postgres://db:5433", "shop.public.orders"),
        ),
        (
            {"type": "postgres", "dsn": "postgresql://u@db/shop", "table": "sales.orders"},
            ("postgres://db:5432", "shop.sales.orders"),
        ),
        (
            {"type": "mysql", "host": "db", "user": "u", "database": "shop", "table": "orders"},
            ("mysql://db:3306", "shop.orders"),
        ),
        ({"type": "delta", "path": "/data/my orders"}, ("file", "/data/my orders")),
        ({"type": "delta", "path": "s3://lake/shop/orders"}, ("s3://lake", "shop/orders")),
        ({"type": "parquet", "path": "/data/orders"}, ("file", "/data/orders")),
        (
            {"type": "iceberg", "table": "shop.orders", "warehouse": "/data/w"},
            ("file", "/data/w/shop/orders"),
        ),
        (
            {"type": "kafka", "bootstrap_servers": "c:9092", "topic": "clean"},
            ("kafka://c:9092", "clean"),
        ),
        (
            {"type": "redis", "url": "redis://u:hunter2@cache:6380/2", "key": ["id"]},
            ("redis://cache:6380", "2.rows"),
        ),
        ({"type": "console"}, ("ConsoleSink", "console")),
    ],
    ids=lambda value: str(value.get("type")) if isinstance(value, dict) else "",
)
def test_a_table_is_named_by_where_it_is(
    sink: dict[str, Any], name: tuple[str, str], tmp_path: Path
) -> None:
    pipeline = Pipeline.from_config({"name": "p", "source": SOURCE, "sink": sink})
    assert written_name(pipeline.sink) == name


def test_the_rest_of_several_tables_is_no_dataset(monkeypatch: pytest.MonkeyPatch) -> None:
    sender = Mock()
    monkeypatch.setattr("eo_pipeline.observers.openlineage._Sender", sender)
    pipeline = Pipeline.from_config(
        {
            "name": "shop",
            "source": {"bootstrap_servers": "a:9092", "topics": ["orders"]},
            "sink": {"type": "postgres", "dsn": "postgresql://db/shop", "schema": "sales"},
            "tables": [{"name": "orders", "where": "key = '1'", "value_schema": "id BIGINT"}],
            "rest": "dead_letter",
        }
    )
    run = ObservedRun(
        *("shop", "1", "forward", pipeline.source, pipeline.sink, pipeline._staging_area(), False)
    )
    LineageEvents(run)
    [event] = (sent.args[0] for sent in sender.return_value.send.call_args_list)
    assert [output.name for output in event.outputs] == ["shop.sales.orders"]
    assert pipeline.sink.qualified_name == "shop.sales.orders"
