"""Several Iceberg tables by a REST catalog: Nessie commits them together, the one of Iceberg's
compatibility kit one after another, although it says otherwise.
"""

from __future__ import annotations

import contextlib
import os
import signal
import uuid
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import new_table_metadata
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.types import LongType, NestedField, StringType

from eo_pipeline.crashpoints import CrashPoint
from eo_pipeline.embedded.kafka import EmbeddedKafka
from eo_pipeline.embedded.spark import EmbeddedSpark
from eo_pipeline.errors import (
    CommitUnknownError,
    ConfigError,
    EoPipelineError,
    FencedError,
    RefusedError,
)
from eo_pipeline.sinks.capabilities import Maintenance
from eo_pipeline.sinks.iceberg import IcebergSink
from eo_pipeline.sinks.iceberg.rest import PatientRestCatalog, _Probe
from eo_pipeline.sinks.session import SinkSession
from eo_pipeline.sinks.tables import TablesSink
from eo_pipeline.staging.rows import StagedOutput, StagedTable
from eo_pipeline.storage.paths import files_below
from eo_pipeline.testing.contract import ALREADY_COMMITTED, COMMITTED, killed_while_publishing
from eo_pipeline.testing.faults import dies
from eo_pipeline.testing.staging import first_entry
from eo_pipeline.testing.tables import TablesContract
from tests.support.chaos import rest_is_chaos
from tests.support.nessie import NessieServer
from tests.support.proxy import Cut, Proxy
from tests.support.rest_catalog import RestCatalogServer, catalog_at
from tests.support.servers import MakeTopic
from tests.support.stores import Bucket
from tests.tables.shop import killed
from tests.tables.test_iceberg_tables import IcebergShop

COMMIT = b"/transactions/commit "
LEDGER = "contract_eo_ledger"


@pytest.fixture
def namespace() -> str:
    return f"n{uuid.uuid4().hex[:12]}"


