"""Hidden partitioning of Iceberg tables, and what a configuration must say."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import polars
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg import expressions

from eo_pipeline.errors import (
    ConfigError,
    RefusedError,
)
from eo_pipeline.ledger.entry import CHECKPOINT_COLUMN, Operation
from eo_pipeline.sinks.iceberg import IcebergSink
from eo_pipeline.sinks.iceberg.session import IcebergSession
from eo_pipeline.sinks.registry import sink_from_config
from eo_pipeline.staging.rows import StagedFile, StagedOutput, StagedTable
from eo_pipeline.storage.paths import size_of
from eo_pipeline.testing import child_of
from tests.sinks.iceberg.iceberg_world import (
    COMMITTED,
    ids,
    of,
    publish,
    rows,
    session,
    sink,
    staged,
    table_of,
)

__all__ = ["session", "sink"]


class TestLayout:
    NOON = datetime(2013, 1, 1, 12, tzinfo=UTC)

    def columns(self, carriers: list[str | None]) -> dict[str, Any]:
        at = [self.NOON, self.NOON + timedelta(days=1)]
        return {"carrier": carriers, "at": pa.array(at, pa.timestamp("us", "UTC"))}

    @pytest.fixture
    def sink(self, tmp_path: Path) -> IcebergSink:
        layout = ("carrier", "day(at)")
        warehouse = tmp_path / "warehouse"
        return IcebergSink(table="ops.flights", warehouse=warehouse, partition_by=layout)

    def partitions(self, sink: IcebergSink) -> list[tuple[Any, ...]]:
        found = table_of(sink).inspect.partitions()["partition"].to_pylist()
        return sorted(tuple(map(str, value.values())) for value in found)

    def test_rows_in_memory_are_cut_by_partition_and_null_has_its_own(
        self, sink: IcebergSink, session: IcebergSession
    ) -> None:
        publish(session, 2, **self.columns(["UA", None]))
        assert self.partitions(sink) == [("None", "2013-01-02"), ("UA", "2013-01-01")]
        scan = table_of(sink).scan("carrier = 'UA'")
        assert sorted(scan.to_arrow()["id"].to_pylist()) == [10, 20]
        assert len(list(scan.plan_files())) == 2
        assert ids(sink) == of(1, 2)

    def test_two_decimals_of_one_type_make_no_table_that_others_cannot_read(
        self, tmp_path: Path
    ) -> None:
        sink = IcebergSink(table="ops.t", warehouse=tmp_path, partition_by=("a", "b"))
        short, long = (pa.array([1, 2]).cast(pa.decimal128(p, 2)) for p in (21, 22))
        with sink.open("events") as session:
            head = publish(session, 0)
            with pytest.raises(ConfigError, match=r"'a' and 'b' are both decimal128\(21, 2\)"):
                session.publish(child_of(head, 2), staged(1, a=short, b=short))
            publish(session, 1, head, a=short, b=long)
        assert ids(sink) == of(1)

    def files(self, folder: Path, parts: list[pa.Table]) -> StagedOutput:
        """Files as Spark lays them out, one a partition."""
        folder.mkdir()
        written = []
        for number, part in enumerate(parts):
            pq.write_table(part, folder / f"{number}.parquet")
            size = (folder / f"{number}.parquet").stat().st_size
            written.append(StagedFile(f"{number}.parquet", size, part.num_rows))
        return StagedOutput(StagedTable(parts[0].schema, folder, tuple(written)))

    def test_staged_files_of_one_partition_each(
        self, sink: IcebergSink, session: IcebergSession, tmp_path: Path
    ) -> None:
        head = publish(session, 0)
        table = rows(1, **self.columns(["UA", None])).table
        assert table is not None
        output = self.files(tmp_path / "staged", [table.slice(0, 1), table.slice(1, 1)])
        assert session.publish(child_of(head, 2), output) is COMMITTED
        assert self.partitions(sink) == [("None", "2013-01-02"), ("UA", "2013-01-01")]

    def test_a_staged_file_that_mixes_nulls_and_values_is_refused(
        self, sink: IcebergSink, session: IcebergSession, tmp_path: Path
    ) -> None:
        """Trap: PyIceberg looks at the bounds, and they leave out nulls."""
        head = publish(session, 0)
        columns = {**self.columns(["UA", None]), "at": pa.array([self.NOON] * 2)}
        table = rows(1, **columns).table
        assert table is not None
        with pytest.raises(RefusedError, match="'carrier'"):
            session.publish(child_of(head, 2), self.files(tmp_path / "staged", [table]))

    @pytest.mark.parametrize("carriers", [["UA", "UA"], [None, None]])
    def test_a_staged_file_without_statistics_is_read(
        self,
        sink: IcebergSink,
        session: IcebergSession,
        tmp_path: Path,
        carriers: list[str | None],
    ) -> None:
        """Trap: PyIceberg puts such a file into the partition of nulls, without a word."""
        head = publish(session, 0)
        columns = {**self.columns(carriers), "at": pa.array([self.NOON] * 2)}
        columns["carrier"] = pa.array(carriers, pa.string())
        table = rows(1, **columns).table
        assert table is not None
        output = self.files(tmp_path / "staged", [table])
        [path] = output.rows.paths() if output.rows else []
        pq.write_table(table, path, write_statistics=False)
        file = StagedFile(path.name, size_of(path) or 0, 2)
        bare = StagedTable(table.schema, path.parent, (file,))
        session.publish(child_of(head, 2), StagedOutput(bare))
        assert self.partitions(sink) == [(str(carriers[0]), "2013-01-01")]

    #: None and what a folder's name would say for it, the empty one, one longer than a footer keeps
    TEXTS = (None, "__HIVE_DEFAULT_PARTITION__", "", "null", "a b=ü%/\n", "x" * 300, "y" * 9000)

    @pytest.mark.parametrize("files", [False, True], ids=["memory", "files"])
    def test_any_text_is_a_partition(
        self, tmp_path: Path, files: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("POLARS_ICEBERG_PLANNER", "pyiceberg")
        sink = IcebergSink(table="ops.t", warehouse=tmp_path / "w", partition_by=("text",))
        table = pa.table(
            {"text": self.TEXTS, CHECKPOINT_COLUMN: pa.array([1] * len(self.TEXTS), pa.int64())}
        )
        staged_ = StagedOutput(StagedTable.in_memory(table))
        if files:
            parts = [table.slice(n, 1) for n in range(len(self.TEXTS))]
            staged_ = self.files(tmp_path / "staged", parts)
        with sink.open("events") as session:
            session.publish(child_of(publish(session, 0), len(self.TEXTS)), staged_)
        held = table_of(sink)
        found = {task.file.partition[0] for task in held.scan().plan_files()}
        assert found == {*self.TEXTS}
        assert {*held.scan().to_arrow()["text"].to_pylist()} == {*self.TEXTS}
        assert {*polars.scan_iceberg(held).collect()["text"]} == {*self.TEXTS}
        for text in self.TEXTS:
            where: Any = expressions
            wanted = where.IsNull("text") if text is None else where.EqualTo("text", text)
            assert held.scan(wanted).to_arrow()["text"].to_pylist() == [text]

    def test_a_staged_file_with_two_values_is_refused(
        self, sink: IcebergSink, session: IcebergSession, tmp_path: Path
    ) -> None:
        head = publish(session, 0)
        table = rows(1, **self.columns(["UA", "DL"])).table
        assert table is not None
        with pytest.raises(RefusedError, match="more than one partition"):
            session.publish(child_of(head, 2), self.files(tmp_path / "staged", [table]))

    def test_a_partition_column_after_a_hundred_others_keeps_its_bounds(
        self, sink: IcebergSink, session: IcebergSession
    ) -> None:
        """Trap: PyIceberg keeps bounds of the first hundred columns, and takes null for others."""
        many: dict[str, Any] = {f"c{number}": [1, 2] for number in range(120)}
        publish(session, 1, None, **many, **self.columns(["UA", "DL"]))
        assert self.partitions(sink) == [("DL", "2013-01-02"), ("UA", "2013-01-01")]

    def test_a_table_that_keeps_no_bounds_is_refused(
        self, sink: IcebergSink, session: IcebergSession
    ) -> None:
        publish(session, 1, **self.columns(["UA", "DL"]))
        with table_of(sink).transaction() as transaction:
            transaction.set_properties({"write.metadata.metrics.column.carrier": "none"})
        with pytest.raises(ConfigError, match="keeps no bounds of 'carrier'"):
            sink.open("events")

    def test_the_layout_waits_for_the_first_columns(
        self, sink: IcebergSink, session: IcebergSession
    ) -> None:
        head = publish(session, 0)
        empty = child_of(head)
        assert session.publish(empty, StagedOutput()) is COMMITTED
        with sink.open("events") as other:
            publish(other, 1, empty, **self.columns(["UA", "DL"]))
        assert len(self.partitions(sink)) == 2

    def test_rewind_and_replay_keep_the_layout(
        self, sink: IcebergSink, session: IcebergSession
    ) -> None:
        columns = self.columns(["UA", "DL"])
        head = publish(session, 3, **columns)
        back = child_of(head, operation=Operation.REWIND, target=2)
        session.publish(back, StagedOutput())
        again = child_of(back, 2, operation=Operation.REPLAY, target=1)
        session.publish(again, staged(1, **columns))
        assert ids(sink) == of(1, 2)
        assert self.partitions(sink) == [("DL", "2013-01-02"), ("UA", "2013-01-01")]

    def test_another_layout_is_refused(
        self, sink: IcebergSink, session: IcebergSession, tmp_path: Path
    ) -> None:
        publish(session, 1, **self.columns(["UA", "DL"]))
        other = IcebergSink(table="ops.flights", warehouse=tmp_path / "warehouse")
        with pytest.raises(ConfigError, match=r"partitioned by carrier, day\(at\), not by nothing"):
            other.open("events")

    def test_a_transform_that_statistics_do_not_show_is_refused(self, tmp_path: Path) -> None:
        config = {"type": "iceberg", "table": "a.b", "partition_by": ["bucket(id)"]}
        with pytest.raises(ConfigError, match=r"sink.partition_by.*bucket"):
            sink_from_config(config)


class TestConfiguration:
    def test_a_catalog_is_named_with_its_properties_and_shows_no_secret(
        self, tmp_path: Path
    ) -> None:
        properties = {
            "type": "sql",
            "uri": f"sqlite:///{tmp_path}/own.db",
            "warehouse": f"file://{tmp_path}/lake",
            "token": "s3cret",
        }
        catalog = {"name": "prod", "properties": properties}
        sink = sink_from_config({"type": "iceberg", "table": "a.b", "catalog": catalog})
        assert isinstance(sink, IcebergSink)
        assert "s3cret" not in f"{sink!r} {sink.describe()}"
        assert sink.root == tmp_path / "lake" / "a" / "b"
        with sink.open("events") as session:
            publish(session, 1)
        assert (tmp_path / "own.db").exists()

    @pytest.mark.parametrize(
        ("config", "words"),
        [
            ({"table": "flights"}, "namespace.table"),
            ({"table": "a.b", "location": "gs://bucket/x"}, "gs:// is not supported"),
            ({"table": "a.b", "warehouse": "s3://bucket/x"}, "the embedded catalog is a file"),
            (
                {
                    "table": "a.b",
                    "catalog": {"name": "p", "properties": {"warehouse": "abfss://c@a/x"}},
                },
                "catalog.properties.warehouse: abfss:// is not supported",
            ),
            (
                {
                    "table": "a.b",
                    "catalog": {
                        "name": "p",
                        "properties": {"uri": "https://catalog:1", "warehouse": "a name"},
                    },
                },
                "location: required",
            ),
            ({"table": "a.b", "catalog": {"name": "prod"}}, "location: required"),
            ({"table": "a.b", "mode": "upsert"}, "mode: upsert is not possible"),
            ({"table": "a.b", "partition_by": ["x", "x"]}, "named twice"),
            ({"table": "a.b", "partition_by": ["day(x"]}, "neither a column nor"),
        ],
    )
    def test_what_cannot_work_is_said_in_words(self, config: dict[str, Any], words: str) -> None:
        with pytest.raises(ConfigError, match=words):
            sink_from_config({"type": "iceberg", **config})

    def test_a_table_that_lies_elsewhere_is_refused(
        self, sink: IcebergSink, session: IcebergSession, tmp_path: Path
    ) -> None:
        publish(session, 1)
        other = IcebergSink(
            table=sink.table, warehouse=sink.warehouse, location=str(tmp_path / "elsewhere")
        )
        with pytest.raises(ConfigError, match=r"sink.location: .* lies at"):
            other.open("events")

    def test_pyiceberg_is_needed_for_opening_only(self, tmp_path: Path) -> None:
        code = (
            "import sys; sys.modules['pyiceberg'] = None\n"
            "import eo_pipeline\n"
            "from eo_pipeline.errors import ConfigError\n"
            "from eo_pipeline.sinks.iceberg import IcebergSink\n"
            "try: IcebergSink(table='a.b', warehouse=sys.argv[1]).open('p')\n"
            "except ConfigError as error: print(error)\n"
        )
        command = [sys.executable, "-c", code, str(tmp_path)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        assert "pip install 'eo-pipeline[iceberg]'" in done.stdout
