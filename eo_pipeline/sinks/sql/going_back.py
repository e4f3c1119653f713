"""Which rows a rewind or a replay takes back."""

from __future__ import annotations

from eo_pipeline.checkpoint import CHECKPOINT_COLUMN, LedgerEntry, Operation
from eo_pipeline.errors import RefusedError
from eo_pipeline.sinks.sql.names import quoted

_OPERATORS = {Operation.REWIND: ">", Operation.REPLAY: "="}


def condition_of(entry: LedgerEntry) -> str | None:
    """The rows to remove before ``entry`` is published, as a SQL condition; ``None`` for none."""
    operator = _OPERATORS.get(entry.operation)
    if operator is None or entry.target is None:
        return None
    return f"{quoted(CHECKPOINT_COLUMN)} {operator} {int(entry.target)}"


def upserted_has_no_past(table: object, entry: LedgerEntry) -> RefusedError:
    """Why rows that were overwritten cannot be had back."""
    return RefusedError(
        f"{table} is upserted: what its rows held at version {entry.target} was "
        "overwritten and is not kept. Nothing was changed. Start a new pipeline into a "
        "new table (fork) instead."
    )
