"""What an interrupted run leaves behind, in words.

An interruption is whatever ends a run from outside: Ctrl-C, SIGTERM, Terminate in Dagster. Python
has it as an exception that is no :class:`Exception`; it goes through every layer unchanged, and
:func:`watched` gives it a note with the one thing a person wants to know. Whoever reports it
(the command line, a Dagster step) prints the notes.
"""

from __future__ import annotations

from asyncio import CancelledError
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from eo_pipeline._process import sent_again
from eo_pipeline.boundary import boundary
from eo_pipeline.crashpoints import CrashPoint, Reach, keep_going
from eo_pipeline.errors import (
    CommitUnknownError,
    EoPipelineError,
    RefusedError,
    TableRolledBackError,
)
from eo_pipeline.ledger.entry import LedgerEntry
from eo_pipeline.progress import phase
from eo_pipeline.sinks.capabilities import Selected, TimeTravelView
from eo_pipeline.sinks.columns import Bound
from eo_pipeline.sinks.config import Sink
from eo_pipeline.sinks.session import CommitOutcome, SinkSession
from eo_pipeline.staging.rows import StagedOutput

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from eo_pipeline.sinks.capabilities import Maintenance, Upkeep


@contextmanager
def watched(pipeline: str, sink: Sink) -> Iterator[SinkSession]:
    """The sink's session; an interruption of the block leaves with a note of what stands now.

    An error that is met while an interruption unwinds does not hide it: the interruption is
    raised. Otherwise it would be taken for an error, and tried again. Any other error leaves as one
    of ours.
    """
    with (
        sent_again(),
        boundary(pipeline),
        _Noting(pipeline, sink) as noting,
        _open(pipeline, sink) as opened,
    ):
        noting.session = _Watched(opened)
        yield noting.session


def _open(pipeline: str, sink: Sink) -> SinkSession:
    with phase(f"{pipeline}: connecting to the store of {sink.table_name}", usually_short=True):
        return sink.open(pipeline)


class _Noting:
    """Entered before the sink is opened, so that its note is made when all is rolled back."""

    def __init__(self, pipeline: str, sink: Sink) -> None:
        self._pipeline = pipeline
        self._sink = sink
        self.session: _Watched | None = None

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
    """``error`` itself, or what it came from, if that is an interruption."""
    if error is None or not isinstance(error, Exception | CancelledError | GeneratorExit):
        return error
    cause, context = error.__cause__, error.__context__
    return interruption_in(cause) or (interruption_in(context) if context is not cause else None)


def notes(interruption: BaseException) -> list[str]:
    """The sentences that :func:`watched` added, those of an inner block first."""
    return list(getattr(interruption, "__notes__", []))


