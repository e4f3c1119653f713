"""Definitions of pipelines and fleets. The pipelines defined while a fleet's folder is loaded are
its members.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from pathlib import Path

import dagster as dg
from dagster_shared.record import replace as replace_record
from dagster_shared.utils.warnings import disable_dagster_warnings

from eo_pipeline.dagster.assets import build_asset, build_checkpoints
from eo_pipeline.dagster.checks import build_audit_check, build_checks, build_lag_checks
from eo_pipeline.dagster.fleet_sensors import build_fleet_sensors
from eo_pipeline.dagster.jobs import (
    build_fleet_operations,
    build_job,
    build_maintenance_schedule,
    build_operations,
    build_schedule,
)
from eo_pipeline.dagster.naming import (
    OP_PREFIX,
    TOPIC_GROUP,
    Automation,
    DagsterPipeline,
    Fleet,
    Translation,
    topic_spec,
)
from eo_pipeline.dagster.processes import is_of_one_run
from eo_pipeline.dagster.resources import spark_definition
from eo_pipeline.dagster.sensors import build_sensors
from eo_pipeline.dagster.yaml_values import collecting_problems
from eo_pipeline.pipeline import Pipeline


@contextmanager
def gathering(fleet: Fleet | None) -> Iterator[list[DagsterPipeline]]:
    """Make the pipelines defined within members of ``fleet``, and list them."""
    members: list[DagsterPipeline] = []
    token, names = _GATHERED.set((fleet, members) if fleet else None), _NAMES.set({})
    try:
        yield members
    finally:
        _GATHERED.reset(token)
        _NAMES.reset(names)


def as_fleet_member(declared: DagsterPipeline) -> DagsterPipeline:
    """Return ``declared`` as a member of the gathering fleet; unchanged without one."""
    gathered = _GATHERED.get()
    if gathered is None:
        return declared
    fleet, members = gathered
    member = replace(declared, fleet=fleet)
    members.append(member)
    return member


_GATHERED: ContextVar[tuple[Fleet, list[DagsterPipeline]] | None] = ContextVar(
    "gathered", default=None
)


def pipeline_definitions(
    pipeline: Pipeline,
    automation: Automation | None = None,
    *,
    translation: Translation | None = None,
) -> dg.Definitions:
    """Build assets, checks, jobs, schedule, sensors and the Spark resource of one pipeline.

    Uses neither Kafka nor the sink. Merge the definitions of several pipelines, and set
    ``executor=dg.in_process_executor`` beside them: a run's checkpoints then share one Spark
    session, also in a run of the UI's Materialize button.

    ``translation`` receives each asset's spec and kind (``"table"``, ``"offsets"``,
    ``"checkpoints"``), and returns the changed spec: ``lambda spec, _:
    spec.replace_attributes(key=spec.key.with_prefix("sales"))``. The new key must depend on the key
    alone.
    """
    declared = DagsterPipeline(pipeline, automation or Automation(), translation)
    topics = dg.Definitions(assets=[topic_spec(key) for key in declared.topics])
    return dg.Definitions.merge(topics, without_topics(declared))


def without_topics(declared: DagsterPipeline) -> dg.Definitions:
    """Build the definitions without topics, for the YAML component; :func:`load_pipelines` adds
    them once for all.
    """
    schedules = [build_schedule(declared), build_maintenance_schedule(declared)]
    return dg.Definitions(
        assets=[build_asset(declared), build_checkpoints(declared)],
        asset_checks=[
            *build_checks(declared),
            build_audit_check(declared),
            build_lag_checks(declared),
        ],
        jobs=[build_job(declared), *build_operations(declared)],
        schedules=[schedule for schedule in schedules if schedule],
        sensors=[] if declared.fleet else build_sensors(declared),
        resources={declared.spark: spark_definition(declared.pipeline.spark)},
    )


#: Names that the pipelines of a project give, while it is loaded: by kind and name, the document.
_NAMES: ContextVar[dict[tuple[str, str], str] | None] = ContextVar("names", default=None)


def name_in_use(pipeline: str, built: dg.Definitions, document: str) -> str | None:
    """Note the names that the ``pipeline`` of ``document`` gives. Return what is wrong if another
    document's gives one of them: Dagster would refuse the whole project, and name neither.
    """
    names = _NAMES.get()
    if names is None:
        return None
    for kind, name in (("pipeline", pipeline), *_names(built)):
        other = names.setdefault((kind, name), document)
        if other != document:
            return f"the {kind} {name!r} is also defined by the pipeline in {other}; rename one"
    return None


def _names(built: dg.Definitions) -> Iterator[tuple[str, str]]:
    """Yield kind and name of what must be unique in a code location."""
    for assets in built.assets or ():
        if isinstance(assets, dg.AssetsDefinition):
            yield from (("asset", key.to_user_string()) for key in assets.keys)
            yield "step", assets.node_def.name
    yield from (("step", checks.node_def.name) for checks in built.asset_checks or ())
    yield from (("job", job.name) for job in built.jobs or ())
    yield from (("sensor", sensor.name) for sensor in built.sensors or ())
    yield from (("schedule", schedule.name) for schedule in built.schedules or ())
    yield from (("resource", name) for name in built.resources or ())


def load_pipelines(folder: Path, *, fleet: Fleet | None = None) -> dg.Definitions:
    """Load all definitions below ``folder``'s ``defs``, and add the topics that pipelines read.

    If there are only pipelines, each run is one process, so that its steps share one Spark session;
    otherwise the code location chooses the executor. ``dg.load_from_defs_folder`` alone works as
    well; the topics are then undescribed boxes in the graph.

    Args:
        fleet: settings of many pipelines, which then share two sensors instead of having three
            each, and share the operator jobs.
    """
    cache_key = folder.resolve(), fleet
    if cache_key in _LOADED:
        return _LOADED[cache_key]
    with collecting_problems(), gathering(fleet) as members:
        declared = _declared_in(folder)
    loaded = _with_shared_definitions(declared, fleet, members)
    if is_of_one_run():
        gc.freeze()  # imported modules are never freed; searching them for garbage took a second
        if not _may_have_state(declared):
            _LOADED[cache_key] = loaded
    return loaded


#: Definitions loaded by a process of one run. Dagster requests them again for each part that it
#: needs: six times in one `dg launch`.
_LOADED: dict[tuple[Path, Fleet | None], dg.Definitions] = {}


def _declared_in(folder: Path) -> dg.Definitions:
    """Load as ``dg.load_from_defs_folder`` does, in a run without the schemas of all types of
    components, which nobody sees there.
    """
    if not is_of_one_run():
        return dg.load_from_defs_folder(path_within_project=folder)
    with disable_dagster_warnings():
        tree = dg.ComponentTree.for_project(folder)
        parts = tree.find_root_decl().iterate_child_component_decls()
        built = dg.Definitions.merge(*(tree.build_defs(part.loc) for part in parts))
    return replace_record(built, component_tree=tree)


def _may_have_state(declared: dg.Definitions) -> bool:
    """Return whether a component may keep state with Dagster: one of such a class, or of one that
    only its loading tells, since each load notes the version of the state; or components were
    added in Dagster's own UI.
    """
    if declared.component_tree is None:
        return True
    root = declared.component_tree.find_root_decl()
    kinds = (decl.component_type for decl in root.iterate_all_component_decls())
    if any(map(_is_stateful, kinds)):
        return True
    _, *others = root.iterate_child_component_decls()
    return any([*decl.iterate_child_component_decls()] for decl in others)


def _is_stateful(kind: type) -> bool:
    is_known = (
        isinstance(kind, type) and issubclass(kind, dg.Component) and kind is not dg.Component
    )
    return not is_known or issubclass(kind, dg.StateBackedComponent)


def _with_shared_definitions(
    declared: dg.Definitions, fleet: Fleet | None, members: Sequence[DagsterPipeline]
) -> dg.Definitions:
    # loading turns checks into plain asset definitions, and Dagster warns of a beta parameter when
    # it turns them back by itself
    checks = [check.coerce_to_checks_def() for check in declared.asset_checks or ()]
    assets = [*(declared.assets or ()), *_topics(declared)]
    executor = declared.executor or (dg.in_process_executor if _are_pipelines(declared) else None)
    sensors = [*(declared.sensors or ()), *_sensors(fleet, members, declared)]
    operations = build_fleet_operations(fleet, members) if fleet else []
    return replace_record(
        declared,
        assets=assets,
        asset_checks=checks,
        jobs=[*(declared.jobs or ()), *operations],
        executor=executor,
        sensors=sensors,
    )


def _sensors(
    fleet: Fleet | None, members: Sequence[DagsterPipeline], declared: dg.Definitions
) -> list[dg.SensorDefinition]:
    """Build the fleet's sensors, which start the jobs as loading resolved them."""
    if fleet is None or not members:
        return []
    names = {member.job for member in members}
    jobs = [job for job in declared.jobs or () if job.name in names]
    return build_fleet_sensors(fleet, members, jobs)


