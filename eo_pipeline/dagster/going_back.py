"""Jobs that somebody starts on purpose: rewind, replay, fork, accept a loss.

Each is a step in the pool of the forward step, and tells Dagster what it did to the ledger as that
step does. A retry finds what an earlier attempt has committed, by the run's id. Where there is a
plan to look at it is a step of its own before, in no pool, so that a dry run waits for nobody.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import dagster as dg

from eo_pipeline.dagster.checkpoints import REPLAY, replay_versions
from eo_pipeline.dagster.failures import retried
from eo_pipeline.dagster.fork_document import fork_document
from eo_pipeline.dagster.metadata import plan_metadata, preview_metadata
from eo_pipeline.dagster.names import DagsterPipeline
from eo_pipeline.dagster.one_step import Compute, LaunchpadJob, Plan
from eo_pipeline.dagster.reporting import EventReporter
from eo_pipeline.dagster.requests import (
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
from eo_pipeline.run.fork import ForkPlan
from eo_pipeline.run.plans import RereadingPlan
from eo_pipeline.run.replay import ReplayPlan
from eo_pipeline.run.rewind import RewindPlan

_Asked = TypeVar("_Asked", RewindRequest, ReplayRequest, ForkRequest)
_Request = TypeVar("_Request", bound=dg.Config)

REWIND, FORK, ACCEPT_LOSS = "rewind", "fork", "accept_loss"


def _tried(compute: Compute[_Request]) -> Compute[_Request]:
    """``compute``, again where that may help."""

    def tried(declared: DagsterPipeline, context: dg.OpExecutionContext, config: _Request) -> None:
        with retried(context, declared):
            compute(declared, context, config)

    return tried


def _look(make: Callable[[DagsterPipeline, _Asked], RereadingPlan]) -> Plan[_Asked]:
    """The step before: shows the plan that ``make`` makes, and goes on unless it is a dry run."""

    def plan(
        declared: DagsterPipeline, context: dg.OpExecutionContext, config: _Asked
    ) -> tuple[dict[str, Any], bool]:
        with retried(context, declared):
            return _shown(context, make(declared, config)), not config.dry_run

    return plan


def _rewind_plan(declared: DagsterPipeline, config: RewindRequest) -> RewindPlan:
    to = version_or_moment(config.to, "to")
    return declared.pipeline.plan_rewind(to, accept_compacted=bool(config.accept_compacted))


def _rewind(
    declared: DagsterPipeline, context: dg.OpExecutionContext, config: RewindRequest
) -> None:
    reports = EventReporter(declared, context)
    reports.catch_up()
    if _done_before(declared, context, Operation.REWIND):
        return
    declared.pipeline.recover(on_checkpoint=reports.committed)
    # what was looked at a moment ago was not waited for: the ledger may have moved since
    plan = _rewind_plan(declared, config)
    plan.apply(
        reason=config.reason or "",
        asked_by=asked_by(context),
        run_id=context.run.run_id,
        on_checkpoint=reports.committed,
    )
    context.add_output_metadata(_shown(context, plan, done=True))


def _replay(
    declared: DagsterPipeline, context: dg.OpExecutionContext, config: ReplayRequest
) -> None:
    versions = [each.version for each in _replay_plan(declared, config).checkpoints]
    replay_versions(declared, context, versions, config)


def _replay_look(
    declared: DagsterPipeline, context: dg.OpExecutionContext, config: ReplayRequest
) -> tuple[dict[str, Any], bool]:
    """As :func:`_look`; a preview is a dry run that adds what would change."""
    with retried(context, declared):
        found = _replay_plan(declared, config)
        shown = _shown(context, found)
        if config.preview:
            preview = declared.pipeline.preview_replay(
                found,
                key=config.key or (),
                spark=lambda: getattr(context.resources, declared.spark).spark_session,
            )
            context.log.info(f"preview: {preview}")
            shown |= preview_metadata(preview)
        return shown, not (config.dry_run or config.preview)


def _replay_plan(declared: DagsterPipeline, config: ReplayRequest) -> ReplayPlan:
    if bool(config.versions) == (config.first is not None):
        raise ConfigError(
            "versions or first must name the checkpoints, one of the two: {versions: [3, 7]} or "
            "{first: 3, last: 7}. Nothing was changed."
        )
    return declared.pipeline.plan_replay(
        config.first,
        config.last,
        versions=config.versions or None,
        accept_compacted=bool(config.accept_compacted),
    )


def _fork_plan(declared: DagsterPipeline, config: ForkRequest) -> ForkPlan:
    at = version_or_moment(config.at, "at")
    sink = fork_sink(declared.pipeline, config.sink)
    return declared.pipeline.plan_fork(
        at, config.name, sink, accept_compacted=bool(config.accept_compacted)
    )


def _fork(declared: DagsterPipeline, context: dg.OpExecutionContext, config: ForkRequest) -> None:
    plan = _fork_plan(declared, config)
    plan.apply(reason=config.reason or "", asked_by=asked_by(context), run_id=context.run.run_id)
    sink = fork_sink(declared.pipeline, config.sink)
    context.add_output_metadata(
        {
            "table": sink.table_name,
            "defs.yaml": _document(declared, config),
            **_shown(context, plan, done=True),
        }
    )
    context.log.info(f"{config.name!r} has a ledger now; declare it, and its first run reads on")


def _document(declared: DagsterPipeline, config: ForkRequest) -> dg.MetadataValue:
    """The fork's ``defs.yaml``; of a pipeline declared in Python, how to declare it there."""
    if declared.document is None:
        return dg.MetadataValue.md(
            f"```python\nfork = pipeline.forked({config.name!r}, sink)  # as given to this run\n```"
        )
    text = fork_document(declared.document, declared.pipeline, config)
    return dg.MetadataValue.md(f"```yaml\n{text}```")


def _accept_loss(
    declared: DagsterPipeline, context: dg.OpExecutionContext, config: LossRequest
) -> None:
    if not config.reason.strip():
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


def _shown(
    context: dg.OpExecutionContext, plan: RereadingPlan, *, done: bool = False
) -> dict[str, Any]:
    """The plan in the run's log and, as tables, for the step's output."""
    context.log.info(f"{'' if done else 'plan: '}{plan}; {plan.records:,} records are read again")
    for warning in plan.warnings:
        context.log.warning(warning)
    return plan_metadata(plan)


REWINDING = LaunchpadJob(
    REWIND,
    RewindRequest,
    _tried(_rewind),
    "Takes the rows of all checkpoints after one out of {of}, in one transaction. The next run "
    "reads on from that checkpoint's offsets.",
    plan=_look(_rewind_plan),
)
REPLAYING = LaunchpadJob(
    REPLAY,
    ReplayRequest,
    _tried(_replay),
    "Reads the ranges of any checkpoints of {of} again, with today's transform, and replaces their "
    "rows, a transaction for each. Also checkpoints that do not lie side by side, in one run.",
    plan=_replay_look,
    spark=True,
)
FORKING = LaunchpadJob(
    FORK,
    ForkRequest,
    _tried(_fork),
    "Begins a new pipeline where a checkpoint of {of} stood. This one stays as it is.",
    plan=_look(_fork_plan),
)
ACCEPTING_LOSS = LaunchpadJob(
    ACCEPT_LOSS,
    LossRequest,
    _tried(_accept_loss),
    "Lets {of} go on past records that Kafka no longer holds. The hole becomes a version of the "
    "ledger.",
)