class TestByNessie(TablesContract):
    nessie: NessieServer

    @pytest.fixture
    def sink(self, nessie: NessieServer, namespace: str) -> TablesSink:
        self.nessie = nessie
        return self.sink_at(nessie.uri, namespace)

    @pytest.fixture
    def proxy(self, nessie: NessieServer) -> Iterator[Proxy]:
        with Proxy(nessie.host, nessie.port) as proxy:
            yield proxy

    @pytest.fixture
    def shaky(self, sink: TablesSink, proxy: Proxy, namespace: str) -> TablesSink:
        """The same tables, by way of the proxy."""
        return self.sink_at(f"http://127.0.0.1:{proxy.port}/iceberg", namespace)

    def sink_at(self, uri: str, namespace: str, **more: Any) -> TablesSink:
        shared = {
            "catalog": catalog_at(uri, warehouse=self.nessie.warehouse),
            "ledger_table": f"{namespace}.{LEDGER}",
            "storage": self.nessie.storage,
            **more,
        }
        return self.together(
            lambda name: IcebergSink.model_validate({**shared, "table": f"{namespace}.{name}"})
        )

    def read_tables(self, sink: TablesSink) -> Mapping[str, Sequence[Mapping[str, Any]]]:
        catalog, found = self.nessie.reader(), dict[str, Sequence[Mapping[str, Any]]]()
        for name, member in sink.members.items():
            with contextlib.suppress(NoSuchTableError):
                found[name] = catalog.load_table(member.table_name).scan().to_arrow().to_pylist()
        return found

    def all_tables(self, sink: TablesSink) -> set[str]:
        namespace = _ledger_of(sink).identifier[:-1]
        return {name for _, name in self.nessie.reader().list_tables(namespace)}

    def manifests(self, sink: TablesSink) -> set[str]:
        """All files of manifests, and lists of them, in the folders of the tables."""
        places = (member.root for member in (*_members(sink), _ledger_of(sink)))
        files = (str(file.place) for place in places for file in files_below(place / "metadata"))
        return {name for name in files if name.endswith(".avro")}

    def stranger(self) -> RestCatalog:
        return self.nessie.reader(self.nessie.uri)

    def append(self, sink: TablesSink, name: str) -> None:
        """A row -1, by somebody else."""
        table = self.stranger().load_table(sink.members[name].table_name)
        row = {"id": -1, "name": "a stranger", "_eo_checkpoint": 0}
        table.append(pa.Table.from_pylist([row], schema=table.schema().as_arrow()))

    def make_bare(self, sink: TablesSink, name: str) -> None:
        """A table without a snapshot, by somebody else."""
        member, catalog = sink.members[name], self.stranger()
        assert isinstance(member, IcebergSink)
        fields = {"id": LongType(), "name": StringType(), "_eo_checkpoint": LongType()}
        columns = Schema(
            *(NestedField(number, *field) for number, field in enumerate(fields.items(), 1))
        )
        layout, location = (UNPARTITIONED_PARTITION_SPEC, UNSORTED_SORT_ORDER), str(member.root)
        metadata = new_table_metadata(columns, *layout, location, {})
        place = f"{location}/metadata/00000-{uuid.uuid4()}.metadata.json"
        file = catalog._load_file_io(location=place).new_output(place)
        with file.create() as stream:  # Nessie wants the number of no snapshot, too
            stream.write(metadata.model_dump_json(exclude_none=False).encode())
        catalog.register_table(member.table, place)

    # The probe.

    def test_a_catalog_is_probed_once_and_nothing_is_left_of_it(
        self, sink: TablesSink, shaky: TablesSink, proxy: Proxy
    ) -> None:
        proxy.recorded = bytearray()
        with shaky.open(self.pipeline) as session:
            assert session.head() is None
            assert b"_probe_" not in proxy.recorded, "a look makes no tables"
            head = self.start(session)
            assert b"_probe_" in proxy.recorded
            proxy.recorded.clear()
            head = self.forward(session, head)
        with shaky.open(self.pipeline) as session:
            self.forward(session, head)
        assert COMMIT in proxy.recorded
        assert b"_probe_" not in proxy.recorded
        assert self.all_tables(sink) == {*self.names, LEDGER}
        assert not [*files_below(_ledger_of(sink).root / "_eo_probe")]

    def test_the_next_probe_takes_the_tables_of_one_that_was_killed(self, sink: TablesSink) -> None:
        dies(_start_and_die, sink, self.pipeline)
        assert len(self.all_tables(sink)) == 2
        with sink.open(self.pipeline) as session:
            self.start(session)
        assert self.all_tables(sink) == {LEDGER}
        assert not [*files_below(_ledger_of(sink).root / "_eo_probe")]

    def test_the_tables_are_probed_again_by_another_address(
        self, sink: TablesSink, shaky: TablesSink, proxy: Proxy
    ) -> None:
        with sink.open(self.pipeline) as session:
            head = self.forward(session, self.start(session))
        proxy.recorded = bytearray()
        with shaky.open(self.pipeline) as session:
            self.forward(session, head)
        assert b"_probe_" in proxy.recorded

    # The commit.

    @pytest.mark.parametrize("cut", Cut, ids=["not heard", "not answered"])
    @pytest.mark.parametrize("before", [0, 1], ids=["tables are made", "they are there"])
    def test_a_commit_without_an_answer_lands_once(
        self, sink: TablesSink, shaky: TablesSink, proxy: Proxy, before: int, cut: Cut
    ) -> None:
        with shaky.open(self.pipeline) as session:
            head = self.start(session)
            for _ in range(before):
                head = self.forward(session, head)
            staged = self.staged(head.version + 1, self.names)
            entry = self.entry(head, session, staged)
            proxy.cut_at(COMMIT, cut)
            with pytest.raises(CommitUnknownError):
                session.publish(entry, staged)
            assert proxy.is_through
            landed = cut is Cut.BEFORE_THE_REPLY
            assert session.publish(entry, staged) is (ALREADY_COMMITTED if landed else COMMITTED)
        versions = range(1, before + 2)
        assert self.visible(sink) == self.expected(**dict.fromkeys(self.names, versions))

    @pytest.mark.parametrize(
        "status",
        rest_is_chaos(
            ["500 Server Error", "502 Bad Gateway", "503 Unavailable"], but=["502 Bad Gateway"]
        ),
    )
    def test_an_error_after_the_commit_is_not_believed(
        self, sink: TablesSink, shaky: TablesSink, proxy: Proxy, status: str
    ) -> None:
        with shaky.open(self.pipeline) as session:
            head = self.forward(session, self.start(session))
            staged = self.staged(2, self.names)
            entry = self.entry(head, session, staged)
            proxy.answer_at(COMMIT, _answer(status), heard=True)
            with pytest.raises(CommitUnknownError):
                session.publish(entry, staged)
            assert session.publish(entry, staged) is ALREADY_COMMITTED
        assert self.visible(sink) == self.expected(**{name: [1, 2] for name in self.names})

    def test_a_commit_that_a_gateway_repeats_keeps_its_files(
        self, sink: TablesSink, shaky: TablesSink, proxy: Proxy
    ) -> None:
        with shaky.open(self.pipeline) as session:
            head = self.forward(session, self.start(session))
            staged = self.staged(2, self.names)
            proxy.answer_at(COMMIT, _answer("409 Conflict"), heard=True)
            assert session.publish(self.entry(head, session, staged), staged) is COMMITTED
        assert proxy.is_through
        assert self.visible(sink) == self.expected(**{name: [1, 2] for name in self.names})

    def test_a_refused_commit_leaves_no_file(
        self, sink: TablesSink, shaky: TablesSink, proxy: Proxy
    ) -> None:
        with shaky.open(self.pipeline) as session:
            head = self.forward(session, self.start(session))
            before = self.manifests(sink)
            staged = self.staged(2, self.names)
            proxy.answer_at(COMMIT, _answer("403 Forbidden"))
            with pytest.raises(RefusedError, match="refused the commit"):
                session.publish(self.entry(head, session, staged), staged)
        assert self.manifests(sink) == before
        assert self.visible(sink) == self.expected(**{name: [1] for name in self.names})

    @pytest.mark.parametrize("bare", [False, True], ids=["filled", "without a snapshot"])
    def test_a_strangers_commit_to_one_table_refuses_all_and_the_next_try_has_both(
        self, sink: TablesSink, monkeypatch: pytest.MonkeyPatch, bare: bool
    ) -> None:
        first, second = self.names
        post, met = PatientRestCatalog._commit_transaction, list[Any]()

        def overtaken(catalog: PatientRestCatalog, changes: list[dict[str, Any]]) -> None:
            if not met:
                met.append({change["identifier"]["name"] for change in changes})
                self.append(sink, second)
                with pytest.raises(Exception, match="snapshot id changed"):
                    post(catalog, changes)
                found = {**self.visible(sink)}
                assert found.pop(second) == [(0, -1), *before.pop(second, [])]
                assert found == before
            post(catalog, changes)

        with sink.open(self.pipeline) as session:
            head = self.start(session)
            if bare:
                self.make_bare(sink, second)
            else:
                head = self.forward(session, head)
            before = {**self.visible(sink)}
            monkeypatch.setattr(PatientRestCatalog, "_commit_transaction", overtaken)
            self.forward(session, head)
        assert met == [{first, second, LEDGER}]
        checkpoints = [1] if bare else [1, 2]
        expected = self.expected(**dict.fromkeys(self.names, checkpoints))
        assert self.visible(sink) == {**expected, second: [(0, -1), *expected[second]]}

    def test_of_two_first_runs_one_wins(self, sink: TablesSink) -> None:
        with sink.open(self.pipeline) as session:
            head = self.start(session)

        def run(_: int) -> Any:
            with sink.open(self.pipeline) as session:
                staged = self.staged(1, self.names)
                return session.publish(self.entry(head, session, staged), staged)

        with ThreadPoolExecutor(2) as threads:
            tried = [threads.submit(run, number) for number in range(2)]
            ended = [each.exception() or each.result() for each in tried]
        assert COMMITTED in ended
        assert any(isinstance(end, FencedError) for end in ended), ended
        assert self.visible(sink) == self.expected(**{name: [1] for name in self.names})

    def test_tables_that_a_killed_run_made_are_empty_and_laid_out(
        self, nessie: NessieServer, namespace: str
    ) -> None:
        self.nessie = nessie
        sink = self.sink_at(nessie.uri, namespace, partition_by=["name"])
        with sink.open(self.pipeline) as session:
            head = self.start(session)
            staged = self.staged(1, self.names)
            entry = self.entry(head, session, staged)
            killed_while_publishing(sink, self.pipeline, entry, staged, CrashPoint.ENTRY_SENT)
        assert self.visible(sink) == {}
        assert self.all_tables(sink) == {*self.names, LEDGER}
        with sink.open(self.pipeline) as session:
            assert session.recover() is not None
            assert session.publish(entry, staged) is COMMITTED
        assert self.visible(sink) == self.expected(**{name: [1] for name in self.names})
        table = self.stranger().load_table(f"{namespace}.{self.names[0]}")
        assert [field.name for field in table.spec().fields] == ["name"]

    def test_a_new_column_is_in_the_commit_of_its_rows(
        self, sink: TablesSink, session: SinkSession
    ) -> None:
        head = self.forward(session, self.start(session))
        staged = self.staged(2, self.names)
        for name, output in staged.tables.items():
            rows = output.rows
            assert rows is not None
            assert rows.table is not None
            more = pa.array(range(self.rows), pa.int64())
            wider = StagedTable.in_memory(rows.table.append_column("more", more))
            staged = StagedOutput(tables={**staged.tables, name: StagedOutput(rows=wider)})
        assert session.publish(self.entry(head, session, staged), staged) is COMMITTED
        for rows_of_one in self.read_tables(sink).values():
            found = [row["more"] for row in rows_of_one if row["more"] is not None]
            assert sorted(found) == [*range(self.rows)]

    def test_maintenance_leaves_files_to_the_catalogs_own_tool(
        self, sink: TablesSink, session: SinkSession
    ) -> None:
        """Its branches and older states need them: ``gc.enabled`` is false."""
        head = self.start(session)
        for _ in range(3):
            head = self.forward(session, head)
        before = self.visible(sink)
        work = [*session.maintain(Maintenance(), dry_run=False)]
        assert {done.work for done in work} == {"none"}
        assert all("gc.enabled=false" in done.remark for done in work)
        assert self.visible(sink) == before


