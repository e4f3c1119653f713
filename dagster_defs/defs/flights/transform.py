"""Flights joined with their airline and aircraft."""

from __future__ import annotations

import functools

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from dagster_defs.defs.flights.reference import airlines, planes

#: A flight counts as delayed from this many minutes on, as the US Department of Transportation
#: counts.
DELAYED_MINUTES = 15


def enrich(flights: DataFrame) -> DataFrame:
    """Return one row per flight, with the columns in reading order; no flight is lost by the joins.

    2,512 flights have no aircraft (they never left), and the aircraft table lacks some tail
    numbers: both joins are left joins.
    """
    spark = flights.sparkSession
    airline_frame = spark.createDataFrame(_airlines())
    plane_frame = spark.createDataFrame(_planes())
    joined = flights.join(F.broadcast(airline_frame), "carrier", "left").join(
        F.broadcast(plane_frame), "tailnum", "left"
    )
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
        *("manufacturer", "model", "seats", "engines", "built"),
        (F.col("year") - F.col("built")).alias("aircraft_age"),
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


@functools.cache
def _planes() -> pa.Table:
    facts = ["tailnum", "manufacturer", "model", "seats", "engines", "year"]
    return planes().select(facts).rename_columns([*facts[:-1], "built"])
