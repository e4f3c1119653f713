"""A filter, three derived columns, and a join with a small table."""

from __future__ import annotations

import polars as pl

from benchmarks.suite.countries import COUNTRIES, in_sql
from benchmarks.suite.records import SPARK_SCHEMA, values
from benchmarks.suite.workloads.plain import FLINK_COLUMNS, parsed
from benchmarks.suite.workloads.workload import FlinkJob, StreamingQuery, Workload

_COLUMNS: dict[str, pl.DataType] = {
    "id": pl.Int64(),
    "customer": pl.String(),
    "country": pl.String(),
    "country_name": pl.String(),
    "region": pl.String(),
    "amount_cents": pl.Int64(),
    "at": pl.Datetime("us", "UTC"),
    "note": pl.String(),
}
_COUNTRIES = pl.DataFrame(COUNTRIES, schema=["country", "country_name", "region"], orient="row")


def _rows(frame: pl.DataFrame) -> pl.DataFrame:
    return (
        frame.filter(pl.col("country") != "ZA")
        .join(_COUNTRIES, on="country")
        .with_columns(
            customer=pl.col("customer").str.to_uppercase(),
            amount_cents=(pl.col("amount") * 100).round().cast(pl.Int64),
            at=pl.from_epoch("at_ms", "ms").dt.cast_time_unit("us").dt.replace_time_zone("UTC"),
        )
        .select(*_COLUMNS)
    )


TRANSFORM = Workload(
    key="transform",
    title="A transform, 8 partitions",
    text=(
        "A filter that keeps seven of eight records, three derived columns (a whole number, a text "
        "in capitals, a time), and a join with a table of eight rows."
    ),
    columns=_COLUMNS,
    postgres=(
        "id bigint, customer text, country text, country_name text, region text, "
        "amount_cents bigint, at timestamptz, note text"
    ),
    values=values,
    rows=_rows,
    source={"value_schema": SPARK_SCHEMA},
    transform="benchmarks.suite.programs.transforms:enrich",
    flink=FlinkJob(
        FLINK_COLUMNS,
        "id BIGINT, customer STRING, country STRING, country_name STRING, region STRING, "
        "amount_cents BIGINT, `at` TIMESTAMP(3), note STRING",
        views=[
            f"CREATE TEMPORARY VIEW countries AS SELECT * FROM (VALUES {in_sql()}) "
            "AS t (code, country_name, region)"
        ],
        query=(
            "SELECT /*+ BROADCAST(c) */ id, UPPER(customer), country, country_name, region, "
            "CAST(ROUND(amount * 100) AS BIGINT), CAST(TO_TIMESTAMP_LTZ(at_ms, 3) AS TIMESTAMP(3)),"
            " note FROM records JOIN countries AS c ON country = c.code WHERE country <> 'ZA'"
        ),
        # of a bounded topic: else the join keeps all records in its state
        settings={
            "execution.runtime-mode": "batch",
            # else the planner reads so few bytes with one task, on one core
            "execution.batch.adaptive.auto-parallelism.enabled": "false",
        },
    ),
    streaming=StreamingQuery(
        "SELECT /*+ BROADCAST(countries) */ id, upper(customer) AS customer, country, "
        "country_name, region, CAST(round(amount * 100) AS BIGINT) AS amount_cents, "
        "timestamp_millis(at_ms) AS at, note "
        "FROM records JOIN countries ON country = code WHERE country <> 'ZA'",
        views={
            "records": parsed(SPARK_SCHEMA),
            "countries": f"SELECT * FROM VALUES {in_sql()} AS t (code, country_name, region)",
        },
    ),
    by_hand=True,
)
