"""Jobs that somebody starts on purpose: rewind, replay, fork, accept a loss.

Each is one step, in the pool of the forward step, and tells Dagster what it did to the ledger as
that step does. A retry finds what an earlier attempt has committed, by the run's id.
"""

# no `from __future__ import annotations`: Dagster reads the annotations of an op as they are

import dagster as dg

from eo_pipeline.dagster.checkpoints import REPLAY, replay_versions
from eo_pipeline.dagster.failures import retried
from eo_pipeline.dagster.metadata import plan_metadata
from eo_pipeline.dagster.names import DagsterPipeline
from eo_pipeline.dagster.one_step import one_step_job
from eo_pipeline.dagster.reporting import EventReporter
from eo_pipeline.dagster.requests import (
    NOT_GIVEN,
    ForkRequest,
    LossRequest,
    ReplayRequest,
    RewindRequest,
    asked_by,
    fork_sink,
    version_or_moment,
)
from eo_pipeline.errors import ConfigError
from eo_pipeline.ledger.entry import LedgerEntry, Operation
from eo_pipeline.run.plans import RereadingPlan

REWIND, FORK, ACCEPT_LOSS = "rewind", "fork", "accept_loss"


def build_going_back(declared: DagsterPipeline) -> list[dg.JobDefinition]:
    """The jobs, by what they do: ``<pipeline>_rewind`` and so on."""
    return [
        _rewind_job(declared),
        _replay_job(declared),
        _fork_job(declared),
        _accept_loss_job(declared),
    ]


def _rewind_job(declared: DagsterPipeline) -> dg.JobDefinition:
    def rewind(context: dg.OpExecutionContext, config: RewindRequest) -> None:
        with retried(context, declared.automation):
            _rewind(declared, context, config)

    return one_step_job(
        declared,
        REWIND,
        rewind,
        f"Takes the rows of all checkpoints after one out of {declared.pipeline.name!r}, in one "
        "transaction. The next run reads on from that checkpoint's offsets.",
        pool=declared.pool,
    )


def _rewind(
    declared: DagsterPipeline, context: dg.OpExecutionContext, config: RewindRequest
) -> None:
    to = version_or_moment(config.to_version, config.to_time, ("to_version", "to_time"))
    if config.dry_run:
        show_plan(
            context, declared.pipeline.plan_rewind(to, accept_compacted=config.accept_compacted)
        )
        return
    reports = EventReporter(declared, context)
    reports.catch_up()
    if _done_before(declared, context, Operation.REWIND):
        return
    declared.pipeline.recover(on_checkpoint=reports.committed)
    plan = declared.pipeline.plan_rewind(to, accept_compacted=config.accept_compacted)
    plan.apply(
        reason=config.reason,
        asked_by=asked_by(context),
        run_id=context.run.run_id,
        on_checkpoint=reports.committed,
    )
    show_plan(context, plan, done=True)


def _replay_job(declared: DagsterPipeline) -> dg.JobDefinition:
    def replay(context: dg.OpExecutionContext, config: ReplayRequest) -> None:
        with retried(context, declared.automation):
            _replay(declared, context, config)

    return one_step_job(
        declared,
        REPLAY,
        replay,
        f"Reads the ranges of any checkpoints of {declared.pipeline.name!r} again, with today's "
        "transform, and replaces their rows, a transaction for each. Also checkpoints that do not "
        "lie side by side, in one run.",
        resources=[declared.spark],
        pool=declared.pool,
    )


def _replay(
    declared: DagsterPipeline, context: dg.OpExecutionContext, config: ReplayRequest
) -> None:
    one_way = bool(config.versions) != (config.first_version != NOT_GIVEN)
    if not one_way:
        raise ConfigError("versions or first_version must name the checkpoints, one of the two")
    plan = declared.pipeline.plan_replay(
        config.first_version,
        None if config.last_version == NOT_GIVEN else config.last_version,
        versions=config.versions or None,
        accept_compacted=config.accept_compacted,
    )
    show_plan(context, plan)
    if not config.dry_run:
        versions = [each.version for each in plan.checkpoints]
        replay_versions(declared, context, versions, config)


