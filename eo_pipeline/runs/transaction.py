"""One attempt at one ledger version: stage, promise, commit; or abort.

    OPEN ──write──▶ STAGED ──pre_commit──▶ PRE_COMMITTED ──commit──▶ COMMITTED
      │               │                         │  ▲ └─────▶ UNKNOWN ──commit──▶ ...
      └────abort──────┴──▶ ABORTED              │  └ SinkUnavailable: may be tried again
                                                ├─────▶ FENCED
                                                └─────▶ REFUSED

The two phases are those of Flink's TwoPhaseCommitSinkFunction; here the first is the same for
every sink, and what survives a crash between them is the manifest.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from enum import StrEnum

from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_exponential

from eo_pipeline.crashpoints import CrashPoint, current_hook, reach
from eo_pipeline.errors import CommitUnknownError, EoPipelineError, FencedError
from eo_pipeline.ledger.entry import Counts, LedgerEntry
from eo_pipeline.ledger.schemas import written_with
from eo_pipeline.sinks.session import CommitOutcome, SinkSession
from eo_pipeline.staging.attempt import Attempt
from eo_pipeline.staging.manifest import Manifest
from eo_pipeline.staging.rows import StagedOutput

#: How often the same transaction is tried again after its reply was lost, and the seconds before
#: the second try; each further wait doubles.
COMMIT_TRIES = 4
COMMIT_WAIT_SECONDS = 0.5


class TransactionState(StrEnum):
    """State of an attempt; the module's picture holds the legal moves."""

    OPEN = "open"
    STAGED = "staged"
    PRE_COMMITTED = "pre_committed"
    UNKNOWN = "unknown"
    COMMITTED = "committed"
    FENCED = "fenced"
    REFUSED = "refused"
    ABORTED = "aborted"


_S = TransactionState
_MOVES: dict[TransactionState, frozenset[TransactionState]] = {
    _S.OPEN: frozenset({_S.STAGED, _S.ABORTED}),
    _S.STAGED: frozenset({_S.PRE_COMMITTED, _S.ABORTED}),
    _S.PRE_COMMITTED: frozenset({_S.COMMITTED, _S.UNKNOWN, _S.FENCED, _S.REFUSED}),
    _S.UNKNOWN: frozenset({_S.COMMITTED, _S.UNKNOWN, _S.FENCED, _S.REFUSED}),
    _S.COMMITTED: frozenset(),
    _S.FENCED: frozenset(),
    _S.REFUSED: frozenset(),
    _S.ABORTED: frozenset(),
}

Stage = Callable[[LedgerEntry, "Attempt | None"], tuple[StagedOutput, Counts]]


