"""The one asset definition of a pipeline: its table and its offsets, made by one step."""

# no `from __future__ import annotations`: Dagster reads the annotation of `context` as it is

from collections.abc import Iterator

import dagster as dg

from eo_pipeline.dagster.columns import declared_columns, topic_metadata
from eo_pipeline.dagster.failures import retried
from eo_pipeline.dagster.metadata import sink_metadata
from eo_pipeline.dagster.names import DagsterPipeline
from eo_pipeline.dagster.reporting import HoldingEventReporter


def build_asset(declared: DagsterPipeline) -> dg.AssetsDefinition:
    """One step for both assets, because one transaction makes both true.

    ``can_subset=True``: whoever selects one of the two gets both, because there is no table without
    offsets. Dagster takes as results those that were selected, the others are logged. Skippable: a
    run with nothing new materializes nothing. The pool lets one run of a pipeline work at a time;
    that saves work, the ledger's compare-and-swap is what keeps two runs apart.
    """

    @dg.multi_asset(
        name=declared.op,
        description=f"Reads what is new in Kafka and commits it to {declared.pipeline.name}.",
        specs=[table_spec(declared), offsets_spec(declared)],
        can_subset=True,
        pool=declared.pool,
        op_tags=declared.automation.op_tags,
        required_resource_keys={declared.spark},
    )
    def ingest(context: dg.AssetExecutionContext) -> Iterator[dg.MaterializeResult[None]]:
        yield from _run(declared, context)

    return ingest


def table_spec(declared: DagsterPipeline) -> dg.AssetSpec:
    """The table: what people query."""
    pipeline, automation = declared.pipeline, declared.automation
    sink = sink_metadata(pipeline.sink)
    return declared.spec(
        "table",
        deps=[dg.AssetDep(key, metadata=topic_metadata(declared, key)) for key in declared.topics],
        description=automation.description or f"Follows {_topics(declared)} exactly.",
        metadata=sink | declared_columns(declared),
        code_version=pipeline.code_version,
        group_name=declared.group,
        owners=automation.owners,
        tags=automation.tags,
        kinds={sink["dagster/storage_kind"], "pyspark"},
        freshness_policy=automation.freshness.policy() if automation.freshness else None,
        skippable=True,
    )


def offsets_spec(declared: DagsterPipeline) -> dg.AssetSpec:
    """The offsets: what was read, version by version."""
    return declared.spec(
        "offsets",
        deps=declared.topics,
        description=(
            f"The ledger of {declared.pipeline.name!r}: which offsets of {_topics(declared)} each "
            "version of the table holds. The data version is the ledger's version. This mirrors "
            "the ledger, which lives in the sink; nothing reads it to decide what comes next."
        ),
        group_name=declared.group,
        owners=declared.automation.owners,
        tags=declared.automation.tags,
        kinds={"kafka"},
        skippable=True,
    )


def _topics(declared: DagsterPipeline) -> str:
    source = declared.pipeline.source
    return source.topic_pattern or ", ".join(source.topics)


def _run(
    declared: DagsterPipeline, context: dg.AssetExecutionContext
) -> Iterator[dg.MaterializeResult[None]]:
    run_id = context.run.run_id
    context.instance.add_run_tags(run_id, declared.run_tags)
    with HoldingEventReporter(declared, context) as reports, retried(context, declared):
        reports.catch_up()
        report = declared.pipeline.run(
            run_id=run_id,
            on_checkpoint=reports.committed,
            spark=lambda: getattr(context.resources, declared.spark).spark_session,
        )
    if not report.checkpoints:
        context.log.info(f"nothing new: version {report.head.version} holds all Kafka has")
    yield from reports.results(context.selected_asset_keys)
