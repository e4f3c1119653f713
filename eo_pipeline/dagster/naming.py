"""Names of a pipeline's Dagster objects, all derived here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cached_property
from typing import Any, Literal

import dagster as dg
from pydantic import ConfigDict, Field, NonNegativeFloat, NonNegativeInt, PositiveInt

from eo_pipeline.errors import ConfigError
from eo_pipeline.pipeline import Pipeline


class Freshness(dg.Model, dg.Resolvable):
    """Maximum age of the table's newest checkpoint. A rewind or a replay makes it no newer.

    A run that finds nothing new makes no checkpoint, so this suits topics that never fall silent.
    """

    fail_minutes: PositiveInt = Field(description="Age at which the freshness check fails.")
    warn_minutes: PositiveInt | None = Field(
        None, description="Age at which the freshness check warns."
    )

    def policy(self) -> dg.FreshnessPolicy:
        """Return the Dagster freshness policy."""
        warn = self.warn_minutes
        return dg.FreshnessPolicy.time_window(
            fail_window=timedelta(minutes=self.fail_minutes),
            warn_window=timedelta(minutes=warn) if warn else None,
        )


class Automation(dg.Model, dg.Resolvable):
    """Everything about a pipeline that only Dagster needs. All of it has a default."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    schedule: str | None = Field(None, description="Cron expression of additional runs.")
    schedule_timezone: str = Field("UTC", description="Time zone of the cron expression.")
    maintenance_schedule: str | None = Field(
        None, description="Cron expression of maintenance runs (lake tables only)."
    )
    lag_threshold: PositiveInt | None = Field(
        1, description="Start a run when at least this many offsets wait; null: no lag sensor."
    )
    lag_interval_seconds: PositiveInt = Field(
        30, description="Minimum interval between lag checks."
    )
    lag_wait_seconds: float = Field(
        0.0,
        ge=0.0,
        le=30.0,
        description="How long a tick keeps polling (every 0.5 s) if there is nothing to start. 4.5 "
        "covers nearly the whole interval: Dagster evaluates sensors at most every 5 s.",
    )
    lag_limit: PositiveInt | None = Field(
        None,
        description="Lag in offsets at which the topic check warns; null: the check only reports "
        "whether Kafka is reachable.",
    )
    partition_interval_seconds: PositiveInt = Field(
        60, description="Minimum interval between checks for new Kafka partitions and topics."
    )
    reconcile_interval_seconds: PositiveInt = Field(
        60,
        description="Minimum interval between comparisons of Dagster's event log with the ledger.",
    )
    checkpoint_partitions: PositiveInt = Field(
        1_000,
        description="How many of the newest checkpoints the UI offers; the ledger keeps all.",
    )
    audit_last: PositiveInt = Field(
        10, description="How many of the newest checkpoints the asset check `audit` covers."
    )
    sensors: Literal["running", "stopped"] = Field(
        "stopped",
        description="Default status of sensors and schedules; stopped, as in Dagster itself, "
        "requires switching them on in the UI.",
    )
    retries: NonNegativeInt = Field(
        3,
        description="Maximum retries of a step after a temporary failure of sink or broker.",
    )
    retry_delay_seconds: NonNegativeFloat = Field(
        5.0, description="Delay before the first retry; later delays grow: 5, 15, 35 s."
    )
    group: str | None = Field(None, description="Asset group; the pipeline's name if absent.")
    owners: list[str] = Field([], description="E-mail addresses, or team:name.")
    tags: dict[str, str] = Field({}, description="Tags of the pipeline's assets.")
    description: str | None = Field(None, description="What the table holds, for the catalog.")
    run_tags: dict[str, str] = Field(
        {}, description="Tags of the runs that jobs, schedule and sensors start."
    )
    op_tags: dict[str, Any] = Field(
        {}, description="Tags of the steps, for example dagster-k8s/config or dagster/priority."
    )
    pool: str | None = Field(
        None,
        description="Concurrency pool of the steps; default: a pool per pipeline. Pipelines may "
        "share one.",
    )
    freshness: Freshness | None = Field(None, description="Maximum age of the table.")

    def seconds_before_retry(self, retry: int) -> float:
        """Return the delay before the first, second, ... retry of a step."""
        policy = dg.RetryPolicy(delay=self.retry_delay_seconds, backoff=dg.Backoff.EXPONENTIAL)
        return float(policy.calculate_delay(retry))

    @property
    def sensor_status(self) -> dg.DefaultSensorStatus:
        """Dagster's default status of the sensors."""
        on = self.sensors == "running"
        return dg.DefaultSensorStatus.RUNNING if on else dg.DefaultSensorStatus.STOPPED

    @property
    def schedule_status(self) -> dg.DefaultScheduleStatus:
        """Dagster's default status of the schedules."""
        on = self.sensors == "running"
        return dg.DefaultScheduleStatus.RUNNING if on else dg.DefaultScheduleStatus.STOPPED


