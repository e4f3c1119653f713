"""What a person fills in before a rewind, a replay, a fork: the fields of the Launchpad.

A field that has no default is asked for there; one that may be left out has none, so that the
Launchpad opens with nothing in it that means nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cache
from hashlib import sha256
from typing import Any

import dagster as dg
import expandvars
from pydantic import Field

from eo_pipeline.dagster.names import PIPELINE
from eo_pipeline.documents import expanded
from eo_pipeline.errors import ConfigError
from eo_pipeline.pipeline import Pipeline
from eo_pipeline.settings import told_as_config_error
from eo_pipeline.sinks.config import Sink
from eo_pipeline.sinks.registry import sink_from_config

_REASON = Field(None, description="Why; kept in the ledger, for people.")
_ACCEPT_COMPACTED = Field(
    None, description="true: go on although compaction may have taken records that are read again."
)
_DRY_RUN = Field(
    False, description="Make every check and show the plan; change nothing, wait for nobody."
)


class Target(dg.Config):
    """A live version, or a moment: exactly one of the two, as :func:`launchpad` has Dagster see."""

    version: int | None = Field(None, description="A live version: {version: 41}.")
    time: str | None = Field(
        None,
        description="ISO 8601 with a time zone, {time: '2026-01-31T12:00:00Z'}: the newest live "
        "version committed by then.",
    )


class RewindRequest(dg.Config):
    """To where, and why."""

    to: Target = Field(description="The checkpoint to go back to: {version: 41} or {time: ...}.")
    reason: str | None = _REASON
    dry_run: bool = _DRY_RUN
    accept_compacted: bool | None = _ACCEPT_COMPACTED


class ReplayPartitions(dg.Config):
    """Which checkpoints, their partitions say."""

    reason: str | None = _REASON
    accept_compacted: bool | None = _ACCEPT_COMPACTED


class ReplayRequest(ReplayPartitions):
    """Which checkpoints, and why."""

    versions: list[int] | None = Field(None, description="Exactly these checkpoints: [3, 5, 8].")
    first: int | None = Field(
        None, description="Instead of versions: every checkpoint from this one ..."
    )
    last: int | None = Field(None, description="... to this one; without it, first alone.")
    dry_run: bool = _DRY_RUN
    preview: bool = Field(
        False,
        description="A dry run that reads and transforms, and says how many rows would change.",
    )
    key: list[str] | None = Field(
        None, description="For the preview: the columns that say which row is which."
    )


class ForkRequest(dg.Config):
    """From where, and into what."""

    name: str = Field(description="Of the new pipeline: its ledger, assets and jobs.")
    at: Target = Field(description="The checkpoint it begins after: {version: 41} or {time: ...}.")
    sink: dict[str, Any] = Field(
        description=(
            "Fields in which the new sink differs from this pipeline's, its table at least; or "
            "with `type` a whole sink. ${NAME} is a variable of the environment: put no secret "
            "here, Dagster keeps what a run was given."
        ),
    )
    reason: str | None = _REASON
    dry_run: bool = _DRY_RUN
    accept_compacted: bool | None = _ACCEPT_COMPACTED


class LossRequest(dg.Config):
    """Which losses, and why they are acceptable."""

    reason: str = Field(description="Why the loss is acceptable; kept in the ledger.")
    topics: list[str] | None = Field(
        None, description="Only losses of these topics; of all without it."
    )


class AuditRequest(dg.Config):
    """How much to prove."""

    last: int | None = Field(None, description="Only the last so many checkpoints; else all.")


class MaintainRequest(dg.Config):
    """Whether to do it."""

    dry_run: bool = _DRY_RUN


@cache
def fields_of(request: type[dg.Config], *, chosen: bool = False) -> Mapping[str, dg.Field]:
    """``request`` as Dagster's fields; made once, since every pipeline has the same jobs.

    Args:
        chosen: which pipeline it is for is a field as well.
    """
    return ({PIPELINE: dg.Field(str)} if chosen else {}) | request.to_fields_dict()


def launchpad(
    request: type[dg.Config], ops: list[str], name: str = "", choices: Sequence[str] = ()
) -> dg.ConfigMapping:
    """``request`` as the whole configuration of a job, which gives it to each of ``ops``.

    Of a :class:`Target` the Launchpad then takes one of its two fields, and of pipelines one of the
    ``choices`` of the fleet ``name``, and says so while somebody types.
    """
    fields: dict[str, Any] = dict(fields_of(request, chosen=bool(choices)))
    if choices:
        # Dagster takes two of one name for the same, also where they hold other values
        mark = sha256(" ".join(choices).encode()).hexdigest()[:8]
        named = dg.Enum(f"pipeline_of_{name}_{mark}", [dg.EnumValue(each) for each in choices])
        fields[PIPELINE] = dg.Field(named, description="The pipeline that it is for.")
    for name, field in request.model_fields.items():
        if field.annotation is Target:
            choice = dg.Selector(dict(_one_of(Target)))  # type: ignore[no-untyped-call]
            fields[name] = dg.Field(choice, description=field.description)
    return dg.ConfigMapping(
        config_fn=lambda given: {"ops": {op: {"config": given} for op in ops}},
        config_schema=fields,
    )


def _one_of(model: type[dg.Config]) -> Mapping[str, dg.Field]:
    kinds = {"version": int, "time": str}
    return {
        name: dg.Field(kinds[name], is_required=False, description=field.description)
        for name, field in model.model_fields.items()
    }


def version_or_moment(target: Target, field: str) -> int | datetime:
    """The one of the two that was given.

    Args:
        field: the target's name, for the message.

    Raises:
        ConfigError: none was given, or both, or the moment is none.
    """
    if (target.version is None) == (target.time is None):
        raise ConfigError(
            f"{field}: name a checkpoint by one of the two, {{version: 41}} or {{time: ...}}; the "
            "asset of checkpoints shows those that stand. Nothing was changed."
        )
    if target.version is not None:
        return target.version
    try:
        return datetime.fromisoformat(target.time or "")
    except ValueError as error:
        raise ConfigError(f"{field}.time: {error}; write it as 2026-01-31T12:00:00Z") from error


def fork_sink(pipeline: Pipeline, given: Mapping[str, Any]) -> Sink:
    """The sink of a fork: a whole one, or the pipeline's own with ``given`` changed.

    Raises:
        ConfigError: names every wrong field and never shows a value; or nothing differs.
    """
    try:
        config = expanded(given)
    except expandvars.ExpandvarsException as error:
        raise ConfigError(f"sink: {error}") from error
    if "type" in config:
        return sink_from_config(config)
    own = pipeline.sink
    with told_as_config_error("the sink", below=("sink",)):
        changed = type(own).model_validate({**dict(own), **config})
    if changed == own:
        raise ConfigError(
            f"sink: nothing there differs from the sink of {pipeline.name!r}; name another table"
        )
    return changed


def asked_by(context: dg.OpExecutionContext | dg.AssetExecutionContext) -> str:
    """Who started the run, where Dagster knows it (Dagster+ does), or which run it was."""
    return context.run.tags.get("user") or f"dagster run {context.run.run_id}"
