"""Attempts that were removed, although a Spark job that nobody waits for may still write for them.

``<ledger>/_lost/<version>-<transaction id>`` is a mark. It holds the id of the Spark Connect
session the job runs in, if it runs on a server, until somebody has told that server to end it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

from eo_pipeline.ledger.entry import EntryId
from eo_pipeline.places import Place, write_atomically
from eo_pipeline.staging.names import entry_ids_in, name_of

_MARKS = "_lost"

#: For how many versions it is remembered that an attempt was lost.
_VERSIONS_REMEMBERED = 100


class LostAttempts:
    """The marks in the folder of one ledger's attempts."""

    def __init__(self, attempts: Place) -> None:
        self._marks = attempts / _MARKS

    def remember(self, entry_id: EntryId, session: str | None) -> None:
        """``session``: of the Spark Connect server where its job may still run. Where nothing can
        be written (a full disk ended the attempt, nothing is left of the ledger) nothing is: a mark
        saves work, and what else went wrong must be told.
        """
        with suppress(OSError):
            self._marks.mkdir(exist_ok=True)
            write_atomically(self._marks / name_of(entry_id), session or "", flushed=False)

    def ids(self) -> list[EntryId]:
        """Those remembered, oldest version first."""
        return entry_ids_in(self._marks)

    def jobs(self) -> Iterator[tuple[EntryId, str]]:
        """Those whose jobs nobody has ended yet, with their sessions."""
        for entry_id in self.ids():
            with suppress(FileNotFoundError):
                if session := (self._marks / name_of(entry_id)).read_text():
                    yield entry_id, session

    def forget_job(self, entry_id: EntryId) -> None:
        """Its job was told to end; what that writes until it does may have to be swept."""
        self.remember(entry_id, None)

    def forget(self, entry_id: EntryId) -> None:
        (self._marks / name_of(entry_id)).unlink(missing_ok=True)

    def forget_before(self, version: int) -> None:
        """Those of old versions: no job runs for so long."""
        for entry_id in self.ids():
            if entry_id.version + _VERSIONS_REMEMBERED <= version:
                self.forget(entry_id)
