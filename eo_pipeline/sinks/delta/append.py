"""Files added to a table that is not opened: the commit is written here, and not by delta-rs.

delta-rs opens a table for a commit and then looks through its log once more: of 10,000 files that
came in 10,000 commits that is 45 ms, of ten files 3. A commit that only adds files needs three
things of the table, which the newest commit says if that is the pipeline's own
(:mod:`eo_pipeline.sinks.delta.own`): the version to follow, where the ledger stands, and what the
table is. The commit is one file (Delta protocol, "Delta Log Entries"): written under a name that
nobody looks for, then linked to the name of the next version, which can be taken once, by a file
that is whole.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from deltalake.transaction import AddAction

from eo_pipeline.places import Place, identity_of, name_too
from eo_pipeline.sinks.delta.described import Described
from eo_pipeline.sinks.delta.log import commit_file, newest_checkpoint, path_in_log
from eo_pipeline.sinks.delta.own import OwnCommit
from eo_pipeline.sinks.protocol import OvertakenError


def append_text(
    words: Mapping[str, str],
    partition_by: Iterable[str],
    transactions: Mapping[str, int],
    added: Iterable[AddAction],
) -> str:
    """A commit that adds files, as delta-rs would write it; ``words`` are its own."""
    how = {"mode": "Append", "partitionBy": json.dumps([*partition_by])}
    info = {
        **words,
        "timestamp": int(time.time() * 1000),
        "operation": "WRITE",
        "operationParameters": how,
        "engineInfo": "eo-pipeline",
    }
    actions = [
        {"commitInfo": info},
        *({"add": _file(action)} for action in added),
        *({"txn": {"appId": app, "version": v}} for app, v in transactions.items()),
    ]
    return "".join(json.dumps(action) + "\n" for action in actions)


def _file(action: AddAction) -> dict[str, object]:
    return {
        "path": path_in_log(action.path),
        "partitionValues": dict(action.partition_values),
        "size": action.size,
        "modificationTime": action.modification_time,
        "dataChange": action.data_change,
        "stats": action.stats,
    }


@dataclass(frozen=True)
class Appendable:
    """A version of a table behind which files can be added: its commit ``own``, and what it is."""

    log: Place
    own: OwnCommit
    described: Described

    def followed_by(self, written: Place) -> None:
        """Make the file ``written`` the next commit: durable when this returns.

        Two things are looked at once it is: that the log still has the commit before, and no
        checkpoint behind that. Otherwise ours may lie where nobody reads: a log whose clean-up
        keeps nothing may have lost the name since it was taken, by a table that has gone on.

        Raises:
            OvertakenError: it is not the next commit, or may not be; the table tells.
            OSError: whether it is, is not known.
        """
        before = self.own.version
        try:
            name_too(written, commit_file(self.log, before + 1))
        except FileExistsError as error:
            raise OvertakenError(f"version {before + 1} of the table is another's") from error
        except FileNotFoundError as error:
            raise OvertakenError(f"the log, or the commit, was tidied away: {error}") from error
        checkpoint = newest_checkpoint(self.log)
        is_there = identity_of(commit_file(self.log, before)) == self.own.file
        if not is_there or (checkpoint is not None and checkpoint.version > before):
            raise OvertakenError(f"the table went on while version {before + 1} was written")
