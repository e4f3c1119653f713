"""The contract against sinks with a bug planted in them: a suite that cannot fail proves nothing.

Each bug is one that a careful person might write. It is named with tests that must see it, and the
healthy sink passes the same tests here, called in the same way.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from _pytest.outcomes import Failed

from eo_pipeline.crashpoints import CrashPoint, Reach, keep_going
from eo_pipeline.errors import EoPipelineError, FencedError, RefusedError
from eo_pipeline.ledger.entry import LedgerEntry, Operation
from eo_pipeline.sinks.postgres import PostgresSink
from eo_pipeline.sinks.postgres.session import PostgresSession
from eo_pipeline.sinks.session import CommitOutcome, Publication, SinkSession
from eo_pipeline.sinks.sql.connection import SqlStore
from eo_pipeline.sinks.sql.session import SqlPublication, append
from eo_pipeline.staging.rows import StagedOutput
from eo_pipeline.testing.faults import CrashRequested
from tests.sinks.postgres import test_postgres_contract as healthy
from tests.support.servers import MakeDatabase


class SkipsTheCompareAndSwap(PostgresSession):
    """Whoever comes last is right."""

    def has_landed(self, entry: LedgerEntry) -> bool:
        held = self.entry(entry.version)
        return held is not None and held.id == entry.id

    def begin(self, entry: LedgerEntry, staged: StagedOutput) -> Publication:
        class Overwriting(SqlPublication):
            def enter(self) -> None:
                self.store.execute("DELETE FROM eo_ledger WHERE version >= %s", entry.version)
                super().enter()

        return Overwriting(self, entry, staged)


class ComparesNumbersOnly(PostgresSession):
    """Asks whether the version before is there, not whether the parent is."""

    def has_landed(self, entry: LedgerEntry) -> bool:
        try:
            return super().has_landed(entry)
        except FencedError:
            if self.entry(entry.version) is not None:
                raise
            return False

    def begin(self, entry: LedgerEntry, staged: StagedOutput) -> Publication:
        before = self.entry(entry.parent.version) if entry.parent else None
        adopted = replace(entry, parent=before.id if before else entry.parent)
        return SqlPublication(self, adopted, staged)


class LooksAtTheHeadOnly(PostgresSession):
    """A transaction that landed is not found once others have followed."""

    def has_landed(self, entry: LedgerEntry) -> bool:
        head = self.head()
        if head is not None and head.id == entry.id:
            return True
        if not entry.is_child_of(head):
            raise FencedError(self.pipeline, entry.version, winner=None)
        return False


class CommitsTheLedgerFirst(PostgresSession):
    """Offsets in one transaction, rows in the next."""

    def publish(
        self, entry: LedgerEntry, staged: StagedOutput, reach: Reach = keep_going
    ) -> CommitOutcome:
        outcome = super().publish(entry, StagedOutput())
        if outcome is CommitOutcome.COMMITTED:
            with SqlPublication(self, entry, staged) as publication:
                publication.write()
                reach(CrashPoint.ROWS_SENT)
                reach(CrashPoint.ENTRY_SENT)
                publication.commit()
        return outcome


class CommitsTheRowsFirst(SqlPublication):
    """Rows in one transaction, offsets in the next: at least once, at best."""

    def write(self) -> None:
        super().write()
        commit_and_begin(self.store)


class ForgetsToAbort(SqlPublication):
    """Leaving a transaction commits it, as many drivers' context managers do."""

    def close(self, error: BaseException | None) -> None:
        self.store.execute("COMMIT")
        super().close(error)


class LosesDeadLetters(SqlPublication):
    def write(self) -> None:
        self.staged = replace(self.staged, dead_letters=None)
        super().write()


class CommitsDeadLettersFirst(SqlPublication):
    def send(self) -> None:
        if self.staged.dead_letters is not None:
            append(self.session.dead_letters, self.staged.dead_letters)
            commit_and_begin(self.store)
        self.staged = replace(self.staged, dead_letters=None)
        super().send()


class CommitsByBatch(SqlPublication):
    """One transaction for each file, so that none gets too large."""

    def send(self) -> None:
        rows = self.staged.rows
        if rows is None or rows.table is None:
            super().send()
            return
        half = rows.rows // 2
        for table in (rows.table.slice(0, half), rows.table.slice(half)):
            append(self.session.table, replace(rows, table=table))
            commit_and_begin(self.store)
            time.sleep(0.1)  # the next file is large: a reader on a busy machine has time to look


class SaysYesToAFailedCommit(PostgresSession):
    """COMMIT of a failed transaction raises nothing; the reply must be read."""

    def has_landed(self, entry: LedgerEntry) -> bool:
        return False

    def begin(self, entry: LedgerEntry, staged: StagedOutput) -> Publication:
        class Careless(SqlPublication):
            def enter(self) -> None:
                with suppress(psycopg.Error):  # "somebody was faster, so be it"
                    super().enter()

            def commit(self) -> None:
                self.store.execute("COMMIT")

        return Careless(self, entry, staged)


class StoresDatesOfAnotherTime(SqlPublication):
    """Times are cut to milliseconds on their way."""

    def write(self) -> None:
        super().write()
        if self.staged.rows is not None and "instant" in self.staged.rows.schema.names:
            self.store.execute("UPDATE flights SET instant = date_trunc('ms', instant)")


class RewindsToBefore(SqlPublication):
    """Takes the target's rows back too."""

    def take_back(self) -> None:
        entry = self.entry
        if entry.operation is Operation.REWIND and entry.target:
            self.entry = replace(entry, target=entry.target - 1)
        super().take_back()
        self.entry = entry


