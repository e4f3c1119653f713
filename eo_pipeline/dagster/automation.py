"""How Dagster is to run a pipeline: when, how often it looks, how the assets present themselves."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Literal

import dagster as dg
from pydantic import ConfigDict, Field, NonNegativeFloat, NonNegativeInt, PositiveInt


class Freshness(dg.Model, dg.Resolvable):
    """How old the table's newest checkpoint may be. A rewind or a replay makes it no newer.

    A run that finds nothing new makes no checkpoint, so this suits topics that never fall silent.
    """

    fail_minutes: PositiveInt = Field(description="Older than this: the asset is failing.")
    warn_minutes: PositiveInt | None = Field(None, description="Older than this: a warning.")

    def policy(self) -> dg.FreshnessPolicy:
        """The same as Dagster states it."""
        warn = self.warn_minutes
        return dg.FreshnessPolicy.time_window(
            fail_window=timedelta(minutes=self.fail_minutes),
            warn_window=timedelta(minutes=warn) if warn else None,
        )


class Automation(dg.Model, dg.Resolvable):
    """Everything about a pipeline that only Dagster needs. All of it has a default."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    schedule: str | None = Field(None, description="Cron expression; runs at these times too.")
    schedule_timezone: str = Field("UTC", description="Time zone of the cron expression.")
    maintenance_schedule: str | None = Field(
        None, description="Cron expression; a lake table's files are put in order at these times."
    )
    lag_threshold: PositiveInt | None = Field(
        1, description="Start a run when at least this many offsets wait; null: no lag sensor."
    )
    lag_interval_seconds: PositiveInt = Field(30, description="How often the lag is looked at.")
    lag_wait_seconds: float = Field(
        0.0,
        ge=0.0,
        le=30.0,
        description="For how long a tick that starts no run goes on looking, twice a second; 4.5 "
        "is nearly until the next, since Dagster evaluates sensors every five seconds at most.",
    )
    lag_limit: PositiveInt | None = Field(
        None,
        description="The check of the topic warns when so many offsets wait, or more; null: it "
        "only says whether Kafka answers.",
    )
    partition_interval_seconds: PositiveInt = Field(
        60, description="How often new Kafka partitions and topics are looked for."
    )
    reconcile_interval_seconds: PositiveInt = Field(
        60, description="How often Dagster's event log is compared with the ledger."
    )
    checkpoint_partitions: PositiveInt = Field(
        1_000,
        description="The newest so many checkpoints can be picked in the UI; the ledger keeps all.",
    )
    audit_last: PositiveInt = Field(
        10, description="How many checkpoints, the newest, the asset check `audit` looks at."
    )
    sensors: Literal["running", "stopped"] = Field(
        "stopped",
        description="Whether sensors and schedule are on before anybody touched them; stopped, as "
        "in Dagster itself, they wait for somebody to switch them on.",
    )
    retries: NonNegativeInt = Field(
        3, description="How often a step tries again when sink or broker was away for a moment."
    )
    retry_delay_seconds: NonNegativeFloat = Field(
        5.0, description="The wait before the first retry; each further one doubles it."
    )
    group: str | None = Field(None, description="Asset group; the pipeline's name if absent.")
    owners: list[str] = Field([], description="E-mail addresses, or team:name.")
    tags: dict[str, str] = Field({}, description="Tags of the pipeline's two assets.")
    description: str | None = Field(None, description="What the table holds, for the catalog.")
    run_tags: dict[str, str] = Field(
        {}, description="Tags of the runs that jobs, schedule and sensors start."
    )
    op_tags: dict[str, Any] = Field(
        {}, description="Tags of the steps, for example dagster-k8s/config or dagster/priority."
    )
    pool: str | None = Field(
        None,
        description="Pool of the steps, of which its limit lets some run at a time; one of the "
        "pipeline's own if absent. Pipelines may share one.",
    )
    freshness: Freshness | None = Field(None, description="How old the table may become.")

    def seconds_before_retry(self, retry: int) -> float:
        """The wait before the first, second, ... retry of a step."""
        policy = dg.RetryPolicy(delay=self.retry_delay_seconds, backoff=dg.Backoff.EXPONENTIAL)
        return float(policy.calculate_delay(retry))

    @property
    def sensor_status(self) -> dg.DefaultSensorStatus:
        """``sensors`` as Dagster spells it."""
        on = self.sensors == "running"
        return dg.DefaultSensorStatus.RUNNING if on else dg.DefaultSensorStatus.STOPPED

    @property
    def schedule_status(self) -> dg.DefaultScheduleStatus:
        """``sensors`` as Dagster spells it for schedules."""
        on = self.sensors == "running"
        return dg.DefaultScheduleStatus.RUNNING if on else dg.DefaultScheduleStatus.STOPPED
