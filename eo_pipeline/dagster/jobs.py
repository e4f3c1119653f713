"""Jobs and schedules of a pipeline: materialization, maintenance and the operator jobs."""

import re
from collections.abc import Callable, Mapping, Sequence
from types import UnionType

# no `from __future__ import annotations`: Dagster reads the annotations of a step as they are
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin

import dagster as dg
import yaml
from dagster._core.definitions.assets.graph.asset_graph import AssetGraph
from dagster._core.definitions.unresolved_asset_job_definition import UnresolvedAssetJobDefinition
from pydantic import BaseModel, SecretStr

from eo_pipeline.dagster.assets import REPLAY, replay_versions
from eo_pipeline.dagster.checks import AUDITING, audit_key
from eo_pipeline.dagster.launchpad import (
    BEFORE_NEWEST,
    Compute,
    ForkRequest,
    LaunchpadJob,
    LossRequest,
    MaintainRequest,
    Plan,
    ReplayRequest,
    RewindRequest,
    Target,
    asked_by,
    fork_sink,
    job_of,
    job_of_many,
    version_or_moment,
)
from eo_pipeline.dagster.metadata import Columns, plan_metadata, preview_metadata, table
from eo_pipeline.dagster.naming import MAINTAIN, DagsterPipeline, Fleet
from eo_pipeline.dagster.resources import SparkDefinition
from eo_pipeline.dagster.runs import ENTRIES_LOOKED_AT, EventReporter, retried
from eo_pipeline.dagster.yaml_values import needed_variables
from eo_pipeline.errors import ConfigError
from eo_pipeline.ledger.entry import LedgerEntry, Operation
from eo_pipeline.ledger.history import checkpoints, live_branch
from eo_pipeline.operations.change_plan import RereadingPlan
from eo_pipeline.operations.fork import ForkPlan
from eo_pipeline.operations.maintain import MaintenanceReport
from eo_pipeline.operations.replay import ReplayPlan
from eo_pipeline.operations.rewind import RewindPlan
from eo_pipeline.pipeline import Pipeline
from eo_pipeline.sinks.registry import sink_class, sink_names


class _IsolatedAssetJob(UnresolvedAssetJobDefinition):
    """Job of ``dg.define_asset_job``, resolved among its own assets alone: Dagster goes through all
    assets of the code location for each job, so that 200 pipelines took as long as 40,000.

    It also omits the other pipelines' Spark resources: every minute Dagster's daemon requests all
    jobs as declared, each with all its resources and their configuration.
    """

    def resolve(
        self,
        asset_graph: AssetGraph,
        default_executor_def: dg.ExecutorDefinition | None = None,
        resource_defs: Mapping[str, dg.ResourceDefinition] | None = None,
    ) -> dg.JobDefinition:
        """See the parent."""
        keys = self.selection.resolve(asset_graph)
        checks = {check for key in keys for check in asset_graph.get(key).check_keys}
        assets = asset_graph.assets_defs_for_keys([*keys, *checks])
        needed = {key for asset in assets for key in asset.required_resource_keys}
        resources = {
            key: resource
            for key, resource in (resource_defs or {}).items()
            if key in needed or not isinstance(resource, SparkDefinition)
        }
        return super().resolve(AssetGraph.from_assets(assets), default_executor_def, resources)


def build_job(declared: DagsterPipeline) -> UnresolvedAssetJobDefinition:
    """Build the forward job: table, offsets and their checks in one process, so that Spark starts
    at most once.
    """
    return _IsolatedAssetJob(
        declared.job,
        selection=dg.AssetSelection.assets(
            declared.table, *declared.members.values(), declared.offsets
        )
        - dg.AssetSelection.checks(audit_key(declared)),
        description=f"Ingests new Kafka records of {declared.pipeline.name!r}.",
        tags=declared.run_tags,
        executor_def=dg.in_process_executor,
    )


def build_schedule(declared: DagsterPipeline) -> dg.ScheduleDefinition | None:
    """Build the schedule of forward runs, if declared. The lag sensor reacts faster; both may be
    on.
    """
    return scheduled(declared, declared.automation.schedule, "schedule", declared.job)


def scheduled(
    declared: DagsterPipeline,
    cron: str | None,
    name: str,
    job: str,
    config: Mapping[str, str] | None = None,
) -> dg.ScheduleDefinition | None:
    """Build ``<pipeline>_<name>``, which starts ``job``; ``None`` without a ``cron`` expression."""
    if cron is None:
        return None
    return dg.ScheduleDefinition(
        name=f"{declared.identifier}_{name}",
        job_name=job,
        run_config=config or None,
        tags=declared.run_tags,
        cron_schedule=cron,
        execution_timezone=declared.automation.schedule_timezone,
        default_status=declared.automation.schedule_status,
    )


