"""Pipelines as Dagster assets: thin wrappers around :mod:`eo_pipeline`, which decides everything.

Dagster's event log mirrors the ledger in the sink. It is never read to decide what comes next, so
a lost Dagster instance loses nothing.
"""

import warnings

from eo_pipeline.dagster.component import KafkaPipelineComponent
from eo_pipeline.dagster.definitions import load_pipelines, pipeline_definitions
from eo_pipeline.dagster.naming import Automation, Fleet, Freshness

__all__ = [
    "Automation",
    "Fleet",
    "Freshness",
    "KafkaPipelineComponent",
    "load_pipelines",
    "pipeline_definitions",
]

# of dagster-spark, which dagster-pyspark brings along: every command of `dg` would print it
warnings.filterwarnings("ignore", message="Class `SparkDeclarativePipelineScaffolder`")
