"""Files of a table's log, read without going through the log."""

from __future__ import annotations

import json
from typing import NamedTuple
from urllib.parse import quote, unquote

from eo_pipeline.places import Place

#: Of a table, and below its folder.
LOG_FOLDER = "_delta_log"

#: In the line of every application transaction; one that spells it otherwise is left to the search.
_TRANSACTION = b'"txn"'

#: What delta-rs leaves as it is in a file's path, besides letters and digits.
_AS_IT_IS = "/!$&'()+,-.:;=@_~"

#: Names the log's newest checkpoint, or one before (Delta protocol, "Last Checkpoint File").
_HINT = "_last_checkpoint"


class Hint(NamedTuple):
    """The version of a checkpoint of the log, and how many actions that has: one a file, mostly."""

    version: int
    actions: int


def newest_checkpoint(log: Place) -> Hint | None:
    """``None``: the log has none.

    Raises:
        OSError, ValueError, KeyError, TypeError: it is not known; what is said of it is not whole.
    """
    hint = log / _HINT
    if not hint.is_file():
        return None
    said = json.loads(hint.read_bytes())
    return Hint(int(said["version"]), int(said.get("size", 0)))


def path_in_log(name: str) -> str:
    """How delta-rs writes a file's ``name`` into the log. A file is removed by the very text that
    added it.
    """
    return quote(name, safe=_AS_IT_IS)


def file_name(path: str) -> str:
    """The name of the file with this ``path`` in the log, below the table's folder."""
    return unquote(path)


def is_removable(path: str) -> bool:
    """Whether delta-rs finds the text ``path`` again: other engines leave other characters."""
    return path_in_log(file_name(path)) == path


def commit_file(log: Place, version: int) -> Place:
    """Its name in the log (Delta protocol, "Delta Log Entries")."""
    return log / commit_name(version)


def commit_name(version: int) -> str:
    return f"{version:020d}.json"


def transactions_in(commit: Place) -> dict[str, int]:
    """The application transactions of one commit: of those that the log has of an application the
    newest counts, so that one of the newest commit needs no search. Empty if it cannot be read.

    delta-rs looks through all that came after the last checkpoint of the log, once for each. Other
    actions are not decoded: a maintenance's commit has one for each of thousands of files.
    """
    try:
        lines = commit.read_bytes().splitlines()
        actions = [json.loads(line) for line in lines if _TRANSACTION in line]
        found = [action["txn"] for action in actions if "txn" in action]
        return {transaction["appId"]: int(transaction["version"]) for transaction in found}
    except (OSError, ValueError, KeyError, TypeError):
        return {}
