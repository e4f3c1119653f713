"""The engine's sentences for people who look at Dagster: what to press, not what to type."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

import dagster as dg
import yaml

from eo_pipeline.dagster.names import DagsterPipeline

#: A command as errors quote it, and the method of ``Pipeline`` that they may name beside it.
_COMMAND = re.compile(r"`eo ([a-z-]+)([^`]*)`(, Pipeline\.\w+\(\))?")

#: Commands that are jobs here.
_JOBS = {
    "accept-loss": "accept_loss",
    "audit": "audit",
    "fork": "fork",
    "maintain": "maintain",
    "replay": "replay",
    "rewind": "rewind",
    "run": "job",
}

#: Commands that only look: what shows the same.
_ASSETS = ("checkpoints", "history", "show", "status")


def in_dagster(declared: DagsterPipeline, text: str) -> str:
    """``text`` with jobs and assets in place of commands. What only a shell can do stays."""

    def instead(found: re.Match[str]) -> str:
        command, arguments = found[1], found[2].split()
        if command in _ASSETS:
            key = declared.checkpoints if command in ("checkpoints", "show") else declared.offsets
            return f"the asset `{key.to_user_string()}`"
        if command not in _JOBS:
            return found[0]
        if command == "run":
            return f"the job `{declared.job}`"
        given = declared.chosen | _config(command, arguments)
        return f"the job `{declared.job_of(_JOBS[command])}`{_with(given)}"

    return _COMMAND.sub(instead, text)


def _config(command: str, arguments: list[str]) -> dict[str, Any]:
    versions = [int(each) for each in arguments if each.isdigit()]
    if command == "rewind":
        return {"to": {"version": versions[0]}} if versions else {}
    if command == "replay":
        return dict(zip(("first", "last"), versions, strict=False))
    return {}


def _with(given: dict[str, Any]) -> str:
    if not given:
        return ""
    return f" with `{yaml.safe_dump(given, default_flow_style=True).strip()}`"


def job_filled_in(
    run: dg.DagsterRun, job: str, config: Mapping[str, Any]
) -> dict[str, dg.MetadataValue]:
    """Metadata that names ``job``, shows ``config``, and opens its Launchpad with it.

    Which code location the job is in only a run knows that Dagster itself started.
    """
    document = yaml.safe_dump(dict(config), sort_keys=False)
    shown = {"repair_config": dg.MetadataValue.md(f"```yaml\n{document}```")}
    origin = run.remote_job_origin
    if origin is None:
        return {"repair_job": dg.MetadataValue.text(job), **shown}
    location = origin.location_name
    pad = f"/locations/{quote(location)}/jobs/{job}/playground/setup?config={quote(document)}"
    return {
        "repair_job": dg.MetadataValue.job(job, location_name=location),
        "repair_launchpad": dg.MetadataValue.url(pad),
        **shown,
    }
