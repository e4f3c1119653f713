"""Iceberg with a REST catalog: the contract, by chaos only; and what only such a catalog does: it
loses answers, gives errors of which nobody knows what they mean, and lets tables change their name.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from eo_pipeline.errors import (
    CommitUnknownError,
    EoPipelineError,
    FencedError,
    LedgerDamagedError,
    RefusedError,
    SinkUnavailableError,
)
from eo_pipeline.ledger.entry import LedgerEntry
from eo_pipeline.sinks.config import Sink
from eo_pipeline.sinks.iceberg import IcebergSink, rest
from eo_pipeline.sinks.session import CommitOutcome
from eo_pipeline.staging.rows import StagedOutput
from eo_pipeline.testing import child_of
from tests.sinks.iceberg.iceberg_world import ids, of, publish, staged, table_of
from tests.sinks.iceberg.test_iceberg_contract import OnIceberg, catalog_of
from tests.support.proxy import Cut, Proxy
from tests.support.rest_catalog import RestCatalogServer, catalog_at
from tests.support.stores import Bucket

COMMITTED, ALREADY = CommitOutcome.COMMITTED, CommitOutcome.ALREADY_COMMITTED


def sink_at(uri: str, location: str, **more: Any) -> IcebergSink:
    """A table in a namespace of its own."""
    table = f"n{uuid.uuid4().hex[:12]}.flights"
    values = {"table": table, "catalog": catalog_at(uri), "location": location, **more}
    return IcebergSink.model_validate(values)


@pytest.mark.chaos
class TestInAFolder(OnIceberg):
    @pytest.fixture
    def sink(self, rest_catalog: RestCatalogServer, tmp_path: Path) -> Sink:
        return sink_at(rest_catalog.uri, str(tmp_path / "flights"))


@pytest.mark.chaos
class TestInABucket(OnIceberg):
    @pytest.fixture
    def sink(self, rest_catalog: RestCatalogServer, bucket: Bucket) -> Sink:
        return sink_at(rest_catalog.uri, f"{bucket.uri}/flights", storage=bucket.storage)


@dataclass(frozen=True)
class Shaky:
    """A sink whose catalog is behind a proxy, and one that is not."""

    sink: IcebergSink
    direct: IcebergSink
    proxy: Proxy

    @property
    def commits(self) -> bytes:
        """How the request begins by which the table is committed, and made, too."""
        return f"POST /v1/namespaces/{self.sink.identifier[0]}/tables/flights ".encode()

    def publish(self, entry: LedgerEntry, checkpoint: int) -> CommitOutcome:
        with self.sink.open("p") as session:
            return session.publish(entry, staged(checkpoint) if checkpoint else StagedOutput())

    def started(self, checkpoints: int) -> LedgerEntry:
        with self.direct.open("p") as session:
            return publish(session, checkpoints)

    def head(self) -> LedgerEntry:
        with self.direct.open("p") as session:
            found = session.verified(session.head())
        assert found is not None
        return found

    def files_of_no_use(self) -> set[str]:
        """Rows that the table does not know, once the next run has recovered."""
        with self.direct.open("p") as session:
            session.recover()
        table = table_of(self.direct)
        assert isinstance(self.direct.root, Path)
        found = {f"file://{p}" for p in (self.direct.root / "data").rglob("*.parquet")}
        return found - {task.file.file_path for task in table.scan().plan_files()}


@pytest.fixture
def shaky(rest_catalog: RestCatalogServer, tmp_path: Path) -> Iterator[Shaky]:
    direct = sink_at(rest_catalog.uri, str(tmp_path / "flights"))
    with Proxy(rest_catalog.host, rest_catalog.port) as proxy:
        catalog = catalog_at(f"http://127.0.0.1:{proxy.port}")
        sink = IcebergSink.model_validate({**direct.model_dump(), "catalog": catalog})
        yield Shaky(sink, direct, proxy)


@pytest.mark.parametrize("before", [0, 1], ids=["the table is made", "it is there"])
@pytest.mark.parametrize("cut", Cut, ids=["not heard", "not answered"])
def test_a_commit_without_an_answer_lands_once(shaky: Shaky, before: int, cut: Cut) -> None:
    """Scenario: the connection breaks as the commit is sent, or before its answer; the run that met
    it is told that nobody knows, or finds it. Outcome: tried again, it is there once.
    """
    head = shaky.started(before)
    entry = child_of(head, 2)
    shaky.proxy.cut_at(shaky.commits, cut)
    with pytest.raises(CommitUnknownError):
        shaky.publish(entry, entry.version)
    assert shaky.proxy.is_through
    landed = cut is Cut.BEFORE_THE_REPLY
    assert shaky.publish(entry, entry.version) is (ALREADY if landed else COMMITTED)
    assert shaky.head().id == entry.id
    assert ids(shaky.direct) == of(*range(1, before + 2))
    assert not shaky.files_of_no_use()


@pytest.mark.parametrize("status", ["500 Server Error", "502 Bad Gateway", "503 Unavailable"])
def test_a_gateway_that_errs_after_the_commit_landed_is_not_believed(
    shaky: Shaky, status: str
) -> None:
    entry = child_of(shaky.started(1), 2)
    shaky.proxy.answer_at(shaky.commits, _answer(status), heard=True)
    with pytest.raises(CommitUnknownError):
        shaky.publish(entry, 2)
    assert shaky.proxy.is_through
    assert shaky.head().id == entry.id
    assert shaky.publish(entry, 2) is ALREADY
    assert ids(shaky.direct) == of(1, 2)


def test_a_commit_that_a_gateway_repeats_keeps_its_files(shaky: Shaky) -> None:
    """Scenario: the first one landed, the answer says 409. PyIceberg would delete the manifests of
    what it takes for refused, and with them the table's. Outcome: the table can be read.
    """
    entry = child_of(shaky.started(1), 2)
    shaky.proxy.answer_at(shaky.commits, _answer("409 Conflict"), heard=True)
    assert shaky.publish(entry, 2) is COMMITTED
    assert shaky.proxy.is_through
    assert ids(shaky.direct) == of(1, 2)


@pytest.mark.parametrize("status", ["400 Bad Request", "403 Forbidden"])
def test_what_the_catalog_does_not_take_is_a_refusal(shaky: Shaky, status: str) -> None:
    entry = child_of(shaky.started(1), 2)
    shaky.proxy.answer_at(shaky.commits, _answer(status))
    with pytest.raises(RefusedError, match="refused the commit"):
        shaky.publish(entry, 2)
    assert shaky.proxy.is_through
    assert shaky.head().version == 1
    assert not shaky.files_of_no_use()


def _answer(status: str) -> bytes:
    body = b'{"error":{"message":"no","type":"Error","code":' + status[:3].encode() + b"}}"
    head = f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\nConnection: close\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


def test_a_catalog_that_hangs_is_said_not_to_answer(
    shaky: Shaky, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scenario: it takes the connection and says nothing, first when a run begins, then in the
    middle of a commit. Outcome: an error that can be retried, and then the version is there once.
    """
    monkeypatch.setattr(rest, "ANSWER_S", 1.0)
    entry = child_of(shaky.started(1), 2)
    shaky.proxy.stall()
    with pytest.raises(SinkUnavailableError, match="does not answer") as told:
        shaky.publish(entry, 2)
    assert told.value.retryable
    shaky.proxy.stall(False)
    shaky.proxy.stall_at(shaky.commits)
    with pytest.raises(CommitUnknownError):
        shaky.publish(entry, 2)
    shaky.proxy.stall(False)
    assert shaky.publish(entry, 2) in (COMMITTED, ALREADY)
    assert ids(shaky.direct) == of(1, 2)
    assert not shaky.files_of_no_use()


