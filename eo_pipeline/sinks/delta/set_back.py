"""A table that somebody set back by RESTORE to before the pipeline's newest commit.

The ledger's head stays where it is: RESTORE brings back files and no application transactions. So
the rows of some versions are gone, or those are there again that a rewind had taken back.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from deltalake.exceptions import DeltaError

from eo_pipeline.errors import TableRolledBackError
from eo_pipeline.ledger.entry import LedgerEntry
from eo_pipeline.sinks.delta.table import Snapshot, explained

#: Commits that are read at once: nearly always the pipeline's own is the first, or among the first.
_READ = (20, 400, None)

Commits = Mapping[int, dict[str, Any]]


def set_back(table: Snapshot, head: LedgerEntry) -> TableRolledBackError | None:
    """Look through the commits behind the pipeline's newest, if there are any.

    Returns:
        None if its newest commit is in the table as it is, or the log no longer tells.
    """
    if table.is_own:
        return None
    newest = table.table.version()
    for most in _READ:
        commits = commits_of(table, most)
        ours = next((v for v in sorted(commits, reverse=True) if _is_of(table, commits[v])), None)
        stands = _stands(table, commits, newest)
        if ours is None or (stands is None and most is not None):
            continue
        if stands is not None and stands >= ours:
            return None
        version = int(commits[stands]["eo_version"]) if stands is not None else 0
        forward = f"Set it to its version {ours} again (RESTORE)"
        return TableRolledBackError(table.pipeline, head.version, version, forward)
    return None


def commits_of(table: Snapshot, most: int | None) -> Commits:
    """The newest commits in the log, at ``most`` so many, by their versions.

    Raises:
        SinkUnavailableError, DamagedError: the log cannot be read.
    """
    expected, commits = table.table.version(), dict[int, dict[str, Any]]()
    try:
        for commit in table.table.history(most):
            commits[int(commit.get("version", expected))] = commit
            expected = min(commits) - 1
    except (DeltaError, OSError) as error:
        raise explained(table.table.table_uri, error) from error
    return commits


def _stands(table: Snapshot, commits: Commits, at: int) -> int | None:
    """The version of the table with the newest commit of the pipeline that the version ``at`` is
    made of; None if none is, or these commits do not tell.
    """
    version: int | None = at
    while version is not None and (commit := commits.get(version)) is not None:
        if _is_of(table, commit):
            return version
        is_restore = commit.get("operation") == "RESTORE"
        version = restored_to(commit, commits) if is_restore else version - 1
    return None


def restored_to(commit: Mapping[str, Any], commits: Commits) -> int | None:
    """The version that a RESTORE went back to, None if that is not known: delta-rs says a number
    or milliseconds, Spark a number or a time of its session's zone.
    """
    how = commit.get("operationParameters", {})
    if (version := how.get("version")) is not None:
        return int(version)
    if (moment := how.get("datetime")) is None:
        return None
    before = (v for v, commit in commits.items() if int(commit["timestamp"]) <= int(moment))
    return max(before, default=None)


def _is_of(table: Snapshot, commit: Mapping[str, Any]) -> bool:
    return bool(commit.get("eo_pipeline") == table.pipeline)
