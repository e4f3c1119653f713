"""Notes on interrupted runs: the state of the ledger after an interruption.

An interruption ends a run from outside: Ctrl-C, SIGTERM, Terminate in Dagster. In Python it is an
exception that is no :class:`Exception`; it passes every layer unchanged, and :func:`watched` adds
a note with the ledger's state. The command line and a Dagster step print the notes.
"""

from __future__ import annotations

from asyncio import CancelledError
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self, cast

from eo_pipeline._process import sent_again
from eo_pipeline.boundary import boundary
from eo_pipeline.crashpoints import CrashPoint, Reach, keep_going
from eo_pipeline.errors import CommitUnknownError, EoPipelineError
from eo_pipeline.ledger.entry import LedgerEntry
from eo_pipeline.progress import phase
from eo_pipeline.sinks.config import Sink
from eo_pipeline.sinks.session import CommitOutcome, SinkSession
from eo_pipeline.staging.rows import StagedOutput


@contextmanager
def watched(pipeline: str, sink: Sink) -> Iterator[SinkSession]:
    """Open the sink's session; add a note of the ledger's state to an interruption of the block.

    An error while an interruption unwinds is replaced by the interruption: it would be retried
    otherwise. Any other error leaves as an :class:`EoPipelineError`.
    """
    with (
        sent_again(),
        boundary(pipeline),
        _InterruptionNote(pipeline, sink) as note,
        _open(pipeline, sink) as opened,
    ):
        note.session = _WatchedSession(opened)
        yield cast("SinkSession", note.session)


def _open(pipeline: str, sink: Sink) -> SinkSession:
    with phase(f"{pipeline}: connecting to the store of {sink.table_name}", usually_short=True):
        return sink.open(pipeline)


class _InterruptionNote:
    """Add the note; entered before the sink is opened, to write it after the rollback."""

    def __init__(self, pipeline: str, sink: Sink) -> None:
        self._pipeline = pipeline
        self._sink = sink
        self.session: _WatchedSession | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        interruption = interruption_in(exc)
        if interruption is None:
            return
        left = _left(self.session, self._sink, self._pipeline)
        interruption.add_note(f"{self._pipeline}: interrupted; {left}")
        if interruption is not exc:
            raise interruption from None


def interruption_in(error: BaseException | None) -> BaseException | None:
    """Return the interruption among ``error`` and its causes, if there is one."""
    if error is None or not isinstance(error, Exception | CancelledError | GeneratorExit):
        return error
    cause, context = error.__cause__, error.__context__
    return interruption_in(cause) or (interruption_in(context) if context is not cause else None)


def notes(interruption: BaseException) -> list[str]:
    """Return the notes that :func:`watched` added, those of an inner block first."""
    return list(getattr(interruption, "__notes__", []))


class _WatchedSession:
    """Forward to a session; record the head that it returned, and a commit under way.

    Attributes that are not defined here are the session's, whatever it offers.
    """

    def __init__(self, session: SinkSession) -> None:
        self._session = session
        self.was_read = False
        self.head_seen: LedgerEntry | None = None
        #: Entry whose commit may have been sent, without an answer yet
        self.under_way: LedgerEntry | None = None
        self.dropping = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    def recover(self) -> LedgerEntry | None:
        return self._seen(self._session.recover())

    def head(self) -> LedgerEntry | None:
        return self._seen(self._session.head())

    def publish(
        self, entry: LedgerEntry, staged: StagedOutput, reach: Reach = keep_going
    ) -> CommitOutcome:
        def reached(point: CrashPoint) -> None:
            reach(point)
            if point is CrashPoint.ENTRY_SENT:
                self.under_way = entry

        earlier = self.under_way
        try:
            outcome = self._session.publish(entry, staged, reached)
        except CommitUnknownError:
            raise
        except EoPipelineError:
            self.under_way = earlier  # this try changed nothing
            raise
        self.under_way = None
        self._seen(entry)
        return outcome

    def reset(self, *, dry_run: bool) -> tuple[str, ...]:
        self.dropping = self.dropping or not dry_run
        return self._session.reset(dry_run=dry_run)

    def close(self) -> None:
        """Leave the session open: :func:`watched` closes it."""

    def _seen(self, head: LedgerEntry | None) -> LedgerEntry | None:
        self.was_read, self.head_seen = True, head
        return head


def _left(session: _WatchedSession | None, sink: Sink, pipeline: str) -> str:
    """Describe the ledger's state once the session is closed."""
    if session is not None and session.dropping:
        return "the reset may be done in part, and can be run again"
    if session is None or not session.was_read:
        return "the ledger was not read yet, nothing was changed"
    if session.under_way is not None:
        return _after_sending(session.under_way, sink, pipeline)
    return _stands(session.head_seen)


def _stands(head: LedgerEntry | None) -> str:
    if head is None:
        return "the ledger is empty; nothing of version 0 is visible"
    return f"version {head.version} stands; nothing of version {head.version + 1} is visible"


def _after_sending(sent: LedgerEntry, sink: Sink, pipeline: str) -> str:
    """Describe the state after a commit without a reply, from the ledger."""
    try:
        with sink.open(pipeline) as session:
            held = session.entry(sent.version)
    except EoPipelineError as error:
        return (
            f"the commit of version {sent.version} was in progress: it is visible as a whole or "
            f"not at all; the next run checks which. The ledger could not be read now: {error}"
        )
    if held is None:
        return (
            f"the commit of version {sent.version} was in progress and is not visible. If it still "
            "succeeds, it is complete; the next run checks the ledger first"
        )
    if held.id == sent.id:
        return f"version {sent.version} is committed: the commit in progress succeeded"
    return (
        f"version {sent.version} is another run's; nothing of what this run sent for it is visible"
    )
