"""Spark: where it runs, what it is started with, and what its failures mean."""

from eo_pipeline.spark.failures import SPARK_ERRORS, job_error, server_is_lost
from eo_pipeline.spark.interrupts import interruptible
from eo_pipeline.spark.metrics import metrics_of
from eo_pipeline.spark.session import (
    CONNECTOR,
    JARS_VARIABLE,
    TESTED_WITH,
    SparkProvider,
    SparkSettings,
)
from eo_pipeline.spark.staging import STAGING_SETTINGS, staging_settings

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
    "metrics_of",
    "server_is_lost",
    "staging_settings",
]
