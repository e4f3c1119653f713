"""Whole pipelines from Kafka through Spark into a lake table: killed, run again, read by others."""

from __future__ import annotations

import json
import random
import signal
import threading
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from deltalake import DeltaTable

from eo_pipeline.crashpoints import CrashPoint
from eo_pipeline.embedded.spark import EmbeddedSpark
from eo_pipeline.errors import RefusedError, SchemaChangeError
from eo_pipeline.ledger.entry import CHECKPOINT_COLUMN
from eo_pipeline.storage.paths import Place, files_below
from tests.support.chaos import rest_is_chaos
from tests.support.engine import Bench, Coordinates, Table, Topic
from tests.support.store_folder import StoreFolder

LINEAGE = ["_eo_topic", "_eo_partition", "_eo_offset"]

#: Which points leave a promise behind that the next run keeps without reading again.
PROMISED = {CrashPoint.PRE_COMMITTED, CrashPoint.ROWS_SENT, CrashPoint.ENTRY_SENT}


@dataclass(frozen=True)
class Lake:
    """A pipeline into a Delta table, and an observer who reads it without the engine."""

    bench: Bench
    root: Place
    #: an observer's, to get there
    options: dict[str, str] = field(default_factory=dict)

    def frame(self) -> pl.DataFrame:
        if str(self.root).startswith("hdfs://"):  # which Polars does not know
            return pl.DataFrame(DeltaTable(str(self.root)).to_pyarrow_table())
        return pl.read_delta(str(self.root), storage_options=self.options)

    def exists(self) -> bool:
        return DeltaTable.is_deltatable(str(self.root), self.options)

    @property
    def folder(self) -> Path:
        assert isinstance(self.root, Path)
        return self.root

    def coordinates(self) -> Counter[Coordinates]:
        """How often each record is in the table."""
        if not self.exists():
            return Counter()
        rows = self.frame().select(LINEAGE).iter_rows()
        return Counter((t, p, o) for t, p, o in rows)

    def assert_holds_once(self, written: Iterable[Coordinates]) -> None:
        """Exactly ``written``, each once, every row under a ledger entry that counted it."""
        assert self.coordinates() == Counter(set(written))
        self.assert_consistent()

    def assert_consistent(self) -> None:
        counted = {e.version: e.counts.rows for e in self.bench.pipeline().history()}
        found: dict[int, int] = {}
        if self.exists():
            found = dict(Counter(self.frame()[CHECKPOINT_COLUMN].to_list()))
        assert found == {version: rows for version, rows in counted.items() if rows}

    def files_of_no_use(self) -> list[str]:
        """Files where the rows lie that are not the table's."""
        used = DeltaTable(str(self.root), storage_options=self.options).file_uris()
        found = (str(place) for place, _ in files_below(self.root / "eo_rows"))
        return sorted(path for path in found if path not in used)

    def promises(self) -> list[str]:
        folder = self.root / "_eo_staging" / "events"
        found = {place.parent.name for place, _ in files_below(folder)}
        return sorted(name for name in found if "-" in name)


#: The same document, but for its URIs: the table, its ledger and staging in a folder, or a bucket.
IN_A_BUCKET = pytest.mark.parametrize("lake", ["bucket"], indirect=True)
IN_GOOGLE = pytest.mark.parametrize("lake", ["google"], indirect=True)
IN_HDFS = pytest.mark.parametrize("lake", ["hdfs"], indirect=True)
IN_AZURE = pytest.mark.parametrize("lake", ["azure"], indirect=True)


@pytest.fixture
def lake(
    spark_server: EmbeddedSpark, events: Topic, tmp_path: Path, request: pytest.FixtureRequest
) -> Lake:
    """An append pipeline, 100 offsets a checkpoint, small batches through files too."""
    if (store := getattr(request, "param", None)) is not None:
        there: StoreFolder = request.getfixturevalue(store)
        bench = _bench(events, f"{there.uri}/lake/events", {"storage": there.document()})
        return Lake(bench, there.place / "lake" / "events", there.options())
    root = tmp_path / "lake" / "events"
    return Lake(_bench(events, str(root), {}), root)


