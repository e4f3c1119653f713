"""Which pipelines are a fleet's: those that are defined while its folder is loaded."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace

from eo_pipeline.dagster.fleet import Fleet
from eo_pipeline.dagster.names import DagsterPipeline


@contextmanager
def gathering(fleet: Fleet | None) -> Iterator[list[DagsterPipeline]]:
    """Pipelines that are defined within belong to ``fleet``, and are in the list in the end."""
    members: list[DagsterPipeline] = []
    token = _GATHERED.set((fleet, members) if fleet else None)
    try:
        yield members
    finally:
        _GATHERED.reset(token)


def joined(declared: DagsterPipeline) -> DagsterPipeline:
    """``declared`` as a member of the fleet that is being gathered; itself if none is."""
    gathered = _GATHERED.get()
    if gathered is None:
        return declared
    fleet, members = gathered
    member = replace(declared, fleet=fleet)
    members.append(member)
    return member


_GATHERED: ContextVar[tuple[Fleet, list[DagsterPipeline]] | None] = ContextVar(
    "gathered", default=None
)