class AddsAReplay(SqlPublication):
    """Forgets that the rows were there before."""

    def take_back(self) -> None:
        if self.entry.operation is not Operation.REPLAY:
            super().take_back()


class TakesBackFirst(SqlPublication):
    """Deletes in one transaction, publishes in the next."""

    def take_back(self) -> None:
        super().take_back()
        commit_and_begin(self.store)
        time.sleep(0.3)  # a reader that polls must not depend on luck


class RefusesTooLate(SqlPublication):
    """Says yes, and when it comes to it no."""

    def take_back(self) -> None:
        if self.entry.operation is Operation.REWIND:
            raise RefusedError("rows cannot be taken back")


def commit_and_begin(store: SqlStore) -> None:
    store.execute("COMMIT")
    store.execute("BEGIN")


class TellsHalfOfItsLineage(PostgresSession):
    def lineage(self, since: int = 0) -> Iterator[pa.RecordBatch]:
        return (batch.slice(0, batch.num_rows // 2) for batch in super().lineage(since))


class BuggySink(PostgresSink):
    bug: str

    def open(self, pipeline: str) -> SinkSession:
        return session_with(globals()[self.bug])(self, pipeline)


def session_with(bug: type[PostgresSession | SqlPublication]) -> type[PostgresSession]:
    if issubclass(bug, PostgresSession):
        return bug
    publication: type[SqlPublication] = bug

    class Session(PostgresSession):
        def begin(self, entry: LedgerEntry, staged: StagedOutput) -> Publication:
            return publication(self, entry, staged)

    return Session


SEEN_BY: dict[type[PostgresSession | SqlPublication], list[str]] = {
    SkipsTheCompareAndSwap: [
        "test_a_stale_run_is_fenced",
        "test_a_stale_run_leaves_nothing",
        "test_of_two_runs_at_once_exactly_one_wins",
        "test_a_zombie_that_wakes_up_leaves_nothing",
    ],
    ComparesNumbersOnly: ["test_a_number_alone_does_not_match"],
    LooksAtTheHeadOnly: ["test_a_commit_repeated_later_is_already_committed"],
    CommitsTheLedgerFirst: [
        "test_an_abort_leaves_nothing_and_a_retry_lands_once",
        "test_a_kill_leaves_nothing_and_a_retry_lands_once",
        "test_what_is_refused_leaves_nothing",
    ],
    CommitsTheRowsFirst: [
        "test_an_abort_leaves_nothing_and_a_retry_lands_once",
        "test_a_kill_leaves_nothing_and_a_retry_lands_once",
        "test_a_reader_sees_nothing_before_the_commit",
        "test_of_two_runs_at_once_only_the_winners_rows_are_there",
    ],
    ForgetsToAbort: ["test_an_abort_leaves_nothing_and_a_retry_lands_once"],
    LosesDeadLetters: ["test_dead_letters_land_with_the_rows"],
    CommitsDeadLettersFirst: ["test_dead_letters_land_with_the_rows"],
    CommitsByBatch: [
        "test_a_reader_sees_nothing_before_the_commit",
        "test_a_reader_that_polls_never_sees_part_of_a_checkpoint",
    ],
    SaysYesToAFailedCommit: [
        "test_a_stale_run_is_fenced",
        "test_of_two_runs_at_once_exactly_one_wins",
    ],
    StoresDatesOfAnotherTime: ["test_every_type_comes_back_equal"],
    RewindsToBefore: ["test_a_rewind_takes_exactly_what_came_after"],
    AddsAReplay: ["test_a_replay_replaces_exactly_its_checkpoint"],
    TakesBackFirst: [
        "test_a_killed_way_back_leaves_nothing_and_a_retry_lands_once",
        "test_a_reader_that_polls_never_sees_half_of_a_way_back",
    ],
    RefusesTooLate: ["test_a_rewind_takes_exactly_what_came_after"],
    TellsHalfOfItsLineage: ["test_lineage_tells_what_a_reader_sees"],
}

#: One value for each of a contract test's own parameters.
_PARAMETERS: dict[str, object] = {"point": CrashPoint.ROWS_SENT, "where": "memory"}


def run_contract_test(name: str, sink: PostgresSink, folder: Path) -> None:
    """Call one test of the contract the way pytest would."""
    contract = healthy.TestAppend()
    test = getattr(contract, name)
    with sink.open(contract.pipeline) as session:
        fixtures = {"sink": sink, "session": session, "tmp_path": folder, **_PARAMETERS}
        wanted: dict[str, Any] = {p: fixtures[p] for p in inspect.signature(test).parameters}
        test(**wanted)


@pytest.mark.parametrize(
    ("bug", "test"),
    [(bug, test) for bug, tests in SEEN_BY.items() for test in tests],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_a_planted_bug_is_seen(
    database: str, tmp_path: Path, bug: type[PostgresSession | SqlPublication], test: str
) -> None:
    sink = BuggySink.model_validate({"dsn": database, "table": "flights", "bug": bug.__name__})
    with pytest.raises((AssertionError, Failed, EoPipelineError, CrashRequested)):
        run_contract_test(test, sink, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("test", sorted({test for tests in SEEN_BY.values() for test in tests}))
def test_a_healthy_sink_passes_the_same_tests(
    make_database: MakeDatabase, tmp_path: Path, test: str
) -> None:
    sink = PostgresSink.model_validate({"dsn": make_database(), "table": "flights"})
    run_contract_test(test, sink, tmp_path)
