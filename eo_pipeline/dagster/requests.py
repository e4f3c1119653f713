"""What a person fills in before a rewind, a replay, a fork: the fields of the Launchpad.

Every field has a default, so that the Launchpad opens with all of them; a default that names no
checkpoint is refused by the run, in a sentence, before anything changes.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import dagster as dg
import expandvars
from pydantic import Field

from eo_pipeline.documents import expanded
from eo_pipeline.errors import ConfigError
from eo_pipeline.pipeline import Pipeline
from eo_pipeline.settings import told_as_config_error
from eo_pipeline.sinks.config import Sink
from eo_pipeline.sinks.registry import sink_from_config

#: Dagster puts only defaults other than None into the Launchpad.
NOT_GIVEN = -1

_REASON = Field("", description="Why; kept in the ledger, for people.")
_ACCEPT_COMPACTED = Field(
    False, description="Go on although compaction may have taken records that are read again."
)
_DRY_RUN = Field(False, description="Make every check and show the plan; change nothing.")
_MOMENT = (
    "ISO 8601 with a time zone, 2026-01-31T12:00:00Z: the newest live version committed by then."
)


class RewindRequest(dg.Config):
    """To where, and why."""

    to_version: int = Field(
        NOT_GIVEN,
        description=f"The live version to go back to; {NOT_GIVEN}: to_time says it.",
    )
    to_time: str = Field("", description=f"Instead of to_version, a moment. {_MOMENT}")
    reason: str = _REASON
    dry_run: bool = _DRY_RUN
    accept_compacted: bool = _ACCEPT_COMPACTED


class ReplayPartitions(dg.Config):
    """Which checkpoints, their partitions say."""

    reason: str = _REASON
    accept_compacted: bool = _ACCEPT_COMPACTED


class ReplayRequest(ReplayPartitions):
    """Which checkpoints, and why."""

    versions: list[int] = Field([], description="Exactly these checkpoints: [3, 5, 8].")
    first_version: int = Field(
        NOT_GIVEN, description="Instead of versions: every checkpoint from this one ..."
    )
    last_version: int = Field(
        NOT_GIVEN, description=f"... to this one; {NOT_GIVEN}: first_version alone."
    )
    dry_run: bool = _DRY_RUN


class ForkRequest(dg.Config):
    """From where, and into what."""

    name: str = Field("", description="Of the new pipeline: its ledger, assets and jobs.")
    at_version: int = Field(
        NOT_GIVEN,
        description=f"The live version it begins after; {NOT_GIVEN}: at_time says it.",
    )
    at_time: str = Field("", description=f"Instead of at_version, a moment. {_MOMENT}")
    sink: dict[str, Any] = Field(
        {},
        description=(
            "Fields in which the new sink differs from this pipeline's, its table at least; or "
            "with `type` a whole sink. ${NAME} is a variable of the environment: put no secret "
            "here, Dagster keeps what a run was given."
        ),
    )
    reason: str = _REASON
    dry_run: bool = _DRY_RUN
    accept_compacted: bool = _ACCEPT_COMPACTED


class LossRequest(dg.Config):
    """Which losses, and why they are acceptable."""

    reason: str = Field("", description="Why the loss is acceptable; required, kept in the ledger.")
    topics: list[str] = Field([], description="Only losses of these topics; []: of all.")


class AuditRequest(dg.Config):
    """How much to prove."""

    last: int = Field(
        NOT_GIVEN, description=f"Only the last so many checkpoints; {NOT_GIVEN}: all of them."
    )


def version_or_moment(version: int, moment: str, fields: tuple[str, str]) -> int | datetime:
    """The one of the two that was given.

    Args:
        fields: their names, for the message.

    Raises:
        ConfigError: none was given, or both, or the moment is none.
    """
    if (version == NOT_GIVEN) == (not moment):
        raise ConfigError(
            f"{fields[0]} or {fields[1]} must name a checkpoint, one of the two; the asset of "
            "checkpoints shows those that stand. Nothing was changed."
        )
    if not moment:
        return version
    try:
        return datetime.fromisoformat(moment)
    except ValueError as error:
        raise ConfigError(f"{fields[1]}: {error}; write it as 2026-01-31T12:00:00Z") from error


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
