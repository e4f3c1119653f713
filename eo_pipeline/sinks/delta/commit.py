"""Commits that carry the ledger's head, and what delta-rs's errors say about them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError
from deltalake.transaction import AddAction, RemoveAction

from eo_pipeline.arrow import pa
from eo_pipeline.errors import DamagedError
from eo_pipeline.ledger.entry import LedgerEntry
from eo_pipeline.sinks.delta.own import APP_PREFIX, TOKEN_SUFFIX
from eo_pipeline.sinks.delta.store import explained, is_of_files
from eo_pipeline.sinks.lake.ledger import Pointer
from eo_pipeline.sinks.protocol import OvertakenError

#: No hooks: a checkpoint of the log that fails raises although the commit landed.
_NO_HOOKS = PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)

#: What tells a commit that changes no row in the table's history: of maintenance, of new columns.
MAINTENANCE = "eo_maintenance"

#: Arguments of a delta-rs call that commits.
Arguments = dict[str, Any]


def maintenance_commit(transactions: Mapping[str, int]) -> Arguments:
    """For a commit that changes no row, and leaves the ledger's head where it is. It must not be
    retried.
    """
    return {
        "commit_properties": CommitProperties(
            custom_metadata={MAINTENANCE: "true"},
            max_commit_retries=0,
            app_transactions=[Transaction(name, value) for name, value in transactions.items()],
        ),
        "post_commithook_properties": _NO_HOOKS,
    }


def words_of(entry: LedgerEntry, told: Mapping[str, str]) -> dict[str, str]:
    """What the commit of ``entry`` says of itself, besides what is ``told`` of its table: for
    people who read the table's history; lost when the log is cleaned.
    """
    return {
        **told,
        "eo_pipeline": entry.pipeline,
        "eo_version": str(entry.version),
        "eo_operation": entry.operation.value,
        "eo_run_id": entry.run_id,
    }


def transactions_of(pipeline: str, at: Pointer) -> dict[str, int]:
    """The application transactions of the commit that makes the entry kept ``at`` the head."""
    app = APP_PREFIX + pipeline
    return {app: at.version, app + TOKEN_SUFFIX: at.token}


def ledger_commit(entry: LedgerEntry, at: Pointer, told: Mapping[str, str]) -> Arguments:
    """For the commit that makes ``entry``, kept ``at``, the head; ``told`` is of its table.

    With retries off the commit is refused when anybody committed since the handle was opened; with
    retries on delta-rs would let it follow a foreign commit, and never looks at the version given.
    """
    transactions = transactions_of(entry.pipeline, at)
    return {
        "commit_properties": CommitProperties(
            custom_metadata=words_of(entry, told),
            max_commit_retries=0,
            app_transactions=[Transaction(name, value) for name, value in transactions.items()],
        ),
        "post_commithook_properties": _NO_HOOKS,
    }


def commit_files(
    table: DeltaTable, actions: Sequence[AddAction | RemoveAction], arguments: Arguments
) -> None:
    """One commit on this handle: files that come and go, perhaps none, and the ledger's head."""
    table.create_write_transaction(
        list(actions),
        mode="append",
        schema=table.schema(),
        partition_by=list(table.metadata().partition_columns),
        **arguments,
    )


@contextmanager
def commit_errors(uri: str, damage: Callable[[], DamagedError | None]) -> Iterator[None]:
    """Turns what delta-rs raises for a commit into what it means for the rows.

    ``CommitFailedError`` says that nothing landed because the log moved on. A failing disk says
    nothing, and passes, unless a file that had to be read is damaged. Anything else was raised
    before the log was written: a value, a name, a column that may not be null.
    """
    try:
        yield
    except CommitFailedError as error:
        raise OvertakenError(str(error)) from error
    except (DeltaError, pa.ArrowException, ValueError, TypeError, OSError) as error:
        if not is_of_files(error):
            raise explained(uri, error) from error
        if found := damage():
            raise found from error
        raise
