"""An Iceberg table in a bucket, and something between that loses answers, errs, or hangs."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from eo_pipeline.errors import (
    CommitUnknownError,
    EoPipelineError,
    FencedError,
    SinkUnavailableError,
)
from eo_pipeline.ledger.entry import LedgerEntry, Operation
from eo_pipeline.sinks.iceberg import IcebergSink
from eo_pipeline.sinks.session import CommitOutcome
from eo_pipeline.staging.rows import StagedOutput
from eo_pipeline.storage.config import Storage
from eo_pipeline.storage.paths import files_below
from eo_pipeline.testing import child_of, first_entry
from tests.sinks.delta.test_delta_bucket_faults import SLOW_DOWN
from tests.sinks.iceberg.iceberg_world import files_in, ids, of, publish, sink_in, staged
from tests.support.chaos import rest_is_chaos
from tests.support.proxy import Cut, Proxy
from tests.support.stores import Bucket

COMMITTED, ALREADY = CommitOutcome.COMMITTED, CommitOutcome.ALREADY_COMMITTED

#: What publishing a version puts: our own files, and PyIceberg's.
PUTS = {
    "the rows": b"/inline/000000/000000000002-",
    "the ledger's entry": b"/_eo_ledger/p/000000/000000000002-",
    "a manifest": b"-m0.avro",
    "the list of manifests": b"/metadata/snap-",
    "the table's metadata": b".metadata.json",
}


@dataclass(frozen=True)
class Shaky:
    """A sink behind a proxy, and an observer who is not."""

    sink: IcebergSink
    direct: IcebergSink
    proxy: Proxy

    def publish(self, entry: LedgerEntry, checkpoint: int) -> CommitOutcome:
        """As a run does: of a commit of which nobody knows the same is tried again."""
        rows = staged(checkpoint) if checkpoint else StagedOutput()
        for _ in range(3):
            try:
                with self.sink.open("p") as session:
                    return session.publish(entry, rows)
            except CommitUnknownError:
                continue
        raise AssertionError("never known")

    def started(self, checkpoints: int) -> LedgerEntry:
        with self.direct.open("p") as session:
            return publish(session, checkpoints)

    def head(self) -> LedgerEntry:
        with self.direct.open("p") as session:
            found = session.verified(session.head())
        assert found is not None
        return found

    def files_of_no_use(self) -> list[str]:
        """Rows that are not the table's, once the next run has recovered."""
        with self.direct.open("p") as session:
            session.recover()
        found = [str(place) for place, _ in files_below(self.direct.root / "data")]
        return sorted({*found} - files_in(self.direct))


def behind(proxy: Proxy, bucket: Bucket, folder: Path, *, request_timeout: float = 30) -> Shaky:
    reached = bucket.server.storage_by(f"http://127.0.0.1:{proxy.port}")
    slow = reached.model_copy(update={"request_timeout": request_timeout})
    return Shaky(sink_in(bucket, folder, storage=slow), sink_in(bucket, folder), proxy)


@pytest.fixture
def shaky(bucket: Bucket, tmp_path: Path) -> Iterator[Shaky]:
    with Proxy(bucket.server.host, bucket.server.port) as proxy:
        yield behind(proxy, bucket, tmp_path)


@pytest.mark.parametrize("put", PUTS)
@pytest.mark.parametrize("cut", Cut, ids=["not heard", "not answered"])
def test_a_put_whose_connection_breaks_is_there_once(
    shaky: Shaky, bucket: Bucket, put: str, cut: Cut
) -> None:
    before = {*bucket.uploads_left()}
    head = shaky.started(1)
    entry = child_of(head, 2)
    shaky.proxy.cut_at(PUTS[put], cut)
    assert shaky.publish(entry, 2) in (COMMITTED, ALREADY)
    assert shaky.proxy.is_through
    assert shaky.head().id == entry.id
    assert ids(shaky.direct) == of(1, 2)
    assert shaky.files_of_no_use() == []
    assert {*bucket.uploads_left()} <= before, "nobody would ever see or remove it"


