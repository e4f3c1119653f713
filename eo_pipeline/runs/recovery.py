"""Checkpoint step 1: settle what dead runs left in staging. No clock decides anything.

The rules, each found necessary by the protocol explorer in the tests:

- A manifest whose parent is the head is committed. If it had in fact landed, the sink says so.
- A manifest that is not a child of the head is not committed. Whoever is fenced looks at the
  ledger again before continuing.
- A refused manifest is marked, never met again, and its folder stays: somebody else may be
  committing it at this moment.
- A folder is deleted only if the ledger positively holds another transaction at its version, or,
  for a sink that copies rows, this very one. Absent is not dead.
- A manifest that cannot be read stops the run, if its version comes next: its promise is unknown.
  Set aside, it is no promise, and the compare-and-swap does the rest.
- Staging may hold attempts of other ledgers, of pipelines of the same name: never touched.
- Below the ledger's floor the transaction that holds a version is unknown, and none will be
  committed there: an attempt is treated as committed.
- A folder without a manifest may belong to a live run: left alone until its version is taken,
  or its owner's lock proves that no living process stages there.
- A ledger that lacks a commit this staging area saw confirmed is refused. Each witness is looked
  up at its version, after it was listed: comparing it with a head read earlier would call a
  faster run a restored backup.
- A ledger that ends below the rows of the table is refused, also where staging saw nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from eo_pipeline.errors import (
    EoPipelineError,
    FencedError,
    LedgerBehindError,
    LedgerDamagedError,
    ManifestDamagedError,
)
from eo_pipeline.ledger.entry import LedgerEntry
from eo_pipeline.progress import phase
from eo_pipeline.runs.transaction import SinkTransaction
from eo_pipeline.sinks.session import SinkSession
from eo_pipeline.staging.attempt import Attempt, StagingArea
from eo_pipeline.staging.markers import CommitReceipt

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Recovery:
    """Checkpoint step 1 for one pipeline: its store and staging area, and if commits copy rows."""

    pipeline: str
    session: SinkSession
    staging: StagingArea
    copies_rows: bool

    def recover(self) -> tuple[LedgerEntry | None, list[LedgerEntry]]:
        """Commit what dead runs had promised, delete what can never be committed.

        Returns the head, and the entries this call committed, in order.

        Raises:
            LedgerBehindError: the ledger went backwards.
            LedgerDamagedError: somebody changed it, or took its newest entries away.
            ManifestDamagedError: a promise that comes next cannot be read.
            SinkUnavailableError, CommitUnknownError: the store could not be asked; nothing is lost.
        """
        head = self.session.verified(self.session.recover())
        seen = self.refuse_older_ledger(head)
        is_confirmed = head is not None and head.id in {receipt.id for receipt in seen}
        self.session.refuse_later_rows(head, thorough=not is_confirmed)
        # the newest receipt implies the earlier ones; on several hosts in turn, each with its own
        # staging, a commit finds no receipt of its parent to remove
        older = [receipt for receipt in seen[:-1] if head and receipt.ledger_id == head.ledger_id]
        self.staging.witnesses.forget(older)
        committed: list[LedgerEntry] = []
        for attempt in self.waiting(head):
            try:
                entry = self._commit(attempt, head)
            except FencedError as error:
                log.warning("%s: %s", attempt.folder.name, error)
                head = self.session.verified(self.session.head())
                continue
            if entry is not None:
                committed.append(entry)
                head = entry
        if head is not None:
            self.staging.witnesses.remember(head)
            self.delete_decided_attempts(head)
            with _or_later():
                self._delete_abandoned_attempts(head)
            with _or_later():
                self.staging.sweep(head)
        return head, committed

    def delete_decided_attempts(self, head: LedgerEntry) -> None:
        """Delete the attempts whose version the ledger positively holds, by the rules above. A
        later run deletes those that cannot be deleted just now.
        """
        with _or_later():
            for attempt in self.staging.attempts_at(head.ledger_id):
                if attempt.id.version > head.version:
                    continue
                held = self.session.entry(attempt.id.version)
                if held is None and attempt.id.version >= head.floor:
                    continue
                if held is None or held.id == attempt.id:
                    # a lake's committed files are the table: only the promise goes
                    attempt.delete_committed(rows=self.copies_rows)
                else:
                    attempt.delete()

    def _delete_abandoned_attempts(self, head: LedgerEntry) -> None:
        """Delete attempts at later versions that no living process stages and nobody can commit."""
        for attempt in self.staging.attempts_at(head.ledger_id):
            if attempt.id.version > head.version and attempt.is_abandoned:
                attempt.delete()

    def waiting(self, head: LedgerEntry | None) -> list[Attempt]:
        """Return the attempts at versions that the ledger does not hold yet, oldest first."""
        if head is None:
            return []
        attempts = self.staging.attempts(head.ledger_id)
        return [attempt for attempt in attempts if attempt.id.version > head.version]

    def damaged(self, head: LedgerEntry | None) -> list[tuple[Attempt, ManifestDamagedError]]:
        """Return the attempts on top of ``head`` whose manifest cannot be read, with the error."""
        damaged = []
        for attempt in self.waiting(head):
            try:
                if _comes_next(attempt, head):
                    attempt.manifest()
            except ManifestDamagedError as error:
                damaged.append((attempt, error))
        return damaged

    def _commit(self, attempt: Attempt, head: LedgerEntry | None) -> LedgerEntry | None:
        """Commit the attempt if it was promised on top of ``head``. Returns its entry, None if not
        committed.
        """
        manifest = attempt.manifest() if _comes_next(attempt, head) else None
        if manifest is None or not manifest.entry.is_child_of(head):
            return None
        message = f"committing version {manifest.entry.version}, staged by a dead run"
        try:
            with phase(f"{self.pipeline}: {message}"):
                SinkTransaction.resume(self.session, attempt, manifest).commit()
        except EoPipelineError as error:
            if error.retryable:
                raise
            # a refusal, marked in the attempt
            log.warning("%s: batch refused, will be planned again: %s", attempt.folder.name, error)
            return None
        self.staging.witnesses.remember(manifest.entry)
        return manifest.entry

    def refuse_older_ledger(self, head: LedgerEntry | None) -> list[CommitReceipt]:
        """Return the receipts of confirmed commits, oldest first, if the ledger that ends in
        ``head`` holds them all.

        Raises:
            LedgerBehindError: it does not.
            LedgerDamagedError: one of them has another content now.
        """
        seen = self.witnesses(head)
        lost = self.lost(head, seen)
        if not lost:
            return seen
        now = f"is at version {head.version}" if head else "is empty"
        version, transaction_id = lost[-1].id
        raise LedgerBehindError(
            f"Pipeline {self.pipeline!r}: version {version} (transaction {transaction_id}) was "
            f"committed earlier, and the ledger in the sink, which {now}, does not hold it. The "
            "sink was restored from an older backup, failed over to an old replica, or emptied. "
            "Nothing was read or written. Restore the newer state, or accept the sink's "
            "current state as it is: `eo adopt`, Pipeline.adopt()."
        )

    def witnesses(self, head: LedgerEntry | None) -> list[CommitReceipt]:
        """Return the receipts of commits that the ledger that ends in ``head`` must hold."""
        return self.staging.witnesses.of(head.ledger_id if head else None)

    def lost(
        self, head: LedgerEntry | None, confirmed: Sequence[CommitReceipt]
    ) -> list[CommitReceipt]:
        """Return the receipts that the ledger that ends in ``head`` lacks; one below its floor is
        not lacking.

        Raises:
            LedgerDamagedError: one of them is, with another content.
        """
        return [
            receipt
            for receipt in confirmed
            if not (_is_pruned(receipt, head) or self._holds(receipt))
        ]

    def _holds(self, confirmed: CommitReceipt) -> bool:
        held = self.session.entry(confirmed.id.version)
        if held is None or held.id != confirmed.id:
            return False
        if confirmed.content not in (None, held.content_hash):
            fault = "was changed after it was committed"
            raise LedgerDamagedError(self.pipeline, held.version, fault)
        return True


@contextmanager
def _or_later() -> Iterator[None]:
    """Leave a failed deletion to a later run. An orphaned job may still write there, and a file
    system may fail to answer for a moment: neither is a reason to end a run.
    """
    try:
        yield
    except OSError as error:
        log.warning("leftovers of earlier attempts not removed; a later run retries: %s", error)


def _is_pruned(confirmed: CommitReceipt, head: LedgerEntry | None) -> bool:
    """Return whether the commit is below the floor of the ledger that ends in ``head``."""
    if head is None or confirmed.ledger_id not in (None, head.ledger_id):
        return False
    return confirmed.id.version < head.floor


def _comes_next(attempt: Attempt, head: LedgerEntry | None) -> bool:
    """Return whether the attempt, if promised, could be committed on top of ``head`` now."""
    expected = head.version + 1 if head else 0
    return attempt.id.version == expected and not attempt.is_refused