def test_of_two_runs_at_once_one_wins(shaky: Shaky) -> None:
    head = shaky.started(0)
    for _ in range(4):
        rivals = [child_of(head, 2), child_of(head, 2)]
        with ThreadPoolExecutor(2) as threads:
            tried = [threads.submit(shaky.publish, each, each.version) for each in rivals]
            ended = [each.exception() or each.result() for each in tried]
        won = [rival for rival, end in zip(rivals, ended, strict=True) if end is COMMITTED]
        assert len(won) == 1, ended
        assert any(isinstance(end, FencedError) for end in ended), ended
        head = won[0]
        assert shaky.head().id == head.id
    assert ids(shaky.direct) == of(1, 2, 3, 4)
    assert not shaky.files_of_no_use()


def test_a_table_that_was_renamed_is_not_begun_anew(shaky: Shaky) -> None:
    head = shaky.started(2)
    catalog = catalog_of(shaky.direct)
    namespace = shaky.direct.identifier[0]
    catalog.rename_table(shaky.direct.table, f"{namespace}.older")
    with shaky.sink.open("p") as session, pytest.raises(LedgerDamagedError, match="checkpoints"):
        session.verified(session.recover())
    catalog.rename_table(f"{namespace}.older", shaky.direct.table)
    assert shaky.publish(child_of(head, 2), 3) is COMMITTED
    assert ids(shaky.direct) == of(1, 2, 3)


def test_a_table_that_goes_while_a_run_commits_is_said(shaky: Shaky) -> None:
    """Scenario: dropped between the look and the commit."""
    head = shaky.started(1)
    entry = child_of(head, 2)

    def drop(point: object) -> None:
        if str(point) == "entry_sent":
            catalog_of(shaky.direct).drop_table(shaky.direct.table)

    with pytest.raises(EoPipelineError), shaky.sink.open("p") as session:
        session.publish(entry, staged(2), drop)


def test_secrets_of_the_catalog_are_in_no_text(shaky: Shaky) -> None:
    catalog = catalog_at("http://127.0.0.1:1", token="hunter2hunter2", credential="me:hunter3x")
    sink = IcebergSink.model_validate({**shaky.direct.model_dump(), "catalog": catalog})
    with pytest.raises(SinkUnavailableError) as told:
        sink.open("p")
    shown = f"{told.value} {sink!r} {sink.describe()} {sink.model_dump_json()}"
    assert "hunter" not in shown
