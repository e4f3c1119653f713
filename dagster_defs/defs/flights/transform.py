"""Flights joined with their airline."""

from __future__ import annotations

import functools

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from dagster_defs.defs.flights.reference import airlines

#: A flight counts as delayed from this many minutes on, as the US Department of Transportation
#: counts.
DELAYED_MINUTES = 15


def enrich(flights: DataFrame) -> DataFrame:
    """Return one row per flight, with the columns in reading order; no flight is lost by the join.

    The aircraft is a row of another table of the pipeline: ``flights left join planes using
    (tailnum)``.
    """
    airline_frame = flights.sparkSession.createDataFrame(_airlines())
    joined = flights.join(F.broadcast(airline_frame), "carrier", "left")
    return joined.select(
        "flight_id",
        F.make_date("year", "month", "day").alias("date"),
        *("carrier", "airline", "flight", "tailnum", "origin", "dest", "distance"),
        _local_time("sched_dep_time").alias("scheduled_departure"),
        F.col("time_hour").alias("scheduled_hour_utc"),
        *("dep_delay", "arr_delay", "air_time"),
        F.col("dep_time").isNull().alias("cancelled"),
        (F.col("arr_delay") >= DELAYED_MINUTES).alias("delayed"),
        _miles_per_hour().alias("speed_mph"),
        "_kafka",
    )


def _local_time(hhmm: str) -> Column:
    """Format 1545 as 15:45: departure times are local and have no date."""
    digits = F.lpad(F.col(hhmm).cast("string"), 4, "0")
    return F.concat_ws(":", F.left(digits, F.lit(2)), F.right(digits, F.lit(2)))


def _miles_per_hour() -> Column:
    return F.round(F.col("distance") * 60 / F.nullif(F.col("air_time"), F.lit(0)), 1)


@functools.cache
def _airlines() -> pa.Table:
    return airlines().select(["carrier", "name"]).rename_columns(["carrier", "airline"])