class TestRefused:
    """Each with words that name the step that failed."""

    def sink(self, uri: str, namespace: str, folder: Path) -> TablesSink:
        catalog = catalog_at(uri, warehouse=str(folder))
        shared = {"catalog": catalog, "ledger_table": f"{namespace}.{LEDGER}"}
        return TablesContract.together(
            lambda name: IcebergSink.model_validate({**shared, "table": f"{namespace}.{name}"})
        )

    def test_a_catalog_that_does_not_list_transactions(
        self, rest_catalog: RestCatalogServer, namespace: str, tmp_path: Path
    ) -> None:
        with Proxy(rest_catalog.host, rest_catalog.port) as proxy:
            proxy.change(b"{prefix}/transactions/commit", b"{prefix}/transactions/others")
            sink = self.sink(f"http://127.0.0.1:{proxy.port}", namespace, tmp_path)
            with pytest.raises(ConfigError) as told:
                sink.open("contract")
        for words in (
            "commits one table at a time",
            "GET /v1/config does not list POST /v1/{prefix}/transactions/commit",
            "type: sql",
        ):
            assert words in str(told.value)

    def test_a_catalog_that_commits_one_table_after_another(
        self, rest_catalog: RestCatalogServer, namespace: str, tmp_path: Path
    ) -> None:
        sink = self.sink(rest_catalog.uri, namespace, tmp_path)
        with sink.open("contract") as session, pytest.raises(ConfigError) as told:
            session.publish(session.identified(first_entry("contract")), StagedOutput())
        for words in ("in name only: of transactions at the same time", "type: sql"):
            assert words in str(told.value)
        reader = RestCatalog("reader", uri=rest_catalog.uri)
        assert reader.list_tables(namespace) == []
        assert not [*files_below(tmp_path)]

    def test_a_catalog_that_lists_transactions_and_has_none(
        self, rest_catalog: RestCatalogServer, namespace: str, tmp_path: Path
    ) -> None:
        with Proxy(rest_catalog.host, rest_catalog.port) as proxy:
            answer = _answer("400 Bad Request")
            proxy.answer_at(COMMIT, answer)
            sink = self.sink(f"http://127.0.0.1:{proxy.port}", namespace, tmp_path)
            with sink.open("contract") as session, pytest.raises(ConfigError) as told:
                session.publish(session.identified(first_entry("contract")), StagedOutput())
        assert "in name only: it answers" in str(told.value)
        assert RestCatalog("reader", uri=rest_catalog.uri).list_tables(namespace) == []


