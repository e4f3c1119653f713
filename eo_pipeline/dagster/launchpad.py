"""What a person fills in before a rewind, a replay, a fork: the fields of the Launchpad.

A field that has no default is asked for there; one that may be left out has none, so that the
Launchpad opens with nothing in it that means nothing.
"""

# no `from __future__ import annotations`: Dagster reads the annotation of `context` as it is
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache
from hashlib import sha256
from typing import Any, Generic, TypeVar

import dagster as dg
import expandvars
from pydantic import Field

from eo_pipeline.config.documents import expanded
from eo_pipeline.config.settings import told_as_config_error
from eo_pipeline.dagster.naming import OP_PREFIX, OPERATION_TAG, PIPELINE, DagsterPipeline, Fleet
from eo_pipeline.errors import ConfigError
from eo_pipeline.pipeline import Pipeline
from eo_pipeline.sinks.config import Sink
from eo_pipeline.sinks.registry import sink_from_config

_REASON = Field(None, description="The reason, recorded in the ledger.")
_ACCEPT_COMPACTED = Field(
    None, description="true: proceed even if compaction may have removed records to re-read."
)
_DRY_RUN = Field(
    False, description="Validate and print the plan; change nothing, take no pool slot."
)


class Target(dg.Config):
    """A live version, or a moment: exactly one of the two, as :func:`launchpad` has Dagster see."""

    version: int | None = Field(None, description="A live version: {version: 41}.")
    time: str | None = Field(
        None,
        description="ISO 8601 with a time zone, {time: '2026-01-31T12:00:00Z'}: the newest live "
        "version committed by then.",
    )


class RewindRequest(dg.Config):
    """To where, and why."""

    to: Target = Field(description="The checkpoint to go back to: {version: 41} or {time: ...}.")
    reason: str | None = _REASON
    dry_run: bool = _DRY_RUN
    accept_compacted: bool | None = _ACCEPT_COMPACTED


class ReplayPartitions(dg.Config):
    """Which checkpoints, their partitions say."""

    reason: str | None = _REASON
    accept_compacted: bool | None = _ACCEPT_COMPACTED


class ReplayRequest(ReplayPartitions):
    """Which checkpoints, and why."""

    versions: list[int] | None = Field(None, description="Exactly these checkpoints: [3, 5, 8].")
    first: int | None = Field(
        None, description="Instead of versions: every checkpoint from this one ..."
    )
    last: int | None = Field(None, description="... to this one; without it, first alone.")
    dry_run: bool = _DRY_RUN
    preview: bool = Field(
        False,
        description="A dry run that reads and transforms, and says how many rows would change.",
    )
    key: list[str] | None = Field(
        None, description="For the preview: the columns that say which row is which."
    )


class ForkRequest(dg.Config):
    """From where, and into what."""

    name: str = Field(description="Of the new pipeline: its ledger, assets and jobs.")
    at: Target = Field(description="The checkpoint it begins after: {version: 41} or {time: ...}.")
    sink: dict[str, Any] = Field(
        description=(
            "Fields in which the new sink differs from this pipeline's, its table at least; or "
            "with `type` a whole sink. ${NAME} is a variable of the environment: put no secret "
            "here, Dagster keeps what a run was given."
        ),
    )
    reason: str | None = _REASON
    dry_run: bool = _DRY_RUN
    accept_compacted: bool | None = _ACCEPT_COMPACTED


class LossRequest(dg.Config):
    """Which losses, and why they are acceptable."""

    reason: str = Field(description="Why the loss is acceptable; kept in the ledger.")
    topics: list[str] | None = Field(
        None, description="Only losses of these topics; of all without it."
    )


class AuditRequest(dg.Config):
    """How much to prove."""

    last: int | None = Field(
        None, description="Audit only the newest N checkpoints (default: all)."
    )


class MaintainRequest(dg.Config):
    """Whether to do it."""

    dry_run: bool = _DRY_RUN


@cache
def fields_of(request: type[dg.Config], *, chosen: bool = False) -> Mapping[str, dg.Field]:
    """``request`` as Dagster's fields; made once, since every pipeline has the same jobs.

    Args:
        chosen: which pipeline it is for is a field as well.
    """
    return ({PIPELINE: dg.Field(str)} if chosen else {}) | request.to_fields_dict()