class Fleet(dg.Model):
    """Settings of pipelines that share sensors and a pool: one query per broker and store for all.

    Each pipeline keeps its assets, checks, jobs and schedule; its own document sets the intervals
    and the lag that starts a run.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(
        "fleet", pattern=r"^[A-Za-z0-9_]+$", description="Prefix of the sensors' names."
    )
    pool: str | None = Field(
        "spark",
        description="Default pool of the steps; its limit is the number of concurrent Spark jobs. "
        "None: a pool per pipeline.",
    )
    jobs: Literal["shared", "each"] = Field(
        "shared",
        description="Whether rewind, replay, fork, accept_loss, audit and maintain are one shared "
        "job with a pipeline field, or a job per pipeline. Dagster's daemon loads every job each "
        "minute.",
    )
    runs_a_tick: PositiveInt = Field(
        20,
        description="Maximum number of runs per tick; the longest-waiting pipelines come first.",
    )
    sensors: Literal["running", "stopped"] = Field(
        "stopped", description="Default status of the fleet's sensors."
    )

    @property
    def sensor_status(self) -> dg.DefaultSensorStatus:
        """Dagster's default status of the fleet's sensors."""
        return dg.DefaultSensorStatus[self.sensors.upper()]


#: Kinds of a pipeline's assets; a ``member`` is one of several tables.
AssetKind = Literal["table", "offsets", "checkpoints", "member"]

#: Changes the default spec of an asset: its key, group, owners ...
Translation = Callable[[dg.AssetSpec, AssetKind], dg.AssetSpec]

#: Run tag with the pipeline's name. Jobs set it; the step adds it to runs started elsewhere.
PIPELINE_TAG = "eo/pipeline"

#: Run tag of a run that does not ingest: a rewind, a replay, an audit ...
OPERATION_TAG = "eo/operation"

#: Operations that do not move the ledger, so that no other run waits for them.
AUDIT, MAINTAIN = "audit", "maintain"
LEDGER_KEEPING = frozenset({AUDIT, MAINTAIN})

#: Configuration field of a fleet's jobs that selects the pipeline.
PIPELINE = "pipeline"

#: Prefix of the names of all steps.
OP_PREFIX = "eo_"

#: Asset group of the topics: a topic is shared by all pipelines that read it.
TOPIC_GROUP = "kafka"


@dataclass(frozen=True)
class DagsterPipeline:
    """A pipeline, its automation, and the names of its Dagster objects."""

    pipeline: Pipeline
    automation: Automation
    translation: Translation | None = None
    #: Attributes of the YAML document, with templates; None for a pipeline declared in Python.
    document: Mapping[str, Any] | None = field(default=None, repr=False, compare=False)
    #: Fleet whose sensors check the pipeline; None: its own sensors do.
    fleet: Fleet | None = None

    @cached_property
    def identifier(self) -> str:
        """The name as an identifier; Dagster allows letters, digits and underscores only."""
        return self.pipeline.name.replace("-", "_")

    @cached_property
    def table(self) -> dg.AssetKey:
        """Key of the table asset, or of all tables together: the pipeline's name."""
        return self._key("table")

    @cached_property
    def members(self) -> dict[str, dg.AssetKey]:
        """Keys of the assets of single tables, by the table's name, if the pipeline has several."""
        with_rows = [table for table in self.pipeline.tables if not table.takes_rest]
        return {table.name: self.member(table.name) for table in with_rows}

    def member(self, name: str) -> dg.AssetKey:
        """Return the key of one of several tables; where tables appear, it is declared nowhere."""
        return self._key("member", name)

    @cached_property
    def offsets(self) -> dg.AssetKey:
        """Key of the versioned offset asset, which mirrors the ledger."""
        return self._key("offsets")

    @cached_property
    def checkpoints(self) -> dg.AssetKey:
        """Key of the asset of the checkpoints with rows, one partition each."""
        return self._key("checkpoints")

    @property
    def name(self) -> str:
        """Name of the pipeline."""
        return self.pipeline.name

    def spec(self, kind: AssetKind, member: str | None = None, **attributes: Any) -> dg.AssetSpec:
        """Return the spec of an asset, translated; ``member`` names one of several tables.

        Raises:
            ConfigError: the translation yields one key for the whole spec and another for the key
                alone, so that events and checks would miss the asset.
        """
        default, key = self._default_key(kind, member), self._key(kind, member)
        spec = self._translated(dg.AssetSpec(default, **attributes), kind)
        if spec.key != key:
            raise ConfigError(
                f"translation: {default.to_user_string()!r} became both {key.to_user_string()!r} "
                f"and {spec.key.to_user_string()!r}. Derive the new key from spec.key only."
            )
        return spec

    def _default_key(self, kind: AssetKind, member: str | None = None) -> dg.AssetKey:
        name = self.pipeline.name
        if member is not None:
            return dg.AssetKey([name, member])
        return dg.AssetKey(name if kind == "table" else f"{name}_{kind}")

    def _key(self, kind: AssetKind, member: str | None = None) -> dg.AssetKey:
        return self._translated(dg.AssetSpec(self._default_key(kind, member)), kind).key

    def _translated(self, spec: dg.AssetSpec, kind: AssetKind) -> dg.AssetSpec:
        return self.translation(spec, kind) if self.translation else spec

    @property
    def partitions(self) -> str:
        """Name of Dagster's dynamic partitions of :attr:`checkpoints`; unique per instance."""
        return f"{self.pipeline.name}_checkpoints"

    @cached_property
    def topics(self) -> tuple[dg.AssetKey, ...]:
        """Keys of the upstream topics, which no step materializes.

        The topics of a pattern are unknown until Kafka is queried: one asset stands for all.
        """
        source = self.pipeline.source
        names = source.topics or (f"{self.pipeline.name}_topics",)
        return tuple(dg.AssetKey([TOPIC_GROUP, name]) for name in names)

    def topics_of(self, member: str) -> tuple[dg.AssetKey, ...]:
        """Return the keys of the topics of one of several tables."""
        sources = {table.name: table.source for table in self.pipeline.tables}
        source = sources.get(member)
        return tuple(map(self.topic, source.topics)) if source and source.topics else self.topics

    def topic(self, name: str) -> dg.AssetKey:
        """Return the key of the asset of the topic ``name``."""
        by_pattern = self.pipeline.source.topic_pattern is not None
        return self.topics[0] if by_pattern else dg.AssetKey([TOPIC_GROUP, name])

    @property
    def group(self) -> str:
        return self.automation.group or self.identifier

    @property
    def checkpoints_group(self) -> str:
        """Separate group of the checkpoints: "Materialize all" in :attr:`group` would ask for
        partitions.
        """
        return f"{self.group}_checkpoints"

    @property
    def op(self) -> str:
        """Name of the forward step."""
        return f"{OP_PREFIX}{self.identifier}"

    @property
    def pool(self) -> str:
        """Concurrency pool in which the pipeline's steps wait for each other and the fleet's."""
        return self.automation.pool or (self.fleet.pool if self.fleet else None) or self.op

    @property
    def lag_sensor(self) -> str:
        """Name of the sensor that checks the lag."""
        return f"{self.fleet.name if self.fleet else self.identifier}_lag"

    @property
    def job(self) -> str:
        return f"{self.identifier}_job"

    @property
    def shares_jobs(self) -> bool:
        """True if the operator jobs are the fleet's. False if the document sets a pool or tags of
        the steps, which a shared job could not apply.
        """
        fleet, automation = self.fleet, self.automation
        if fleet is None or fleet.pool is None or fleet.jobs == "each":
            return False
        return not (automation.pool or automation.run_tags or automation.op_tags)

    def job_of(self, operation: str) -> str:
        """Return the name of the job that rewinds, replays, audits ... this pipeline."""
        prefix = self.fleet.name if self.fleet and self.shares_jobs else self.identifier
        return f"{prefix}_{operation}"

    @property
    def chosen(self) -> dict[str, str]:
        """Configuration of :meth:`job_of` that selects this pipeline."""
        return {PIPELINE: self.pipeline.name} if self.shares_jobs else {}

    @property
    def spark(self) -> str:
        """Name of the Spark resource. One per pipeline: several pipelines' definitions are merged,
        and each may use another Spark.
        """
        return f"{self.identifier}_spark"

    @property
    def identity_tags(self) -> dict[str, str]:
        """Tag of every run of the pipeline, however it was started."""
        return {PIPELINE_TAG: self.pipeline.name}

    @property
    def run_tags(self) -> dict[str, str]:
        return self.automation.run_tags | self.identity_tags

    def run_tags_of(self, operation: str) -> dict[str, str]:
        """Return the tags of runs of an operator job."""
        return self.run_tags | {OPERATION_TAG: operation}


def topic_spec(key: dg.AssetKey) -> dg.AssetSpec:
    """Return the spec of a topic as an external asset. It contains only what the key determines,
    because Dagster requires equal specs from all pipelines that read the topic.
    """
    return dg.AssetSpec(
        key, description=f"Kafka topic {key.path[-1]!r}.", group_name=TOPIC_GROUP, kinds={"kafka"}
    )
