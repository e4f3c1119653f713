"""Documents of pipelines with several tables: what is refused, in which words."""

from __future__ import annotations

from typing import Any

import pytest

from eo_pipeline.errors import ConfigError
from eo_pipeline.pipeline import Pipeline

CUSTOMERS = {
    "name": "customers",
    "topics": ["customers"],
    "value_schema": "id BIGINT",
    "mode": "upsert",
    "key": ["id"],
}
CONFIG: dict[str, Any] = {
    "name": "shop",
    "source": {"bootstrap_servers": "localhost:9092", "topics": ["orders", "customers"]},
    "sink": {"type": "postgres", "dsn": "postgresql://localhost/shop", "schema": "sales"},
    "tables": [
        {"name": "orders", "topics": "orders", "value_schema": "id BIGINT"},
        CUSTOMERS,
    ],
}


def test_each_table_has_the_fields_of_source_and_sink_and_its_own() -> None:
    pipeline = Pipeline.from_config(CONFIG)
    orders, customers = pipeline.tables
    assert pipeline.source.topics == ("orders", "customers")
    assert orders.source is not None
    assert customers.source is not None
    assert (orders.source.topics, customers.source.topics) == (("orders",), ("customers",))
    assert pipeline.sink.table_name == "sales.orders, sales.customers"
    assert not pipeline.sink.keeps_every_row


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"transform": "a:b"}, "transform: each of tables has its own"),
        (
            {"tables": [{"name": "a", "value_schema": "id BIGINTT"}]},
            "tables.0.value_schema: .*BIGINTT",
        ),
        ({"tables": [{"name": "a"}]}, "tables.0: value_format json needs either registry or"),
        ({"tables": [{"name": "a", "topic": "x"}]}, "tables.0.topic: .*did you mean topics"),
        (
            {"tables": [CONFIG["tables"][0], CONFIG["tables"][0]]},
            "tables: two tables have the name orders",
        ),
        (
            {"tables": [{**table, "dead_letter_table": "bad"} for table in CONFIG["tables"]]},
            "tables: two of them write rows or dead letters into sales.bad",
        ),
        (
            {
                "tables": [
                    {**CONFIG["tables"][0], "dead_letter_table": "sales.customers"},
                    CONFIG["tables"][1],
                ]
            },
            "tables: two of them write rows or dead letters into sales.customers",
        ),
        (
            {"tables": [{"name": "a", "topics": "x", "value_schema": "id BIGINT"}]},
            "tables: table a takes x, which source.topics does not name",
        ),
        (
            {"sink": {"type": "delta", "path": "x"}},
            "sink: delta cannot fill several tables: a Delta Lake commit covers one table",
        ),
        (
            {"sink": {"type": "parquet", "path": "x"}},
            "sink: parquet cannot fill several tables: files in several folders",
        ),
        (
            {"sink": {**CONFIG["sink"], "table": "orders"}},
            "sink: table: not allowed with tables, each of which has a name",
        ),
    ],
)
def test_a_wrong_document_is_refused_in_words(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Pipeline.from_config({**CONFIG, **changes})
