"""Spark: sessions, start-up settings, interruption and errors."""

from typing import TYPE_CHECKING

from eo_pipeline import _lazy

if TYPE_CHECKING:
    from eo_pipeline.spark.errors import SPARK_ERRORS, job_error, server_is_lost
    from eo_pipeline.spark.interrupts import end_left_job, interruptible, session_on_server
    from eo_pipeline.spark.launch import (
        AVRO,
        CONNECTOR,
        JARS_VARIABLE,
        STAGING_SETTINGS,
        TESTED_WITH,
        keep_staging_settings,
        parquet_options,
        staging_settings,
    )
    from eo_pipeline.spark.modules import send_modules
    from eo_pipeline.spark.observation import ACTION, Observed
    from eo_pipeline.spark.paths import as_written, options_of, path_to_read, path_to_write
    from eo_pipeline.spark.schemas import with_known_schema, with_schema_asked_once
    from eo_pipeline.spark.session import SparkProvider, SparkSettings

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
    "as_written",
    "end_left_job",
    "interruptible",
    "job_error",
    "keep_staging_settings",
    "options_of",
    "parquet_options",
    "path_to_read",
    "path_to_write",
    "send_modules",
    "server_is_lost",
    "session_on_server",
    "staging_settings",
    "with_known_schema",
    "with_schema_asked_once",
]

#: Lazy imports: a run without new records saves the import of pyspark, a sixth of a second.
_HOMES = {
    "eo_pipeline.spark.schemas": (
        "with_known_schema",
        "with_schema_asked_once",
    ),
    "eo_pipeline.spark.errors": (
        "SPARK_ERRORS",
        "job_error",
        "server_is_lost",
    ),
    "eo_pipeline.spark.interrupts": (
        "end_left_job",
        "interruptible",
        "session_on_server",
    ),
    "eo_pipeline.spark.launch": (
        "AVRO",
        "CONNECTOR",
        "JARS_VARIABLE",
        "STAGING_SETTINGS",
        "TESTED_WITH",
        "keep_staging_settings",
        "parquet_options",
        "staging_settings",
    ),
    "eo_pipeline.spark.modules": ("send_modules",),
    "eo_pipeline.spark.observation": (
        "ACTION",
        "Observed",
    ),
    "eo_pipeline.spark.paths": (
        "as_written",
        "options_of",
        "path_to_read",
        "path_to_write",
    ),
    "eo_pipeline.spark.session": (
        "SparkProvider",
        "SparkSettings",
    ),
}

__getattr__ = _lazy.finder(__name__, _HOMES)
