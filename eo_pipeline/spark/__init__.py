"""Spark: where it runs, what it is started with, and what its failures mean."""

from eo_pipeline.spark.cores import cores
from eo_pipeline.spark.failures import SPARK_ERRORS, job_error, server_is_lost
from eo_pipeline.spark.interrupts import interruptible
from eo_pipeline.spark.launch import AVRO, CONNECTOR, JARS_VARIABLE, TESTED_WITH
from eo_pipeline.spark.left_jobs import end_left_job, session_on_server
from eo_pipeline.spark.observed import ACTION, Observed
from eo_pipeline.spark.paths import path_to_read, path_to_write
from eo_pipeline.spark.schemas import with_known_schema, with_schema_asked_once
from eo_pipeline.spark.session import SparkProvider, SparkSettings
from eo_pipeline.spark.staging import STAGING_SETTINGS, staging_settings

__all__ = [
    "ACTION",
    "AVRO",
    "CONNECTOR",
    "JARS_VARIABLE",
    "SPARK_ERRORS",
    "STAGING_SETTINGS",
    "TESTED_WITH",
    "Observed",
    "SparkProvider",
    "SparkSettings",
    "cores",
    "end_left_job",
    "interruptible",
    "job_error",
    "path_to_read",
    "path_to_write",
    "server_is_lost",
    "session_on_server",
    "staging_settings",
    "with_known_schema",
    "with_schema_asked_once",
]
