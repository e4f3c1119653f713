"""The newest commit of a table, read by itself where it is a pipeline's own.

Opening a table takes time for every commit that its log holds, every file that it has. A run that
finds nothing new wants to know one thing of it, which the newest commit says if that is ours: where
the ledger's head is. It also says of which table it is, how that is laid out and what else it is:
they are what the handle had that it was committed on, or the commit of ours that it followed, it
followed that version and no other, and it was looked at first whether the table takes our commits.

It says what was, and spares time. What makes a commit safe is that it can only follow the version
whose commit said so (:mod:`eo_pipeline.sinks.delta.append`), or the one that was opened.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from eo_pipeline.places import identity_of
from eo_pipeline.sinks.delta.log import commit_name, newest_checkpoint
from eo_pipeline.sinks.lake.ledger import Pointer

#: Application ids of the ledger's head in the table's log (Delta protocol, "Transaction
#: Identifiers"): its version and the token that names its file.
APP_PREFIX = "eo:"
TOKEN_SUFFIX = ":token"  # noqa: S105 - no secret

#: In the commit's own words ("Commit Provenance Information"): the table's id, its layout, and the
#: key of its description.
_TABLE, _LAYOUT, _DESCRIBED = "eo_table", "eo_partition_by", "eo_described"

#: Commits after the log's checkpoint: more than of ours there ever are, so somebody else keeps it.
_COMMITS_MAX = 200

#: How far behind the newest commit each name is looked for that none may have, and then ever twice
#: as far.
_NEAR, _FAR = 32, 2**20

#: Actions by which a table becomes another one.
_CHANGES = ("metaData", "protocol")


class OwnCommit(NamedTuple):
    """What it says: of the table's version ``version``, whose commit is ``file``, as
    :func:`eo_pipeline.places.identity_of` tells it.
    """

    version: int
    file: tuple[object, ...]
    pointer: Pointer
    table: str
    partition_by: tuple[str, ...]
    described: str | None


def told_of(table: str, partition_by: list[str], described: str | None) -> dict[str, str]:
    """What a commit on this table says for :class:`OwnCommits`."""
    told = {_TABLE: table, _LAYOUT: json.dumps(partition_by)}
    return told | ({_DESCRIBED: described} if described else {})


class _Newest(NamedTuple):
    version: int
    file: tuple[object, ...] | None
    own: OwnCommit | None


class OwnCommits:
    """Of one pipeline, in the log of a folder."""

    def __init__(self, log: Path, pipeline: str) -> None:
        self._log, self._app = log, APP_PREFIX + pipeline
        self._found: _Newest | None = None

    def newest(self) -> OwnCommit | None:
        """``None``: the table must be opened to know."""
        if self._found is None or not self._is_newest(self._found):
            self._found = None
            try:
                version = self._newest_version()
                self._found = None if version is None else self._read(version)
            except (OSError, ValueError, KeyError, TypeError):
                return None
        return self._found.own if self._found else None

    def forget(self) -> None:
        """Look anew, whatever is found."""
        self._found = None

    def is_last(self, version: int) -> bool:
        """Whether the log names no commit behind ``version``, and none behind a gap there. Left
        unseen is a gap which is wider than :data:`_NEAR` and than what comes behind it.
        """
        near, far = range(1, _NEAR), (_NEAR << n for n in range(_FAR.bit_length()))
        return not any(self._has(version + behind) for behind in chain(near, far))

    def _newest_version(self) -> int | None:
        """By the names that follow, of which none is left out; the folder may hold many thousands.
        ``None``: there is none, or it is not found by looking at few.
        """
        checkpoint = newest_checkpoint(self._log)
        since = checkpoint.version if checkpoint else 0
        found = (v for v in range(since, since + _COMMITS_MAX) if not self._has(v))
        absent = next(found, since)
        return absent - 1 if absent > since else None

    def _is_newest(self, found: _Newest) -> bool:
        return found.file == self._identity(found.version) and not self._has(found.version + 1)

    def _identity(self, version: int) -> tuple[object, ...] | None:
        return identity_of(self._log / commit_name(version))

    def _has(self, version: int) -> bool:
        try:
            os.stat(os.path.join(self._log, commit_name(version)))
        except FileNotFoundError:
            return False
        return True

    def _read(self, version: int) -> _Newest:
        file = self._identity(version)
        own = _said(version, file, self._log / commit_name(version), self._app) if file else None
        return _Newest(version, file, own)


def _said(version: int, file: tuple[object, ...], commit: Path, app: str) -> OwnCommit | None:
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
    layout = tuple(json.loads(told[_LAYOUT]))
    return OwnCommit(version, file, pointer, told[_TABLE], layout, told.get(_DESCRIBED))


def _small_actions(commit: Path) -> Iterator[tuple[str, Any]]:
    """All but those of files, of which there may be thousands: they are not decoded."""
    for line in commit.read_bytes().splitlines():
        if not line.startswith((b'{"add"', b'{"remove"', b'{"cdc"')):
            [(name, value)] = json.loads(line).items()
            if name in ("txn", "commitInfo", *_CHANGES):
                yield name, value
