"""The contract, with table, ledger and staging in Azure Storage; and its commits, raced and cut."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import ClassVar

import pytest
from deltalake import DeltaTable

from eo_pipeline.errors import FencedError, SinkUnavailableError
from eo_pipeline.ledger.entry import Operation
from eo_pipeline.sinks.config import Sink
from eo_pipeline.sinks.delta import DeltaSink
from eo_pipeline.sinks.protocol import CommitOutcome
from eo_pipeline.staging.rows import StagedOutput, StagedTable
from eo_pipeline.storage import Storage
from eo_pipeline.testing import child_of, first_entry
from eo_pipeline.testing.going_back import GoingBackContract
from eo_pipeline.testing.upsert import UpsertContract
from tests.azure import AzureFolder
from tests.proxy import Cut, Proxy
from tests.sinks.delta.delta_world import rows_of
from tests.sinks.delta.test_delta_contract import NOT_IN_DELTA, OnDelta

#: A process that commits each next version, if it is the first to, when it is told to.
_RACER = """
import json, sys
from deltalake import CommitProperties, DeltaTable
from deltalake.exceptions import CommitFailedError
from deltalake.transaction import PostCommitHookProperties
uri, options, name = sys.argv[1], json.loads(sys.argv[2]), sys.argv[3]
print("ready", flush=True)
once = CommitProperties(custom_metadata={"who": name}, max_commit_retries=0)
quiet = PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)
for line in sys.stdin:
    table = DeltaTable(uri, version=int(line), storage_options=options)
    try:
        table.create_write_transaction(
            [], "append", table.schema(), commit_properties=once, post_commithook_properties=quiet
        )
    except CommitFailedError:
        print("lost", flush=True)
    else:
        print("won", flush=True)
"""


class InAzure(OnDelta):
    @pytest.fixture(autouse=True)
    def _known(self, azure: AzureFolder) -> None:
        self.azure = azure

    def options(self) -> dict[str, str]:
        return self.azure.options()

    @pytest.fixture
    def sink(self, azure: AzureFolder) -> Sink:
        return DeltaSink(path=f"{azure.uri}/tables/flights", storage=azure.storage)


@pytest.mark.chaos
class TestAppend(GoingBackContract, InAzure):
    pass


@pytest.mark.chaos
class TestUpsert(UpsertContract, GoingBackContract, InAzure):
    going_back: ClassVar[tuple[Operation, ...]] = (Operation.REWIND,)
    refused_names: ClassVar[frozenset[str]] = NOT_IN_DELTA | {"a backtick"}

    @pytest.fixture
    def sink(self, azure: AzureFolder) -> Sink:
        return DeltaSink(
            path=f"{azure.uri}/tables/flights",
            storage=azure.storage,
            mode="upsert",
            key=("id",),
            sequence_by=("_eo_checkpoint",),
        )


def test_of_several_processes_that_commit_one_version_one_wins(azure: AzureFolder) -> None:
    """delta-rs' own commit: thirty versions, each by four processes from the one before."""
    uri, versions, options = f"{azure.uri}/t", 30, azure.options()
    DeltaTable.create(uri, rows_of(1).schema, storage_options=options)
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", _RACER, uri, json.dumps(options), f"racer {number}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in range(4)
    ]

    def says(racer: subprocess.Popen[str]) -> str:
        assert racer.stdout is not None
        return racer.stdout.readline().strip()

    def asked(racer: subprocess.Popen[str], version: int) -> str:
        assert racer.stdin is not None
        racer.stdin.write(f"{version}\n")
        racer.stdin.flush()
        return says(racer)

    assert [says(racer) for racer in racers] == ["ready"] * 4
    with ThreadPoolExecutor(4) as pool:
        for version in range(versions):
            said = Counter(pool.map(lambda racer, v=version: asked(racer, v), racers))
            assert said == {"won": 1, "lost": 3}, version
    for racer in racers:
        racer.communicate()
    assert DeltaTable(uri, storage_options=options).version() == versions


@pytest.fixture
def proxy(azure: AzureFolder) -> Iterator[Proxy]:
    with Proxy(azure.server.host, azure.server.port) as made:
        yield made


@pytest.mark.parametrize("cut", Cut)
def test_a_commit_whose_answer_is_lost_is_there_once(
    azure: AzureFolder, proxy: Proxy, cut: Cut
) -> None:
    """The link breaks when the commit is put into the log."""
    there = azure.document(endpoint=f"http://127.0.0.1:{proxy.port}", request_timeout=5)
    sink = DeltaSink(path=f"{azure.uri}/t", storage=Storage.model_validate(there))
    start = first_entry("p")
    with sink.open("p") as session:
        session.publish(start, StagedOutput(None))
    entry = child_of(start, 3)
    proxy.cut_at(f"PUT /embedded/{azure.container}/{azure.place.key}/t/_delta_log/".encode(), cut)
    outcome = None
    for _ in range(3):
        with sink.open("p") as session:
            rows = StagedTable.in_memory(rows_of(1))
            outcome = session.publish(entry, StagedOutput(rows))
    assert outcome is CommitOutcome.ALREADY_COMMITTED
    assert proxy.is_through
    found = DeltaTable(f"{azure.uri}/t", storage_options=azure.options()).to_pyarrow_table()
    assert sorted(found["id"].to_pylist()) == [100, 101, 102]


def test_of_two_runs_at_once_one_is_fenced(azure: AzureFolder) -> None:
    sink = DeltaSink(path=f"{azure.uri}/t", storage=azure.storage)
    head = first_entry("p")

    def publish(entry: object, checkpoint: int) -> CommitOutcome:
        with sink.open("p") as session:
            rows = StagedTable.in_memory(rows_of(checkpoint)) if checkpoint else None
            return session.publish(entry, StagedOutput(rows))  # type: ignore[arg-type]

    publish(head, 0)
    for _ in range(3):
        rivals = [child_of(head, 3), child_of(head, 3)]
        with ThreadPoolExecutor(2) as threads:
            tried = [threads.submit(publish, each, each.version) for each in rivals]
            ended = [each.exception() or each.result() for each in tried]
        assert ended.count(CommitOutcome.COMMITTED) == 1, ended
        assert any(isinstance(each, FencedError) for each in ended), ended
        head = rivals[ended.index(CommitOutcome.COMMITTED)]


def test_a_store_that_is_away_is_no_damaged_table(azure: AzureFolder) -> None:
    storage = azure.document(endpoint="http://127.0.0.1:1", request_timeout=1)
    sink = DeltaSink(path=f"{azure.uri}/t", storage=Storage.model_validate(storage))
    with pytest.raises(SinkUnavailableError), sink.open("p"):
        pass


@pytest.mark.parametrize("said", ["account_key", "sas_token"])
def test_the_fields_are_what_delta_goes_by(
    azure: AzureFolder, monkeypatch: pytest.MonkeyPatch, said: str
) -> None:
    """A key of the environment's is the one thing that delta-rs takes before a token."""
    monkeypatch.setenv("AZURE_STORAGE_SAS_TOKEN", "sig=wrong")
    if said == "account_key":
        monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", "d3Jvbmc=")
        storage = azure.storage
    else:
        token = azure.server.sas_token(azure.container)
        fields = azure.document(account_key=None, sas_token=token)
        storage = Storage.model_validate(fields)
    sink, start = DeltaSink(path=f"{azure.uri}/t", storage=storage), first_entry("p")
    with sink.open("p") as session:
        session.publish(start, StagedOutput(None))
        rows = StagedOutput(StagedTable.in_memory(rows_of(1)))
        assert session.publish(child_of(start, 3), rows) is CommitOutcome.COMMITTED
