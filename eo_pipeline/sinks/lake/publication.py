"""One try to publish an entry in a lake table; a format fills in what its one commit is."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from typing import Generic

from eo_pipeline.errors import (
    CommitUnknownError,
    DamagedError,
    RefusedError,
    SinkUnavailableError,
    TableRolledBackError,
)
from eo_pipeline.ledger.entry import LedgerEntry, Operation
from eo_pipeline.places import Place, remove_all
from eo_pipeline.sinks.lake.ledger import LedgerFile, Pointer
from eo_pipeline.sinks.lake.session import Handle, LakeSession
from eo_pipeline.sinks.protocol import OvertakenError, Publication
from eo_pipeline.sinks.removal import target_of
from eo_pipeline.staging.rows import StagedOutput

#: Makes the prepared commit. Raises OvertakenError: it did not land and never will; RefusedError,
#: DamagedError: the table never takes it, and it did not land; CommitUnknownError: it may have.
Commit = Callable[[], None]


class LakePublication(Publication, Generic[Handle]):
    """One try, on one handle: the one on which the head was compared is the one whose commit is
    refused if the table moved on.
    """

    session: LakeSession[Handle]
    _commit: Commit

    def __init__(
        self,
        session: LakeSession[Handle],
        entry: LedgerEntry,
        staged: StagedOutput,
        table: Handle | None,
        head: LedgerFile,
    ) -> None:
        super().__init__(session, entry, staged)
        self.table = table
        self.head = head
        #: under which the ledger keeps the entry if this try lands
        self.at = Pointer.new(entry.version)
        #: files made by this try, to which nothing refers yet
        self.written: list[Place] = []
        #: whether it has begun, and what became of it is known
        self._is_known = False

    def has_landed(self) -> bool:
        return self.session.has_landed_below(self.head, self.entry)

    def write(self) -> None:
        self.session.ledger.begin(self.at)
        self._is_known = True
        self._commit = self._prepare()
        letters = self.staged.dead_letters
        if self._has_dead_letters and letters is not None:
            self.written.append(self.session.dead_letters.path(self.at))
            self.session.dead_letters.write(self.at, letters)

    def enter(self) -> None:
        ledger = self.session.ledger
        stamped = replace(self.entry, committed_at=datetime.now(UTC))
        self.written.append(ledger.path(self.at))
        ledger.write(ledger.child(stamped, self.at, self.head, dead_letters=self._has_dead_letters))

    def commit(self) -> None:
        # from here on they may be the table's, whatever happens
        written, self.written, self._is_known = self.written, [], False
        try:
            self._commit()
        except (OvertakenError, RefusedError, DamagedError):
            # by its own, perhaps: a transport that repeats a request is refused by what it made
            has_landed, self._is_known = self.landed() is not None, True
            if has_landed:
                return
            # this token can never land now, and nobody else knows it
            self.written = written
            raise
        self._is_known = True

    def close(self, error: BaseException | None) -> None:
        """Removes what nothing will ever refer to. Interrupted, it leaves that to ``recover``, as
        a killed one does.
        """
        if error is None or isinstance(error, Exception):
            with suppress(OSError):
                remove_all(self.written)
                if self._is_known:
                    self.session.ledger.end(self.at)

    def refuse_rolled_back(self, gone: TableRolledBackError | None) -> None:
        """Return if the table was not set back, or the entry goes back as far: this commit would
        hide that it was.
        """
        goes = self.entry.operation is Operation.REWIND
        if gone and not (goes and target_of(self.entry) <= gone.stands):
            raise gone

    def landed(self) -> Handle | None:
        """The table, if this very try is in its ledger, as it may be although it was refused.

        Raises:
            CommitUnknownError: the ledger cannot be read just now.
        """
        try:
            table = self.session.open_table()
            head = self.session.head_of(table)
        except SinkUnavailableError as error:
            raise CommitUnknownError(
                f"{self.session.root}: a commit was refused, and whether by its own is not known: "
                f"{error}"
            ) from error
        found = self.session.ledger.at(head, self.at.version) if head else None
        return table if found is not None and found.at == self.at else None

    @property
    def _has_dead_letters(self) -> bool:
        return self.staged.dead_letters is not None and self.staged.dead_letters.rows > 0

    @abstractmethod
    def _prepare(self) -> Commit:
        """Step 4: the one commit on :attr:`table`, ready to be made; it carries :attr:`at`. Adds to
        :attr:`written` each file it creates, before it does.

        Raises:
            RefusedError: the table will never take these rows.
        """
