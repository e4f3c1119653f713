"""Marker files and folders in staging: names, commit receipts, orphaned attempts, owner locks.

They are named after a ledger entry, ``<version>-<transaction id>``, or after a ledger.
"""

from __future__ import annotations

import json
import os
import platform
import sys
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from eo_pipeline.ledger.entry import EntryId, LedgerEntry
from eo_pipeline.storage.paths import (
    Place,
    folders_in,
    nonempty_names,
    remove_all,
    write_atomically,
)

#: Width of a version in a name, so that names sort by version.
_VERSION_DIGITS = 12


def name_of(entry_id: EntryId) -> str:
    """``000000000003-6f1c...`` for version 3."""
    return f"{entry_id.version:0{_VERSION_DIGITS}d}-{entry_id.transaction_id}"


def entry_ids_in(folder: Place) -> list[EntryId]:
    """The entries that something in ``folder`` is named after, sorted; none if there is no such
    folder. Other names are passed over.
    """
    parts = [name.partition("-") for name in nonempty_names(folder)]
    return sorted(
        EntryId(int(version), transaction_id)
        for version, dash, transaction_id in parts
        if dash and version.isdigit()
    )


def ledger_ids_in(folder: Place) -> list[str]:
    """The ledgers that a folder in ``folder`` is named after, sorted. An entry's name has a dash,
    and what begins with a dot or an underscore is named after neither.
    """
    return sorted(
        name for name in folders_in(folder) if "-" not in name and not name.startswith(("_", "."))
    )


_FOLDER = "_witness"


@dataclass(frozen=True)
class CommitReceipt:
    """A commit of the ledger ``ledger_id``, which lived in ``sink``, with the entry's content; each
    None if an earlier release saw it.
    """

    id: EntryId
    ledger_id: str | None = None
    sink: Mapping[str, str] | None = None
    content: str | None = None


@dataclass(frozen=True)
class Witnesses:
    """The witnesses of one pipeline, in ``folder`` of its staging. ``sink`` is where the ledger is
    that they are compared with; see ``Sink.describe``.
    """

    folder: Place
    sink: Mapping[str, str] = field(default_factory=dict)

    def of(self, ledger_id: str | None) -> list[CommitReceipt]:
        """The commits that the ledger ``ledger_id`` (None: there is none in the sink) must still
        hold, oldest first: its own; those of any ledger that lived in this very place; and those
        of an earlier release, which did not say whose they were.
        """
        return [
            witness
            for witness in self.all()
            if witness.ledger_id in (None, ledger_id) or witness.sink == self.sink
        ]

    def all(self) -> list[CommitReceipt]:
        """Return the receipts of every ledger, oldest version first."""
        return sorted(self._read(), key=lambda witness: witness.id)

    def entry_ids(self) -> list[EntryId]:
        """The commits that were confirmed, oldest first."""
        return [witness.id for witness in self.all()]

    def remember(self, entry: LedgerEntry) -> None:
        """``entry`` was committed: it takes the place of its parent, which it stands on.

        Never removes anything else: a run that comes late, or a ledger that lost a version
        meanwhile, cannot take back what a faster run saw.
        """
        path = self._path(entry.id, entry.ledger_id)
        if not path.is_file():
            path.parent.mkdir(parents=True, exist_ok=True)
            receipt = {"sink": dict(self.sink), "content": entry.content_hash}
            # not flushed: after a power cut its name may be all there is, which is alarm enough
            write_atomically(path, json.dumps(receipt), flushed=False)
        # of this very commit; one of another ledger has another transaction id
        replaced = [CommitReceipt(entry.id)]
        if entry.parent is not None:
            replaced += [CommitReceipt(entry.parent), CommitReceipt(entry.parent, entry.ledger_id)]
        self.forget(replaced)

    def forget(self, witnesses: Iterable[CommitReceipt]) -> None:
        """Remove these and no others."""
        remove_all(self._path(w.id, w.ledger_id) for w in witnesses)

    def _path(self, entry_id: EntryId, ledger_id: str | None) -> Place:
        of_ledger = self.folder / ledger_id if ledger_id else self.folder
        return of_ledger / _FOLDER / name_of(entry_id)

    def _read(self) -> Iterator[CommitReceipt]:
        for ledger_id in (None, *ledger_ids_in(self.folder)):
            of_ledger = self.folder / ledger_id if ledger_id else self.folder
            for entry_id in entry_ids_in(of_ledger / _FOLDER):
                # it may go while we look: its child was committed
                with suppress(FileNotFoundError):
                    yield _witness(entry_id, ledger_id, self._path(entry_id, ledger_id))


def _witness(entry_id: EntryId, ledger_id: str | None, path: Place) -> CommitReceipt:
    """One that was cut (a full disk, a power cut) still tells that the commit was confirmed."""
    try:
        receipt = json.loads(path.read_bytes())
        return CommitReceipt(entry_id, ledger_id, receipt["sink"], receipt["content"])
    except (ValueError, KeyError, TypeError):
        return CommitReceipt(entry_id, ledger_id)


_MARKS = "_lost"

#: For how many versions it is remembered that an attempt was lost.
_VERSIONS_REMEMBERED = 100


class OrphanMarkers:
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
        """Return the remembered attempts, oldest version first."""
        return entry_ids_in(self._marks)

    def jobs(self) -> Iterator[tuple[EntryId, str]]:
        """Yield the attempts whose jobs nobody has ended yet, with their sessions."""
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
        """Forget attempts at old versions: no job runs for so long."""
        for entry_id in self.ids():
            if entry_id.version + _VERSIONS_REMEMBERED <= version:
                self.forget(entry_id)


if sys.platform != "win32":
    import fcntl

_LOCK = "owner.lock"
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def own(folder: Place) -> IO[str] | None:
    """Lock ``folder`` for as long as what is returned is open. None where there are no locks: in a
    bucket, too, where the file is all that makes the attempt be found before it has rows.

    Raises:
        OSError: the folder cannot be written.
    """
    if not isinstance(folder, Path):
        write_atomically(folder / _LOCK, _kernel())
        return None
    if sys.platform == "win32":
        return None
    aside = folder / f".{_LOCK}.{uuid.uuid4().hex}"
    lock = aside.open("x")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        lock.write(_kernel())
        lock.flush()
        aside.rename(folder / _LOCK)  # it is locked before it can be found
    except OSError:
        lock.close()
        with suppress(OSError):
            aside.unlink()
        return None  # a file system without locks: the old rule holds
    return lock


def is_dead(folder: Place) -> bool:
    """True if the process that staged here ran on this kernel, and has ended."""
    if sys.platform == "win32" or not isinstance(folder, Path):
        return False
    with suppress(OSError), (folder / _LOCK).open() as lock:
        if lock.read() == _kernel():
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return True
    return False


def _kernel() -> str:
    """Return an id of this boot of this machine's kernel."""
    with suppress(OSError):
        return _BOOT_ID.read_text().strip()
    return f"{platform.node()} {os.getuid()}"