class SinkTransaction:
    """An attempt to publish ``entry``. ``attempt`` is its staging folder, None for a small batch
    that stays in memory (it has no manifest: a crash forgets it, and the next run plans anew).
    """

    def __init__(self, session: SinkSession, entry: LedgerEntry, attempt: Attempt | None) -> None:
        self.entry = entry
        self.state = TransactionState.OPEN
        self._session = session
        self._attempt = attempt
        self._output = StagedOutput()

    @classmethod
    def resume(cls, session: SinkSession, attempt: Attempt, manifest: Manifest) -> SinkTransaction:
        """The transaction of a dead run, from its manifest: promised, not committed."""
        transaction = cls(session, manifest.entry, attempt)
        transaction._output = manifest.output
        transaction.state = TransactionState.PRE_COMMITTED
        return transaction

    @property
    def output(self) -> StagedOutput:
        """The staged output."""
        return self._output

    @property
    def columns(self) -> dict[str, str] | None:
        """Names of the staged rows' columns, and the types the store gives them; ``None`` if the
        entry has no rows.
        """
        return _columns(self._session, self._output)

    def write(self, stage: Stage) -> None:
        """Stage the rows, where no reader looks."""
        self._output, counts = stage(self.entry, self._attempt)
        counts = _with_written(self._session, self.entry, self._output, counts)
        self.entry = self.entry.with_counts(counts)
        self._move(TransactionState.STAGED)

    def pre_commit(self) -> None:
        """Promise: after this only transport, or the store's own rules, can stop the commit."""
        if self._attempt is not None:
            self._attempt.write_manifest(Manifest(self.entry, self._output))
        self._move(TransactionState.PRE_COMMITTED)

    def commit(self) -> CommitOutcome:
        """Publish rows and ledger entry together. May be called again after SinkUnavailableError.

        A lost reply is resolved by trying the same transaction id again: the ledger then holds it,
        or holds another one, or takes it now. Any other answer to a later try says nothing about
        the first, which may still land; the outcome stays unknown.

        Whatever will not get better by itself is a refusal, of whatever kind the error is: the
        manifest is marked, so that it stops no later run.

        Raises:
            FencedError, RefusedError, SinkUnavailableError: nothing is visible.
            CommitUnknownError: the store could not be asked any more; the next run will know.
            EoPipelineError: of another kind, which is a refusal too.
        """
        try:
            outcome = _tries()(self._publish)
        except FencedError:
            self._move(TransactionState.FENCED)
            raise
        except CommitUnknownError:
            raise
        except EoPipelineError as error:
            self._stays_unknown(error)
            if not error.retryable:
                self._refused(error)
            raise
        self._move(TransactionState.COMMITTED)
        reach(CrashPoint.COMMITTED)
        return outcome

    def _publish(self) -> CommitOutcome:
        try:
            return self._session.publish(self.entry, self._output, current_hook())
        except CommitUnknownError:
            self._move(TransactionState.UNKNOWN)
            raise

    def _stays_unknown(self, error: EoPipelineError) -> None:
        if self.state is TransactionState.UNKNOWN:
            raise CommitUnknownError(
                f"Pipeline {self.entry.pipeline!r}: the reply to the commit of version "
                f"{self.entry.version} was lost, and retrying the same transaction id failed: "
                f"{error} The first commit may still succeed. Nothing was deleted; the next run "
                "looks at the ledger."
            ) from error

    def _refused(self, error: EoPipelineError) -> None:
        if self._attempt is not None:
            self._attempt.refuse(str(error))
        self._move(TransactionState.REFUSED)

    def abort(self) -> None:
        """Drop what was staged. Only before :meth:`pre_commit`: a promise is not taken back."""
        self._move(TransactionState.ABORTED)
        if self._attempt is not None:
            with suppress(OSError):  # a job may still write there; nothing of it was promised
                self._attempt.delete()

    def _move(self, state: TransactionState) -> None:
        if state not in _MOVES[self.state]:
            raise RuntimeError(f"a transaction cannot go from {self.state} to {state}")
        self.state = state


def _columns(session: SinkSession, output: StagedOutput) -> dict[str, str] | None:
    if output.rows is None:
        return None
    return {field.name: session.column_type(field) for field in output.rows.schema}


def _with_written(
    session: SinkSession, entry: LedgerEntry, output: StagedOutput, counts: Counts
) -> Counts:
    """Return ``counts`` with the types that the rows are written as; of each table, if there are
    several.
    """
    if session.members:
        tables = {
            name: _with_written(
                session.members[name],
                entry.of_table(name),
                output.tables.get(name, StagedOutput()),
                of_table,
            )
            for name, of_table in counts.tables.items()
            if name in session.members
        }
        return replace(counts, tables={**counts.tables, **tables})
    if not counts.rows or output.rows is None:
        return counts
    columns = _columns(session, output) or {}
    last = entry.identity.written
    return replace(counts, written=written_with(last, entry.version, columns, session.registered()))


def _tries() -> Retrying:
    """Calls again after a lost reply, and lets the last one's error through."""
    return Retrying(
        retry=retry_if_exception_type(CommitUnknownError),
        stop=stop_after_attempt(COMMIT_TRIES),
        wait=wait_exponential(multiplier=COMMIT_WAIT_SECONDS),
        reraise=True,
    )
