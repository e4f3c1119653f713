"""dagster-pyspark's resource with the engine's session. A file of its own: its import takes a
quarter of a second, and a run with nothing to read does without.
"""

from __future__ import annotations

from typing import Self

from dagster_pyspark import LazyPySparkResource
from pydantic import Field, PrivateAttr

from eo_pipeline._process import this_process_ends
from eo_pipeline.dagster.processes import is_of_one_run
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
        """Return the resource for a pipeline's ``spark`` settings."""
        resource = cls()
        resource._settings = settings
        return resource

    def _init_session(self) -> None:
        # the parent's only hook; its own session would lack the pinned connector, and would be kept
        # after its server has gone
        if is_of_one_run():
            this_process_ends()
        self._spark_session = self._settings.session()
