"""Pipelines as Dagster assets: thin wrappers around :mod:`eo_pipeline`, which decides everything.

Dagster's event log mirrors the ledger in the sink. It is never read to decide what comes next, so
a lost Dagster instance loses nothing.
"""

from eo_pipeline.dagster.automation import Automation, Freshness
from eo_pipeline.dagster.component import KafkaPipelineComponent
from eo_pipeline.dagster.factory import pipeline_definitions
from eo_pipeline.dagster.fleet import Fleet
from eo_pipeline.dagster.loading import load_pipelines

__all__ = [
    "Automation",
    "Fleet",
    "Freshness",
    "KafkaPipelineComponent",
    "load_pipelines",
    "pipeline_definitions",
]
