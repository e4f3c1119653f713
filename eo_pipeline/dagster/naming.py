"""What things are called in Dagster, derived from the pipeline in one place."""

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
    """How old the table's newest checkpoint may be. A rewind or a replay makes it no newer.

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
        "covers nearly the whole interval, since Dagster evaluates sensors every 5 s at most.",
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
        5.0, description="Delay before the first retry; doubled for each further one."
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
        description="Concurrency pool of the steps; default: a pool per pipeline. Pipelines may "
        "share one.",
    )
    freshness: Freshness | None = Field(None, description="Maximum age of the table.")

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


class Fleet(dg.Model):
    """Pipelines that share their sensors and a pool: one question a broker and a store for all.

    Each keeps its assets, checks, jobs and schedule; when it is looked at and what starts a run of
    it is its own document's to say.
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
        """``sensors`` as Dagster spells it."""
        return dg.DefaultSensorStatus[self.sensors.upper()]


#: The assets of a pipeline, by what they are.
Part = Literal["table", "offsets", "checkpoints"]

#: What somebody makes of an asset as it comes: another key, group, owner ...
Translation = Callable[[dg.AssetSpec, Part], dg.AssetSpec]

#: Run tag with the pipeline's name. Jobs carry it; the step adds it to runs started elsewhere.
PIPELINE_TAG = "eo/pipeline"

#: Run tag with what else than reading on a run is for: a rewind, a replay, an audit ...
OPERATION_TAG = "eo/operation"

#: The operations that move no ledger, so that nobody need wait for them.
AUDIT, MAINTAIN = "audit", "maintain"
MOVE_NOTHING = frozenset({AUDIT, MAINTAIN})

#: The field of a fleet's jobs that says which of its pipelines is meant.
PIPELINE = "pipeline"

#: How the names of all steps begin.
OP_PREFIX = "eo_"

#: Asset group of the topics: a topic is shared by all pipelines that read it.
TOPIC_GROUP = "kafka"


@dataclass(frozen=True)
class DagsterPipeline:
    """A pipeline, how Dagster runs it, and the names of everything made from it."""

    pipeline: Pipeline
    automation: Automation
    translation: Translation | None = None
    #: The attributes of the YAML document, as they are written there; None if there is none.
    document: Mapping[str, Any] | None = field(default=None, repr=False, compare=False)
    #: Whose sensors look at it; None: its own.
    fleet: Fleet | None = None

    @cached_property
    def identifier(self) -> str:
        """The name where Dagster takes letters, digits and underscores only."""
        return self.pipeline.name.replace("-", "_")

    @cached_property
    def table(self) -> dg.AssetKey:
        """The table asset: the pipeline's name, so that downstream assets name it naturally."""
        return self._key("table")

    @cached_property
    def offsets(self) -> dg.AssetKey:
        """The versioned offset asset: mirrors the ledger."""
        return self._key("offsets")

    @cached_property
    def checkpoints(self) -> dg.AssetKey:
        """The checkpoints with rows, a partition each."""
        return self._key("checkpoints")

    @property
    def name(self) -> str:
        """The pipeline's."""
        return self.pipeline.name

    def spec(self, part: Part, **attributes: Any) -> dg.AssetSpec:
        """One of the three assets, translated.

        Raises:
            ConfigError: the translation makes another key of it now than of its key alone, so that
                events and checks would miss it.
        """
        spec = self._translated(dg.AssetSpec(self._own_key(part), **attributes), part)
        if spec.key != self._key(part):
            raise ConfigError(
                f"translation: {self._own_key(part).to_user_string()!r} became both "
                f"{self._key(part).to_user_string()!r} and {spec.key.to_user_string()!r}. Make the "
                "new key of spec.key alone."
            )
        return spec

    def _own_key(self, part: Part) -> dg.AssetKey:
        name = self.pipeline.name
        return dg.AssetKey(name if part == "table" else f"{name}_{part}")

    def _key(self, part: Part) -> dg.AssetKey:
        return self._translated(dg.AssetSpec(self._own_key(part)), part).key

    def _translated(self, spec: dg.AssetSpec, part: Part) -> dg.AssetSpec:
        return self.translation(spec, part) if self.translation else spec

    @property
    def partitions(self) -> str:
        """Where Dagster keeps the keys of :attr:`checkpoints`; one namespace an instance."""
        return f"{self.pipeline.name}_checkpoints"

    @cached_property
    def topics(self) -> tuple[dg.AssetKey, ...]:
        """The upstream topics, which nobody here materializes.

        The topics of a pattern are not known before Kafka was asked: one asset stands for all.
        """
        source = self.pipeline.source
        names = source.topics or (f"{self.pipeline.name}_topics",)
        return tuple(dg.AssetKey([TOPIC_GROUP, name]) for name in names)

    def topic(self, name: str) -> dg.AssetKey:
        """The asset that stands for the topic ``name``."""
        by_pattern = self.pipeline.source.topic_pattern is not None
        return self.topics[0] if by_pattern else dg.AssetKey([TOPIC_GROUP, name])

    @property
    def group(self) -> str:
        return self.automation.group or self.identifier

    @property
    def checkpoints_group(self) -> str:
        """A group of its own: "Materialize all" in :attr:`group` would ask for partitions."""
        return f"{self.group}_checkpoints"

    @property
    def op(self) -> str:
        """The step."""
        return f"{OP_PREFIX}{self.identifier}"

    @property
    def pool(self) -> str:
        """Where the pipeline's steps wait for each other, and for those of the fleet."""
        return self.automation.pool or (self.fleet.pool if self.fleet else None) or self.op

    @property
    def lag_sensor(self) -> str:
        """The sensor that looks at Kafka."""
        return f"{self.fleet.name if self.fleet else self.identifier}_lag"

    @property
    def job(self) -> str:
        return f"{self.identifier}_job"

    @property
    def shares_jobs(self) -> bool:
        """Whether what people start on purpose are jobs of the fleet. Not if its document gives its
        steps a pool, or tags, that the others' have not.
        """
        fleet, own = self.fleet, self.automation
        if fleet is None or fleet.pool is None or fleet.jobs == "each":
            return False
        return not (own.pool or own.run_tags or own.op_tags)

    def job_of(self, operation: str) -> str:
        """The job that does a rewind, a replay, an audit ... of this pipeline."""
        owner = self.fleet.name if self.fleet and self.shares_jobs else self.identifier
        return f"{owner}_{operation}"

    @property
    def chosen(self) -> dict[str, str]:
        """What the configuration of :meth:`job_of` says so that it means this pipeline."""
        return {PIPELINE: self.pipeline.name} if self.shares_jobs else {}

    @property
    def spark(self) -> str:
        """The resource. One a pipeline: several pipelines' definitions are merged, and each may
        run on another Spark.
        """
        return f"{self.identifier}_spark"

    @property
    def known_by(self) -> dict[str, str]:
        """The tag that every run of the pipeline has, whoever started it."""
        return {PIPELINE_TAG: self.pipeline.name}

    @property
    def run_tags(self) -> dict[str, str]:
        return self.automation.run_tags | self.known_by

    def run_tags_of(self, operation: str) -> dict[str, str]:
        """Of runs that somebody starts on purpose, to do something else than read on."""
        return self.run_tags | {OPERATION_TAG: operation}


def topic_spec(key: dg.AssetKey) -> dg.AssetSpec:
    """A topic as an external asset. Dagster wants equal specs from all pipelines that read it, so
    it holds nothing that is not in the key.
    """
    return dg.AssetSpec(
        key, description=f"Kafka: {key.path[-1]}", group_name=TOPIC_GROUP, kinds={"kafka"}
    )