class NessieShop(IcebergShop):
    """The shop in a bucket, by Nessie."""

    def __init__(
        self, kafka: str, topics: tuple[str, str], nessie: NessieServer, namespace: str, store: Any
    ) -> None:
        self.kafka, (self.orders, self.customers), self.sent = kafka, topics, 0
        self.nessie, self.namespace = nessie, namespace
        catalog = catalog_at(nessie.uri, warehouse=nessie.warehouse)
        sink = {"type": "iceberg", "namespace": namespace, "catalog": catalog}
        self.config = {**self.document(sink, Path()), "storage": store}
        del self.config["staging"]

    def tables(self) -> dict[str, pa.Table]:
        """Rows of every table, in one state of the catalog."""
        reader = self.nessie.reader()
        names = reader.list_tables(self.namespace)
        return {name[-1]: reader.load_table(name).scan().to_arrow() for name in names}


@pytest.fixture
def shop(
    spark_server: EmbeddedSpark,
    kafka: EmbeddedKafka,
    make_topic: MakeTopic,
    nessie: NessieServer,
    namespace: str,
    bucket: Bucket,
) -> NessieShop:
    topics = make_topic(partitions=4), make_topic()
    return NessieShop(kafka.bootstrap_servers, topics, nessie, namespace, bucket.document())


