"""The contract of a sink whose rows replace each other by key, beside what it promises otherwise.

    class TestMySinkUpserting(UpsertContract, ExactlyOnceContract): ...

The sink goes by the key ``id``, and by ``_eo_checkpoint`` where it is told what makes a row newer.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from eo_pipeline.crashpoints import CrashPoint
from eo_pipeline.errors import RefusedError
from eo_pipeline.ledger.entry import CHECKPOINT_COLUMN, LedgerEntry, Operation
from eo_pipeline.sinks.config import Sink
from eo_pipeline.sinks.session import SinkSession
from eo_pipeline.sinks.upsert import OFFSET_COLUMN, PARTITION_COLUMN, TOPIC_COLUMN
from eo_pipeline.staging.rows import StagedOutput, StagedTable
from eo_pipeline.testing.contract import (
    ALREADY_COMMITTED,
    COMMITTED,
    SinkContract,
    killed_while_publishing,
)
from eo_pipeline.testing.faults import CrashRequested, raise_at
from eo_pipeline.testing.staging import child_of, to_files

#: A row: its key, a word, and the Kafka offset that makes it newer than others of its batch.
Row = tuple[int | None, str | None, int]

_FIRST: tuple[Row, ...] = ((1, "one", 0), (2, "two", 1), (3, "three", 2))
_SECOND: tuple[Row, ...] = ((2, None, 3), (3, "newest", 6), (3, "older", 4), (4, "four", 7))
_THEN = {1: "one", 2: None, 3: "newest", 4: "four"}


class UpsertContract(SinkContract):
    """Contract of a sink whose ``mode`` is ``upsert``, or that knows no other."""

    def of(self, checkpoint: int, rows: tuple[Row, ...]) -> StagedOutput:
        ids, words, offsets = zip(*rows, strict=True)
        columns = {
            "id": pa.array(ids, pa.int64()),
            "word": pa.array(words, pa.string()),
            TOPIC_COLUMN: pa.array(["a topic"] * len(ids), pa.string()),
            PARTITION_COLUMN: pa.array([0] * len(ids), pa.int32()),
            OFFSET_COLUMN: pa.array(offsets, pa.int64()),
            CHECKPOINT_COLUMN: pa.array([checkpoint] * len(ids), pa.int64()),
        }
        return StagedOutput(StagedTable.in_memory(pa.table(columns)))

    def next(
        self, session: SinkSession, head: LedgerEntry, rows: tuple[Row, ...]
    ) -> tuple[LedgerEntry, StagedOutput]:
        """One more checkpoint, published."""
        staged = self.of(head.version + 1, rows)
        entry = child_of(head, staged)
        assert session.publish(entry, staged) is COMMITTED
        return entry, staged

    def words(self, sink: Sink) -> dict[int, str | None]:
        """Visible rows by key; a key that is there twice is an error."""
        rows: list[dict[str, Any]] = self.read_rows(sink)
        words = {row["id"]: row["word"] for row in rows}
        assert len(words) == len(rows)
        return words

    def test_of_one_key_the_newest_row_stays_whole(self, sink: Sink, session: SinkSession) -> None:
        """Scenario: keys of one checkpoint again in the next, one of them twice, one with a null
        in place of a word. Outcome: one row a key; a commit repeated changes nothing.
        """
        first, staged = self.next(session, self.start(session), _FIRST)
        assert self.words(sink) == {1: "one", 2: "two", 3: "three"}
        second, _ = self.next(session, first, _SECOND)
        assert self.words(sink) == _THEN
        assert session.publish(first, staged) is ALREADY_COMMITTED
        assert self.words(sink) == _THEN
        self.next(session, second, ((3, "last", 8),))
        assert self.words(sink) == {**_THEN, 3: "last"}

    def test_of_one_key_in_files_the_newest_row_stays(
        self, sink: Sink, session: SinkSession, tmp_path: Path
    ) -> None:
        """Whichever file it is in."""
        rows = self.of(1, (*_SECOND, (4, "first", 5), (3, "old", 1))).rows
        assert rows is not None
        staged = StagedOutput(to_files(rows, self.attempt_folder(sink, tmp_path), files=3))
        assert session.publish(child_of(self.start(session), staged), staged) is COMMITTED
        assert self.words(sink) == {2: None, 3: "newest", 4: "four"}

    @pytest.mark.parametrize("point", [CrashPoint.ROWS_SENT, CrashPoint.ENTRY_SENT])
    def test_a_killed_upsert_leaves_every_row_as_it_was(
        self, sink: Sink, session: SinkSession, point: CrashPoint
    ) -> None:
        head, _ = self.next(session, self.start(session), _FIRST)
        staged = self.of(2, _SECOND)
        entry = child_of(head, staged)
        with pytest.raises(CrashRequested):
            session.publish(entry, staged, raise_at(point))
        killed_while_publishing(sink, self.pipeline, entry, staged, point)
        assert self.words(sink) == {1: "one", 2: "two", 3: "three"}
        with sink.open(self.pipeline) as next_run:
            next_run.recover()
            assert next_run.publish(entry, staged) is COMMITTED
        assert self.words(sink) == _THEN

    def test_a_row_without_a_key_is_refused_by_the_columns_name(
        self, sink: Sink, session: SinkSession
    ) -> None:
        head, _ = self.next(session, self.start(session), _FIRST)
        staged = self.of(2, (*_SECOND, (None, "nobody", 9)))
        with pytest.raises(RefusedError, match=r"'id'.*null"):
            session.publish(child_of(head, staged), staged)
        assert self.words(sink) == {1: "one", 2: "two", 3: "three"}
        assert self.head_of(session).id == head.id
        self.next(session, head, _SECOND)
        assert self.words(sink) == _THEN

    def test_a_rewind_brings_the_replaced_rows_back_or_is_refused(
        self, sink: Sink, session: SinkSession
    ) -> None:
        head, _ = self.next(session, self.start(session), _FIRST)
        head, _ = self.next(session, head, _SECOND)
        back = child_of(head, operation=Operation.REWIND, target=1)
        if Operation.REWIND in self.going_back:
            assert session.publish(back, StagedOutput()) is COMMITTED
            assert self.words(sink) == {1: "one", 2: "two", 3: "three"}
            return
        with pytest.raises(RefusedError, match="Nothing was changed"):
            session.publish(back, StagedOutput())
        assert self.words(sink) == _THEN