_MAINTENANCE_COLUMNS: Columns = {
    "work": "string",
    "files": "int",
    "files_after": "int",
    "bytes": "int",
    "bytes_after": "int",
    "seconds": "float",
    "remark": "string",
}


def _maintain(
    declared: DagsterPipeline, context: dg.OpExecutionContext, config: MaintainRequest
) -> None:
    """See :meth:`eo_pipeline.pipeline.Pipeline.maintain`."""
    with retried(context, declared):
        report = declared.pipeline.maintain(dry_run=config.dry_run)
    for task in report.work:
        context.log.info(f"{task.work}: {task.remark}")
    context.add_output_metadata(_maintenance_metadata(report))


MAINTAINING = LaunchpadJob(
    MAINTAIN,
    MaintainRequest,
    _maintain,
    "Compacts small files of the table of {of}, deletes unreferenced files and checkpoints the "
    "log. Does not change rows.",
    pooled=False,
)


def build_maintenance_schedule(declared: DagsterPipeline) -> dg.ScheduleDefinition | None:
    """Build the schedule of maintenance runs, if declared."""
    cron = declared.automation.maintenance_schedule
    return scheduled(
        declared, cron, f"{MAINTAIN}_schedule", declared.job_of(MAINTAIN), declared.chosen
    )


def _maintenance_metadata(report: MaintenanceReport) -> dict[str, Any]:
    """Return the metadata; Dagster plots the table's present files and bytes."""
    rows = [task.to_json() for task in report.work]
    compaction = next((task for task in report.work if task.work == "compact"), None)
    return {
        "work": table(_MAINTENANCE_COLUMNS, rows),
        **(
            {"files": compaction.files_after, "bytes": compaction.bytes_after} if compaction else {}
        ),
        **({"dry_run": True} if report.dry_run else {}),
    }


COMPONENT = "eo_pipeline.dagster.KafkaPipelineComponent"

#: ``${NAME}`` and ``${NAME:-default}``: variables of a request.
_VARIABLE = re.compile(r"\$\{(\w+)(?::-([^}]*))?\}")

#: Path of a field in a document.
_Path = tuple[str, ...]

#: Paths left out of the names of variables, since no other field has such settings.
_UNNAMED = {("source", "client"), ("source", "spark_options"), ("spark", "config")}

#: Spark's own settings, any of which may be a secret.
_SPARK_CONFIG = ("spark", "config")

#: Length of the path of a part's own field.
_TOP_LEVEL = 2

#: Attributes that a fork does not inherit, because their names belong to this pipeline.
_NOT_INHERITED = ("pool", "group", "translation")


def fork_document(document: Mapping[str, Any], pipeline: Pipeline, request: ForkRequest) -> str:
    """Return the fork's YAML document, to be put beside this pipeline's.

    Args:
        document: attributes of this pipeline's document, with templates.
        pipeline: the resolved pipeline; its types identify the secrets.
    """
    changes = _rewritten(dict(request.sink), _template)
    inherited = {} if "type" in changes else dict(document["sink"])
    attributes = {k: v for k, v in document.items() if k not in _NOT_INHERITED}
    attributes |= {"name": request.name, "sink": inherited | changes}
    redacted = _without_secrets(attributes, pipeline, request.name)
    component: dict[str, Any] = {"type": COMPONENT, "attributes": redacted}
    if names := sorted(_needed(redacted)):
        component["requirements"] = {"env": names}
    return yaml.safe_dump(component, sort_keys=False, allow_unicode=True, width=100)


def _without_secrets(attributes: dict[str, Any], pipeline: Pipeline, name: str) -> dict[str, Any]:
    """Return ``attributes`` with an environment variable in place of each clear-text secret."""

    def hide(path: _Path, text: str) -> str:
        skipped = 2 if path[:2] in _UNNAMED else 1 if len(path) == _TOP_LEVEL else 0
        variable = re.sub(r"\W", "_", "_".join((name, *path[skipped:]))).upper()
        return text if "{{" in text else f"{{{{ env.{variable} }}}}"

    types = {part: model_field.annotation for part, model_field in Pipeline.model_fields.items()}
    types |= {"sink": _sink_class(attributes["sink"], pipeline)}
    redacted = {
        part: _hidden(value, types[part], (part,), hide)
        for part, value in attributes.items()
        if part in types
    }
    return attributes | redacted


def _sink_class(sink: Mapping[str, Any], pipeline: Pipeline) -> type[BaseModel]:
    """Return the class of the fork's sink; this pipeline's where the type is a template."""
    kind = str(sink.get("type", ""))
    return sink_class(kind) if kind in sink_names() else type(pipeline.sink)