class _Watched(SinkSession):
    """A session that remembers the head it saw, and whether a commit is under way."""

    def __init__(self, session: SinkSession) -> None:
        super().__init__(session.pipeline)
        self._session = session
        self.manner = session.manner
        self.keeps_ledger = session.keeps_ledger
        self.looked = False
        self.stands: LedgerEntry | None = None
        #: The entry whose commit was perhaps sent, and of which no answer is known.
        self.under_way: LedgerEntry | None = None
        self.dropping = False

    def recover(self) -> LedgerEntry | None:
        return self._seen(self._session.recover())

    def head(self) -> LedgerEntry | None:
        return self._seen(self._session.head())

    def entry(self, version: int) -> LedgerEntry | None:
        return self._session.entry(version)

    def history(self, since: int = 0) -> Iterator[LedgerEntry]:
        return self._session.history(since)

    def column_type(self, field: pa.Field) -> str:
        return self._session.column_type(field)

    def never_null(self) -> frozenset[str]:
        return self._session.never_null()

    def bounds(self) -> Mapping[str, Bound]:
        return self._session.bounds()

    def agree(self, columns: StructType) -> object:
        return self._session.agree(columns)

    def as_staged(self, columns: StructType) -> StructType:
        return self._session.as_staged(columns)

    def registered(self) -> Mapping[str, str]:
        return self._session.registered()

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
            self.under_way = earlier  # nothing of this try lands
            raise
        self.under_way = None
        self._seen(entry)
        return outcome

    def table_identity(self) -> Mapping[str, str] | None:
        return self._session.table_identity()

    def was_written(self) -> bool:
        return self._session.was_written()

    def holds_rows(self, since: int) -> bool:
        return self._session.holds_rows(since)

    def refused_records(
        self, error: RefusedError, staged: StagedOutput, most: int
    ) -> list[dict[str, Any]]:
        return self._session.refused_records(error, staged, most)

    def has_later_rows(self, *, thorough: bool) -> bool:
        return self._session.has_later_rows(thorough=thorough)

    def rolled_back(self, head: LedgerEntry | None) -> TableRolledBackError | None:
        return self._session.rolled_back(head)

    def check_going_back(self, entry: LedgerEntry) -> None:
        self._session.check_going_back(entry)

    def reset(self, *, dry_run: bool) -> tuple[str, ...]:
        self.dropping = self.dropping or not dry_run
        return self._session.reset(dry_run=dry_run)

    def maintain(self, rules: Maintenance, *, dry_run: bool) -> Iterator[Upkeep]:
        return self._session.maintain(rules, dry_run=dry_run)

    def prune(self, *, dry_run: bool) -> int:
        return self._session.prune(dry_run=dry_run)

    def lineage(self, since: int = 0) -> Iterator[pa.RecordBatch]:
        return self._session.lineage(since)

    def values(self, since: int = 0) -> Iterator[pa.RecordBatch]:
        return self._session.values(since)

    def dead_letter_values(self, since: int = 0) -> Iterator[pa.RecordBatch]:
        return self._session.dead_letter_values(since)

    def rows_of(self, selected: Selected) -> Iterator[pa.RecordBatch]:
        return self._session.rows_of(selected)

    def counts_of(self, selected: Selected) -> dict[int | None, int]:
        return self._session.counts_of(selected)

    def refuse_shared_numbers(self) -> None:
        self._session.refuse_shared_numbers()

    def queries(self, selected: Selected) -> Mapping[str, str]:
        return self._session.queries(selected)

    def past(self, entry: LedgerEntry) -> TimeTravelView | None:
        return self._session.past(entry)

    def close(self) -> None:
        """Whoever opened the session closes it."""

    def _seen(self, head: LedgerEntry | None) -> LedgerEntry | None:
        self.looked, self.stands = True, head
        return head


def _left(session: _Watched | None, sink: Sink, pipeline: str) -> str:
    """Describe the ledger's state once the session is closed."""
    if session is not None and session.dropping:
        return "the reset may be done in part, and can be run again"
    if session is None or not session.looked:
        return "the ledger was not read yet, nothing was changed"
    if session.under_way is not None:
        return _after_sending(session.under_way, sink, pipeline)
    return _stands(session.stands)


def _stands(head: LedgerEntry | None) -> str:
    if head is None:
        return "the ledger is empty; nothing of version 0 is visible"
    return f"version {head.version} stands; nothing of version {head.version + 1} is visible"


def _after_sending(sent: LedgerEntry, sink: Sink, pipeline: str) -> str:
    """The reply to a commit was not waited for, so only the ledger can tell."""
    try:
        with sink.open(pipeline) as session:
            held = session.entry(sent.version)
    except EoPipelineError as error:
        return (
            f"the commit of version {sent.version} was under way: it is visible whole or not at "
            f"all, and the next run finds out. The ledger could not be asked now: {error}"
        )
    if held is None:
        return (
            f"the commit of version {sent.version} was under way and has not landed; should it "
            "still, then whole. The next run looks at the ledger first"
        )
    if held.id == sent.id:
        return f"version {sent.version} stands: its commit was under way, and landed"
    return (
        f"version {sent.version} is another run's; nothing of what this run sent for it is visible"
    )