def test_a_pipeline_fills_its_tables_goes_back_and_survives_a_kill(shop: NessieShop) -> None:
    shop.write(60)
    pipeline = shop.pipeline()
    pipeline.run()
    shop.holds_once(60)
    shop.write(30)
    pipeline.run()
    assert pipeline.audit().passed
    pipeline.replay(1)
    shop.holds_once(90)
    pipeline.rewind(1)
    shop.holds_once(60)
    pipeline.run()
    shop.holds_once(90)
    shop.write(20)
    killed(shop.config, "--crash-at", CrashPoint.PRE_COMMITTED, "1")
    shop.holds_once(90)
    report = pipeline.run()
    assert any(checkpoint.recovered for checkpoint in report.checkpoints)
    shop.holds_once(110)
    assert pipeline.audit().passed
    with (
        pytest.raises(EoPipelineError, match="no snapshot of version"),
        pipeline.as_of(1, table="orders"),
    ):
        pytest.fail("Nessie shows the newest snapshot only")
    pipeline.reset()
    assert shop.tables() == {}


def _start_and_die(sink: TablesSink, pipeline: str) -> None:
    """Killed while it probes the catalog."""
    _Probe._fault_alone = lambda _: os.kill(os.getpid(), signal.SIGKILL)  # type: ignore[assignment, method-assign, return-value]
    with sink.open(pipeline) as session:
        session.publish(session.identified(first_entry(pipeline)), StagedOutput())


def _members(sink: TablesSink) -> list[IcebergSink]:
    return [member for member in sink.members.values() if isinstance(member, IcebergSink)]


def _ledger_of(sink: TablesSink) -> IcebergSink:
    return _members(sink)[0].ledger_sink


def _answer(status: str) -> bytes:
    body = b'{"error":{"message":"no","type":"Error","code":' + status[:3].encode() + b"}}"
    head = f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\nConnection: close\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body