def _hidden(value: Any, kind: Any, path: _Path, hide: Callable[[_Path, str], str]) -> Any:
    """Return ``value``, at ``path`` of a document, without the secrets of its type ``kind``."""
    if path == _SPARK_CONFIG:
        kind = Mapping[str, SecretStr]
    inner = get_args(kind)
    if kind is SecretStr and value is not None:
        return hide(path, str(value))
    if get_origin(kind) in (Union, UnionType, Annotated):
        variants = (_hidden(value, option, path, hide) for option in inner)
        return next((variant for variant in variants if variant != value), value)
    if not isinstance(value, Mapping):
        return value
    if get_origin(kind) is not None:
        item_type = inner[-1] if inner else None
        return {key: _hidden(item, item_type, (*path, key), hide) for key, item in value.items()}
    if not (isinstance(kind, type) and issubclass(kind, BaseModel)):
        return value
    types = {key: info.annotation for key, info in kind.model_fields.items()}
    return {key: _hidden(item, types.get(key), (*path, key), hide) for key, item in value.items()}


def _template(text: str) -> str:
    def jinja(match: re.Match[str]) -> str:
        name, default = match[1], match[2]
        return (
            f"{{{{ env.{name} }}}}" if default is None else f"{{{{ env('{name}', '{default}') }}}}"
        )

    return _VARIABLE.sub(jinja, text)


def _rewritten(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, Mapping):
        return {key: _rewritten(item, change) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_rewritten(item, change) for item in value]
    return change(value) if isinstance(value, str) else value


def _needed(value: Any) -> set[str]:
    names: set[str] = set()

    def collect(text: str) -> str:
        names.update(needed_variables(text))
        return text

    _rewritten(value, collect)
    return names


_PlanRequest = TypeVar("_PlanRequest", RewindRequest, ReplayRequest, ForkRequest)
_Request = TypeVar("_Request", bound=dg.Config)

REWIND, FORK, ACCEPT_LOSS = "rewind", "fork", "accept_loss"


def _with_retries(compute: Compute[_Request]) -> Compute[_Request]:
    """Return ``compute`` with retries after temporary failures."""

    def retrying(
        declared: DagsterPipeline, context: dg.OpExecutionContext, config: _Request
    ) -> None:
        with retried(context, declared):
            compute(declared, context, config)

    return retrying


def _plan_step(
    build: Callable[[DagsterPipeline, _PlanRequest], RereadingPlan],
) -> Plan[_PlanRequest]:
    """Return the planning step: it shows the plan of ``build``, and ends a dry run."""

    def plan(
        declared: DagsterPipeline, context: dg.OpExecutionContext, config: _PlanRequest
    ) -> tuple[dict[str, Any], bool]:
        with retried(context, declared):
            shown = _shown(context, build(declared, config), dry_run=config.dry_run)
            return shown, not config.dry_run

    return plan


def _rewind_plan(declared: DagsterPipeline, config: RewindRequest) -> RewindPlan:
    chosen = config.to
    if chosen.time is not None and chosen.version == BEFORE_NEWEST:
        # the default of a field that the configuration leaves out, which Dagster fills in
        chosen = Target(version=None, time=chosen.time)
    to = version_or_moment(chosen, "to")
    if isinstance(to, int) and to < 0:
        if not config.dry_run:
            raise ConfigError(
                f"to.version: {to} is for dry runs only, since the newest checkpoint may change. "
                "Name the version that the plan shows, {version: 41}. Nothing was changed."
            )
        to = _before_newest(declared)
    return declared.pipeline.plan_rewind(to, accept_compacted=bool(config.accept_compacted))


def _before_newest(declared: DagsterPipeline) -> int:
    """Return the live version before the newest checkpoint."""
    entries = declared.pipeline.newest(ENTRIES_LOOKED_AT)
    live = checkpoints(entries)
    if not live:
        raise ConfigError(
            "to.version: there is no checkpoint to go back from. Nothing was changed."
        )
    before = [e.version for e in live_branch(entries) if e.version < live[-1].version]
    return max(before, default=live[-1].version - 1)


def _rewind(
    declared: DagsterPipeline, context: dg.OpExecutionContext, config: RewindRequest
) -> None:
    reports = EventReporter(declared, context)
    reports.catch_up()
    if _done_before(declared, context, Operation.REWIND):
        return
    declared.pipeline.recover(on_checkpoint=reports.committed)
    # the planning step holds no pool slot: the ledger may have moved since
    plan = _rewind_plan(declared, config)
    plan.apply(
        reason=config.reason,
        asked_by=asked_by(context),
        run_id=context.run.run_id,
        on_checkpoint=reports.committed,
    )
    context.add_output_metadata(_shown(context, plan, done=True))


def _replay(
    declared: DagsterPipeline, context: dg.OpExecutionContext, config: ReplayRequest
) -> None:
    versions = [c.version for c in _replay_plan(declared, config).checkpoints]
    replay_versions(declared, context, versions, config)