def _fork_job(declared: DagsterPipeline) -> dg.JobDefinition:
    def fork(context: dg.OpExecutionContext, config: ForkRequest) -> None:
        with retried(context, declared.automation):
            _fork(declared, context, config)

    return one_step_job(
        declared,
        FORK,
        fork,
        f"Begins a new pipeline where a checkpoint of {declared.pipeline.name!r} stood. This one "
        "stays as it is.",
        pool=declared.pool,
    )


def _fork(declared: DagsterPipeline, context: dg.OpExecutionContext, config: ForkRequest) -> None:
    at = version_or_moment(config.at_version, config.at_time, ("at_version", "at_time"))
    sink = fork_sink(declared.pipeline, config.sink)
    plan = declared.pipeline.plan_fork(
        at, config.name, sink, accept_compacted=config.accept_compacted
    )
    show_plan(context, plan, done=not config.dry_run)
    if config.dry_run:
        return
    plan.apply(reason=config.reason, asked_by=asked_by(context), run_id=context.run.run_id)
    context.add_output_metadata({"table": sink.table_name, "defs.yaml": _document(config)})
    context.log.info(f"{config.name!r} has a ledger now; declare it, and its first run reads on")


def _document(config: ForkRequest) -> dg.MetadataValue:
    """What differs from the declaration of the pipeline that was forked."""
    sink = "\n".join(f"  {key}: {value!r}" for key, value in sorted(config.sink.items()))
    return dg.MetadataValue.md(
        "A copy of this pipeline's document, with\n\n"
        f"```yaml\nname: {config.name}\nsink: # the other fields stay as they are\n{sink}\n```"
    )


def _accept_loss_job(declared: DagsterPipeline) -> dg.JobDefinition:
    def accept_loss(context: dg.OpExecutionContext, config: LossRequest) -> None:
        with retried(context, declared.automation):
            _accept_loss(declared, context, config)

    return one_step_job(
        declared,
        ACCEPT_LOSS,
        accept_loss,
        f"Lets {declared.pipeline.name!r} go on past records that Kafka no longer holds. The hole "
        "becomes a version of the ledger.",
        pool=declared.pool,
    )


def _accept_loss(
    declared: DagsterPipeline, context: dg.OpExecutionContext, config: LossRequest
) -> None:
    if not config.reason:
        raise ConfigError("reason: say why the loss is acceptable; the ledger keeps it")
    reports = EventReporter(declared, context)
    reports.catch_up()
    if _done_before(declared, context, Operation.ACCEPT_LOSS):
        return
    declared.pipeline.recover(on_checkpoint=reports.committed)
    plan = declared.pipeline.plan_accept_loss(config.topics or None)
    [entry] = plan.apply(
        reason=config.reason,
        asked_by=asked_by(context),
        run_id=context.run.run_id,
        on_checkpoint=reports.committed,
    ).entries
    context.add_output_metadata(
        {"version": entry.version, "details": dg.MetadataValue.json(dict(entry.details))}
    )


def _done_before(
    declared: DagsterPipeline, context: dg.OpExecutionContext, operation: Operation
) -> LedgerEntry | None:
    """What an earlier attempt of this run committed and did not live to say."""
    head = declared.pipeline.head() if context.retry_number else None
    if head is None or head.run_id != context.run.run_id or head.operation is not operation:
        return None
    context.log.info(f"version {head.version}: an earlier attempt of this run has done it")
    return head


def show_plan(context: dg.OpExecutionContext, plan: RereadingPlan, *, done: bool = False) -> None:
    """The plan in the run's log and, as tables, on the step's output."""
    context.log.info(f"{'' if done else 'plan: '}{plan}; {plan.records:,} records are read again")
    for warning in plan.warnings:
        context.log.warning(warning)
    context.add_output_metadata(plan_metadata(plan))
