"""What many pipelines of one code location have in common."""

from __future__ import annotations

from typing import Literal

import dagster as dg
from pydantic import ConfigDict, Field, PositiveInt


class Fleet(dg.Model):
    """Pipelines that share their sensors and a pool: one question a broker and a store for all.

    Each keeps its assets, checks, jobs and schedule; when it is looked at and what starts a run of
    it is its own document's to say.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field("fleet", pattern=r"^[A-Za-z0-9_]+$", description="Begins the sensors' names.")
    pool: str | None = Field(
        "spark",
        description="Pool of the steps of pipelines that name none themselves, so that its limit "
        "says how many Spark jobs run at once; None: each has a pool of its own.",
    )
    jobs: Literal["shared", "each"] = Field(
        "shared",
        description="Whether rewind, replay, fork, accept_loss, audit and maintain are one job for "
        "all, which asks for the pipeline, or a job of each pipeline. Dagster's daemon asks for "
        "every job again each minute.",
    )
    runs_a_tick: PositiveInt = Field(
        20, description="The most runs one tick asks for; what waits longest comes first."
    )
    sensors: Literal["running", "stopped"] = Field(
        "stopped", description="Whether the fleet's sensors are on before anybody touched them."
    )

    @property
    def sensor_status(self) -> dg.DefaultSensorStatus:
        """``sensors`` as Dagster spells it."""
        return dg.DefaultSensorStatus[self.sensors.upper()]
