"""Jobs that somebody starts from the Launchpad: one step, or a plan and then the step."""

# no `from __future__ import annotations`: Dagster reads the annotation of `context` as it is

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import dagster as dg

from eo_pipeline.dagster.fleet import Fleet
from eo_pipeline.dagster.names import OP_PREFIX, OPERATION_TAG, PIPELINE, DagsterPipeline
from eo_pipeline.dagster.requests import fields_of, launchpad

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
