"""Loading a folder of declarations, with what only the whole of them can tell."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from pathlib import Path

import dagster as dg
from dagster_shared.record import replace
from dagster_shared.utils.warnings import disable_dagster_warnings

from eo_pipeline.dagster.fleet import Fleet
from eo_pipeline.dagster.fleet_sensors import build_fleet_sensors
from eo_pipeline.dagster.members import gathering
from eo_pipeline.dagster.names import OP_PREFIX, TOPIC_GROUP, DagsterPipeline, topic_spec
from eo_pipeline.dagster.operations import build_fleet_operations
from eo_pipeline.dagster.processes import is_of_one_run
from eo_pipeline.dagster.yaml_values import all_told_at_once


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
    return replace(built, component_tree=tree)


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
    return replace(
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
