"""Launchpad forms of the operator jobs, and the jobs built from them.

Required fields have no default, so the Launchpad prompts for them. Most optional fields default to
None, so that the Launchpad opens without meaningless entries.
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
from eo_pipeline.config.settings import as_config_error
from eo_pipeline.dagster.naming import OP_PREFIX, OPERATION_TAG, PIPELINE, DagsterPipeline, Fleet
from eo_pipeline.errors import ConfigError
from eo_pipeline.pipeline import Pipeline
from eo_pipeline.sinks.config import Sink
from eo_pipeline.sinks.registry import sink_from_config

# "": so the Launchpad and the Materialize dialog open with the field
_REASON = Field("", description="Reason for the change; stored in the ledger.")
_ACCEPT_COMPACTED = Field(
    None,
    description="Proceed even if log compaction may have removed records that must be re-read.",
)
_DRY_RUN = Field(
    False,
    description="Validate and print the plan without changing anything or taking a pool slot.",
)


class Target(dg.Config):
    """A live version or a time, exactly one of the two; :func:`launchpad` makes it a selector."""

    version: int | None = Field(None, description="A live version: {version: 41}.")
    time: str | None = Field(
        None,
        description="ISO 8601 with a time zone, {time: '2026-01-31T12:00:00Z'}: the newest live "
        "version committed by then.",
    )


#: ``to.version`` of a dry run: the version before the newest checkpoint.
BEFORE_NEWEST = -1


class RewindRequest(dg.Config):
    """Configuration of a rewind."""

    to: Target = Field(
        Target(version=BEFORE_NEWEST, time=None),
        description="The checkpoint to go back to: {version: 41} or {time: ...}. Dry runs only: "
        "-1 is the version before the newest checkpoint.",
    )
    reason: str = _REASON
    dry_run: bool = Field(True, description="true: show the plan; false: make the change.")
    accept_compacted: bool | None = _ACCEPT_COMPACTED


class ReplayPartitions(dg.Config):
    """Configuration of a replay whose partition keys select the checkpoints."""

    reason: str = _REASON
    accept_compacted: bool | None = _ACCEPT_COMPACTED


class ReplayRequest(ReplayPartitions):
    """Configuration of a replay that lists its checkpoints."""

    versions: list[int] | None = Field(
        None, description="Replay exactly these checkpoints: [3, 5, 8]."
    )
    first: int | None = Field(
        None, description="Instead of versions: the first checkpoint of a range."
    )
    last: int | None = Field(
        None, description="The last checkpoint of the range (default: only `first`)."
    )
    dry_run: bool = _DRY_RUN
    preview: bool = Field(
        False,
        description="Dry run that reads and transforms, and reports how many rows would change.",
    )
    key: list[str] | None = Field(
        None, description="Key columns used to match rows in the preview."
    )


class ForkRequest(dg.Config):
    """Configuration of a fork."""

    name: str = Field(description="Name of the new pipeline, its ledger, assets and jobs.")
    at: Target = Field(description="The checkpoint to fork from: {version: 41} or {time: ...}.")
    sink: dict[str, Any] = Field(
        description=(
            "Sink fields that differ from this pipeline's, at least the table; or, with `type`, a "
            "complete sink. ${NAME} refers to an environment variable. Do not enter secrets: "
            "Dagster stores the run configuration."
        ),
    )
    reason: str = _REASON
    dry_run: bool = _DRY_RUN
    accept_compacted: bool | None = _ACCEPT_COMPACTED


class LossRequest(dg.Config):
    """Configuration of accept_loss."""

    reason: str = Field(description="Why the loss is acceptable; kept in the ledger.")
    topics: list[str] | None = Field(
        None, description="Accept only the losses of these topics (default: all)."
    )


class AuditRequest(dg.Config):
    """Configuration of an audit."""

    last: int | None = Field(
        None, description="Audit only the newest N checkpoints (default: all)."
    )


class MaintainRequest(dg.Config):
    """Configuration of table maintenance."""

    dry_run: bool = _DRY_RUN


@cache
def fields_of(request: type[dg.Config], *, chosen: bool = False) -> Mapping[str, dg.Field]:
    """Return the Dagster fields of ``request``; cached, since every pipeline has the same jobs.

    Args:
        chosen: add a field that selects the pipeline.
    """
    return ({PIPELINE: dg.Field(str)} if chosen else {}) | request.to_fields_dict()


def launchpad(
    request: type[dg.Config], ops: list[str], name: str = "", choices: Sequence[str] = ()
) -> dg.ConfigMapping:
    """Map ``request``, the whole configuration of a job, to the configuration of each of ``ops``.

    A :class:`Target` becomes a selector of its two fields, and ``choices`` an enum of the pipelines
    of the fleet ``name``, so that the Launchpad validates both while the user types.
    """
    fields: dict[str, Any] = dict(fields_of(request, chosen=bool(choices)))
    if choices:
        # Dagster treats enums of one name as equal, even if their values differ
        mark = sha256(" ".join(choices).encode()).hexdigest()[:8]
        named = dg.Enum(f"pipeline_of_{name}_{mark}", [dg.EnumValue(choice) for choice in choices])
        fields[PIPELINE] = dg.Field(named, description="The pipeline to run this for.")
    for name, info in request.model_fields.items():
        if info.annotation is Target:
            choice = dg.Selector(dict(_one_of(Target)))  # type: ignore[no-untyped-call]
            default: dict[str, Any] = (
                {} if info.is_required() else {"default_value": _chosen(info.default)}
            )
            fields[name] = dg.Field(choice, description=info.description, **default)
    return dg.ConfigMapping(
        config_fn=lambda config: {"ops": {op: {"config": config} for op in ops}},
        config_schema=fields,
    )


def _chosen(target: Target) -> dict[str, Any]:
    """Return the one field of ``target`` that is set."""
    return target.model_dump(exclude_none=True)


def _one_of(model: type[dg.Config]) -> Mapping[str, dg.Field]:
    kinds = {"version": int, "time": str}
    return {
        name: dg.Field(kinds[name], is_required=False, description=field.description)
        for name, field in model.model_fields.items()
    }


def version_or_moment(target: Target, field: str) -> int | datetime:
    """Return the version or the time of ``target``.

    Args:
        field: the target's name, for the error message.

    Raises:
        ConfigError: neither or both are set, or the time cannot be parsed.
    """
    if (target.version is None) == (target.time is None):
        raise ConfigError(
            f"{field}: give exactly one of {{version: 41}} and {{time: ...}}; the "
            "checkpoints asset lists the live ones. Nothing was changed."
        )
    if target.version is not None:
        return target.version
    try:
        return datetime.fromisoformat(target.time or "")
    except ValueError as error:
        raise ConfigError(f"{field}.time: {error}; write it as 2026-01-31T12:00:00Z") from error


def fork_sink(pipeline: Pipeline, changes: Mapping[str, Any]) -> Sink | Mapping[str, Any]:
    """Return the sink of a fork: a complete one, or the pipeline's updated with ``changes``; with
    several tables the fields of that of all.

    Raises:
        ConfigError: fields are invalid (named without their values), or nothing differs.
    """
    try:
        config = expanded(changes)
    except expandvars.ExpandvarsException as error:
        raise ConfigError(f"sink: {error}") from error
    current: Sink | Mapping[str, Any] = pipeline.sink
    changed: Sink | Mapping[str, Any]
    if pipeline.has_tables:
        current = dict(pipeline.declared_sink)
        changed = config if "type" in config else {**current, **config}
    elif "type" in config:
        return sink_from_config(config)
    else:
        with as_config_error("the sink", below=("sink",)):
            changed = type(pipeline.sink).model_validate({**dict(current), **config})
    if changed == current:
        raise ConfigError(
            f"sink: identical to the sink of {pipeline.name!r}; a fork needs its own table"
        )
    return changed


def asked_by(context: dg.OpExecutionContext | dg.AssetExecutionContext) -> str:
    """Return the user who started the run (known in Dagster+), or else the run id."""
    return context.run.tags.get("user") or f"dagster run {context.run.run_id}"


Request = TypeVar("Request", bound=dg.Config)

#: Performs an operation for a pipeline.
Compute = Callable[[DagsterPipeline, dg.OpExecutionContext, Request], None]

#: Validates and plans; returns the plan's metadata, and whether to go on.
Plan = Callable[[DagsterPipeline, dg.OpExecutionContext, Request], tuple[dict[str, Any], bool]]

_PLAN, _GO, _APPLY = "plan", "go", "apply"


@dataclass(frozen=True)
class LaunchpadJob(Generic[Request]):
    """An operator job that is started by hand; ``request`` is its whole configuration.

    ``description`` has ``{of}`` where the pipeline is named. ``plan`` is a step before ``compute``.
    It takes no pool slot, since it only reads; a dry run ends after it. The plan's dynamic output
    keeps Dagster from logging the other step of a dry run as skipped.
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
class _Scope:
    """Scope of a job: one pipeline, or several of which the configuration selects one."""

    name: str
    of: str
    pipelines: Mapping[str, DagsterPipeline]
    pool: str | None
    tags: Mapping[str, str] = field(default_factory=dict)
    op_tags: Mapping[str, Any] = field(default_factory=dict)
    chosen: bool = False

    @property
    def resources(self) -> set[str]:
        return {declared.spark for declared in self.pipelines.values()}

    @property
    def choices(self) -> list[str]:
        """Names of the pipelines to choose from; empty for a job of one pipeline."""
        return [*self.pipelines] if self.chosen else []

    def fields(self, request: type[dg.Config]) -> Mapping[str, dg.Field]:
        """Return the configuration fields of a step."""
        return fields_of(request, chosen=self.chosen)

    def resolve(
        self, context: dg.OpExecutionContext, request: type[Request]
    ) -> tuple[DagsterPipeline, Request]:
        """Return the pipeline and the request of a step. A run of a shared job gets the tags of
        that pipeline here.
        """
        config = dict(context.op_config)
        if not self.chosen:
            [declared] = self.pipelines.values()
            return declared, request(**config)
        declared = self.pipelines[config.pop(PIPELINE)]
        context.instance.add_run_tags(context.run.run_id, declared.identity_tags)
        return declared, request(**config)


