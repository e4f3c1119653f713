"""Spark as a Dagster resource, started only when a run has records to read."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import dagster as dg

from eo_pipeline.spark import SparkSettings

if TYPE_CHECKING:
    from eo_pipeline.dagster.spark_resource import SparkResource


class SparkDefinition(dg.ResourceDefinition):
    """Spark of one pipeline, distinguished by its class from other resources."""


def spark_definition(settings: SparkSettings) -> SparkDefinition:
    """Return the resource for a pipeline's ``spark`` settings. Runs share one object as long as the
    code location stays loaded: Dagster would otherwise copy it by its public fields.
    """
    resource = LazySpark(settings)
    return SparkDefinition(
        lambda _: resource,
        description="Spark session; started only when a run has records to read.",
    )


class LazySpark:
    """Proxy of dagster-pyspark's resource, built on first access: its import takes a quarter of a
    second, and every run has this resource.
    """

    def __init__(self, settings: SparkSettings) -> None:
        self._settings = settings

    @cached_property
    def _resource(self) -> SparkResource:
        from eo_pipeline.dagster.spark_resource import SparkResource

        return SparkResource.of(self._settings)

    def __getattr__(self, name: str) -> object:
        if name.startswith("_"):  # Python and Dagster probe every object for such names
            raise AttributeError(name)
        return getattr(self._resource, name)
