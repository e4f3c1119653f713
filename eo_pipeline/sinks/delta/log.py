"""The file of a table's newest commit, read without going through the log."""

from __future__ import annotations

import json
from pathlib import Path
from urllib.parse import unquote, urlparse

from deltalake import DeltaTable


def newest_commit(table: DeltaTable) -> Path:
    """Where the commit of the version that ``table`` holds is kept, as long as the log is."""
    uri = urlparse(table.table_uri)
    root = Path(unquote(uri.path) if uri.scheme == "file" else table.table_uri)
    return commit_file(root / "_delta_log", table.version())


def commit_file(log: Path, version: int) -> Path:
    """Its name in the log (Delta protocol, "Delta Log Entries")."""
    return log / f"{version:020d}.json"


def transactions_in(commit: Path) -> dict[str, int]:
    """The application transactions of one commit: of those that the log has of an application the
    newest counts, so that one of the newest commit needs no search. Empty if it cannot be read.

    delta-rs looks through all that came after the last checkpoint of the log, once for each.
    """
    try:
        actions = [json.loads(line) for line in commit.read_bytes().splitlines() if line]
        found = [action["txn"] for action in actions if "txn" in action]
        return {transaction["appId"]: int(transaction["version"]) for transaction in found}
    except (OSError, ValueError, KeyError, TypeError):
        return {}