def _are_pipelines(declared: dg.Definitions) -> bool:
    definitions = [a for a in declared.assets or () if isinstance(a, dg.AssetsDefinition)]
    steps = [assets.op.name for assets in definitions if assets.is_executable]
    return all(name.startswith(OP_PREFIX) for name in steps)


def _topics(declared: dg.Definitions) -> list[dg.AssetSpec]:
    """Return a spec for every topic that is read but not declared. Built once for all components:
    two of them cannot declare the same topic, since Dagster notes each spec's origin.
    """
    definitions = [a for a in declared.assets or () if isinstance(a, dg.AssetsDefinition)]
    specs = [spec for definition in definitions for spec in definition.specs]
    specs += [a for a in declared.assets or () if isinstance(a, dg.AssetSpec)]
    declared_keys = {spec.key for spec in specs}
    read = [dep for spec in specs for dep in spec.deps if dep.asset_key not in declared_keys]
    # if several pipelines read a topic, the first one's metadata is shown
    topic_metadata = {dep.asset_key: dep.metadata for dep in reversed(read) if dep.metadata}
    topics = sorted({dep.asset_key for dep in read if dep.asset_key.path[0] == TOPIC_GROUP})
    return [
        topic_spec(key).merge_attributes(metadata=topic_metadata.get(key, {})) for key in topics
    ]
