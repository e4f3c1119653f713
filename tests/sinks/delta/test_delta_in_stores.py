"""The contract, with table, ledger and staging in each store; and its commits, raced and cut.

All of the contract is chaos, with representatives in test_delta_bucket_faults.py and
test_lake_pipeline.py. What is particular to one store comes last.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import ClassVar
from urllib.parse import urlsplit

import polars as pl
import pyarrow as pa
import pytest
from deltalake import DeltaTable

from eo_pipeline.errors import CommitUnknownError, ConfigError, FencedError, SinkUnavailableError
from eo_pipeline.ledger.entry import LedgerEntry, Operation
from eo_pipeline.sinks.config import Sink
from eo_pipeline.sinks.delta import DeltaSink
from eo_pipeline.sinks.session import CommitOutcome
from eo_pipeline.staging.rows import StagedOutput, StagedTable
from eo_pipeline.storage.config import Storage
from eo_pipeline.testing import child_of, first_entry
from eo_pipeline.testing.going_back import GoingBackContract
from eo_pipeline.testing.pruning import PruningContract
from eo_pipeline.testing.upsert import UpsertContract
from tests.sinks.delta.delta_world import rows_of
from tests.sinks.delta.test_delta_contract import NOT_IN_DELTA, OnDelta
from tests.sinks.maintaining import AT_ONCE, maintain
from tests.support.azure import AzureFolder
from tests.support.hdfs import DataNodes
from tests.support.proxy import Cut, Proxy
from tests.support.store_folder import STORES, StoreFolder, on_stores

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

#: A bucket of S3's is in test_delta_bucket_faults.py, too.
on_each = on_stores("azure", "google", "hdfs", chaos=["bucket"])


class InAStore(OnDelta):
    @pytest.fixture(autouse=True)
    def _known(self, store: StoreFolder) -> None:
        self.store = store

    def options(self) -> dict[str, str]:
        return self.store.options()

    @pytest.fixture
    def sink(self, store: StoreFolder) -> Sink:
        return DeltaSink(path=f"{store.uri}/tables/flights", storage=store.storage)


@pytest.mark.chaos
@on_stores(*STORES)
class TestAppend(PruningContract, GoingBackContract, InAStore):
    pass


@pytest.mark.chaos
@on_stores(*STORES)
class TestUpsert(UpsertContract, GoingBackContract, InAStore):
    going_back: ClassVar[tuple[Operation, ...]] = (Operation.REWIND,)
    refused_names: ClassVar[frozenset[str]] = NOT_IN_DELTA | {"a backtick"}

    @pytest.fixture
    def sink(self, store: StoreFolder) -> Sink:
        return DeltaSink(
            path=f"{store.uri}/tables/flights",
            storage=store.storage,
            mode="upsert",
            key=("id",),
            sequence_by=("_eo_checkpoint",),
        )


@on_each
def test_folders_of_any_text_are_found_in_a_store(store: StoreFolder) -> None:
    """A store's names are escaped once more on their way."""
    sink = DeltaSink(path=f"{store.uri}/t", storage=store.storage, partition_by=("c",))
    texts = pa.array(["a b=c/d%20ü#?:{}[]^'\"\\~.", "日" * 27, None])

    def go(entry: LedgerEntry, checkpoint: int) -> LedgerEntry:
        rows = StagedTable.in_memory(rows_of(checkpoint, c=texts)) if checkpoint else None
        with sink.open("p") as session:
            session.publish(entry, StagedOutput(rows))
        return entry

    head = go(first_entry("p"), 0)
    for checkpoint in range(1, 7):
        head = go(child_of(head, 3), checkpoint)
    maintain(sink, "p", AT_ONCE)
    head = go(child_of(head, 0, operation=Operation.REWIND, target=3), 0)
    head = go(child_of(head, 3), 8)
    maintain(sink, "p", AT_ONCE)
    rows = DeltaTable(str(sink.root), storage_options=store.options()).to_pyarrow_table()
    assert sorted(rows["id"].to_pylist()) == [n * 100 + i for n in (1, 2, 3, 8) for i in range(3)]
    found = {row["id"] % 100: row["c"] for row in rows.to_pylist()}
    assert found == dict(enumerate(texts.to_pylist()))
    if not store.uri.startswith("hdfs://"):  # which Polars does not know
        frame = pl.read_delta(str(sink.root), storage_options=store.options())
        assert {i % 100: c for i, c in frame.select("id", "c").iter_rows()} == found


def sink_at(store: StoreFolder) -> DeltaSink:
    return DeltaSink(path=f"{store.uri}/t", storage=store.storage)


