"""A Delta table in a bucket, and something between that loses answers or gives others."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest
from deltalake import DeltaTable

from eo_pipeline.errors import (
    CommitUnknownError,
    EoPipelineError,
    FencedError,
    SetupError,
    SinkUnavailableError,
)
from eo_pipeline.ledger.entry import LedgerEntry
from eo_pipeline.sinks.delta import DeltaSink
from eo_pipeline.sinks.session import CommitOutcome
from eo_pipeline.staging.attempt import StagingArea
from eo_pipeline.staging.rows import StagedOutput, StagedTable
from eo_pipeline.storage.config import Storage
from eo_pipeline.testing import child_of, first_entry
from tests.sinks.delta.delta_world import rows_of
from tests.support.chaos import rest_is_chaos
from tests.support.proxy import Cut, Proxy
from tests.support.stores import Bucket

COMMITTED = CommitOutcome.COMMITTED

#: Seconds; requests are given up after one here, and made again for six.
HANGS_FOR_AT_MOST = 60

#: As stores say that they have too much to do.
SLOW_DOWN = (
    b"HTTP/1.1 503 Slow Down\r\nContent-Type: application/xml\r\nContent-Length: 35\r\n"
    b"Connection: close\r\n\r\n<Error><Code>SlowDown</Code></Error>"
)

#: What publishing version 1 puts, in this order.
PUTS = {
    "the rows": b"/published/000000/000000000001-",
    "the ledger's entry": b"/_eo_ledger/p/000000/000000000001-",
    "the table's commit": b"/_delta_log/00000000000000000000.json",
}


@dataclass(frozen=True)
class Shaky:
    """A sink behind a proxy, and an observer who is not."""

    sink: DeltaSink
    bucket: Bucket
    proxy: Proxy

    def publish(self, entry: LedgerEntry, checkpoint: int) -> CommitOutcome:
        with self.sink.open("p") as session:
            rows = StagedTable.in_memory(rows_of(checkpoint)) if checkpoint else None
            return session.publish(entry, StagedOutput(rows))

    def rows(self) -> list[int]:
        options = self.bucket.options()
        if not DeltaTable.is_deltatable(self.sink.path, options):
            return []
        table = DeltaTable(self.sink.path, storage_options=options).to_pyarrow_table()
        return sorted(table["id"].to_pylist())

    def head(self) -> LedgerEntry | None:
        """By a way of its own."""
        with self.sink.model_copy(update={"storage": self.bucket.storage}).open("p") as session:
            return session.verified(session.head())


def behind(proxy: Proxy, bucket: Bucket, *, request_timeout: float = 30) -> Shaky:
    reached = bucket.server.storage_by(f"http://127.0.0.1:{proxy.port}")
    storage = reached.model_copy(update={"request_timeout": request_timeout})
    return Shaky(DeltaSink(path=f"{bucket.uri}/flights", storage=storage), bucket, proxy)


@pytest.fixture
def shaky(bucket: Bucket) -> Iterator[Shaky]:
    with Proxy(bucket.server.host, bucket.server.port) as proxy:
        yield behind(proxy, bucket)


@pytest.mark.parametrize("put", PUTS)
def test_a_put_that_landed_and_was_not_answered_is_not_taken_for_another_runs(
    shaky: Shaky, put: str
) -> None:
    """Scenario: the connection breaks after the store has put the object; the client asks again,
    and is told that there is one. Outcome: it is ours. The version is there, its rows once.
    """
    start = first_entry("p")
    shaky.publish(start, 0)
    entry = child_of(start, 3)
    shaky.proxy.cut_at(PUTS[put], Cut.BEFORE_THE_REPLY)
    assert shaky.publish(entry, 1) is CommitOutcome.COMMITTED
    assert shaky.proxy.is_through
    head = shaky.head()
    assert head is not None
    assert head.id == entry.id
    assert shaky.rows() == [100, 101, 102]


def test_of_two_runs_at_once_one_wins(shaky: Shaky) -> None:
    head = first_entry("p")
    shaky.publish(head, 0)
    for _ in range(3):
        rivals = [child_of(head, 3), child_of(head, 3)]
        with ThreadPoolExecutor(2) as threads:
            tried = [threads.submit(shaky.publish, each, each.version) for each in rivals]
            ended = [each.exception() or each.result() for each in tried]
        assert ended.count(CommitOutcome.COMMITTED) == 1, ended
        assert any(isinstance(each, FencedError) for each in ended), ended
        head = rivals[ended.index(CommitOutcome.COMMITTED)]
        held = shaky.head()
        assert held is not None
        assert held.id == head.id
    assert shaky.rows() == [100, 101, 102, 200, 201, 202, 300, 301, 302]


def test_a_first_entry_that_landed_and_was_not_answered_is_ours(shaky: Shaky) -> None:
    start = first_entry("p")
    shaky.proxy.cut_at(b"/000000000000-0.json", Cut.BEFORE_THE_REPLY)
    assert shaky.publish(start, 0) is CommitOutcome.COMMITTED
    assert shaky.proxy.is_through
    head = shaky.head()
    assert head is not None
    assert head.id == start.id


@pytest.mark.parametrize("put", PUTS)
def test_a_store_that_has_too_much_to_do_is_asked_again(shaky: Shaky, put: str) -> None:
    start = first_entry("p")
    shaky.publish(start, 0)
    shaky.proxy.answer_at(PUTS[put], SLOW_DOWN, times=3)
    assert shaky.publish(child_of(start, 3), 1) is CommitOutcome.COMMITTED
    assert shaky.proxy.is_through
    assert shaky.rows() == [100, 101, 102]


@pytest.mark.parametrize("put", rest_is_chaos(PUTS, but=["the table's commit"]))
def test_a_store_that_hangs_is_an_error_that_can_be_retried(bucket: Bucket, put: str) -> None:
    """Scenario: in the middle of publishing the store takes what is sent and says nothing more.
    Outcome: an error in bounded time; afterwards the same version is there, once.
    """
    with Proxy(bucket.server.host, bucket.server.port) as proxy:
        shaky = behind(proxy, bucket, request_timeout=1)
        start = first_entry("p")
        shaky.publish(start, 0)
        entry = child_of(start, 3)
        proxy.stall_at(PUTS[put])
        began = time.monotonic()
        with pytest.raises(EoPipelineError) as told:
            shaky.publish(entry, 1)
        assert time.monotonic() - began < HANGS_FOR_AT_MOST
        assert proxy.is_through
        assert isinstance(told.value, SinkUnavailableError | CommitUnknownError)
        assert told.value.retryable
        with pytest.raises(SinkUnavailableError):
            shaky.publish(entry, 1)
        proxy.stall(False)
        assert shaky.publish(entry, 1) in (COMMITTED, CommitOutcome.ALREADY_COMMITTED)
        assert shaky.rows() == [100, 101, 102]


def test_a_store_that_says_it_put_what_it_did_not_is_refused(shaky: Shaky) -> None:
    """Scenario: a store that answers "done" where it must answer "there is one already"."""
    shaky.proxy.change(b"HTTP/1.1 412 Precondition Failed\r\n", b'HTTP/1.1 200 OK\r\nETag: "x"\r\n')
    manifests = shaky.sink.staging_folders().manifests
    assert manifests is not None
    with pytest.raises(SetupError, match="If-None-Match") as refused:
        StagingArea(manifests, "p").check()
    assert "Free space" not in str(refused.value)


def test_wrong_keys_are_told_without_showing_them(bucket: Bucket, tmp_path: Path) -> None:
    storage = Storage.model_validate(
        {
            "endpoint": bucket.storage.endpoint,
            "access_key_id": "hunter1hunter1",
            "secret_access_key": "hunter2hunter2",
        }
    )
    sink = DeltaSink(path=f"{bucket.uri}/flights", storage=storage)
    assert "hunter" not in f"{sink!r} {sink.root!r} {sink.describe()} {sink.model_dump_json()}"
    with pytest.raises(EoPipelineError) as told, sink.open("p") as session:
        session.publish(first_entry("p"), StagedOutput())
    assert "hunter" not in str(told.value)
    assert bucket.uri in str(told.value)


def test_recovery_asks_no_more_when_the_history_is_long(shaky: Shaky) -> None:
    head = first_entry("p")
    shaky.publish(head, 0)
    asked = []
    for until in (12, 32):  # alike far from the log's last checkpoint
        while head.version < until:
            head = child_of(head, 3)
            shaky.publish(head, head.version)
        before = shaky.proxy.sent
        with shaky.sink.open("p") as session:
            assert session.recover() is not None
        asked.append(shaky.proxy.sent - before)
    assert asked[1] <= asked[0] + 3, asked


def test_what_the_environment_says_will_do(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    document = bucket.document()
    monkeypatch.setenv("AWS_ENDPOINT_URL", str(document["endpoint"]))
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", str(document["access_key_id"]))
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", str(document["secret_access_key"]))
    start = first_entry("p")
    with DeltaSink(path=f"{bucket.uri}/flights").open("p") as session:
        session.publish(start, StagedOutput())
        rows = StagedTable.in_memory(rows_of(1))
        assert session.publish(child_of(start, 3), StagedOutput(rows)) is CommitOutcome.COMMITTED
        assert session.head() == session.entry(1)
