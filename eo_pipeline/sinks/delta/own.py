"""The newest commit of a table, read by itself where it is a pipeline's own.

Opening a table takes time for every commit that its log holds, every file that it has. A run that
finds nothing new wants to know one thing of it, which the newest commit says if that is ours: where
the ledger's head is. It also says of which table it is, and how that is laid out: they are what the
handle had that it was committed on, it followed that handle's version and no other, and it was
looked at first whether the table takes our commits.

It says what was, and spares time. A commit is made on an opened table, where all is looked at anew.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

from eo_pipeline.places import Place
from eo_pipeline.sinks.delta.log import commit_file
from eo_pipeline.sinks.lake.ledger import Pointer

#: Application ids of the ledger's head in the table's log (Delta protocol, "Transaction
#: Identifiers"): its version and the token that names its file.
APP_PREFIX = "eo:"
TOKEN_SUFFIX = ":token"  # noqa: S105 - no secret

#: In the commit's own words ("Commit Provenance Information"): the table's id, its layout.
_TABLE, _LAYOUT = "eo_table", "eo_partition_by"

#: Names the log's newest checkpoint, or one before (Delta protocol, "Last Checkpoint File").
_HINT = "_last_checkpoint"

#: Commits after that checkpoint: more than of ours there ever are, so somebody else keeps the log.
_COMMITS_MAX = 200

#: Actions by which a table becomes another one.
_CHANGES = ("metaData", "protocol")


class OwnCommit(NamedTuple):
    """What it says."""

    pointer: Pointer
    table: str
    partition_by: tuple[str, ...]


def told_of(table: str, partition_by: list[str]) -> dict[str, str]:
    """What a commit on this table says for :func:`newest_own`."""
    return {_TABLE: table, _LAYOUT: json.dumps(partition_by)}


def newest_own(log: Place, pipeline: str) -> OwnCommit | None:
    """``None``: the table must be opened to know."""
    try:
        newest = _newest(log)
        return None if newest is None else _said(newest, APP_PREFIX + pipeline)
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _newest(log: Place) -> Place | None:
    """By the names that follow, of which none is left out; the folder may hold many thousands."""
    hint = log / _HINT
    since = int(json.loads(hint.read_bytes())["version"]) if hint.is_file() else 0
    found = None
    for version in range(since, since + _COMMITS_MAX):
        file = commit_file(log, version)
        if not file.is_file():
            return found
        found = file
    return None


def _said(commit: Place, app: str) -> OwnCommit | None:
    newest, told = dict[str, int](), dict[str, Any]()
    for name, value in _small_actions(commit):
        if name in _CHANGES:
            return None
        if name == "txn":
            newest[value["appId"]] = int(value["version"])
        else:
            told = value
    if app not in newest or _TABLE not in told:
        return None
    pointer = Pointer(newest[app], newest[app + TOKEN_SUFFIX])
    return OwnCommit(pointer, told[_TABLE], tuple(json.loads(told[_LAYOUT])))


def _small_actions(commit: Place) -> Iterator[tuple[str, Any]]:
    """All but those of files, of which there may be thousands: they are not decoded."""
    for line in commit.read_bytes().splitlines():
        if not line.startswith((b'{"add"', b'{"remove"', b'{"cdc"')):
            [(name, value)] = json.loads(line).items()
            if name in ("txn", "commitInfo", *_CHANGES):
                yield name, value
