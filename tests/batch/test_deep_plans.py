"""A schema of many columns and a transform of many steps make a deep plan, and are counted."""

from __future__ import annotations

import json

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tests.support.engine import Bench

COLUMNS = 60


def many_steps(df: DataFrame) -> DataFrame:
    for number in range(40):
        df = df.withColumn(f"c{number}", F.col(f"c{number}") + 1)
    return df


def test_what_a_deep_plan_reads_is_counted_where_offsets_have_holes(bench: Bench) -> None:
    names = ["id", *(f"c{number}" for number in range(COLUMNS))]
    schema = ", ".join(f"{name} BIGINT" for name in names)
    producer = bench.topic.producer(**{"transactional.id": "holes"})
    producer.init_transactions()
    for id_ in range(2):  # the end of each transaction is an offset without a record
        producer.begin_transaction()
        bench.topic.send(producer, json.dumps(dict.fromkeys(names, id_)).encode(), 0)
        producer.commit_transaction()
    report = bench.pipeline(source={"value_schema": schema}, transform=many_steps).run()
    assert (report.rows, report.lag) == (2, 0)
    rows = bench.table.query("select id, c0, c39, c40 from events order by id")
    assert [*map(tuple, rows)] == [(0, 1, 1, 0), (1, 2, 2, 1)]