def _replay_plan_step(
    declared: DagsterPipeline, context: dg.OpExecutionContext, config: ReplayRequest
) -> tuple[dict[str, Any], bool]:
    """Show the plan, as :func:`_plan_step` does; a preview is a dry run that adds the changes."""
    with retried(context, declared):
        plan = _replay_plan(declared, config)
        shown = _shown(context, plan, dry_run=config.dry_run and not config.preview)
        if config.preview:
            preview = declared.pipeline.preview_replay(
                plan,
                key=config.key or (),
                spark=lambda: getattr(context.resources, declared.spark).spark_session,
            )
            context.log.info(f"{_DRY_RUN_DONE} Preview: {preview}")
            shown |= preview_metadata(preview)
        return shown, not (config.dry_run or config.preview)


def _replay_plan(declared: DagsterPipeline, config: ReplayRequest) -> ReplayPlan:
    if bool(config.versions) == (config.first is not None):
        raise ConfigError(
            "Select the checkpoints by either versions or first: {versions: [3, 7]} or "
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
    plan.apply(reason=config.reason, asked_by=asked_by(context), run_id=context.run.run_id)
    forked = declared.pipeline.forked(config.name, fork_sink(declared.pipeline, config.sink))
    context.add_output_metadata(
        {
            "table": forked.sink.table_name,
            "defs.yaml": _document(declared, config),
            **_shown(context, plan, done=True),
        }
    )
    context.log.info(f"Created the ledger of {config.name!r}. Declare the pipeline, then run it.")


def _document(declared: DagsterPipeline, config: ForkRequest) -> dg.MetadataValue:
    """Return the fork's ``defs.yaml``; for a pipeline declared in Python, the Python code."""
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
    """Return the entry that an earlier attempt of this run committed without reporting it."""
    head = declared.pipeline.head() if context.retry_number else None
    if head is None or head.run_id != context.run.run_id or head.operation is not operation:
        return None
    context.log.info(f"Version {head.version} was already committed by an earlier attempt.")
    return head


#: How the last line of a dry run begins.
_DRY_RUN_DONE = "Dry run: nothing was changed."


def _shown(
    context: dg.OpExecutionContext,
    plan: RereadingPlan,
    *,
    done: bool = False,
    dry_run: bool = False,
) -> dict[str, Any]:
    """Log the plan, and return its tables as metadata of the step's output."""
    for warning in plan.warnings:
        context.log.warning(warning)
    start = f"{_DRY_RUN_DONE} Plan: " if dry_run else "" if done else "Plan: "
    context.log.info(f"{start}{plan}; {plan.records:,} records are read again")
    return plan_metadata(plan)


REWINDING = LaunchpadJob(
    REWIND,
    RewindRequest,
    _with_retries(_rewind),
    "Removes the rows of all checkpoints after a given one from {of}, in one transaction. The next "
    "run resumes at that checkpoint's offsets.",
    plan=_plan_step(_rewind_plan),
)
REPLAYING = LaunchpadJob(
    REPLAY,
    ReplayRequest,
    _with_retries(_replay),
    "Re-reads the offset ranges of checkpoints of {of} with the current transform and replaces "
    "their rows, one transaction each. Checkpoints need not be consecutive.",
    plan=_replay_plan_step,
    spark=True,
)
FORKING = LaunchpadJob(
    FORK,
    ForkRequest,
    _with_retries(_fork),
    "Creates a new pipeline that starts at a checkpoint of {of}, which stays unchanged.",
    plan=_plan_step(_fork_plan),
)
ACCEPTING_LOSS = LaunchpadJob(
    ACCEPT_LOSS,
    LossRequest,
    _with_retries(_accept_loss),
    "Lets {of} skip records that Kafka no longer has. The gap is recorded as a version of the "
    "ledger.",
)

OPERATIONS: tuple[LaunchpadJob[Any], ...] = (
    REWINDING,
    REPLAYING,
    FORKING,
    ACCEPTING_LOSS,
    AUDITING,
    MAINTAINING,
)


def build_operations(declared: DagsterPipeline) -> list[dg.JobDefinition]:
    """Build ``<pipeline>_rewind`` and so on; none if the fleet's jobs are shared."""
    return [] if declared.shares_jobs else [job_of(declared, operation) for operation in OPERATIONS]


def build_fleet_operations(
    fleet: Fleet, members: Sequence[DagsterPipeline]
) -> list[dg.JobDefinition]:
    """Build ``<fleet>_rewind`` and so on, for the ``members`` without operator jobs of their own.

    Separate jobs would be requested by Dagster's daemon every minute: six for each of 200 pipelines
    took more of a processor than everything else together.
    """
    sharing = [member for member in members if member.shares_jobs]
    return [job_of_many(fleet, sharing, op) for op in OPERATIONS] if sharing else []