def _bench(events: Topic, path: str, more: dict[str, Any]) -> Bench:
    config: dict[str, Any] = {
        "name": "events",
        "source": {
            "bootstrap_servers": events.bootstrap_servers,
            "topics": [events.name],
            "value_schema": "id BIGINT NOT NULL, name STRING",
            "max_records": 100,
        },
        "sink": {"type": "delta", "path": path},
        "inline_records": 0,
        **more,
    }
    return Bench(events, Table("no database"), config)


@pytest.mark.parametrize(
    ("point", "inline_records"),
    rest_is_chaos(
        [(point, inline) for inline in (0, 10_000) for point in CrashPoint],
        but=[
            (CrashPoint.PRE_COMMITTED, 0),
            (CrashPoint.ENTRY_SENT, 0),
            (CrashPoint.ENTRY_SENT, 10_000),
        ],
    ),
)
def test_killed_at_a_named_point_the_next_run_leaves_every_record_there_once(
    lake: Lake, point: CrashPoint, inline_records: int
) -> None:
    bench = lake.bench
    bench.topic.write(300, partitions=range(4))
    nth = {"recovered": 1, "committed": 3, "rows_sent": 3, "entry_sent": 3}.get(point, 2)
    killed = bench.run_in_a_process("--crash-at", point, str(nth), inline_records=inline_records)
    out, err = killed.communicate(timeout=240)
    assert killed.returncode == -signal.SIGKILL, err
    assert "done" not in out
    lake.assert_consistent()

    report = bench.pipeline(inline_records=inline_records).run()

    lake.assert_holds_once(bench.topic.written)
    assert [e.version for e in bench.pipeline().history()] == list(range(report.head.version + 1))
    assert lake.promises() == []
    bench.pipeline(inline_records=inline_records).run()
    assert lake.files_of_no_use() == [], "what lost its version goes with the run after that"
    kept = [r for r in report.checkpoints if r.recovered]
    assert bool(kept) == (point in PROMISED and inline_records == 0)


KILLED_IN_A_STORE = pytest.mark.parametrize(
    ("point", "inline_records"),
    rest_is_chaos(
        [(point, inline) for inline in (0, 10_000) for point in CrashPoint],
        but=[(CrashPoint.PRE_COMMITTED, 0), (CrashPoint.ENTRY_SENT, 10_000)],
    ),
)


@IN_A_BUCKET
@KILLED_IN_A_STORE
def test_killed_on_a_bucket_the_next_run_leaves_every_record_there_once(
    lake: Lake, point: CrashPoint, inline_records: int
) -> None:
    test_killed_at_a_named_point_the_next_run_leaves_every_record_there_once(
        lake, point, inline_records
    )


@IN_GOOGLE
@KILLED_IN_A_STORE
def test_killed_on_google_the_next_run_leaves_every_record_there_once(
    lake: Lake, point: CrashPoint, inline_records: int
) -> None:
    test_killed_at_a_named_point_the_next_run_leaves_every_record_there_once(
        lake, point, inline_records
    )


@IN_HDFS
@KILLED_IN_A_STORE
def test_killed_on_hdfs_the_next_run_leaves_every_record_there_once(
    lake: Lake, point: CrashPoint, inline_records: int
) -> None:
    test_killed_at_a_named_point_the_next_run_leaves_every_record_there_once(
        lake, point, inline_records
    )


@IN_AZURE
@KILLED_IN_A_STORE
def test_killed_on_azure_the_next_run_leaves_every_record_there_once(
    lake: Lake, point: CrashPoint, inline_records: int
) -> None:
    test_killed_at_a_named_point_the_next_run_leaves_every_record_there_once(
        lake, point, inline_records
    )


@pytest.mark.core
def test_a_run_after_a_crash_leaves_no_orphan(lake: Lake) -> None:
    """Scenario: killed while publishing, once with files and once inline; two more runs.
    Outcome: every Parquet file is in the table, every ledger file in the chain.
    """
    for inline_records in (0, 10_000):
        lake.bench.topic.write(100, partitions=range(4))
        killed = lake.bench.run_in_a_process(
            "--crash-at", CrashPoint.ENTRY_SENT, "2", inline_records=inline_records
        )
        killed.communicate(timeout=240)
        lake.bench.pipeline().run()
    lake.bench.pipeline().run()
    table = DeltaTable(str(lake.root))
    known = {Path(uri).name for uri in table.file_uris()}
    assert {p.name for p in (lake.folder / "eo_rows").rglob("*.parquet")} == known
    ledger = list((lake.folder / "_eo_ledger").rglob("*.json"))
    assert len(ledger) == len(lake.bench.pipeline().history())
    lake.assert_holds_once(lake.bench.topic.written)


