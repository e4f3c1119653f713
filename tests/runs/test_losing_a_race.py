"""A run that lost its version while it staged: whatever it met then, it was fenced."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from eo_pipeline.batch.stage import Stager
from eo_pipeline.errors import (
    BadRecordError,
    DataLossError,
    EoPipelineError,
    FencedError,
    SetupError,
    SinkUnavailableError,
    TransformError,
)
from eo_pipeline.kafka.admin import KafkaAdmin
from eo_pipeline.kafka.partitions import Bounds, Cluster
from eo_pipeline.kafka.source import KafkaSource
from eo_pipeline.ledger.entry import Counts, LedgerEntry
from eo_pipeline.runs.checkpoint import RunContext, commit, prepare, stage_checked
from eo_pipeline.runs.recovery import Recovery
from eo_pipeline.runs.report import Recorder
from eo_pipeline.runs.transaction import SinkTransaction, TransactionState
from eo_pipeline.sinks.console import ConsoleSink
from eo_pipeline.staging.attempt import StagingArea
from eo_pipeline.staging.rows import StagedOutput
from eo_pipeline.testing import child_of, first_entry
from tests.runs.test_recovery import Ledger

START = first_entry("p")

ERRORS = [
    TransformError("it failed"),
    BadRecordError("9 bad record(s)"),
    SetupError("the disk is full"),
    FileNotFoundError("the folder is gone"),
]


def run_context(ledger: Ledger, folder: Path, stage: Callable[[], None]) -> RunContext:
    class Staging(Stager):
        def stage(self, *_: object) -> Any:
            stage()

    source = KafkaSource(bootstrap_servers="127.0.0.1:1", topics=("t",), value_format="raw")
    sink = ConsoleSink(ledger=folder)
    context = RunContext(
        pipeline=START.pipeline,
        source=source,
        sink=sink,
        transform=None,
        lineage=False,
        inline_records=0,
        run_id="run",
        session=ledger,
        recovery=Recovery(START.pipeline, ledger, StagingArea(folder, START.pipeline), True),
        admin=KafkaAdmin(source),
        spark=lambda: cast(Any, None),
        begin_spark=lambda: None,
        recorder=Recorder(lambda _: None),
    )
    vars(context)["stager"] = Staging(source, sink, None, False)
    return context


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_the_error_is_that_another_run_was_faster(tmp_path: Path, error: Exception) -> None:
    ledger = Ledger(START)
    winner = child_of(START)

    def lose() -> None:
        ledger.entries.append(winner)
        raise error

    with pytest.raises(FencedError) as fenced:
        checkpoint(run_context(ledger, tmp_path, lose))
    assert (fenced.value.version, fenced.value.winner) == (1, winner.transaction_id)
    assert fenced.value.__cause__ is error


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_without_another_run_the_error_is_what_it_is(tmp_path: Path, error: Exception) -> None:
    def fail() -> None:
        raise error

    with pytest.raises(EoPipelineError, match=re.escape(str(error))) as failed:
        checkpoint(run_context(Ledger(START), tmp_path, fail))
    assert not isinstance(failed.value, FencedError)


def test_a_ledger_that_cannot_be_asked_then_hides_nothing(tmp_path: Path) -> None:
    ledger = Ledger(START)

    def fail() -> None:
        ledger.meanwhile = away
        raise TransformError("it failed")

    def away() -> None:
        raise SinkUnavailableError("the database is down")

    with pytest.raises(TransformError):
        checkpoint(run_context(ledger, tmp_path, fail))


def checkpoint(run: RunContext) -> LedgerEntry:
    entry = replace(child_of(START), counts=Counts())
    return commit(run, prepare(run, START, entry, Cluster({}, {}), Counts()))


def test_rows_of_a_topic_that_was_replaced_while_they_were_staged_are_not_promised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same offsets hold other records then; nothing in the rows tells."""
    entry = child_of(START, 3)
    bounds = {r.topic_partition: Bounds(0, r.end) for r in entry.ranges}
    admin = run_context(Ledger(START), tmp_path, lambda: None).admin
    for uuid, state in ((entry.topic_ids, TransactionState.STAGED), ({"events": "another"}, None)):
        now = Cluster(bounds, uuid)
        monkeypatch.setattr(KafkaAdmin, "topic_ids", lambda _, now=now: dict(now.topic_ids))
        monkeypatch.setattr(KafkaAdmin, "cluster", lambda _, now=now: now)
        transaction = SinkTransaction(Ledger(START), entry, None)
        if state:
            stage_checked(admin, transaction, lambda *_: (StagedOutput(), Counts()))
            assert transaction.state is state
            continue
        with pytest.raises(DataLossError, match="created again"):
            stage_checked(admin, transaction, lambda *_: (StagedOutput(), Counts()))
        assert transaction.state is TransactionState.ABORTED