def launchpad(
    request: type[dg.Config], ops: list[str], name: str = "", choices: Sequence[str] = ()
) -> dg.ConfigMapping:
    """``request`` as the whole configuration of a job, which gives it to each of ``ops``.

    Of a :class:`Target` the Launchpad then takes one of its two fields, and of pipelines one of the
    ``choices`` of the fleet ``name``, and says so while somebody types.
    """
    fields: dict[str, Any] = dict(fields_of(request, chosen=bool(choices)))
    if choices:
        # Dagster takes two of one name for the same, also where they hold other values
        mark = sha256(" ".join(choices).encode()).hexdigest()[:8]
        named = dg.Enum(f"pipeline_of_{name}_{mark}", [dg.EnumValue(each) for each in choices])
        fields[PIPELINE] = dg.Field(named, description="The pipeline that it is for.")
    for name, info in request.model_fields.items():
        if info.annotation is Target:
            choice = dg.Selector(dict(_one_of(Target)))  # type: ignore[no-untyped-call]
            fields[name] = dg.Field(choice, description=info.description)
    return dg.ConfigMapping(
        config_fn=lambda given: {"ops": {op: {"config": given} for op in ops}},
        config_schema=fields,
    )


def _one_of(model: type[dg.Config]) -> Mapping[str, dg.Field]:
    kinds = {"version": int, "time": str}
    return {
        name: dg.Field(kinds[name], is_required=False, description=field.description)
        for name, field in model.model_fields.items()
    }


def version_or_moment(target: Target, field: str) -> int | datetime:
    """The one of the two that was given.

    Args:
        field: the target's name, for the message.

    Raises:
        ConfigError: none was given, or both, or the moment is none.
    """
    if (target.version is None) == (target.time is None):
        raise ConfigError(
            f"{field}: name a checkpoint by one of the two, {{version: 41}} or {{time: ...}}; the "
            "asset of checkpoints shows those that stand. Nothing was changed."
        )
    if target.version is not None:
        return target.version
    try:
        return datetime.fromisoformat(target.time or "")
    except ValueError as error:
        raise ConfigError(f"{field}.time: {error}; write it as 2026-01-31T12:00:00Z") from error


def fork_sink(pipeline: Pipeline, given: Mapping[str, Any]) -> Sink:
    """The sink of a fork: a whole one, or the pipeline's own with ``given`` changed.

    Raises:
        ConfigError: names every wrong field and never shows a value; or nothing differs.
    """
    try:
        config = expanded(given)
    except expandvars.ExpandvarsException as error:
        raise ConfigError(f"sink: {error}") from error
    if "type" in config:
        return sink_from_config(config)
    own = pipeline.sink
    with told_as_config_error("the sink", below=("sink",)):
        changed = type(own).model_validate({**dict(own), **config})
    if changed == own:
        raise ConfigError(
            f"sink: nothing there differs from the sink of {pipeline.name!r}; name another table"
        )
    return changed


def asked_by(context: dg.OpExecutionContext | dg.AssetExecutionContext) -> str:
    """Who started the run, where Dagster knows it (Dagster+ does), or which run it was."""
    return context.run.tags.get("user") or f"dagster run {context.run.run_id}"


Request = TypeVar("Request", bound=dg.Config)

#: Does it, for the pipeline that it is given.
Compute = Callable[[DagsterPipeline, dg.OpExecutionContext, Request], None]

#: Makes a plan with every check; gives the metadata that shows it, and whether to go on with it.
Plan = Callable[[DagsterPipeline, dg.OpExecutionContext, Request], tuple[dict[str, Any], bool]]

_PLAN, _GO = "plan", "go"


@dataclass(frozen=True)
class LaunchpadJob(Generic[Request]):
    """What people start on purpose, for whichever pipeline. A ``request`` is all that they say.

    ``description`` has ``{of}`` where the pipeline is named. ``plan`` is a step before ``compute``.
    It waits in no pool: what it looks at may be looked at while another run works, and a dry run
    ends with it.
    """

    name: str
    request: type[Request]
    compute: Compute[Request]
    description: str
    plan: Plan[Request] | None = None
    #: Whether a step may start Spark.
    spark: bool = False
    #: Whether ``compute`` waits in the pool of the forward steps.
    pooled: bool = True


