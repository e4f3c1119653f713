"""Which rows a rewind or a replay takes back."""

from __future__ import annotations

from eo_pipeline.errors import RefusedError
from eo_pipeline.ledger.entry import CHECKPOINT_COLUMN, LedgerEntry, Operation
from eo_pipeline.sinks.removal import goes_back, target_of
from eo_pipeline.sinks.sql.names import quoted


def condition_of(entry: LedgerEntry) -> str | None:
    """The rows to remove before ``entry`` is published, as a SQL condition; ``None`` for none.

    Raises:
        RefusedError: the entry goes back and does not say where to.
    """
    if not goes_back(entry):
        return None
    operator = ">" if entry.operation is Operation.REWIND else "="
    return f"{quoted(CHECKPOINT_COLUMN)} {operator} {target_of(entry)}"


def refuse_upserted(table: object, entry: LedgerEntry) -> None:
    """Raise RefusedError: rows that were overwritten cannot be had back."""
    raise RefusedError(
        f"{table} is upserted: what its rows held at version {entry.target} was "
        "overwritten and is not kept. Nothing was changed. Start a new pipeline into a "
        "new table (fork) instead."
    )
