"""Pipelines as Dagster assets: thin wrappers around :mod:`eo_pipeline`, which decides everything.

Dagster's event log mirrors the ledger in the sink. It is never read to decide what comes next, so
a lost Dagster instance loses nothing.
"""

from dagster_defs.automation import Automation, Freshness
from dagster_defs.component import KafkaPipelineComponent
from dagster_defs.factory import pipeline_definitions
from dagster_defs.loading import load_pipelines

__all__ = [
    "Automation",
    "Freshness",
    "KafkaPipelineComponent",
    "load_pipelines",
    "pipeline_definitions",
]
