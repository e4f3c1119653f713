"""Spark as a Dagster resource, started only when a run has something to read."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING

import dagster as dg

from eo_pipeline.spark import SparkSettings

if TYPE_CHECKING:
    from eo_pipeline.dagster.spark_session import SparkResource


class SparkDefinition(dg.ResourceDefinition):
    """The Spark of one pipeline, told from whatever else a code location has for resources."""


def spark_definition(settings: SparkSettings) -> SparkDefinition:
    """The resource for a pipeline's ``spark`` settings. Runs share one object, as long as the code
    location stays loaded: Dagster would otherwise copy it by its public fields.
    """
    later = SparkLater(lambda: _resource(settings))
    return SparkDefinition(
        lambda _: later,
        description="Spark. Starts when a run has something to read, not before.",
    )


def _resource(settings: SparkSettings) -> SparkResource:
    from eo_pipeline.dagster.spark_session import SparkResource

    return SparkResource.of(settings)


class SparkLater:
    """Stands for dagster-pyspark's resource, which is made when something of it is asked for: its
    import takes a quarter of a second, and every run has this resource.
    """

    def __init__(self, make: Callable[[], SparkResource]) -> None:
        self._make = make

    @cached_property
    def _made(self) -> SparkResource:
        return self._make()

    def __getattr__(self, name: str) -> object:
        if name.startswith("_"):  # Python and Dagster ask everything for some of these
            raise AttributeError(name)
        return getattr(self._made, name)
