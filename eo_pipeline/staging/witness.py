"""Which commits were seen confirmed, remembered beside the sink and not in it.

``<root>/<pipeline>/<ledger id>/_witness/<version>-<transaction id>`` is made after a commit was
confirmed; it holds the entry's content hash, and where the ledger lives. It decides nothing; it
only lets a later run notice that the ledger went backwards (a restored backup, a failover to an old
replica) or was changed. A witness goes only once the ledger is known to hold it: when its child was
committed on top of it.

An earlier release kept empty files in ``<root>/<pipeline>/_witness``, whatever the ledger.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from eo_pipeline.ledger.entry import EntryId, LedgerEntry
from eo_pipeline.places import Place, remove_all, write_atomically
from eo_pipeline.staging.names import entry_ids_in, ledger_ids_in, name_of

_FOLDER = "_witness"


@dataclass(frozen=True)
class Witness:
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

    def of(self, ledger_id: str | None) -> list[Witness]:
        """The commits that the ledger ``ledger_id`` (None: there is none in the sink) must still
        hold, oldest first: its own; those of any ledger that lived in this very place; and those
        of an earlier release, which did not say whose they were.
        """
        return [
            each
            for each in self.all()
            if each.ledger_id in (None, ledger_id) or each.sink == self.sink
        ]

    def all(self) -> list[Witness]:
        """Of every ledger, oldest version first."""
        return sorted(self._read(), key=lambda each: each.id)

    def entry_ids(self) -> list[EntryId]:
        """The commits that were confirmed, oldest first."""
        return [each.id for each in self.all()]

    def remember(self, entry: LedgerEntry) -> None:
        """``entry`` was committed: it takes the place of its parent, which it stands on.

        Never removes anything else: a run that comes late, or a ledger that lost a version
        meanwhile, cannot take back what a faster run saw.
        """
        path = self._path(entry.id, entry.ledger_id)
        if not path.is_file():
            path.parent.mkdir(parents=True, exist_ok=True)
            said = {"sink": dict(self.sink), "content": entry.content_hash}
            # not flushed: after a power cut its name may be all there is, which is alarm enough
            write_atomically(path, json.dumps(said), flushed=False)
        # of this very commit; one of another ledger has another transaction id
        replaced = [Witness(entry.id)]
        if entry.parent is not None:
            replaced += [Witness(entry.parent), Witness(entry.parent, entry.ledger_id)]
        self.forget(replaced)

    def forget(self, witnesses: Iterable[Witness]) -> None:
        """Remove these and no others."""
        remove_all(self._path(each.id, each.ledger_id) for each in witnesses)

    def _path(self, entry_id: EntryId, ledger_id: str | None) -> Place:
        of_ledger = self.folder / ledger_id if ledger_id else self.folder
        return of_ledger / _FOLDER / name_of(entry_id)

    def _read(self) -> Iterator[Witness]:
        for ledger_id in (None, *ledger_ids_in(self.folder)):
            of_ledger = self.folder / ledger_id if ledger_id else self.folder
            for entry_id in entry_ids_in(of_ledger / _FOLDER):
                # it may go while we look: its child was committed
                with suppress(FileNotFoundError):
                    yield _witness(entry_id, ledger_id, self._path(entry_id, ledger_id))


def _witness(entry_id: EntryId, ledger_id: str | None, path: Place) -> Witness:
    """One that was cut (a full disk, a power cut) still tells that the commit was confirmed."""
    try:
        said = json.loads(path.read_bytes())
        return Witness(entry_id, ledger_id, said["sink"], said["content"])
    except (ValueError, KeyError, TypeError):
        return Witness(entry_id, ledger_id)
