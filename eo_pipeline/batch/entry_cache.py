"""Entries of the ledger that are looked up again and again; they never change."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from eo_pipeline.ledger.entry import LedgerEntry

_KEPT = 64


class EntryCache:
    """EntryCache by version, ``None`` for one that is not there; ``ask`` asks the sink."""

    def __init__(self, ask: Callable[[int], LedgerEntry | None]) -> None:
        self._ask = lru_cache(maxsize=_KEPT)(ask)
        self._gathered: dict[int, LedgerEntry | None] = {}

    def __call__(self, version: int) -> LedgerEntry | None:
        if version in self._gathered:
            return self._gathered[version]
        return self._ask(version)

    def gather(self, promised: LedgerEntry) -> None:
        """All that hold a text which a child of ``promised`` may be read with, and ``promised``
        itself, which the ledger does not hold yet: of these the sink need not be asked any more.
        """
        schema_sets = (promised.known_schemas, promised.known_key_schemas)
        versions = {held.version for schemas in schema_sets for held in schemas.held.values()}
        earlier = {version: self(version) for version in versions - {promised.version}}
        self._gathered = {**earlier, promised.version: promised}
