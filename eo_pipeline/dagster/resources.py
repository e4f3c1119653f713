"""Spark as a Dagster resource, started only when a run has records to read."""

from __future__ import annotations

import multiprocessing
import sys
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Self

import dagster as dg
from dagster_pyspark import LazyPySparkResource
from pydantic import Field, PrivateAttr

from eo_pipeline._process import this_process_ends
from eo_pipeline.spark import SparkSettings

_PROGRAMS = frozenset({"dg", "dagster"})
#: Subcommands that execute one run or one step: ``asset materialize``, ``job execute``.
_ONE_RUN = frozenset({"launch", "materialize", "execute", "execute_run", "execute_step"})


def is_of_one_run(command: Sequence[str] | None = None) -> bool:
    """Return whether this process, started by ``command``, ends with its run or its step.

    True for processes of Dagster's server and executors, and for the commands that run. A process
    that calls ``materialize`` in a notebook or in tests stays.
    """
    if multiprocessing.parent_process() is not None:
        return True
    program, *words = command or sys.argv
    name = Path(program).name if Path(program).name != "__main__.py" else Path(program).parent.name
    return name in _PROGRAMS and not _ONE_RUN.isdisjoint(words)


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


class SparkDefinition(dg.ResourceDefinition):
    """Spark of one pipeline, distinguished by its class from other resources."""


def spark_definition(settings: SparkSettings) -> SparkDefinition:
    """Return the resource for a pipeline's ``spark`` settings. Runs share one object as long as the
    code location stays loaded: Dagster would otherwise copy it by its public fields.
    """
    resource = LazySpark(lambda: SparkResource.of(settings))
    return SparkDefinition(
        lambda _: resource,
        description="Spark session; started only when a run has records to read.",
    )


class LazySpark:
    """Proxy of dagster-pyspark's resource, built on first access: its import takes a quarter of a
    second, and every run has this resource.
    """

    def __init__(self, build: Callable[[], SparkResource]) -> None:
        self._build = build

    @cached_property
    def _resource(self) -> SparkResource:
        return self._build()

    def __getattr__(self, name: str) -> object:
        if name.startswith("_"):  # Python and Dagster probe every object for such names
            raise AttributeError(name)
        return getattr(self._resource, name)