def publish(sink: DeltaSink, entry: LedgerEntry, checkpoint: int) -> CommitOutcome:
    with sink.open("p") as session:
        rows = StagedTable.in_memory(rows_of(checkpoint)) if checkpoint else None
        return session.publish(entry, StagedOutput(rows))


def ids_in(store: StoreFolder) -> list[int]:
    """As an observer sees the table, who goes straight to the store."""
    found = DeltaTable(f"{store.uri}/t", storage_options=store.options()).to_pyarrow_table()
    return sorted(found["id"].to_pylist())


@on_stores("azure", "google", chaos=["bucket", "hdfs"])
def test_of_several_processes_that_commit_one_version_one_wins(store: StoreFolder) -> None:
    """delta-rs' own commit: thirty versions, each by four processes from the one before."""
    uri, versions, options = f"{store.uri}/t", 30, store.options()
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
def proxy(store: StoreFolder) -> Iterator[Proxy]:
    with Proxy(*store.address) as made:
        yield made


@on_each
@pytest.mark.parametrize("cut", Cut)
def test_a_commit_whose_answer_is_lost_is_there_once(
    store: StoreFolder, proxy: Proxy, cut: Cut
) -> None:
    """The link breaks when the commit gets its name in the log."""
    sink, start = sink_at(store.behind(proxy.port, request_timeout=5)), first_entry("p")
    publish(sink, start, 0)
    entry = child_of(start, 3)
    proxy.cut_at(store.putting("/_delta_log/00000000000000000000.json"), cut)
    outcomes = [publish(sink, entry, 1) for _ in range(3)]
    assert outcomes[-1] is CommitOutcome.ALREADY_COMMITTED
    assert proxy.is_through
    assert ids_in(store) == [100, 101, 102]


@on_each
def test_of_two_runs_at_once_one_is_fenced(store: StoreFolder) -> None:
    sink, head = sink_at(store), first_entry("p")
    publish(sink, head, 0)
    for _ in range(3):
        rivals = [child_of(head, 3), child_of(head, 3)]
        with ThreadPoolExecutor(2) as threads:
            tried = [threads.submit(publish, sink, each, each.version) for each in rivals]
            ended = [each.exception() or each.result() for each in tried]
        assert ended.count(CommitOutcome.COMMITTED) == 1, ended
        assert any(isinstance(each, FencedError) for each in ended), ended
        head = rivals[ended.index(CommitOutcome.COMMITTED)]


@on_each
def test_a_store_that_is_away_is_no_damaged_table(store: StoreFolder) -> None:
    away = sink_at(store.behind(1, request_timeout=1))
    with pytest.raises(SinkUnavailableError), away.open("p"):
        pass


@on_stores("azure", "google", "hdfs")
def test_what_belongs_to_a_bucket_of_s3s_is_refused(store: StoreFolder) -> None:
    scheme = urlsplit(store.uri).scheme
    with pytest.raises(ConfigError, match=rf"{scheme}:// does not use storage\.region"):
        DeltaSink(path=f"{store.uri}/t", storage=Storage(region="eu-1"))


# Azure alone


@pytest.mark.parametrize("said", ["account_key", "sas_token"])
def test_the_fields_are_what_delta_goes_by(
    azure: AzureFolder, monkeypatch: pytest.MonkeyPatch, said: str
) -> None:
    """A key of the environment's is the one thing that delta-rs takes before a token."""
    monkeypatch.setenv("AZURE_STORAGE_SAS_TOKEN", "sig=wrong")
    if said == "account_key":
        monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", "d3Jvbmc=")
        there = azure
    else:
        token = azure.server.sas_token(azure.container)
        there = azure.saying(account_key=None, sas_token=token)
    sink, start = sink_at(there), first_entry("p")
    publish(sink, start, 0)
    assert publish(sink, child_of(start, 3), 1) is CommitOutcome.COMMITTED


# HDFS alone


@pytest.mark.chaos
def test_while_a_data_node_is_dead_a_commit_lands_once_or_can_be_tried_again(
    data_nodes: DataNodes,
) -> None:
    """The name node has not missed it: delta-rs is sent there, too."""
    sink = sink_at(data_nodes.folder.saying(request_timeout=5))
    start, errors = first_entry("p"), list[str]()
    before = child_of(start, 3)
    publish(sink, start, 0)
    publish(sink, before, 1)
    data_nodes.nodes[0].kill()
    entry = child_of(before, 3)
    for _ in range(3):
        try:
            publish(sink, entry, 2)
        except (SinkUnavailableError, CommitUnknownError) as error:
            errors.append(f"{type(error).__name__}: {error}")
    print(errors)  # noqa: T201
    data_nodes.start()
    publish(sink, entry, 2)
    assert ids_in(data_nodes.folder) == [100, 101, 102, 200, 201, 202]
