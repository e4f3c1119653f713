"""Asset definitions of a pipeline: tables and offsets in one step, and its checkpoints."""

# no `from __future__ import annotations`: Dagster reads the annotation of `context` as it is

from collections.abc import Iterator

import dagster as dg

from eo_pipeline.dagster.launchpad import ReplayPartitions, asked_by
from eo_pipeline.dagster.metadata import (
    declared_columns,
    member_columns,
    sink_metadata,
    topic_metadata,
)
from eo_pipeline.dagster.mirror import checkpoint_partitions
from eo_pipeline.dagster.naming import DagsterPipeline
from eo_pipeline.dagster.runs import EventReporter, HoldingEventReporter, retried
from eo_pipeline.dagster.topics import keeping_results
from eo_pipeline.ledger.entry import Operation
from eo_pipeline.sinks.tables import TablesSink


def build_asset(declared: DagsterPipeline) -> dg.AssetsDefinition:
    """Build the step of all tables and the offsets, which one transaction commits.

    ``can_subset=True``: a selection of one yields all, because there is no table without offsets.
    Dagster accepts results of selected assets only; other events are logged. Skippable: a run
    without new records materializes nothing. The pool limits a pipeline to one run at a time; that
    saves work, while the ledger's compare-and-swap keeps two runs apart.
    """

    @dg.multi_asset(
        name=declared.op,
        description=f"Reads new records from Kafka and commits them to {declared.pipeline.name}.",
        specs=[
            table_spec(declared),
            *(member_spec(declared, name) for name in declared.members),
            offsets_spec(declared),
        ],
        can_subset=True,
        pool=declared.pool,
        op_tags=declared.automation.op_tags,
        required_resource_keys={declared.spark},
    )
    def ingest(context: dg.AssetExecutionContext) -> Iterator[dg.MaterializeResult[None]]:
        yield from _run(declared, context)

    return ingest


def table_spec(declared: DagsterPipeline) -> dg.AssetSpec:
    """Return the spec of the table asset."""
    pipeline, automation = declared.pipeline, declared.automation
    sink = sink_metadata(pipeline.sink)
    return declared.spec(
        "table",
        deps=[dg.AssetDep(key, metadata=topic_metadata(declared, key)) for key in declared.topics],
        description=automation.description or _of_tables(declared),
        metadata=sink | declared_columns(declared),
        code_version=pipeline.code_version,
        group_name=declared.group,
        owners=automation.owners,
        tags=automation.tags,
        kinds={sink["dagster/storage_kind"], "pyspark"},
        freshness_policy=automation.freshness.policy() if automation.freshness else None,
        skippable=True,
    )


def _of_tables(declared: DagsterPipeline) -> str:
    sink = declared.pipeline.sink
    if isinstance(sink, TablesSink) and sink.appearing:
        return (
            f"Tables {sink.appearing.name} of {_topics(declared)}, each made when its first record "
            "comes: each commit writes all in one transaction."
        )
    if not declared.members:
        return f"Table with each record of {_topics(declared)} exactly once."
    named = ", ".join(declared.members)
    return f"Tables {named} of {_topics(declared)}: each commit writes all in one transaction."


def member_spec(declared: DagsterPipeline, name: str) -> dg.AssetSpec:
    """Return the spec of the asset of one of several tables."""
    pipeline, automation = declared.pipeline, declared.automation
    assert isinstance(pipeline.sink, TablesSink)
    sink = sink_metadata(pipeline.sink.members[name])
    return declared.spec(
        "member",
        name,
        deps=declared.topics_of(name),
        description=(
            f"Table {name} of {pipeline.name!r}, filled in one transaction with its other tables. "
            "Checkpoints that do not change this table do not materialize it."
        ),
        metadata=sink | member_columns(declared, name),
        code_version=pipeline.code_version,
        group_name=declared.group,
        owners=automation.owners,
        tags=automation.tags,
        kinds={sink["dagster/storage_kind"], "pyspark"},
        skippable=True,
    )


