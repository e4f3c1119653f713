"""Commits that carry the ledger's head, and what delta-rs's errors say about them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties, Transaction
from deltalake.exceptions import (
    CommitFailedError,
    DeltaError,
    DeltaProtocolError,
    SchemaMismatchError,
)
from deltalake.transaction import AddAction, RemoveAction

from eo_pipeline.errors import CommitUnknownError, RefusedError
from eo_pipeline.sinks.delta.table import APP_PREFIX, TOKEN_SUFFIX
from eo_pipeline.sinks.lake.frame import OvertakenError
from eo_pipeline.sinks.lake.ledger import Record

#: No hooks: a checkpoint of the log that fails raises although the commit landed.
_NO_HOOKS = PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)


def plain_commit() -> dict[str, Any]:
    """Arguments of a delta-rs call for a commit of its own that must not be retried."""
    return {
        "commit_properties": CommitProperties(max_commit_retries=0),
        "post_commithook_properties": _NO_HOOKS,
    }


def ledger_commit(record: Record) -> dict[str, Any]:
    """Arguments of a delta-rs call whose commit makes ``record`` the head.

    With retries off the commit is refused when anybody committed since the handle was opened; with
    retries on delta-rs would let it follow a foreign commit, and never looks at the version given.
    """
    entry, app = record.entry, APP_PREFIX + record.entry.pipeline
    return {
        "commit_properties": CommitProperties(
            # for people who read the table's history; lost when the log is cleaned
            custom_metadata={
                "eo_pipeline": entry.pipeline,
                "eo_version": str(entry.version),
                "eo_operation": entry.operation.value,
                "eo_run_id": entry.run_id,
            },
            max_commit_retries=0,
            app_transactions=[
                Transaction(app, record.at.version),
                Transaction(app + TOKEN_SUFFIX, record.at.token),
            ],
        ),
        "post_commithook_properties": _NO_HOOKS,
    }


def commit_files(
    table: DeltaTable, actions: Sequence[AddAction | RemoveAction], record: Record
) -> None:
    """One commit on this handle: files that come and go, perhaps none, and the ledger's head."""
    table.create_write_transaction(
        list(actions),
        mode="append",
        schema=table.schema(),
        partition_by=list(table.metadata().partition_columns),
        **ledger_commit(record),
    )


@contextmanager
def outcome_told(uri: str) -> Iterator[None]:
    """Turns what delta-rs raises for a commit into what it means for the rows.

    Only ``CommitFailedError`` says that nothing landed because the log moved on. A protocol or
    schema error is raised before anything is sent. Of anything else nobody knows.
    """
    try:
        yield
    except CommitFailedError as error:
        raise OvertakenError(str(error)) from error
    except (DeltaProtocolError, SchemaMismatchError) as error:
        raise RefusedError(
            f"{uri}: delta-rs does not write this: {error}. Nothing was written."
        ) from error
    except (DeltaError, OSError) as error:
        raise CommitUnknownError(
            f"{uri}: the commit's outcome is not known: {error}. Only the same transaction may "
            "be tried again; the ledger tells the next run."
        ) from error