def job_of(declared: DagsterPipeline, operation: LaunchpadJob[Any]) -> dg.JobDefinition:
    """Build the job ``<pipeline>_<operation>``, whose configuration is the request."""
    named = declared.pipeline.name
    scope = _Scope(
        declared.identifier,
        repr(named),
        {named: declared},
        declared.pool,
        declared.run_tags,
        declared.automation.op_tags,
    )
    return _job(operation, scope)


def job_of_many(
    fleet: Fleet, members: Sequence[DagsterPipeline], operation: LaunchpadJob[Any]
) -> dg.JobDefinition:
    """Build the job ``<fleet>_<operation>``, configured by the request and a pipeline name."""
    by_name = {member.name: member for member in members}
    of = f"one of {len(members):,} pipelines"
    return _job(operation, _Scope(fleet.name, of, by_name, fleet.pool, chosen=True))


def _job(operation: LaunchpadJob[Any], scope: _Scope) -> dg.JobDefinition:
    planner = _planner(operation, scope) if operation.plan else None
    step = _step(operation, scope)
    steps = [op.name for op in (planner, step) if op]

    @dg.job(
        name=f"{scope.name}_{operation.name}",
        description=operation.description.format(of=scope.of),
        tags={**scope.tags, OPERATION_TAG: operation.name},
        executor_def=dg.in_process_executor,
        config=launchpad(operation.request, steps, scope.name, scope.choices),
    )
    def job() -> None:
        if planner is None:
            step()
        else:
            getattr(planner(), _GO).map(lambda go: step(planned=go))

    return job


