"""Spark as a Dagster resource, started only when a run has something to read."""

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
#: Their words for one run, or one step of it; ``asset materialize``, ``job execute``.
_ONE_RUN = frozenset({"launch", "materialize", "execute", "execute_run", "execute_step"})


def is_of_one_run(command: Sequence[str] | None = None) -> bool:
    """Whether this process, which was started by ``command``, ends with its run, or its step.

    So do those that Dagster's server and its executors start, and its commands that run. Whoever
    calls ``materialize`` in a notebook, or in tests, has a process that stays.
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


class SparkDefinition(dg.ResourceDefinition):
    """The Spark of one pipeline, told from whatever else a code location has for resources."""


def spark_definition(settings: SparkSettings) -> SparkDefinition:
    """The resource for a pipeline's ``spark`` settings. Runs share one object, as long as the code
    location stays loaded: Dagster would otherwise copy it by its public fields.
    """
    later = SparkLater(lambda: _resource(settings))
    return SparkDefinition(
        lambda _: later,
        description="Spark session; started only when a run has records to read.",
    )


def _resource(settings: SparkSettings) -> SparkResource:

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
