"""Spark: where it runs, what it is started with, and what its failures mean."""

from eo_pipeline.spark.failures import SPARK_ERRORS, job_error, server_is_lost
from eo_pipeline.spark.interrupts import interruptible
from eo_pipeline.spark.session import (
    CONNECTOR,
    JARS_VARIABLE,
    STAGING_SETTINGS,
    TESTED_WITH,
    SparkProvider,
    SparkSettings,
)

__all__ = [
    "CONNECTOR",
    "JARS_VARIABLE",
    "SPARK_ERRORS",
    "STAGING_SETTINGS",
    "TESTED_WITH",
    "SparkProvider",
    "SparkSettings",
    "interruptible",
    "job_error",
    "server_is_lost",
]
