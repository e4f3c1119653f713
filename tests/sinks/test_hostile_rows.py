"""Rows that no transform meant to make: a store takes them, or refuses them. Nothing else.

Nothing but a refusal lets a pipeline go on once the transform is mended: what is "unavailable" or
"unknown" would be tried again, with the same rows, for ever.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from eo_pipeline.embedded.kafka import EmbeddedKafka
from eo_pipeline.errors import ConfigError, RefusedError
from eo_pipeline.ledger.entry import CHECKPOINT_COLUMN
from eo_pipeline.sinks.config import Sink
from eo_pipeline.sinks.console import ConsoleSink
from eo_pipeline.sinks.delta import DeltaSink
from eo_pipeline.sinks.iceberg import IcebergSink
from eo_pipeline.sinks.kafka import KafkaSink
from eo_pipeline.sinks.parquet import ParquetSink
from eo_pipeline.sinks.redis import RedisSink
from eo_pipeline.sinks.session import CommitOutcome
from eo_pipeline.staging.rows import StagedOutput, StagedTable
from eo_pipeline.testing import child_of, first_entry, to_files
from tests.support.chaos import rest_is_chaos

#: One microsecond and one day after the last that Python's datetime and date have.
YEAR_10000_US = 253_402_300_800_000_000
YEAR_10000_DAYS = 2_932_897


def text(*values: bytes) -> pa.Array:
    """Texts as bytes, of which nobody asked whether they are UTF-8."""
    binary = pa.array(values, pa.binary())
    return pa.Array.from_buffers(pa.string(), len(binary), binary.buffers())


HOSTILE: dict[str, tuple[str, pa.Array]] = {
    "an instant in the year 10000": (
        "at",
        pa.array([YEAR_10000_US], pa.int64()).cast(pa.timestamp("us", "UTC")),
    ),
    "a local time in the year 10000": (
        "at",
        pa.array([YEAR_10000_US], pa.int64()).cast(pa.timestamp("us")),
    ),
    "a date in the year 10000": ("on", pa.array([YEAR_10000_DAYS], pa.int32()).cast(pa.date32())),
    "an instant of the year 10000 in a struct": (
        "nested",
        pa.StructArray.from_arrays(
            [pa.array([YEAR_10000_US], pa.int64()).cast(pa.timestamp("us", "UTC"))], ["at"]
        ),
    ),
    "text that is not UTF-8": ("name", text(b"caf\xe9")),
    "text with a null byte": ("name", pa.array(["a\0b"])),
    "not a number": ("number", pa.array([float("nan")])),
    "a backtick in a name": ("a`b", pa.array([1])),
    "a quote in a name": ('a"b', pa.array([1])),
    "a dot in a name": ("a.b", pa.array([1])),
    "a name that is empty": ("", pa.array([1])),
    "a lone surrogate's bytes": ("name", text(b"\xed\xa0\x80")),
}


#: Stores that take over staged files; the others are given what was read of them.
_TAKE_FILES = ("delta", "delta-upsert", "iceberg", "parquet")
_READ_ROWS = ("console", "redis", "redis-json", "kafka")

#: Each store, and whether the rows are in files.
_CASES = [(name, in_files) for name in (*_TAKE_FILES, *_READ_ROWS) for in_files in (False, True)]


@pytest.fixture
def sink(request: pytest.FixtureRequest, tmp_path: Path) -> Sink:
    name: str = request.param
    path = tmp_path / "table"
    if name.startswith("redis"):
        url = request.getfixturevalue("redis_url")
        form = {"as": "json"} if name.endswith("json") else {}
        return RedisSink.model_validate({"url": url, "key": ["id"], **form})
    if name == "kafka":
        kafka: EmbeddedKafka = request.getfixturevalue("kafka")
        servers = kafka.bootstrap_servers
        return KafkaSink(bootstrap_servers=servers, topic=request.getfixturevalue("topic"))
    made: dict[str, Callable[[], Sink]] = {
        "console": lambda: ConsoleSink(ledger=path),
        "delta": lambda: DeltaSink(path=str(path)),
        "delta-upsert": lambda: DeltaSink(
            path=str(path), mode="upsert", key=("id",), sequence_by=("id",)
        ),
        "iceberg": lambda: IcebergSink(table="ops.flights", warehouse=path),
        "parquet": lambda: ParquetSink(path=str(path)),
    }
    return made[name]()


def rows(checkpoint: int, **columns: Any) -> pa.Table:
    own = {"id": pa.array([checkpoint]), CHECKPOINT_COLUMN: pa.array([checkpoint], pa.int64())}
    return pa.table({**own, **columns})


def staged(sink: Sink, table: pa.Table, folder: Path | None) -> StagedOutput:
    whole = StagedTable.in_memory(table)
    if folder is None:
        return StagedOutput(rows=whole)
    data = sink.staging_folders().rows or folder
    return StagedOutput(rows=to_files(whole, data / "p" / folder.name))


@pytest.fixture
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path | None:
    return tmp_path / "attempt" if request.param else None


def _cases() -> Iterator[Any]:
    """Yield all of them; Redis is not brought by pip, and Kafka takes a second for each."""
    but = [case for case in _CASES if not case[1] or case[0] in _TAKE_FILES]
    for case in rest_is_chaos(_CASES, but=but):
        slow = isinstance(case, tuple) and str(case[0]).startswith(("redis", "kafka"))
        yield pytest.param(*case, marks=pytest.mark.slow) if slow else case


@pytest.mark.parametrize("what", HOSTILE)
@pytest.mark.parametrize(("sink", "folder"), [*_cases()], indirect=True)
def test_hostile_rows_are_taken_or_refused(sink: Sink, folder: Path | None, what: str) -> None:
    name, values = HOSTILE[what]
    with sink.open("p") as session:
        head = first_entry("p")
        session.publish(head, StagedOutput())
        good = child_of(head, 1)
        session.publish(good, staged(sink, rows(1), None))
        bad = child_of(good, 1)
        refused = None
        try:
            outcome = session.publish(bad, staged(sink, rows(2, **{name: values}), folder))
        except (RefusedError, ConfigError) as error:
            refused = error
        if refused is None:
            assert outcome is CommitOutcome.COMMITTED
            next_one = child_of(bad, 1)
        else:
            assert "\x1b" not in str(refused)
            assert session.entry(2) is None
            next_one = child_of(good, 1)
        mended = staged(sink, rows(next_one.version), None)
        assert session.publish(next_one, mended) is CommitOutcome.COMMITTED
