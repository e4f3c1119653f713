"""The asset of checkpoints: each one a partition, and materializing some replays exactly those."""

# no `from __future__ import annotations`: Dagster reads the annotations of a step as they are

from collections.abc import Iterator

import dagster as dg

from eo_pipeline.dagster.failures import retried
from eo_pipeline.dagster.names import DagsterPipeline
from eo_pipeline.dagster.partitions import checkpoint_partitions
from eo_pipeline.dagster.reporting import EventReporter
from eo_pipeline.dagster.requests import ReplayPartitions, asked_by
from eo_pipeline.ledger.entry import Operation

REPLAY = "replay"


def build_checkpoints(declared: DagsterPipeline) -> dg.AssetsDefinition:
    """One step for all partitions that somebody selected.

    Its events tell of each checkpoint as it is committed, so it yields nothing at its end; Dagster
    would have one result stand for all partitions of the run, also those that failed.
    """

    @dg.multi_asset(
        name=f"{declared.op}_checkpoints",
        description=f"Replays checkpoints of {declared.pipeline.name}.",
        specs=[checkpoints_spec(declared)],
        partitions_def=checkpoint_partitions(declared),
        backfill_policy=dg.BackfillPolicy.single_run(),
        can_subset=False,
        pool=declared.pool,
        op_tags=declared.automation.op_tags,
        required_resource_keys={declared.spark},
    )
    def replay(
        context: dg.AssetExecutionContext, config: ReplayPartitions
    ) -> Iterator[dg.MaterializeResult[None]]:
        context.instance.add_run_tags(context.run.run_id, declared.run_tags_of(REPLAY))
        versions = [int(key) for key in context.partition_keys]
        with retried(context, declared):
            replay_versions(declared, context, versions, config)
        yield from ()

    return replay


def checkpoints_spec(declared: DagsterPipeline) -> dg.AssetSpec:
    """Beside the table and its offsets, not between them: the forward job never makes it.

    It depends on the topics, which a replay reads. Below the offset asset every version would show
    every checkpoint as out of date.
    """
    return declared.spec(
        "checkpoints",
        deps=declared.topics,
        description=(
            f"The checkpoints of {declared.pipeline.name!r} that stand, a partition each, named by "
            "their version. Runs add them. Materializing some replays exactly those: reads their "
            "offset ranges again, with today's transform, and replaces their rows in the table, a "
            "transaction for each. Offsets do not move. Neighbours are one run; after each gap in "
            "the selection another one begins, whatever the dialog says. The job "
            f"{declared.job_of(REPLAY)} takes any in one run."
        ),
        code_version=declared.pipeline.code_version,
        group_name=declared.checkpoints_group,
        owners=declared.automation.owners,
        tags=declared.automation.tags,
        kinds={"kafka", "pyspark"},
        skippable=True,
    )


def replay_versions(
    declared: DagsterPipeline,
    context: dg.OpExecutionContext | dg.AssetExecutionContext,
    versions: list[int],
    config: ReplayPartitions,
) -> None:
    """Replay exactly ``versions``, and tell of each as it is committed.

    Raises:
        EoPipelineError: one of its kinds; the checkpoints told of stay replayed.
    """
    reports = EventReporter(declared, context)
    reports.catch_up()
    left = sorted(set(versions) - _replayed_before(declared, context))
    context.log.info(f"replaying {len(left):,} of {len(versions):,} checkpoints")
    if not left:
        return
    declared.pipeline.recover(on_checkpoint=reports.committed)
    plan = declared.pipeline.plan_replay(
        versions=left, accept_compacted=bool(config.accept_compacted)
    )
    plan.apply(
        reason=config.reason or "",
        asked_by=asked_by(context),
        run_id=context.run.run_id,
        on_checkpoint=reports.committed,
        spark=lambda: getattr(context.resources, declared.spark).spark_session,
    )


def _replayed_before(
    declared: DagsterPipeline, context: dg.OpExecutionContext | dg.AssetExecutionContext
) -> set[int]:
    """What earlier attempts of this step have done: they committed it under the same run id."""
    if context.retry_number == 0:
        return set()
    newest = declared.pipeline.newest(declared.automation.checkpoint_partitions)
    mine = [entry for entry in newest if entry.run_id == context.run.run_id]
    return {e.target for e in mine if e.operation is Operation.REPLAY and e.target is not None}