def _step(operation: LaunchpadJob[Any], scope: _Scope) -> dg.OpDefinition:
    @dg.op(
        name=f"{OP_PREFIX}{scope.name}_{operation.name}",
        description=operation.description.format(of=scope.of),
        ins={"planned": dg.In(dg.Nothing)} if operation.plan else {},
        out=dg.Out(dg.Nothing),
        pool=scope.pool if operation.pooled else None,
        tags=scope.op_tags,
        required_resource_keys=scope.resources if operation.spark else set(),
        config_schema=scope.fields(operation.request),
    )
    def step(context: dg.OpExecutionContext) -> None:
        declared, request = scope.resolve(context, operation.request)
        operation.compute(declared, context, request)

    return step


def _planner(operation: LaunchpadJob[Any], scope: _Scope) -> dg.OpDefinition:
    plan = operation.plan

    @dg.op(
        name=f"{OP_PREFIX}{scope.name}_{operation.name}_plan",
        description="Validates and shows the plan without changing anything.",
        out={_PLAN: dg.Out(dg.Nothing), _GO: dg.DynamicOut(dg.Nothing, is_required=False)},
        tags=scope.op_tags,
        required_resource_keys=scope.resources if operation.spark else set(),
        config_schema=scope.fields(operation.request),
    )
    def planned(
        context: dg.OpExecutionContext,
    ) -> Iterator[dg.Output[None] | dg.DynamicOutput[None]]:
        assert plan
        declared, request = scope.resolve(context, operation.request)
        shown, go_on = plan(declared, context, request)
        yield dg.Output(None, _PLAN, metadata=shown)
        if go_on:
            yield dg.DynamicOutput(None, mapping_key=_APPLY, output_name=_GO)

    return planned
