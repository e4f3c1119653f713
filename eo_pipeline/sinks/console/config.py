"""The configuration of the terminal as a sink."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Literal

from pydantic import NonNegativeInt

from eo_pipeline.sinks.config import Guarantee, Sink


class ConsoleSink(Sink):
    """Prints rows as a table. AT_LEAST_ONCE, and cannot be more.

    Rows are printed first and the ledger moves afterwards: whoever is killed in between prints
    them again. Only the ledger, JSON files, is exact: two runs never both get a version.

    Args:
        ledger: folder of the ledger, ``<ledger>/<pipeline>/<version>.json``. On a local disk.
        max_rows: how many rows of a checkpoint are shown; the rest is counted.
    """

    type: Literal["console"] = "console"
    ledger: Path = Path(".eo/console")
    max_rows: NonNegativeInt = 20

    guarantee: ClassVar[Guarantee] = Guarantee.AT_LEAST_ONCE
    session_class: ClassVar[str] = "eo_pipeline.sinks.console.session:ConsoleSession"
    no_tables_reason: ClassVar[str] = "it shows one table"

    @property
    def table_name(self) -> str:
        return "console"
