"""What things are called in Dagster, derived from the pipeline in one place."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import dagster as dg

from eo_pipeline.dagster.automation import Automation
from eo_pipeline.dagster.fleet import Fleet
from eo_pipeline.errors import ConfigError
from eo_pipeline.pipeline import Pipeline

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
