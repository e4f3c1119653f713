"""The table as it was opened last, used again for as long as nobody has committed since."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from eo_pipeline.places import Place, identity_of
from eo_pipeline.sinks.delta.log import commit_file
from eo_pipeline.sinks.delta.store import Snapshot


class _Opened(NamedTuple):
    """A snapshot, its version, and what tells the file of that version from any other."""

    table: Snapshot
    version: int
    file: tuple[object, ...]


class Newest:
    """Opening a table costs as much as it has files, and a run asks for it many times. Whether the
    one that is open is still the newest is told by two names in ``log``: the file of its version is
    the one that was there, and there is none of the next version.

    This spares time and is no promise: what makes a commit safe is that it can only follow the
    version of its handle.
    """

    def __init__(self, log: Place) -> None:
        self._log = log
        self._opened: _Opened | None = None

    def known(self) -> Snapshot | None:
        """The newest version, if that is the one which is open."""
        opened = self._opened
        return opened.table if opened is not None and self._is_newest(opened) else None

    def get(self, opened_anew: Callable[[], Snapshot | None]) -> Snapshot | None:
        """The newest version, ``None`` where there is no table."""
        if known := self.known():
            return known
        self.forget()
        table = opened_anew()
        if table is not None:
            version = table.table.version()
            file = identity_of(self._file(version))
            self._opened = _Opened(table, version, file) if file else None
        return table

    def forget(self) -> None:
        """Open the table anew, whatever is found: before a commit, after which a file system that
        others share may show for a while what was there before.
        """
        self._opened = None

    def _is_newest(self, opened: _Opened) -> bool:
        """Not if a commit on this handle has moved it on."""
        return (
            opened.table.table.version() == opened.version
            and identity_of(self._file(opened.version)) == opened.file
            and not self._file(opened.version + 1).is_file()
        )

    def _file(self, version: int) -> Place:
        return commit_file(self._log, version)
