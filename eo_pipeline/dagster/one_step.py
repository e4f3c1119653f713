"""Jobs that somebody starts from the Launchpad: one step, or a plan and then the step."""

# no `from __future__ import annotations`: Dagster reads the annotation of `context` as it is

from collections.abc import Callable, Collection, Iterator
from typing import Any, TypeVar

import dagster as dg

from eo_pipeline.dagster.names import DagsterPipeline
from eo_pipeline.dagster.requests import fields_of, launchpad

Request = TypeVar("Request", bound=dg.Config)

#: Makes a plan with every check; gives the metadata that shows it, and whether to go on with it.
Plan = Callable[[dg.OpExecutionContext, Request], tuple[dict[str, Any], bool]]

_PLAN, _GO = "plan", "go"


def one_step_job(
    declared: DagsterPipeline,
    operation: str,
    request: type[Request],
    compute: Callable[[dg.OpExecutionContext, Request], None],
    description: str,
    *,
    plan: Plan[Request] | None = None,
    resources: Collection[str] = (),
    pool: str | None,
) -> dg.JobDefinition:
    """The job ``<pipeline>_<operation>``, whose whole configuration is a ``request``.

    Args:
        plan: a step before ``compute``. It waits in no pool: what it looks at may be looked at
            while another run works, and a dry run ends with it.
    """

    @dg.op(
        name=f"{declared.op}_{operation}",
        description=description,
        ins={"planned": dg.In(dg.Nothing)} if plan else {},
        out=dg.Out(dg.Nothing),
        pool=pool,
        tags=declared.automation.op_tags,
        required_resource_keys=set(resources),
        config_schema=fields_of(request),
    )
    def step(context: dg.OpExecutionContext) -> None:
        compute(context, request(**context.op_config))

    planner = _planner(declared, operation, request, plan, resources) if plan else None

    @dg.job(
        name=f"{declared.identifier}_{operation}",
        description=description,
        tags=declared.run_tags_of(operation),
        executor_def=dg.in_process_executor,
        config=launchpad(request, [each.name for each in (planner, step) if each]),
    )
    def job() -> None:
        if planner is None:
            step()
        else:
            step(planned=getattr(planner(), _GO))

    return job


def _planner(
    declared: DagsterPipeline,
    operation: str,
    request: type[Request],
    plan: Plan[Request],
    resources: Collection[str],
) -> dg.OpDefinition:
    @dg.op(
        name=f"{declared.op}_{operation}_plan",
        description="Makes every check and shows the plan; changes nothing.",
        out={_PLAN: dg.Out(dg.Nothing), _GO: dg.Out(dg.Nothing, is_required=False)},
        tags=declared.automation.op_tags,
        required_resource_keys=set(resources),
        config_schema=fields_of(request),
    )
    def planned(context: dg.OpExecutionContext) -> Iterator[dg.Output[None]]:
        shown, go_on = plan(context, request(**context.op_config))
        yield dg.Output(None, _PLAN, metadata=shown)
        if go_on:
            yield dg.Output(None, _GO)

    return planned
