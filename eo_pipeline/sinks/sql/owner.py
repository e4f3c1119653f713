"""One ledger speaks for one table, and one table belongs to one pipeline."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from eo_pipeline.errors import ConfigError
from eo_pipeline.ledger.entry import LedgerEntry
from eo_pipeline.sinks.sql.ledger import LedgerStatements

#: Answers a statement with its rows.
Rows = Callable[..., list[Any]]


@dataclass(frozen=True)
class Target:
    """The table of a pipeline, as the ledger names it."""

    pipeline: str
    table: str
    statements: LedgerStatements

    def check(self, rows: Rows) -> None:
        """Refuse a table that this pipeline's ledger does not speak for.

        Raises:
            ConfigError: the ledger names another table, or another pipeline has this one.
        """
        found = rows(self.statements.target, self.pipeline)
        if not found:
            self.refuse_owner(rows)
        elif found[0][0] != self.table:
            raise ConfigError(
                f"sink.table: pipeline {self.pipeline!r} publishes into {found[0][0]}, by its "
                f"ledger, not into {self.table}. Give the pipeline for {self.table} a name of its "
                f"own; if the table was renamed, set target_table in {self.statements.table} "
                "likewise."
            )

    def refuse_owner(self, rows: Rows) -> None:
        """Raise :class:`ConfigError` if another pipeline started on the table."""
        found = rows(self.statements.owner, self.table)
        if found and found[0][0] != self.pipeline:
            raise ConfigError(
                f"sink.table: {self.table} belongs to pipeline {found[0][0]!r}; pipeline "
                f"{self.pipeline!r} needs a table of its own. One ledger speaks for one table."
            )


def refuse_lost_table(entry: LedgerEntry, table: object) -> None:
    """A table made anew for ``entry`` would lack what the ledger says was written.

    Raises:
        ConfigError: the table, which is absent, was dropped or renamed.
    """
    written = entry.counts.rows_total - entry.counts.rows
    if written > 0:
        raise ConfigError(
            f"sink.table: {table} does not exist any more, and the ledger says that "
            f"{written} rows were written into it. Bring it back (was it renamed?), or start "
            "anew with another pipeline name."
        )
