"""The one asset definition of a pipeline: its table and its offsets, made by one step."""

# no `from __future__ import annotations`: Dagster reads the annotation of `context` as it is

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import takewhile

import dagster as dg

from dagster_defs import ledger, mirror
from dagster_defs.metadata import sink_metadata
from dagster_defs.names import DagsterPipeline
from eo_pipeline.checkpoint import LedgerEntry
from eo_pipeline.errors import EoPipelineError
from eo_pipeline.report import CheckpointReport

#: How far back a step looks for entries that nobody reported.
ENTRIES_LOOKED_AT = 200


def build_asset(declared: DagsterPipeline) -> dg.AssetsDefinition:
    """One step for both assets, because one transaction makes both true.

    ``can_subset=False``: there is no table without offsets. Skippable: a run with nothing new
    materializes nothing. The pool lets one run of a pipeline work at a time; that saves work, the
    ledger's compare-and-swap is what keeps two runs apart.
    """

    @dg.multi_asset(
        name=declared.op,
        description=f"Reads what is new in Kafka and commits it to {declared.pipeline.name}.",
        specs=[table_spec(declared), offsets_spec(declared)],
        can_subset=False,
        pool=declared.op,
        retry_policy=declared.automation.retry_policy,
        required_resource_keys={declared.spark},
    )
    def ingest(context: dg.AssetExecutionContext) -> Iterator[dg.MaterializeResult[None]]:
        yield from _run(declared, context)

    return ingest


def table_spec(declared: DagsterPipeline) -> dg.AssetSpec:
    """The table: what people query."""
    pipeline, automation = declared.pipeline, declared.automation
    sink = sink_metadata(pipeline.sink)
    return dg.AssetSpec(
        declared.table,
        deps=declared.topics,
        description=automation.description or f"Follows {_topics(declared)} exactly.",
        metadata=sink,
        group_name=declared.group,
        owners=automation.owners,
        tags=automation.tags,
        kinds={sink["dagster/storage_kind"], "pyspark"},
        freshness_policy=automation.freshness.policy() if automation.freshness else None,
        skippable=True,
    )


def offsets_spec(declared: DagsterPipeline) -> dg.AssetSpec:
    """The offsets: what was read, version by version."""
    return dg.AssetSpec(
        declared.offsets,
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
    retries = declared.automation.retries
    with mirror.StepEvents(context, retries) as events, _failures_that_stay():
        for entry in _unreported(declared, context.instance):
            context.log.info(f"version {entry.version} was committed and not reported: is now")
            events.add(mirror.of_entry(declared, entry))
        report = declared.pipeline.run(
            run_id=run_id,
            on_checkpoint=lambda done: _committed(declared, context, events, done),
            spark=lambda: getattr(context.resources, declared.spark).spark_session,
        )
    if not report.checkpoints:
        context.log.info(f"nothing new: version {report.head.version} holds all Kafka has")
    yield from events.results()


def _committed(
    declared: DagsterPipeline,
    context: dg.AssetExecutionContext,
    events: mirror.StepEvents,
    report: CheckpointReport,
) -> None:
    context.log.info(in_words(report))
    events.add(mirror.of_report(declared, report))


def in_words(report: CheckpointReport) -> str:
    """One line for the run's log, there as soon as the commit is."""
    entry, counts = report.entry, report.entry.counts
    if not entry.ranges:
        return f"version {entry.version}: {entry.operation.value}, no rows"
    recovered = ", staged by a run that died" if report.recovered else ""
    dead = f", {counts.dead_letters:,} dead letters" if counts.dead_letters else ""
    lag = f"; lag {report.lag_after:,}" if report.lag_after is not None else ""
    return (
        f"version {entry.version}: {counts.records:,} records, {counts.rows:,} rows{dead} in "
        f"{sum(report.seconds.values()):.1f} s{recovered}{lag}"
    )


def _unreported(declared: DagsterPipeline, instance: dg.DagsterInstance) -> list[LedgerEntry]:
    """What earlier attempts and killed runs committed and did not live to report, oldest first.

    Before this run's own events, so that the event log keeps the ledger's order. Anything older
    than the last few hundred entries is left to the reconciler.
    """
    page = instance.fetch_materializations(declared.offsets, limit=ENTRIES_LOOKED_AT)
    events = [record.asset_materialization for record in page.records]
    reported = {mirror.reported_id(event) for event in events if event}
    head = declared.pipeline.head()
    if head is None or head.id in reported:
        return []
    entries = ledger.newest(declared.pipeline, ENTRIES_LOOKED_AT)
    newest_first = takewhile(lambda entry: entry.id not in reported, reversed(entries))
    return list(newest_first)[::-1]


@contextmanager
def _failures_that_stay() -> Iterator[None]:
    """What would fail again in the same way is not retried; the retry policy takes the rest."""
    try:
        yield
    except EoPipelineError as error:
        if error.retryable:
            raise
        raise dg.Failure(description=str(error), allow_retries=False) from error
