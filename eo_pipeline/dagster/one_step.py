"""Jobs of one step, which somebody starts on purpose from the Launchpad."""

from __future__ import annotations

from collections.abc import Callable, Collection

import dagster as dg

from eo_pipeline.dagster.names import DagsterPipeline


def one_step_job(
    declared: DagsterPipeline,
    operation: str,
    compute: Callable[..., None],
    description: str,
    *,
    resources: Collection[str] = (),
    pool: str | None,
) -> dg.JobDefinition:
    """The job ``<pipeline>_<operation>``, whose one op is ``compute``.

    Args:
        compute: (context, config) -> None; Dagster reads its annotations as they are, so its
            module must not postpone them.
    """
    op = dg.op(
        name=f"{declared.op}_{operation}",
        description=description,
        out=dg.Out(dg.Nothing),
        pool=pool,
        tags=declared.automation.op_tags,
        required_resource_keys=set(resources),
    )(compute)

    @dg.job(
        name=f"{declared.identifier}_{operation}",
        description=description,
        tags=declared.run_tags_of(operation),
        executor_def=dg.in_process_executor,
    )
    def job() -> None:
        op()

    return job
