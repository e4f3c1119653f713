"""Spark as a Dagster resource, started only when a run has something to read."""

from __future__ import annotations

from typing import Self

import dagster as dg
from dagster_pyspark import LazyPySparkResource
from pydantic import Field, PrivateAttr

from eo_pipeline.dagster.processes import is_of_one_run
from eo_pipeline.lifetime import this_process_ends
from eo_pipeline.spark import SparkSettings


class SparkDefinition(dg.ResourceDefinition):
    """The Spark of one pipeline, told from whatever else a code location has for resources."""


class SparkResource(LazyPySparkResource):
    """dagster-pyspark's lazy resource with the engine's session: connector, memory, time zone.

    The settings are private on purpose: Dagster shows a resource's fields in the UI and stores
    them with every run, and Spark settings may hold credentials.
    """

    spark_config: dict[str, str] = Field(default_factory=dict)
    _settings: SparkSettings = PrivateAttr(default_factory=SparkSettings)

    @classmethod
    def of(cls, settings: SparkSettings) -> Self:
        """The resource for a pipeline's ``spark`` settings."""
        resource = cls()
        resource._settings = settings
        return resource

    def definition(self) -> dg.ResourceDefinition:
        """This very object as a resource: Dagster would otherwise copy it by its public fields."""
        return SparkDefinition(
            lambda _: self,
            description="Spark. Starts when a run has something to read, not before.",
        )

    def _init_session(self) -> None:
        # the parent's one hook: it would build a session without the pinned connector, and keep it
        # when its server is gone
        if is_of_one_run():
            this_process_ends()
        self._spark_session = self._settings.session()
