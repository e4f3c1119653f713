"""The contract every sink keeps, and the commit protocol, which is written once: here.

A sink answers one question in its own way: how do rows and ledger entry become visible together?
It is three things. :class:`~eo_pipeline.sinks.config.Sink` is configuration, without I/O.
:class:`SinkSession` is one pipeline's open connection to the store, used by one thread.
:class:`Publication` is one try to publish an entry: the steps that differ from store to store,
which :meth:`SinkSession.publish` takes in their order.
Everything before the commit (reading, staging, the manifest) is shared and not a sink's business.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from enum import StrEnum
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, Self

import tenacity

from eo_pipeline._lazy import pa
from eo_pipeline.crashpoints import CrashPoint, Reach, keep_going
from eo_pipeline.errors import (
    CommitUnknownError,
    ConfigError,
    EoPipelineError,
    FencedError,
    LedgerDamagedError,
    RefusedError,
    SinkUnavailableError,
    TableReplacedError,
    TableRolledBackError,
)
from eo_pipeline.ledger.entry import CHECKPOINT_COLUMN, START_VERSION, LedgerEntry, Operation
from eo_pipeline.ledger.history import verify_head
from eo_pipeline.sinks.capabilities import Maintained, Showing
from eo_pipeline.sinks.columns import Bound
from eo_pipeline.staging.rows import StagedOutput

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

#: What a table says of itself: the ledger whose rows it was made for.
LEDGER = "ledger"

#: What is said of the version that comes next by the ledger, and has rows already.
LATER_ROWS = "is missing, and the table holds rows of it or of later ones"

#: The parts of the manner; everything else that is recorded is the table's.
MANNER = frozenset({"mode", "key", "format"})


def refuse_rows_without_ledger(
    pipeline: str,
    head: LedgerEntry | None,
    was_written: Callable[[], bool],
    entry: Callable[[int], LedgerEntry | None],
) -> None:
    """Return if a pipeline that stands before its first checkpoint has no rows in the table. Asked
    only then. Rows of another run that was faster have their entry in the ledger by now.

    Raises:
        LedgerDamagedError: it has: the ledger was lost, and beginning anew would double them.
    """
    if head is not None and head.version > START_VERSION:
        return
    following = START_VERSION + 1 if head else START_VERSION
    if was_written() and entry(following) is None:
        stands = "ends at version 0" if head else "is empty"
        damage = f"is missing: the ledger {stands}, and the store holds rows of checkpoints"
        raise LedgerDamagedError(pipeline, following, damage)


def refuse_another_table(head: LedgerEntry, now: Mapping[str, str] | None) -> None:
    """Return if the table, which says of itself what is in ``now`` (nothing: it is not there; None:
    it cannot tell), is the one that the rows up to ``head`` went into.

    Raises:
        TableReplacedError: it is not.
    """
    written = head.counts.rows_total
    if now is None or written <= 0:
        return
    if not now:
        raise TableReplacedError(head.pipeline, written, "it, or its checkpoint column, is gone")
    recorded = {k: v for k, v in head.identity.sink.items() if k not in MANNER}
    if now.get(LEDGER, head.ledger_id) != head.ledger_id:
        raise TableReplacedError(
            head.pipeline, written, f"it was made for another ledger, {now[LEDGER]}"
        )
    changed = [f"{k} {v}, now {now.get(k, 'none')}" for k, v in recorded.items() if now.get(k) != v]
    if changed:
        raise TableReplacedError(
            head.pipeline, written, f"it was dropped and made anew ({', '.join(changed)})"
        )


def refuse_another_manner(head: LedgerEntry, manner: Mapping[str, str]) -> None:
    """Return if rows go in as those up to ``head`` did.

    Raises:
        ConfigError: they would not, and what the ledger says of the rows would be wrong.
    """
    recorded = {k: v for k, v in head.identity.sink.items() if k in MANNER}
    changed = [k for k, v in recorded.items() if manner.get(k) != v]
    if head.counts.rows_total > 0 and changed:
        was = ", ".join(f"{k} {recorded[k]}" for k in changed)
        now = ", ".join(f"{k} {manner.get(k, 'none')}" for k in changed)
        raise ConfigError(
            f"sink.{changed[0]}: the rows of pipeline {head.pipeline!r} were written with {was}, "
            f"and the sink is set to {now}. This may change only while the table has no "
            "rows: a rewind would remove the wrong ones. Nothing was read or written. Undo it, or "
            "begin a new pipeline into a new table (fork)."
        )


def identified(
    entry: LedgerEntry, now: Mapping[str, str] | None, manner: Mapping[str, str]
) -> LedgerEntry:
    """Return ``entry`` with the identity of the table. The identity in ``entry`` is kept only
    while there is no table that has one.
    """
    current = entry.identity.sink if now is None else now
    table = {k: v for k, v in current.items() if k not in MANNER}
    if LEDGER in table:  # of another one, which has no rows there any more, it is taken over
        table[LEDGER] = entry.ledger_id
    return replace(entry, identity=replace(entry.identity, sink={**table, **manner}))


class IdentityChecks(Showing, Maintained, ABC):
    """The part of a session that compares. A store tells by :meth:`table_identity` what its table
    is; what it leaves out is not compared.
    """

    #: How rows go in, as the configuration says; see ``Sink.manner``.
    manner: Mapping[str, str] = {}

    def __init__(self, pipeline: str) -> None:
        self.pipeline = pipeline

    @abstractmethod
    def entry(self, version: int) -> LedgerEntry | None:
        """See ``SinkSession.entry``."""

    def verified(self, head: LedgerEntry | None) -> LedgerEntry | None:
        """``head``, after it was compared with what it stands on. Cost as that of :meth:`entry`.

        Raises:
            LedgerDamagedError: it, or its parent, is not what was committed; or it is lost, and
                the table holds rows.
            TableReplacedError: the table is another one.
            ConfigError: rows would go in otherwise than before.
        """
        refuse_rows_without_ledger(self.pipeline, head, self.was_written, self.entry)
        if head is not None:
            verify_head(head, self.entry(head.parent.version) if head.parent else None)
            self.check_identity(head)
        return head

    def check_identity(self, head: LedgerEntry) -> None:
        """Return if rows go in as those up to ``head`` did, and into the table that has them.

        Raises:
            TableReplacedError, ConfigError: see :meth:`verified`.
        """
        refuse_another_manner(head, self.manner)
        refuse_another_table(head, self.table_identity())

    def refuse_later_rows(self, head: LedgerEntry | None, *, thorough: bool) -> None:
        """Return if the table holds nothing of a checkpoint above ``head``; see
        :meth:`has_later_rows`.

        Raises:
            LedgerDamagedError: it does: the newest entries were lost, and what they read would be
                read once more.
        """
        following = head.version + 1 if head else START_VERSION
        # another run may have been faster: then its entry is there
        if self.has_later_rows(thorough=thorough) and self.entry(following) is None:
            raise LedgerDamagedError(self.pipeline, following, LATER_ROWS)

    def identified(self, entry: LedgerEntry) -> LedgerEntry:
        """``entry`` with what it is going to be committed into, by identity."""
        return identified(entry, self.table_identity(), self.manner)

    def table_identity(self) -> Mapping[str, str] | None:
        """Return the identity of the table, which stays the same through renaming, backup and
        restoring, and which no other table has. Empty if there is no table with a column
        of checkpoints; None from a store that cannot tell. Cheap: asked in every run.
        """
        return None

    def was_written(self) -> bool:
        """True if rows of a checkpoint are there, or whatever else tells of one that was committed,
        of this pipeline as far as can be told. Asked before the first checkpoint only.
        """
        return self.holds_rows(START_VERSION)

    def has_later_rows(self, *, thorough: bool) -> bool:  # noqa: ARG002
        """True if the table holds rows of a checkpoint above the ledger's head, both as of one
        moment. Asked in every run, so that it must cost the same however many rows there are;
        ``thorough`` if staging does not know the head either: it may then take its time.

        Left to itself a store says no, as one may that keeps an entry in what holds its rows.
        """
        return False

    def rolled_back(self, head: LedgerEntry | None) -> TableRolledBackError | None:  # noqa: ARG002
        """Return the error for a table that was set back to before ``head`` by the store's own
        means; None if it was not, or the store cannot tell. Cheap: called in every run.
        """
        return None

    def bounds(self) -> Mapping[str, Bound]:
        """Return the table's columns that would cut values in silence, by their folded names."""
        return {}

    def refused_records(
        self,
        error: RefusedError,  # noqa: ARG002
        staged: StagedOutput,  # noqa: ARG002
        most: int,  # noqa: ARG002
    ) -> list[dict[str, Any]]:
        """The records, at most so many, of which ``staged`` has a row that the store refuses
        whatever the others are, after publishing raised ``error``: each with ``topic``,
        ``partition``, ``offset`` and ``error``. None if it was something else, or cannot be told.
        """
        return []

    def holds_rows(self, since: int) -> bool:
        """True if the table holds rows of checkpoint ``since`` or a later one, of this pipeline as
        far as can be told. Asked before the first checkpoint, or when something is wrong.
        """
        try:
            batches = self.lineage(since)
            return any(b[CHECKPOINT_COLUMN].null_count < b.num_rows for b in batches)
        except RefusedError:
            return False


