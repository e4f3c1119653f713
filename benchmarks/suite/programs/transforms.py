"""The transforms of eo-pipeline's documents."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from benchmarks.suite.countries import in_sql


def enrich(df: DataFrame) -> DataFrame:
    """Filter, three derived columns, and a join with a small table."""
    countries = df.sparkSession.sql(
        f"SELECT * FROM VALUES {in_sql()} AS t (country, country_name, region)"
    )
    return (
        df.where("country <> 'ZA'")
        .join(F.broadcast(countries), "country")
        .select(
            "id",
            F.upper("customer").alias("customer"),
            "country",
            "country_name",
            "region",
            F.expr("CAST(round(amount * 100) AS BIGINT)").alias("amount_cents"),
            F.expr("timestamp_millis(at_ms)").alias("at"),
            "note",
            "_kafka",
        )
    )
