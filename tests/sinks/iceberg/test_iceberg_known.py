"""What is known of a table's metadata without reading it: never less than the catalog says, and
what it costs.
"""

from __future__ import annotations

import copy
import uuid
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import sqlalchemy
from pydantic import BaseModel
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.serializers import FromInputFile
from pyiceberg.table.metadata import TableMetadata, TableMetadataUtil
from pyiceberg.typedef import IcebergBaseModel

from eo_pipeline.ledger.entry import LedgerEntry, Operation
from eo_pipeline.sinks.iceberg import IcebergSink, catalogs
from eo_pipeline.sinks.iceberg.catalogs import (
    AsWritten,
    KnowingSqlCatalog,
    KnownMetadata,
    Unchanging,
    Written,
)
from eo_pipeline.sinks.iceberg.session import IcebergSession
from eo_pipeline.staging.rows import StagedOutput
from eo_pipeline.testing import child_of
from tests.sinks.iceberg.iceberg_world import (
    COMMITTED,
    ids,
    of,
    publish,
    session,
    sink,
    staged,
    table_of,
)
from tests.sinks.iceberg.test_iceberg_contract import catalog_of
from tests.sinks.maintaining import maintain
from tests.support.calls import calls_of

__all__ = ["session", "sink"]


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Metadata files that are read and parsed, by anybody in this process."""
    return calls_of(FromInputFile, ["table_metadata"], monkeypatch)


@pytest.fixture
def new_process(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """From here on nothing is known, as in a process that begins."""
    return lambda: monkeypatch.setattr(catalogs, "KNOWN", KnownMetadata())


def look(sink: IcebergSink) -> LedgerEntry | None:
    """What a run does before it finds that nothing is new."""
    with sink.open("events") as session:
        return session.verified(session.recover())


class TestCosts:
    @pytest.mark.parametrize("versions", [2, 30])
    def test_runs_of_one_process_never_read_what_it_wrote(
        self, sink: IcebergSink, session: IcebergSession, reads: Counter[str], versions: int
    ) -> None:
        head = publish(session, versions)
        assert look(sink) is not None
        assert session.recover() is not None
        publish(session, 1, head)
        assert not reads

    def test_a_process_that_begins_reads_once_what_is_looked_at_often(
        self,
        sink: IcebergSink,
        session: IcebergSession,
        reads: Counter[str],
        new_process: Callable[[], None],
    ) -> None:
        head = publish(session, 3)
        new_process()
        look(sink)
        publish(session, 2, head)
        look(sink)
        assert reads.total() == 1

    def test_a_commit_copies_no_more_when_there_are_more_snapshots(
        self, session: IcebergSession, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """PyIceberg copies the metadata for each step of a commit, all of it."""
        copied = calls_of(BaseModel, ["__deepcopy__"], monkeypatch)
        head, counts = None, []
        for versions in (2, 30):
            head = publish(session, versions, head)
            copied.clear()
            head = publish(session, 1, head)
            counts.append(copied.total())
        assert counts[1] == counts[0]

    def test_a_commit_turns_no_snapshot_into_json_that_was_before(
        self, session: IcebergSession, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        turned: list[int] = []
        dumped, model_dump = catalogs._dumped, IcebergBaseModel.model_dump_json

        def counted(adapter: Any, values: list[Any]) -> str:
            turned.append(len(values))
            return dumped(adapter, values)

        def counted_whole(self: Any, **options: Any) -> str:
            turned.append(len(getattr(self, "snapshots", [])))
            return model_dump(self, **options)

        monkeypatch.setattr(catalogs, "_dumped", counted)
        monkeypatch.setattr(IcebergBaseModel, "model_dump_json", counted_whole)
        head = None
        for versions in (2, 30):
            head = publish(session, versions, head)
            turned.clear()
            head = publish(session, 1, head)
            assert sum(turned) == 2, "a snapshot, and a line of their log"


class TestOthers:
    def test_whatever_somebody_else_commits_is_seen_at_once(
        self, sink: IcebergSink, session: IcebergSession
    ) -> None:
        head = publish(session, 1)
        for number in range(3):
            table_of(sink).append(pa.table({"id": [-1 - number]}))
            with table_of(sink).transaction() as transaction:
                transaction.set_properties({"owner": str(number)})
            found = session.open_table()
            assert found is not None
            assert found.metadata == table_of(sink).metadata
            head = child_of(head, 2)
            assert session.publish(head, staged(head.version)) is COMMITTED
        assert ids(sink) == [-3, -2, -1, *of(1, 2, 3, 4)]
        assert table_of(sink).properties["owner"] == "2"

    def test_a_catalog_that_went_back_is_believed(
        self, sink: IcebergSink, session: IcebergSession
    ) -> None:
        """As one restored from its backup: it points to a file from before."""
        head = publish(session, 1)
        before = table_of(sink)
        publish(session, 1, head)
        engine = sqlalchemy.create_engine(f"sqlite:///{sink.warehouse}/catalog.db")
        with engine.begin() as connection:
            text = "UPDATE iceberg_tables SET metadata_location = :place"
            connection.execute(sqlalchemy.text(text), {"place": before.metadata_location})
        found = session.open_table()
        assert found is not None
        assert found.metadata == before.metadata
        assert session.head() == session.entry(1)

    def test_a_table_made_anew_under_the_name_is_another(
        self, sink: IcebergSink, session: IcebergSession
    ) -> None:
        publish(session, 2)
        catalog_of(sink).drop_table(sink.table)
        schema, place = pa.schema([("id", pa.int64())]), f"file://{sink.root}"
        made = catalog_of(sink).create_table(sink.table, schema=schema, location=place)
        found = session.open_table()
        assert found is not None
        assert found.metadata.table_uuid == made.metadata.table_uuid

    def test_a_table_that_is_gone_is_gone(self, sink: IcebergSink, session: IcebergSession) -> None:
        publish(session, 1)
        catalog_of(sink).drop_table(sink.table)
        assert session.open_table() is None


class TestCatalogs:
    def opened(self, folder: Path, **properties: str) -> type:
        known = {"uri": f"sqlite:///{folder}/c.db", "warehouse": str(folder), **properties}
        catalog = {"name": "own", "properties": known}
        sink = IcebergSink.model_validate({"table": "ops.flights", "catalog": catalog})
        with sink.open("events") as session:
            assert isinstance(session, IcebergSession)
            return type(session.catalog)

    def test_an_sql_catalog_of_any_name_knows(self, tmp_path: Path) -> None:
        assert self.opened(tmp_path, type="SQL") is KnowingSqlCatalog
        assert self.opened(tmp_path) is KnowingSqlCatalog, "by its uri"

    def test_a_class_of_ones_own_is_heeded(self, tmp_path: Path) -> None:
        own = {"py-catalog-impl": "pyiceberg.catalog.sql.SqlCatalog"}
        assert self.opened(tmp_path, **own) is SqlCatalog


class TestWhatIsKnown:
    def test_it_is_what_stands_in_the_file_after_commits_of_every_kind(
        self, sink: IcebergSink, session: IcebergSession, reads: Counter[str]
    ) -> None:
        def same() -> None:
            reads.clear()
            found = session.open_table()
            assert not reads
            assert found is not None
            text = Path(found.metadata_location.removeprefix("file://")).read_text()
            assert found.metadata == TableMetadataUtil.parse_raw(text)
            assert text == TableMetadataUtil.parse_raw(text).model_dump_json()

        head = publish(session, 2)
        same()
        head = publish(session, 2, head, tail=["N1", None])
        same()
        replayed = child_of(head, 2, operation=Operation.REPLAY, target=2)
        session.publish(replayed, staged(2, more=[1.5, 2.5]))
        same()
        session.publish(child_of(replayed, operation=Operation.REWIND, target=1), StagedOutput())
        same()
        maintain(sink, "events")
        same()

    def test_expired_snapshots_are_not_known_any_more(
        self, sink: IcebergSink, session: IcebergSession
    ) -> None:
        publish(session, 4)
        table = session.open_table()
        assert table is not None
        later = datetime.now(UTC) + timedelta(days=1)
        table.maintenance.expire_snapshots().older_than(later).commit()
        found = session.open_table()
        assert found is not None
        assert len(found.metadata.snapshots) == len(found.metadata.snapshot_log) == 1
        assert found.metadata == table_of(sink).metadata

    def test_who_changes_what_he_was_given_changes_nobody_elses(
        self, sink: IcebergSink, session: IcebergSession
    ) -> None:
        publish(session, 2)
        given = session.open_table()
        assert given is not None
        given.properties["owner"] = "ops"
        given.metadata.refs.clear()
        given.metadata.snapshots.clear()
        given.metadata.metadata_log.append(given.metadata.metadata_log[0])
        found = session.open_table()
        assert found is not None
        assert found.metadata == table_of(sink).metadata


def made(snapshots: int, table: uuid.UUID | None = None, **more: Any) -> TableMetadata:
    """Metadata of a table with so many snapshots."""
    summary, schema = {"operation": "append"}, {"type": "struct", "fields": [], "schema-id": 0}
    raw: dict[str, Any] = {
        "format-version": 2,
        "table-uuid": str(table or uuid.uuid4()),
        "location": "file:///t",
        "last-column-id": 0,
        "schema": schema,
        "schemas": [schema],
        "partition-specs": [{"spec-id": 0, "fields": []}],
        "snapshots": [
            {"snapshot-id": n, "manifest-list": "m", "timestamp-ms": n, "summary": summary}
            for n in range(snapshots)
        ],
        "snapshot-log": [{"snapshot-id": n, "timestamp-ms": n} for n in range(snapshots)],
    }
    return TableMetadataUtil.parse_obj({**raw, **more})


class TestWritten:
    def test_lists_that_grow_shrink_and_change_are_written_as_they_are(self) -> None:
        written, metadata = Written(), made(3)
        more, fourth = made(5).snapshots, made(9).snapshots[8]
        for snapshots in (
            metadata.snapshots,
            [*metadata.snapshots, *more[3:]],
            [*metadata.snapshots, *more[3:], fourth],
            metadata.snapshots[1:],
            [fourth, *metadata.snapshots[1:], more[3]],
            [],
            metadata.snapshots,
        ):
            log = metadata.snapshot_log[: len(snapshots)]
            changed = metadata.model_copy(update={"snapshots": snapshots, "snapshot_log": log})
            assert written.json(changed) == changed.model_dump_json()

    @pytest.mark.parametrize(
        "more",
        [
            {"properties": {"snapshots": "[]", "a": '"snapshots":[]', '"snapshot-log":[]': "b"}},
            {"location": 'file:///"snapshots":[]'},
            {"format-version": 1, "partition-spec": []},
        ],
        ids=["properties", "location", "first format"],
    )
    def test_whatever_else_the_metadata_says(self, more: dict[str, Any]) -> None:
        written, metadata = Written(), made(3, **more)
        for _ in range(2):
            assert written.json(metadata) == metadata.model_dump_json()

    def test_a_setting_for_readers_of_old_is_heeded(self) -> None:
        metadata = made(0)
        said = AsWritten(metadata, Written()).model_dump_json(exclude_none=False)
        assert said == metadata.model_dump_json(exclude_none=False)
        assert "null" in said


class TestKept:
    def place(self) -> str:
        return f"file:///t/metadata/00001-{uuid.uuid4()}.metadata.json"

    def test_of_a_table_the_newest_only(self) -> None:
        kept, first, second, table = KnownMetadata(), self.place(), self.place(), uuid.uuid4()
        newest = made(2, table)
        kept.keep(first, made(1, table))
        kept.keep(second, newest)
        assert kept.get(first) is None
        assert kept.get(second) == newest

    @pytest.mark.parametrize("name", ["v3.metadata.json", "00001.metadata.json", "metadata.json"])
    def test_nothing_under_a_name_that_may_be_given_again(self, name: str) -> None:
        kept = KnownMetadata()
        kept.keep(f"file:///{uuid.uuid4()}/metadata/{name}", made(1))
        assert kept.get(f"file:///t/metadata/{name}") is None
        assert not kept._held

    def test_what_was_asked_for_last_is_kept_longest(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(catalogs, "MOST_SNAPSHOTS", 5)
        kept, places = KnownMetadata(), [self.place() for _ in range(4)]
        for place in places[:2]:
            kept.keep(place, made(2))
        assert kept.get(places[0]) is not None
        kept.keep(places[2], made(2))
        assert [kept.get(place) is not None for place in places[:3]] == [True, False, True]
        kept.keep(places[3], made(6))
        assert [kept.get(place) is not None for place in places] == [True, False, True, False]

    def test_a_list_of_what_nobody_changes_stays_one(self) -> None:
        first, second = [0], [1]
        values = Unchanging([first, second])
        nothing: list[list[int]] = []
        for other in (copy.deepcopy(values), values + nothing, values[:]):
            assert other == [[0], [1]]
            assert isinstance(other, Unchanging)
            assert other is not values
            assert other[0] is first
