"""The table as a ledger entry left it: Delta's own versions, found by what each commit says."""

from __future__ import annotations

from collections.abc import Iterator

from eo_pipeline.arrow import pa
from eo_pipeline.errors import RefusedError
from eo_pipeline.ledger.entry import LedgerEntry
from eo_pipeline.sinks.delta.restore import NotRestorableError, Restore
from eo_pipeline.sinks.delta.store import Snapshot
from eo_pipeline.sinks.past import Past


def past_of(restore: Restore, entry: LedgerEntry) -> Past:
    """The version of the table that is ``entry``'s own commit.

    Raises:
        RefusedError: the log of that time is cleaned up, or files of it are gone.
    """
    try:
        version = _version_of(restore, entry)
        restore.check_files(version)
        snapshot = restore.at(version)
    except NotRestorableError as error:
        raise RefusedError(str(error)) from error
    where = str(restore.table.root)
    return Past(
        f"version {version} of the Delta table",
        lambda _: snapshot.values(0),
        lambda: _count(snapshot),
        {"Spark": f"SELECT * FROM delta.`{where}` VERSION AS OF {version}"},
    )


def _version_of(restore: Restore, entry: LedgerEntry) -> int:
    """The newest one, if there are several: a table may have been restored by other hands."""
    held = restore.ledger.at(restore.head, entry.version)
    for version in _commits_of(restore, entry.version):
        if held is not None and restore.at(version).pointer == held.at:
            return version
    raise NotRestorableError(
        f"the table's log has no commit of version {entry.version} (it is cleaned up after a "
        "while; the first version has none)"
    )


def _commits_of(restore: Restore, number: int) -> Iterator[int]:
    for commit in restore.table.table.history():
        mine = commit.get("eo_pipeline") == restore.table.pipeline
        if mine and int(commit["eo_version"]) == number and "version" in commit:
            yield int(commit["version"])


def _count(snapshot: Snapshot) -> int:
    """By the log, if it has the number of rows of every file."""
    counts = pa.table(snapshot.table.get_add_actions())["num_records"].to_pylist()
    if None in counts:
        return sum(batch.num_rows for batch in snapshot.lineage(0))
    return sum(counts)
