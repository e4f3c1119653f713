"""Which pipelines are a fleet's: those that are defined while its folder is loaded."""

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
from eo_pipeline.dagster.resources import is_of_one_run, spark_definition
from eo_pipeline.dagster.sensors import build_sensors
from eo_pipeline.dagster.yaml_values import all_told_at_once
from eo_pipeline.pipeline import Pipeline


@contextmanager
def gathering(fleet: Fleet | None) -> Iterator[list[DagsterPipeline]]:
    """Pipelines that are defined within belong to ``fleet``, and are in the list in the end."""
    members: list[DagsterPipeline] = []
    token = _GATHERED.set((fleet, members) if fleet else None)
    try:
        yield members
    finally:
        _GATHERED.reset(token)


def joined(declared: DagsterPipeline) -> DagsterPipeline:
    """``declared`` as a member of the fleet that is being gathered; itself if none is."""
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
    """Assets, checks, jobs, schedule, sensors and the Spark resource of one pipeline.

    Touches neither Kafka nor the sink. Merge the definitions of several pipelines, and set
    ``executor=dg.in_process_executor`` beside them: a run's checkpoints then share one Spark
    session, also when it was started by the UI's Materialize button.

    ``translation`` gets each asset's spec, and which it is (``"table"``, ``"offsets"``,
    ``"checkpoints"``), and returns what it shall be: ``lambda spec, _: spec.replace_attributes(
    key=spec.key.with_prefix("sales"))``. It makes the key of the key alone.
    """
    declared = DagsterPipeline(pipeline, automation or Automation(), translation)
    topics = dg.Definitions(assets=[topic_spec(key) for key in declared.topics])
    return dg.Definitions.merge(topics, without_topics(declared))


def without_topics(declared: DagsterPipeline) -> dg.Definitions:
    """The same, for the YAML component: see :mod:`eo_pipeline.dagster.definitions`."""
    schedules = [build_schedule(declared), build_maintenance_schedule(declared)]
    return dg.Definitions(
        assets=[build_asset(declared), build_checkpoints(declared)],
        asset_checks=[
            *build_checks(declared),
            build_audit_check(declared),
            build_lag_checks(declared),
        ],
        jobs=[build_job(declared), *build_operations(declared)],
        schedules=[each for each in schedules if each],
        sensors=[] if declared.fleet else build_sensors(declared),
        resources={declared.spark: spark_definition(declared.pipeline.spark)},
    )


def load_pipelines(folder: Path, *, fleet: Fleet | None = None) -> dg.Definitions:
    """Everything declared below ``folder``'s ``defs``, and the topics that pipelines read.

    Where there are only pipelines, each run is one process, so that its steps share one Spark
    session; the executor of anything else is its owner's to choose. ``dg.load_from_defs_folder``
    alone does as well; the topics are then nameless boxes in the graph.

    Args:
        fleet: of many pipelines; they then have two sensors together, and not three each, and so
            have they the jobs that people start on purpose.
    """
    asked = folder.resolve(), fleet
    if asked in _KEPT:
        return _KEPT[asked]
    with all_told_at_once(), gathering(fleet) as members:
        declared = _declared_in(folder)
    loaded = _with_what_is_shared(declared, fleet, members)
    if is_of_one_run():
        gc.freeze()  # what is imported stays to the end; to look for garbage in it took a second
        if not _may_have_state(declared):
            _KEPT[asked] = loaded
    return loaded


#: What a process of one run has loaded. Dagster calls for the definitions anew wherever it needs a
#: part of them: six times in one `dg launch`.
_KEPT: dict[tuple[Path, Fleet | None], dg.Definitions] = {}


def _declared_in(folder: Path) -> dg.Definitions:
    """As ``dg.load_from_defs_folder`` does it; that describes all types of components as well,
    for people who look for one, with the schemas of all their fields. A run shows nobody any.
    """
    if not is_of_one_run():
        return dg.load_from_defs_folder(path_within_project=folder)
    with disable_dagster_warnings():
        tree = dg.ComponentTree.for_project(folder)
        parts = tree.find_root_decl().iterate_child_component_decls()
        built = dg.Definitions.merge(*(tree.build_defs(part.loc) for part in parts))
    return replace_record(built, component_tree=tree)


def _may_have_state(declared: dg.Definitions) -> bool:
    """Whether a component may keep state with Dagster, as soon as there is such a class: each load
    notes which version of it was read. What people add in Dagster's own UI is such state, too.
    """
    tree = declared.component_tree
    if tree is None or dg.StateBackedComponent.__subclasses__():
        return True
    _, *others = tree.find_root_decl().iterate_child_component_decls()
    return any([*each.iterate_child_component_decls()] for each in others)


def _with_what_is_shared(
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
    """Of the fleet; they start the jobs as loading has left them."""
    if fleet is None or not members:
        return []
    names = {each.job for each in members}
    jobs = [job for job in declared.jobs or () if job.name in names]
    return build_fleet_sensors(fleet, members, jobs)


def _are_pipelines(declared: dg.Definitions) -> bool:
    definitions = [a for a in declared.assets or () if isinstance(a, dg.AssetsDefinition)]
    steps = [made.op.name for made in definitions if made.is_executable]
    return all(name.startswith(OP_PREFIX) for name in steps)


def _topics(declared: dg.Definitions) -> list[dg.AssetSpec]:
    """A spec for every topic somebody reads and nobody declares. Only here, once for all: two
    components cannot both declare one topic, since Dagster notes in a spec where it came from.
    """
    definitions = [a for a in declared.assets or () if isinstance(a, dg.AssetsDefinition)]
    specs = [spec for definition in definitions for spec in definition.specs]
    specs += [a for a in declared.assets or () if isinstance(a, dg.AssetSpec)]
    known = {spec.key for spec in specs}
    read = [dep for spec in specs for dep in spec.deps if dep.asset_key not in known]
    # where several read one topic, what the first of them says of it is shown
    said = {dep.asset_key: dep.metadata for dep in reversed(read) if dep.metadata}
    topics = sorted({dep.asset_key for dep in read if dep.asset_key.path[0] == TOPIC_GROUP})
    return [topic_spec(key).merge_attributes(metadata=said.get(key, {})) for key in topics]
