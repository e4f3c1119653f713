"""The jobs that people start on purpose: of each pipeline, or of a fleet."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import dagster as dg

from eo_pipeline.dagster.audit import AUDITING
from eo_pipeline.dagster.fleet import Fleet
from eo_pipeline.dagster.going_back import ACCEPTING_LOSS, FORKING, REPLAYING, REWINDING
from eo_pipeline.dagster.maintain import MAINTAINING
from eo_pipeline.dagster.names import DagsterPipeline
from eo_pipeline.dagster.one_step import LaunchpadJob, job_of, job_of_many

OPERATIONS: tuple[LaunchpadJob[Any], ...] = (
    REWINDING,
    REPLAYING,
    FORKING,
    ACCEPTING_LOSS,
    AUDITING,
    MAINTAINING,
)


def build_operations(declared: DagsterPipeline) -> list[dg.JobDefinition]:
    """``<pipeline>_rewind`` and so on; none where the fleet has them."""
    return [] if declared.shares_jobs else [job_of(declared, each) for each in OPERATIONS]


def build_fleet_operations(
    fleet: Fleet, members: Sequence[DagsterPipeline]
) -> list[dg.JobDefinition]:
    """``<fleet>_rewind`` and so on, for those of ``members`` that have none of their own.

    A job of its own for each would be asked for by Dagster's daemon every minute: six for each of
    200 pipelines took more of a processor than everything else together.
    """
    sharing = [each for each in members if each.shares_jobs]
    return [job_of_many(fleet, sharing, each) for each in OPERATIONS] if sharing else []
