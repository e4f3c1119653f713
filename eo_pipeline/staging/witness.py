"""Which commits were seen confirmed, remembered beside the sink and not in it.

``<root>/<pipeline>/_witness/<version>-<transaction id>`` is an empty file made after a commit was
confirmed. It decides nothing; it only lets a later run notice that the ledger went backwards
(a restored backup, a failover to an old replica). A witness goes only once the ledger is known to
hold it: when its child was committed on top of it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from eo_pipeline.ledger.entry import EntryId, LedgerEntry
from eo_pipeline.staging.names import entry_ids_in, name_of


@dataclass(frozen=True)
class Witnesses:
    """The witnesses of one pipeline, files in ``folder``."""

    folder: Path

    def entry_ids(self) -> list[EntryId]:
        """The commits that were confirmed, oldest first. Each must still be in the ledger."""
        return entry_ids_in(self.folder)

    def remember(self, entry: LedgerEntry) -> None:
        """``entry`` was committed: it takes the place of its parent, which it stands on.

        Never removes anything else: a run that comes late, or a ledger that lost a version
        meanwhile, cannot take back what a faster run saw.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / name_of(entry.id)).touch()
        if entry.parent is not None:
            self.forget([entry.parent])

    def forget(self, entry_ids: Iterable[EntryId]) -> None:
        """Remove these witnesses and no others."""
        for entry_id in entry_ids:
            (self.folder / name_of(entry_id)).unlink(missing_ok=True)