def goes_back(entry: LedgerEntry) -> bool:
    """True for an entry that takes rows out of the table."""
    return entry.operation in (Operation.REWIND, Operation.REPLAY)


def target_of(entry: LedgerEntry) -> int:
    """The version that a rewind or replay aims at.

    Raises:
        RefusedError: it names none, or one that is not older than itself.
    """
    if entry.target is None or not 0 <= entry.target < entry.version:
        raise RefusedError(
            f"version {entry.version}: a {entry.operation} needs an older version as its target, "
            f"and has {entry.target}. Nothing was changed."
        )
    return entry.target


class CommitOutcome(StrEnum):
    """Result of :meth:`SinkSession.publish`. Everything else is an error."""

    COMMITTED = "committed"
    ALREADY_COMMITTED = "already_committed"


class CommitConflictError(Exception):
    """Somebody else's commit came first, ours did not land and never will: publishing begins
    again, with a new look at the ledger. Raised by publications only, and never seen outside.
    """


#: The longest wait before a publication that was overtaken is begun again, in seconds, and of all
#: waits; how long exactly is drawn by lot, so that two who meet do not meet again.
OVERTAKEN_WAIT_SECONDS = 0.01
OVERTAKEN_WAIT_MAX = 1.0


class SinkSession(IdentityChecks):
    """One pipeline's open connection to its sink. Not shared between threads.

    Usable again after any error: a session reconnects by itself when its connection died.
    """

    #: of a pipeline that fills several tables the session of each, by the table's name
    members: Mapping[str, SinkSession] = {}

    def take_in(self, sink: Any) -> None:
        """Open the sessions of those tables of ``sink``, a ``TablesSink``, that are not open.

        Raises:
            SinkUnavailableError, ConfigError: as ``Sink.open``.
        """
        raise NotImplementedError(f"this session has one table, not those of {sink!r}")

    def asked_at_once(self, *asks: Callable[[Any], object]) -> AbstractContextManager[None]:  # noqa: ARG002
        """Ask what ``asks`` ask each of :attr:`members`, by one request where the store can: they
        have the answers within, where nothing may be changed. The default asks nothing ahead.
        """
        return nullcontext()

    def recover(self) -> LedgerEntry | None:
        """Settle what dead runs left open in the store, then return :meth:`head`.

        Called first in every run. Stores that roll back by themselves when a connection dies need
        nothing here.
        """
        return self.head()

    @abstractmethod
    def head(self) -> LedgerEntry | None:
        """The newest entry, ``None`` for a pipeline that never committed. Cost independent of the
        ledger's length.
        """

    @abstractmethod
    def entry(self, version: int) -> LedgerEntry | None:
        """The entry at ``version`` or ``None``. Cost independent of the ledger's length."""

    @abstractmethod
    def history(self, since: int = 0) -> Iterator[LedgerEntry]:
        """Entries from version ``since`` upwards, oldest first."""

    def column_type(self, field: pa.Field) -> str:
        """Return the store's name for the type of a column staged as ``field``, for people. The
        default is Spark's name.
        """
        # not before there are rows: it takes its time
        from pyspark.sql.pandas.types import from_arrow_type

        name = from_arrow_type(field.type, prefer_timestamp_ntz=True).simpleString()
        return name if "<" in name else name.upper()

    def never_null(self) -> frozenset[str]:
        """The table's columns that take no null, as far as it is there and the store tells."""
        return frozenset()

    def agree(self, columns: StructType) -> object:  # noqa: ARG002
        """Return the form of rows with these ``columns``, for ``Sink.agreed``; called only for a
        sink that ``needs_agreement``.

        Raises:
            EoPipelineError: there is no agreement; nothing was staged.
        """
        return None

    def as_staged(self, columns: StructType) -> StructType:
        """``columns`` of rows with what the schema of their files says besides, of columns of this
        table; asked only of a sink that ``marks_files``, before Spark's job.

        Raises:
            SchemaChangeError: the table does not take such rows; nothing was staged.
        """
        return columns

    def registered(self) -> Mapping[str, str]:
        """Keys of the schemas in a registry that rows are written with since :meth:`agree`, by the
        part of a record; none for a sink that writes with no such schemas.
        """
        return {}

    def publish(
        self, entry: LedgerEntry, staged: StagedOutput, reach: Reach = keep_going
    ) -> CommitOutcome:
        """Make ``staged`` and ``entry`` visible together, if and only if the head is the parent.

        Called by the run that staged the rows, and by any later run that found its manifest:
        perhaps twice, perhaps at the same moment from two processes.

        1. **look**: the entry's own id at its version is ``ALREADY_COMMITTED``, an outcome and not
           an error; another id there, or another parent, is fenced. Cheap, before anything is
           copied. It spares work; what makes the commit safe is publish step 6.
        2. **check** that the store can take rows back, if the entry is about that.
        3. **verify** that every staged file is there with the size and the rows it was given, and
           that rows and dead letters are as many as the entry says: published = staged.
        4. **write**: the rows go where no reader looks, or into an open transaction.
        5. **enter**: the ledger entry joins them. Last, because a run that waits for a rival's
           uncommitted key should not do so with its rows still to send.
        6. **commit**: both become visible, or the store says that it was not to be.
        7. **settle**: after a failure the ledger is looked at again, since what made a step fail
           may be that somebody else committed meanwhile, this very entry perhaps.

        Whatever fails before 6 is no commit, so that it is known to have left nothing visible:
        the store refused, or could not be used. A failure in 6 of which the store does not say
        what it means is a commit of which nobody knows (Kafka calls it an unknown outcome,
        FoundationDB ``commit_unknown_result``).

        Raises:
            FencedError: the head is not the entry's parent; nothing is visible.
            RefusedError: the store will never take these rows; nothing is visible.
            SinkUnavailableError: nothing is visible and nothing will be; try again later.
            CommitUnknownError: it may have landed or may still land; only the same entry may be
                tried again.
        """
        if entry.pipeline != self.pipeline:
            raise ValueError(f"an entry of {entry.pipeline!r} in a session of {self.pipeline!r}")
        again = tenacity.Retrying(
            retry=tenacity.retry_if_exception_type(CommitConflictError),
            stop=tenacity.stop_after_attempt(self.publish_tries),
            wait=tenacity.wait_random_exponential(OVERTAKEN_WAIT_SECONDS, OVERTAKEN_WAIT_MAX),
            reraise=True,
        )
        try:
            return again(self._publish_once, entry, staged, reach)
        except CommitConflictError as error:
            raise self.given_up(error) from error

    def _publish_once(
        self, entry: LedgerEntry, staged: StagedOutput, reach: Reach
    ) -> CommitOutcome:
        with self._translating(self.explain):
            publication = self.begin(entry, staged)
        with publication:
            with self._translating(self.explain):
                landed = publication.has_landed()  # publish step 1
            if landed:
                return self.already_committed(entry, staged)
            failure = self._write_and_commit(publication, entry, staged, reach)
            if failure is None:
                publication.committed()
                return CommitOutcome.COMMITTED
        return self._settle_failure(
            entry, staged, failure
        )  # publish step 7; what was open is rolled back by now

    def _write_and_commit(
        self, publication: Publication, entry: LedgerEntry, staged: StagedOutput, reach: Reach
    ) -> EoPipelineError | None:
        """Steps 2 to 6. What an exception means depends on whether the commit was asked for, not
        on who raised it.
        """
        try:
            with self._translating(self.explain):
                if goes_back(entry):
                    self.check_going_back(entry)  # publish step 2
                staged.verify(entry)  # publish step 3
                publication.write()  # publish step 4
                reach(CrashPoint.ROWS_SENT)
                publication.enter()  # publish step 5
                reach(CrashPoint.ENTRY_SENT)
            with self._translating(partial(self._unknown, entry)):
                publication.commit()  # publish step 6
        except (CommitConflictError, CommitUnknownError):
            raise
        except EoPipelineError as error:
            return error
        return None

    @contextmanager
    def _translating(self, meaning: Callable[[Exception], EoPipelineError]) -> Iterator[None]:
        """Translate foreign exceptions of the block by ``meaning``."""
        try:
            yield
        except (EoPipelineError, CommitConflictError):
            raise
        except Exception as error:
            raise meaning(error) from error

    def _unknown(self, entry: LedgerEntry, error: Exception) -> CommitUnknownError:
        return CommitUnknownError(
            f"Pipeline {self.pipeline!r}: whether version {entry.version} was committed is not "
            f"known: {type(error).__name__}: {error}. Only the same transaction, "
            f"{entry.transaction_id}, may be tried again."
        )

    def _settle_failure(
        self, entry: LedgerEntry, staged: StagedOutput, failure: EoPipelineError
    ) -> CommitOutcome:
        """Publish step 7. A store that cannot be asked is no new failure: the next run looks."""
        try:
            landed = self.has_landed(entry)
        except SinkUnavailableError:
            raise failure from failure.__cause__
        if landed:
            return self.already_committed(entry, staged)
        raise failure from failure.__cause__

    def has_landed(self, entry: LedgerEntry) -> bool:
        """True if the ledger holds ``entry`` itself.

        Raises:
            FencedError: its version is taken, or its parent is not what the ledger holds.
        """
        return has_landed(entry, self.entry)

    # What a store fills in.

    #: How often publishing is tried when somebody else's commit, not of this ledger, came between.
    publish_tries: ClassVar[int] = 1

    def begin(self, entry: LedgerEntry, staged: StagedOutput) -> Publication:
        """A publication of ``entry``; nothing is sent yet."""
        raise NotImplementedError(f"{type(self).__name__} does not publish")

    def explain(self, error: Exception) -> EoPipelineError:
        """Return the error for a foreign exception that came before the commit was sent:
        RefusedError, or SinkUnavailableError if a retry with the same rows may succeed.
        """
        return RefusedError(
            f"Pipeline {self.pipeline!r}: the store does not take these rows: "
            f"{type(error).__name__}: {error}. Nothing was written; change them in the transform."
        )

    def already_committed(self, entry: LedgerEntry, staged: StagedOutput) -> CommitOutcome:  # noqa: ARG002
        """``entry`` is in the ledger. A store in which it may be there and not whole completes it.

        Raises:
            CommitUnknownError: it could not be completed.
        """
        return CommitOutcome.ALREADY_COMMITTED

    def given_up(self, error: CommitConflictError) -> EoPipelineError:
        """Return the error after :attr:`publish_tries` conflicting commits."""
        return SinkUnavailableError(
            f"Pipeline {self.pipeline!r}: gave up after {self.publish_tries} conflicting commits, "
            f"or the store rejects commits: {error}. Nothing was published; the next run tries "
            "again."
        )

    def check_going_back(self, entry: LedgerEntry) -> None:
        """Say now what :meth:`publish` would say of a rewind or replay ``entry``. Changes nothing.

        A sink that can take rows back overrides this; it need not look at the rows.

        Raises:
            RefusedError: this store cannot take rows back, or not those of this target.
        """
        raise RefusedError(
            f"{entry.operation} is not possible: this sink cannot take rows back. "
            "Nothing was changed. Start a new pipeline from that checkpoint (fork) instead."
        )

    def reset(self, *, dry_run: bool) -> tuple[str, ...]:  # noqa: ARG002
        """Drop the rows, dead letters and ledger of this pipeline and of no other; for development.

        All of it or nothing, or else the ledger last. Returns what is dropped, a line each;
        ``dry_run`` only says it. A sink that can do this overrides it.

        Raises:
            RefusedError: it is left to a person; nothing was dropped.
            SinkUnavailableError: the store does not answer.
        """
        raise RefusedError(
            f"This sink does not drop what a pipeline wrote. Nothing was dropped. By hand: delete "
            f"its table, its dead letters, the ledger of {self.pipeline!r} and its staging folder; "
            "or give the pipeline a new name and table."
        )

    @abstractmethod
    def close(self) -> None:
        """Give the connection back. Called once; an open transaction is rolled back."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


class Publication(ABC):
    """One try to publish ``entry`` with ``staged``: the steps of :meth:`SinkSession.publish` that
    differ from store to store. A context manager: leaving it rolls back what was not committed.
    """

    def __init__(self, session: SinkSession, entry: LedgerEntry, staged: StagedOutput) -> None:
        self.session = session
        self.entry = entry
        self.staged = staged

    def has_landed(self) -> bool:
        """Publish step 1; see :meth:`SinkSession.has_landed`. A store whose commit is conditional
        on what was seen here keeps it.
        """
        return self.session.has_landed(self.entry)

    @abstractmethod
    def write(self) -> None:
        """Publish step 4: send the staged rows, take out those that the entry takes back.

        Nothing is visible yet.
        """

    @abstractmethod
    def enter(self) -> None:
        """Publish step 5: send the ledger entry, ``committed_at`` set by the store's clock.

        Nothing is visible yet.
        """

    @abstractmethod
    def commit(self) -> None:
        """Publish step 6: make both visible, if and only if the head is the entry's parent.

        Raises:
            FencedError, RefusedError, SinkUnavailableError: nothing is visible, for sure.
            CommitConflictError: nothing is visible; begin again.
            CommitUnknownError, or anything else: nobody knows.
        """

    def committed(self) -> None:  # noqa: B027 - most stores have nothing left to do
        """Finish after a commit that landed; must not raise."""

    def close(self, error: BaseException | None) -> None:  # noqa: B027
        """Give back what was open; must not commit, and must not hide ``error``."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close(exc)


def has_landed(entry: LedgerEntry, held_at: Callable[[int], LedgerEntry | None]) -> bool:
    """Return whether a ledger holds ``entry`` itself; ``held_at`` gives its entry at a version.

    Raises:
        FencedError: its version is taken, or its parent is not what the ledger holds.
        LedgerDamagedError: its parent was changed since.
    """
    held = held_at(entry.version)
    if held is not None:
        if held.id == entry.id:
            return True
        raise FencedError(entry.pipeline, entry.version, winner=held.transaction_id)
    before = held_at(entry.parent.version) if entry.parent else None
    refuse_unless_child(entry, before)
    return False


def refuse_unless_child(entry: LedgerEntry, before: LedgerEntry | None) -> None:
    """Return if ``entry`` was planned from exactly ``before``, as it is kept now.

    Raises:
        FencedError: it was planned from another one.
        LedgerDamagedError: ``before`` was changed since.
    """
    if before is not None and before.id == entry.parent:
        verify_head(entry, before)
    if not entry.is_child_of(before):
        raise FencedError(entry.pipeline, entry.version, winner=None)