def offsets_spec(declared: DagsterPipeline) -> dg.AssetSpec:
    """Return the spec of the offset asset."""
    return declared.spec(
        "offsets",
        deps=declared.topics,
        description=(
            f"The ledger of {declared.pipeline.name!r}: the offsets of {_topics(declared)} in each "
            "version of the table. The data version is the ledger version. This is a read-only "
            "mirror: the ledger itself is in the sink, and runs resume from there."
        ),
        group_name=declared.group,
        owners=declared.automation.owners,
        tags=declared.automation.tags,
        kinds={"kafka"},
        skippable=True,
    )


def _topics(declared: DagsterPipeline) -> str:
    source = declared.pipeline.source
    if source.topic_pattern:
        return f"the Kafka topics {source.topic_pattern}"
    return f"Kafka topic{'s' * (len(source.topics) > 1)} {', '.join(source.topics)}"


def _run(
    declared: DagsterPipeline, context: dg.AssetExecutionContext
) -> Iterator[dg.MaterializeResult[None]]:
    run_id = context.run.run_id
    context.instance.add_run_tags(run_id, declared.run_tags)
    with (
        keeping_results(context),
        HoldingEventReporter(declared, context) as reports,
        retried(context, declared),
    ):
        reports.catch_up()
        report = declared.pipeline.run(
            run_id=run_id,
            on_checkpoint=reports.committed,
            spark=lambda: getattr(context.resources, declared.spark).spark_session,
        )
    if not report.checkpoints:
        context.log.info(
            f"Nothing to read: version {report.head.version} is up to date with Kafka."
        )
    yield from reports.results(context.selected_asset_keys)


REPLAY = "replay"


def build_checkpoints(declared: DagsterPipeline) -> dg.AssetsDefinition:
    """Build the step that replays all selected partitions.

    It logs an event per committed checkpoint and yields nothing at its end: Dagster would take one
    result for all partitions of the run, including those that failed.
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
    """Return the spec of the checkpoints asset, beside table and offsets: the forward job never
    materializes it.

    It depends on the topics, which a replay reads. Downstream of the offset asset every version
    would mark every checkpoint as out of date.
    """
    return declared.spec(
        "checkpoints",
        deps=declared.topics,
        description=(
            f"One partition per live checkpoint of {declared.pipeline.name!r}, keyed by version. "
            "Runs add them automatically. Materializing partitions replays exactly those "
            "checkpoints: it re-reads their offset ranges with the current transform and replaces "
            "their rows in the table, one transaction each. Offsets do not move. Consecutive "
            "checkpoints share a run; each gap in the selection starts another, even though the "
            f"dialog says 'a single run'. The job {declared.job_of(REPLAY)} replays any selection "
            "in one run."
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
    """Replay exactly ``versions``, and report each as it is committed.

    Raises:
        EoPipelineError: one of its kinds; the reported checkpoints stay replayed.
    """
    reports = EventReporter(declared, context)
    reports.catch_up()
    left = sorted(set(versions) - _replayed_before(declared, context))
    context.log.info(f"Replaying {len(left):,} of {len(versions):,} checkpoints.")
    if not left:
        return
    declared.pipeline.recover(on_checkpoint=reports.committed)
    plan = declared.pipeline.plan_replay(
        versions=left, accept_compacted=bool(config.accept_compacted)
    )
    plan.apply(
        reason=config.reason,
        asked_by=asked_by(context),
        run_id=context.run.run_id,
        on_checkpoint=reports.committed,
        spark=lambda: getattr(context.resources, declared.spark).spark_session,
    )


def _replayed_before(
    declared: DagsterPipeline, context: dg.OpExecutionContext | dg.AssetExecutionContext
) -> set[int]:
    """Return the checkpoints replayed by earlier attempts of this step, committed under this run
    id.
    """
    if context.retry_number == 0:
        return set()
    newest = declared.pipeline.newest(declared.automation.checkpoint_partitions)
    mine = [entry for entry in newest if entry.run_id == context.run.run_id]
    return {e.target for e in mine if e.operation is Operation.REPLAY and e.target is not None}