@pytest.mark.parametrize("times", rest_is_chaos([3, 20], but=[3]))
def test_killed_at_random_moments_a_reader_sees_whole_checkpoints_only(
    lake: Lake, times: int
) -> None:
    """Scenario: SIGKILL after a seeded random delay, again and again, the topic growing, a reader
    polling. Outcome: each snapshot is whole and none is smaller than the one before.
    """
    seed = random.SystemRandom().randrange(10**6)
    chance = random.Random(seed)
    print(f"seed {seed}")  # noqa: T201
    done, views = threading.Event(), []

    def poll() -> None:
        while not done.wait(0.03):
            if DeltaTable.is_deltatable(str(lake.root)):
                views.append(dict(Counter(lake.frame()[CHECKPOINT_COLUMN].to_list())))

    reader = threading.Thread(target=poll)
    reader.start()
    kills = 0
    while kills < times:  # a run that was faster is none of them
        lake.bench.topic.write(150, partitions=range(4))
        kills += lake.bench.killed_after(chance.uniform(0.5, 3.0))
    lake.bench.pipeline().run()
    done.set()
    reader.join()
    counted = {e.version: e.counts.rows for e in lake.bench.pipeline().history()}
    assert all(view.items() <= counted.items() for view in views), f"seed {seed}"
    totals = [sum(view.values()) for view in views]
    assert totals == sorted(totals)
    lake.assert_holds_once(lake.bench.topic.written)


@pytest.mark.core(only=["files"])
@pytest.mark.parametrize("inline_records", [0, 10_000], ids=["files", "inline"])
def test_rows_are_laid_out_by_partition_columns(lake: Lake, inline_records: int) -> None:
    pipeline = lake.bench.pipeline(
        sink={"partition_by": ["day", "word"]},
        transform="tests.sinks.lake_transforms:with_day_and_word",
        inline_records=inline_records,
    )
    for _ in range(2):  # only what was measured goes inline
        lake.bench.topic.write(20, partitions=range(4))
        assert pipeline.run().head.counts.rows == 20
    table = DeltaTable(str(lake.root))
    assert table.metadata().partition_columns == ["day", "word"]
    frame = lake.frame().sort("id")
    assert set(frame.columns) == {"id", "name", "day", "word", CHECKPOINT_COLUMN, *LINEAGE}
    assert frame["word"].to_list() == ["a/b c=ü%:" if n % 2 else None for n in range(40)]
    assert {str(day) for day in frame["day"]} == {"2013-01-01", "2013-01-02"}
    assert all("/day=2013-01-0" in uri and "/word=" in uri for uri in table.file_uris())
    assert list((lake.folder / "_eo_staging").rglob("*.parquet")) == []


#: Values to lay a table out by, and why their records are dead letters.
LAID_OUT_BY: list[tuple[str | None, str | None, str | None]] = [
    ("a b=c/d%20ü#?:*{}[]^'\\~.", "12.34", None),
    ("日" * 27, "-3.00", None),
    ("t" * 250, None, None),
    (None, "0.00", None),
    ("..", None, None),
    ("a\x00b\x1f\x7f\n", None, None),
    ("__HIVE_DEFAULT_PARTITION__", None, "which stands for null"),
    ("", None, "an empty text"),
    ("t" * 251, None, "more than 250 bytes"),
    ("日" * 30, None, "more than 250 bytes"),
    ("x", "-12.34", "a negative number that is not whole"),
]


