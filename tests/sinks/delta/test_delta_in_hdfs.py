"""The contract, with table, ledger and staging in HDFS; and its commits, raced and cut."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import ClassVar

import pytest
from deltalake import DeltaTable

from eo_pipeline.errors import (
    CommitUnknownError,
    ConfigError,
    FencedError,
    SinkUnavailableError,
)
from eo_pipeline.ledger.entry import Operation
from eo_pipeline.sinks.config import Sink
from eo_pipeline.sinks.delta import DeltaSink
from eo_pipeline.sinks.protocol import CommitOutcome
from eo_pipeline.staging.rows import StagedOutput, StagedTable
from eo_pipeline.storage import Storage
from eo_pipeline.testing import child_of, first_entry
from eo_pipeline.testing.going_back import GoingBackContract
from eo_pipeline.testing.upsert import UpsertContract
from tests.hdfs import DataNodes, HdfsFolder
from tests.proxy import Cut, Proxy
from tests.sinks.delta.delta_world import rows_of
from tests.sinks.delta.test_delta_contract import NOT_IN_DELTA, OnDelta

#: A process that commits each next version, if it is the first to, when it is told to.
_RACER = """
import sys
from deltalake import CommitProperties, DeltaTable
from deltalake.exceptions import CommitFailedError
from deltalake.transaction import PostCommitHookProperties
uri, versions, name = sys.argv[1], int(sys.argv[2]), sys.argv[3]
print("ready", flush=True)
once = CommitProperties(custom_metadata={"who": name}, max_commit_retries=0)
quiet = PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)
for line in sys.stdin:
    table = DeltaTable(uri, version=int(line))
    try:
        table.create_write_transaction(
            [], "append", table.schema(), commit_properties=once, post_commithook_properties=quiet
        )
    except CommitFailedError:
        print("lost", flush=True)
    else:
        print("won", flush=True)
"""


class InHdfs(OnDelta):
    @pytest.fixture
    def sink(self, hdfs: HdfsFolder) -> Sink:
        return DeltaSink(path=f"{hdfs.uri}/tables/flights")


@pytest.mark.chaos
class TestAppend(GoingBackContract, InHdfs):
    pass


@pytest.mark.chaos
class TestUpsert(UpsertContract, GoingBackContract, InHdfs):
    going_back: ClassVar[tuple[Operation, ...]] = (Operation.REWIND,)
    refused_names: ClassVar[frozenset[str]] = NOT_IN_DELTA | {"a backtick"}

    @pytest.fixture
    def sink(self, hdfs: HdfsFolder) -> Sink:
        return DeltaSink(
            path=f"{hdfs.uri}/tables/flights",
            mode="upsert",
            key=("id",),
            sequence_by=("_eo_checkpoint",),
        )


def test_of_several_processes_that_commit_one_version_one_wins(hdfs: HdfsFolder) -> None:
    """delta-rs' own commit: thirty versions, each by four processes from the one before."""
    uri, versions = f"{hdfs.uri}/t", 30
    DeltaTable.create(uri, rows_of(1).schema)
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", _RACER, uri, str(versions), f"racer {number}"],
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
    assert DeltaTable(uri).version() == versions


@pytest.fixture
def proxy(hdfs: HdfsFolder) -> Iterator[Proxy]:
    with Proxy(hdfs.server.host, hdfs.server.port) as made:
        yield made


@pytest.mark.parametrize("cut", Cut)
def test_a_commit_whose_answer_is_lost_is_there_once(
    hdfs: HdfsFolder, proxy: Proxy, cut: Cut
) -> None:
    """The link breaks when the commit gets its name in the log."""
    path = f"{hdfs.uri}/t".replace(f":{hdfs.server.port}", f":{proxy.port}")
    sink = DeltaSink(path=path, storage=Storage(request_timeout=5))
    start = first_entry("p")
    with sink.open("p") as session:
        session.publish(start, StagedOutput(None))
    entry = child_of(start, 3)
    proxy.cut_at(b"/_delta_log/00000000000000000000.json", cut)
    outcome = None
    for _ in range(3):
        with sink.open("p") as session:
            rows = StagedTable.in_memory(rows_of(1))
            outcome = session.publish(entry, StagedOutput(rows))
    assert outcome is CommitOutcome.ALREADY_COMMITTED
    assert proxy.is_through
    found = DeltaTable(f"{hdfs.uri}/t").to_pyarrow_table()
    assert sorted(found["id"].to_pylist()) == [100, 101, 102]


@pytest.mark.chaos
def test_while_a_data_node_is_dead_a_commit_lands_once_or_can_be_tried_again(
    data_nodes: DataNodes,
) -> None:
    """The name node has not missed it: delta-rs is sent there, too."""
    uri = f"{data_nodes.folder.uri}/t"
    sink = DeltaSink(path=uri, storage=Storage(request_timeout=5))
    start, errors = first_entry("p"), list[str]()
    before = child_of(start, 3)
    with sink.open("p") as session:
        session.publish(start, StagedOutput(None))
        session.publish(before, StagedOutput(StagedTable.in_memory(rows_of(1))))
    data_nodes.nodes[0].kill()
    entry = child_of(before, 3)
    for _ in range(3):
        try:
            with sink.open("p") as session:
                session.publish(entry, StagedOutput(StagedTable.in_memory(rows_of(2))))
        except (SinkUnavailableError, CommitUnknownError) as error:
            errors.append(f"{type(error).__name__}: {error}")
    print(errors)  # noqa: T201
    data_nodes.start()
    with sink.open("p") as session:
        session.publish(entry, StagedOutput(StagedTable.in_memory(rows_of(2))))
    found = DeltaTable(uri).to_pyarrow_table()
    assert sorted(found["id"].to_pylist()) == [100, 101, 102, 200, 201, 202]


def test_of_two_runs_at_once_one_is_fenced(hdfs: HdfsFolder) -> None:
    sink, head = DeltaSink(path=f"{hdfs.uri}/t"), first_entry("p")

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


def test_what_belongs_to_a_bucket_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"hdfs:// knows no storage\.region"):
        DeltaSink(path="hdfs://n:1/t", storage=Storage(region="eu-1"))


def test_a_name_node_that_is_away_is_no_damaged_table() -> None:
    sink = DeltaSink(path="hdfs://127.0.0.1:1/t", storage=Storage(request_timeout=1))
    with pytest.raises(SinkUnavailableError), sink.open("p"):
        pass
