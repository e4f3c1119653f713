"""dagster-pyspark's resource with the engine's session, which imports pyspark."""

from __future__ import annotations

from typing import Self

from dagster_pyspark import LazyPySparkResource
from pydantic import Field, PrivateAttr

from eo_pipeline.dagster.processes import is_of_one_run
from eo_pipeline.lifetime import this_process_ends
from eo_pipeline.spark import SparkSettings


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

    def _init_session(self) -> None:
        # the parent's one hook: it would build a session without the pinned connector, and keep it
        # when its server is gone
        if is_of_one_run():
            this_process_ends()
        self._spark_session = self._settings.session()