@pytest.mark.core(only=["files"])
@pytest.mark.parametrize("inline_records", [0, 10_000], ids=["files", "inline"])
def test_no_value_to_lay_a_table_out_by_stops_the_pipeline(lake: Lake, inline_records: int) -> None:
    """Spark makes a folder of each, and cannot of some."""

    def write(first: int) -> None:
        for number, (name, price, _) in enumerate(LAID_OUT_BY, start=first):
            record = {"id": number, "name": name, "price": price}
            lake.bench.topic.write_value(json.dumps(record).encode())

    pipeline = lake.bench.pipeline(
        sink={"partition_by": ["name", "price"]},
        source={
            "on_bad_record": "dead_letter",
            "value_schema": "id BIGINT NOT NULL, name STRING, price DECIMAL(10,2)",
        },
        inline_records=inline_records,
    )
    expected = [(name, price) for name, price, why in LAID_OUT_BY if why is None]
    for first in (0, 100):  # only what was measured goes inline
        write(first)
        pipeline.run()
        frame = lake.frame().filter(pl.col("id") >= first).sort("id")
        found = frame.select("name", pl.col("price").cast(pl.String)).rows()
        assert found == expected
    letters = pipeline.sink.dead_letters("events").to_pylist()  # type: ignore[attr-defined]
    said = [why for *_, why in LAID_OUT_BY if why]
    assert len(letters) == 2 * len(said)
    assert all(any(why in each["error"] for each in letters) for why in said), letters


@pytest.mark.parametrize("inline_records", [0, 10_000], ids=["files", "inline"])
def test_an_upsert_keeps_the_newest_row_of_a_key(lake: Lake, inline_records: int) -> None:
    for value in (b'{"id": 1, "name": "old"}', b'{"id": 2, "name": "b"}'):
        lake.bench.topic.write_value(value)
    pipeline = lake.bench.pipeline(
        sink={"mode": "upsert", "key": ["id"]}, inline_records=inline_records
    )
    pipeline.run()
    for value in (b'{"id": 1, "name": "older"}', b'{"id": 1, "name": "new"}'):
        lake.bench.topic.write_value(value)
    pipeline.run()
    assert dict(lake.frame().select("id", "name").iter_rows()) == {1: "new", 2: "b"}
    assert list((lake.folder / "_eo_staging").rglob("*.parquet")) == []


@pytest.mark.core(only=["inline"])
@pytest.mark.parametrize("inline_records", [0, 10_000], ids=["files", "inline"])
def test_bad_records_become_dead_letters_with_the_rows(lake: Lake, inline_records: int) -> None:
    pipeline = lake.bench.pipeline(
        source={"on_bad_record": "dead_letter"}, inline_records=inline_records
    )
    lake.bench.topic.write(2)
    pipeline.run()  # only what was measured goes inline
    lake.bench.topic.write(3)
    lake.bench.topic.write_value(b"{")
    pipeline.run()
    letters = pipeline.sink.dead_letters("events").to_pylist()  # type: ignore[attr-defined]
    assert [letter["value"] for letter in letters] == [b"{"]
    assert lake.frame().height == 5


@IN_A_BUCKET
def test_rows_in_folders_are_staged_again_where_emptied_folders_are_listed(lake: Lake) -> None:
    """Scenario: what cannot be kept is found when rows were staged, and they are staged once more;
    the store still lists the folders of the first time.
    """
    pipeline = lake.bench.pipeline(
        source={"on_bad_record": "dead_letter"}, sink={"partition_by": ["name"]}
    )
    lake.bench.topic.write(20, partitions=range(4))
    lake.bench.topic.write_value(b'{"id": 100, "name": ""}')
    counts = pipeline.run().head.counts
    assert (counts.rows, counts.dead_letters) == (20, 1)
    assert lake.coordinates() == Counter(lake.bench.topic.written)


@pytest.mark.parametrize(
    ("transform", "error", "names"),
    [
        ("interval_and_void", SchemaChangeError, ["'span'", "'nothing'"]),
        ("odd_name", RefusedError, ["'a b'"]),
    ],
)
def test_what_delta_cannot_hold_is_refused_before_anything_is_read(
    lake: Lake, transform: str, error: type[RefusedError], names: list[str]
) -> None:
    lake.bench.topic.write(5)
    with pytest.raises(error) as refused:
        lake.bench.pipeline(transform=f"tests.sinks.lake_transforms:{transform}").run()
    assert all(name in str(refused.value) for name in names)
    assert not DeltaTable.is_deltatable(str(lake.root))