@dataclass(frozen=True)
class _Whose:
    """Whose job it is: one pipeline's, or that of many, of which its configuration names one."""

    name: str
    of: str
    pipelines: Mapping[str, DagsterPipeline]
    pool: str | None
    tags: Mapping[str, str] = field(default_factory=dict)
    op_tags: Mapping[str, Any] = field(default_factory=dict)
    chosen: bool = False

    @property
    def resources(self) -> set[str]:
        return {each.spark for each in self.pipelines.values()}

    @property
    def choices(self) -> list[str]:
        """What to choose from; empty if nothing is."""
        return [*self.pipelines] if self.chosen else []

    def fields(self, request: type[dg.Config]) -> Mapping[str, dg.Field]:
        """What a step's configuration holds."""
        return fields_of(request, chosen=self.chosen)

    def asked(
        self, context: dg.OpExecutionContext, request: type[Request]
    ) -> tuple[DagsterPipeline, Request]:
        """Which pipeline a step is for, and what is asked of it. A run of many pipelines' job is
        known for that one's from here on.
        """
        given = dict(context.op_config)
        if not self.chosen:
            [declared] = self.pipelines.values()
            return declared, request(**given)
        declared = self.pipelines[given.pop(PIPELINE)]
        context.instance.add_run_tags(context.run.run_id, declared.known_by)
        return declared, request(**given)


def job_of(declared: DagsterPipeline, operation: LaunchpadJob[Any]) -> dg.JobDefinition:
    """The job ``<pipeline>_<operation>``, whose whole configuration is the request."""
    named = declared.pipeline.name
    whose = _Whose(
        declared.identifier,
        repr(named),
        {named: declared},
        declared.pool,
        declared.run_tags,
        declared.automation.op_tags,
    )
    return _job(operation, whose)


def job_of_many(
    fleet: Fleet, members: Sequence[DagsterPipeline], operation: LaunchpadJob[Any]
) -> dg.JobDefinition:
    """The job ``<fleet>_<operation>``: the request, and the pipeline that it is for."""
    by_name = {each.name: each for each in members}
    of = f"one of {len(members):,} pipelines"
    return _job(operation, _Whose(fleet.name, of, by_name, fleet.pool, chosen=True))


def _job(operation: LaunchpadJob[Any], whose: _Whose) -> dg.JobDefinition:
    planner = _planner(operation, whose) if operation.plan else None
    step = _step(operation, whose)
    steps = [each.name for each in (planner, step) if each]

    @dg.job(
        name=f"{whose.name}_{operation.name}",
        description=operation.description.format(of=whose.of),
        tags={**whose.tags, OPERATION_TAG: operation.name},
        executor_def=dg.in_process_executor,
        config=launchpad(operation.request, steps, whose.name, whose.choices),
    )
    def job() -> None:
        if planner is None:
            step()
        else:
            step(planned=getattr(planner(), _GO))

    return job


def _step(operation: LaunchpadJob[Any], whose: _Whose) -> dg.OpDefinition:
    @dg.op(
        name=f"{OP_PREFIX}{whose.name}_{operation.name}",
        description=operation.description.format(of=whose.of),
        ins={"planned": dg.In(dg.Nothing)} if operation.plan else {},
        out=dg.Out(dg.Nothing),
        pool=whose.pool if operation.pooled else None,
        tags=whose.op_tags,
        required_resource_keys=whose.resources if operation.spark else set(),
        config_schema=whose.fields(operation.request),
    )
    def step(context: dg.OpExecutionContext) -> None:
        declared, request = whose.asked(context, operation.request)
        operation.compute(declared, context, request)

    return step


def _planner(operation: LaunchpadJob[Any], whose: _Whose) -> dg.OpDefinition:
    plan = operation.plan

    @dg.op(
        name=f"{OP_PREFIX}{whose.name}_{operation.name}_plan",
        description="Makes every check and shows the plan; changes nothing.",
        out={_PLAN: dg.Out(dg.Nothing), _GO: dg.Out(dg.Nothing, is_required=False)},
        tags=whose.op_tags,
        required_resource_keys=whose.resources if operation.spark else set(),
        config_schema=whose.fields(operation.request),
    )
    def planned(context: dg.OpExecutionContext) -> Iterator[dg.Output[None]]:
        assert plan
        declared, request = whose.asked(context, operation.request)
        shown, go_on = plan(declared, context, request)
        yield dg.Output(None, _PLAN, metadata=shown)
        if go_on:
            yield dg.Output(None, _GO)

    return planned
