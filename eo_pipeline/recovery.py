"""Step 1: settle what dead runs left in staging. No clock decides anything.

The rules, each found necessary by the protocol explorer in the tests:

- A manifest whose parent is the head is committed. If it had in fact landed, the sink says so.
- A manifest that is not a child of the head is not committed.
- A refused manifest is marked, never met again, and its folder stays: somebody else may be
  committing it at this moment.
- A folder is deleted only if the ledger positively holds another transaction at its version, or,
  for a sink that copies rows, this very one. Absent is not dead.
- A folder without a manifest may belong to a live run: left alone until its version is taken.
- A ledger older than a commit this staging area saw confirmed is refused.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace

from eo_pipeline.checkpoint import LedgerEntry, Operation
from eo_pipeline.crashpoints import Reach
from eo_pipeline.errors import ConfigError, FencedError, LedgerBehindError, RefusedError
from eo_pipeline.sinks.base import SinkSession
from eo_pipeline.staged import StagedOutput
from eo_pipeline.staging import Attempt, StagingArea
from eo_pipeline.transaction import SinkTransaction

log = logging.getLogger(__name__)


def settle(
    pipeline: str,
    session: SinkSession,
    staging: StagingArea,
    head: LedgerEntry | None,
    copies_rows: bool,
    reach: Reach,
) -> Iterator[LedgerEntry]:
    """Commit what a dead run had promised, tidy up what can never be committed.

    Yields every entry it committed, in order; the last one is the new head.

    Raises:
        LedgerBehindError: the ledger went backwards.
        SinkUnavailableError, CommitUnknownError: the store could not be asked; nothing is lost.
    """
    refuse_older_ledger(pipeline, session, staging, head)
    for attempt in staging.attempts():
        committed = _commit(session, attempt, head, reach)
        if committed is not None:
            head = committed
            staging.bear_witness(head.id)
            yield head
    tidy(session, staging, copies_rows)


def refuse_older_ledger(
    pipeline: str, session: SinkSession, staging: StagingArea, head: LedgerEntry | None
) -> None:
    """Raise LedgerBehindError if a commit that was confirmed is no longer in the ledger."""
    witness = staging.witness()
    if witness is None:
        return
    held = session.entry(witness.version) if head and head.version >= witness.version else None
    if held is not None and held.transaction_id == witness.transaction_id:
        return
    now = f"is at version {head.version}" if head else "is empty"
    raise LedgerBehindError(
        f"Pipeline {pipeline!r}: version {witness.version} (transaction {witness.transaction_id}) "
        f"was committed earlier, and the ledger in the sink, which {now}, does not hold it. The "
        "sink was restored from an older backup, failed over to an old replica, or emptied. "
        "Nothing was read or written. Bring the newer state back, or call Pipeline.adopt() to go "
        "on from the sink's present state, knowingly."
    )


def tidy(session: SinkSession, staging: StagingArea, copies_rows: bool) -> None:
    """Delete the attempts whose version the ledger positively holds, by the rules above."""
    for attempt in staging.attempts():
        held = session.entry(attempt.id.version)
        if held is not None:
            # a lake's committed files are the table: only the promise goes
            attempt.delete(rows=copies_rows or held.id != attempt.id)


def _commit(
    session: SinkSession, attempt: Attempt, head: LedgerEntry | None, reach: Reach
) -> LedgerEntry | None:
    """The entry, if this attempt was promised, still fits the head, and is now in the ledger."""
    manifest = None if attempt.is_refused else attempt.manifest()
    if manifest is None or not manifest.entry.is_child_of(head):
        return None
    try:
        SinkTransaction.resume(session, attempt, manifest, reach).commit()
    except (FencedError, RefusedError) as error:
        # fenced: another manifest or run took the version; refused: marked, and planned afresh
        log.warning("%s: attempt not committed: %s", attempt.folder.name, error)
        return None
    return manifest.entry


def adopt(
    pipeline: str, session: SinkSession, staging: StagingArea, reason: str, run_id: str
) -> LedgerEntry | None:
    """See :meth:`eo_pipeline.pipeline.Pipeline.adopt`."""
    head = session.recover()
    try:
        refuse_older_ledger(pipeline, session, staging, head)
    except LedgerBehindError:
        entry = None
        if head is not None:
            child = head.child(Operation.ADOPT, run_id, head.offsets)
            entry = replace(child, details={"reason": reason})
            session.publish(entry, StagedOutput())
        # only now: were the process to die before this line, runs go on refusing and adopt is
        # simply called again
        staging.forget_witnesses()
        return entry
    raise ConfigError(f"Pipeline {pipeline!r}: the ledger did not go backwards; nothing to adopt.")