@pytest.mark.parametrize("put", rest_is_chaos(PUTS, but=["the ledger's entry", "a manifest"]))
def test_a_store_that_has_too_much_to_do_is_asked_again(shaky: Shaky, put: str) -> None:
    entry = child_of(shaky.started(1), 2)
    shaky.proxy.answer_at(PUTS[put], SLOW_DOWN, times=2)
    assert shaky.publish(entry, 2) is COMMITTED
    assert shaky.proxy.is_through
    assert ids(shaky.direct) == of(1, 2)


@pytest.mark.parametrize("put", rest_is_chaos(PUTS, but=["the ledger's entry"]))
def test_a_store_that_hangs_is_an_error_that_can_be_retried(
    bucket: Bucket, tmp_path: Path, put: str
) -> None:
    """Scenario: in the middle of publishing the store takes what is sent and says nothing more.
    Outcome: an error in bounded time; afterwards the same version is there, once.
    """
    with Proxy(bucket.server.host, bucket.server.port) as proxy:
        shaky = behind(proxy, bucket, tmp_path, request_timeout=1)
        before = {*bucket.uploads_left()}
        entry = child_of(shaky.started(1), 2)
        proxy.stall_at(PUTS[put])
        with pytest.raises(EoPipelineError) as told, shaky.sink.open("p") as session:
            session.publish(entry, staged(2))
        assert proxy.is_through
        assert isinstance(told.value, SinkUnavailableError | CommitUnknownError)
        assert told.value.retryable
        with pytest.raises(SinkUnavailableError), shaky.sink.open("p") as session:
            session.recover()
        proxy.stall(False)
        assert shaky.publish(entry, 2) in (COMMITTED, ALREADY)
        assert ids(shaky.direct) == of(1, 2)
        assert shaky.files_of_no_use() == []
        assert {*bucket.uploads_left()} <= before


def test_of_two_runs_at_once_one_wins(shaky: Shaky) -> None:
    head = shaky.started(0)
    for _ in range(3):
        rivals = [child_of(head, 2), child_of(head, 2)]
        with ThreadPoolExecutor(2) as threads:
            tried = [threads.submit(shaky.publish, each, each.version) for each in rivals]
            ended = [each.exception() or each.result() for each in tried]
        assert ended.count(COMMITTED) == 1, ended
        assert any(isinstance(each, FencedError) for each in ended), ended
        head = rivals[ended.index(COMMITTED)]
        assert shaky.head().id == head.id
    assert ids(shaky.direct) == of(1, 2, 3)
    assert shaky.files_of_no_use() == []


def test_a_rewind_of_which_no_answer_came_is_made_once(shaky: Shaky) -> None:
    head = shaky.started(3)
    back = child_of(head, 0, operation=Operation.REWIND, target=1)
    shaky.proxy.cut_at(b".metadata.json", Cut.BEFORE_THE_REPLY)
    assert shaky.publish(back, 0) in (COMMITTED, ALREADY)
    assert shaky.proxy.is_through
    assert ids(shaky.direct) == of(1)
    assert shaky.head().id == back.id


@pytest.mark.parametrize("versions", rest_is_chaos([24, 300], but=[24]))
def test_recovery_asks_no_more_when_the_history_is_long(shaky: Shaky, versions: int) -> None:
    asked = []
    head = shaky.started(4)
    for count in (0, versions):
        with shaky.direct.open("p") as session:
            head = publish(session, count, head)
        before = shaky.proxy.sent
        with shaky.sink.open("p") as session:
            assert session.recover() is not None
        asked.append(shaky.proxy.sent - before)
    assert asked[1] <= asked[0] + 3, asked


def test_wrong_keys_are_told_without_showing_them(bucket: Bucket, tmp_path: Path) -> None:
    storage = Storage.model_validate(
        {
            "endpoint": bucket.storage.endpoint,
            "access_key_id": "hunter1hunter1",
            "secret_access_key": "hunter2hunter2",
        }
    )
    sink = sink_in(bucket, tmp_path, storage=storage)
    assert "hunter" not in f"{sink!r} {sink.root!r} {sink.describe()} {sink.model_dump_json()}"
    with pytest.raises(EoPipelineError) as told, sink.open("p") as session:
        session.publish(first_entry("p"), StagedOutput())
    assert "hunter" not in str(told.value)
    assert bucket.uri in str(told.value)
