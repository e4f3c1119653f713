"""What a warm run into Delta costs: over partitions, records, columns, and bytes of a record.

Servers of its own: Kafka, a warm Spark Connect server, and one process that runs the pipelines
(:mod:`benchmarks.small_worker`). A topic each; new records are put at its end before each run.
"""

from __future__ import annotations

import contextlib
import json
import statistics
import string
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import psutil

from benchmarks.bench_small import Servers, Worker, servers
from benchmarks.suite.records import SPARK_SCHEMA, frames, values
from benchmarks.suite.topic import create, dealt_out, delete, put

#: A small topic's run, before any figure: Java has then seen what it must do.
WARM_UP = 20
SMALL = 8_000
PARTITIONS = 8
#: Of the curve over columns.
ROWS = 50_000
#: Of all records of a run, in the curve over their size.
VOLUME = 200_000_000
_SAMPLED_EACH_S = 0.1

Point = tuple[str, float, float]


@dataclass(frozen=True)
class Load:
    """Records of one run: how many, of which schema, each made from its number."""

    records: int
    schema: str
    made: Callable[[], Iterator[bytes]] = field(repr=False)
    partitions: int = PARTITIONS


def named(records: int, partitions: int = PARTITIONS) -> Load:
    """Of two columns."""

    def made() -> Iterator[bytes]:
        return (b'{"id":%d,"name":"record number %d"}' % (n, n) for n in range(records))

    return Load(records, "id BIGINT NOT NULL, name STRING", made, partitions)


def bulk(records: int, partitions: int = PARTITIONS) -> Load:
    """Of 200 bytes, as the comparison with others has them."""

    def made() -> Iterator[bytes]:
        return (value for frame in frames(0, records) for value in values(frame))

    return Load(records, SPARK_SCHEMA, made, partitions)


def wide(columns: int) -> Load:
    """Of so many columns, numbers and words in turn."""
    names = [f"c{n}" for n in range(columns)]
    kinds = ["BIGINT" if n % 2 == 0 else "STRING" for n in range(columns)]

    def made() -> Iterator[bytes]:
        for number in range(ROWS):
            cells = [number + n if n % 2 == 0 else f"w{number % 997}-{n}" for n in range(columns)]
            yield json.dumps(dict(zip(names, cells, strict=True))).encode()

    return Load(ROWS, ", ".join(f"{n} {k}" for n, k in zip(names, kinds, strict=True)), made)


def long(size: int) -> Load:
    """Of so many bytes, most of them one text."""
    letters = (string.ascii_letters * (size // len(string.ascii_letters) + 2)).encode()

    def one(number: int) -> bytes:
        head = b'{"id":%d,"text":"' % number
        start = number % len(string.ascii_letters)
        return head + letters[start : start + size - len(head) - 2] + b'"}'

    records = max(1, VOLUME // size)
    return Load(records, "id BIGINT NOT NULL, text STRING", lambda: map(one, range(records)))


class Runs:
    """Runs of pipelines, each on a topic of its own, in one process on one warm Spark."""

    def __init__(self, on: Servers, worker: Worker) -> None:
        self._on, self._worker, self._numbers = on, worker, count(1)
        assert on.spark is not None, "asked for"
        self._spark = on.spark.pid

    def warm_up(self) -> None:
        """As a server is that has been at work."""
        with self._topic(named(SMALL)) as (name, load):
            for _ in range(WARM_UP):
                self._run(name, load)

    def seconds(self, load: Load, rounds: int) -> float:
        """Of the next run of a pipeline that has had one; the median of ``rounds``."""
        with self._topic(load) as (name, _):
            self._run(name, load)
            return statistics.median(self._run(name, load) for _ in range(rounds))

    def memory(self, load: Load) -> tuple[float, float, float]:
        """Seconds of one run, and the most memory meanwhile, in MiB: of the process, of Spark's."""
        with self._topic(load) as (name, _), _most([self._worker.pid, self._spark]) as most:
            seconds = self._run(name, load)
            return seconds, most[0], most[1]

    @contextmanager
    def _topic(self, load: Load) -> Iterator[tuple[str, Load]]:
        name, kafka = f"growth-{next(self._numbers)}", self._on.kafka.bootstrap_servers
        create(kafka, name, load.partitions)
        yield name, load
        delete(kafka, name)

    def _run(self, name: str, load: Load) -> float:
        kafka = self._on.kafka.bootstrap_servers
        put(kafka, name, dealt_out(load.made(), load.partitions))
        assert self._on.spark is not None, "asked for"
        config = {
            "name": name,
            "source": {
                "bootstrap_servers": kafka,
                "topics": [name],
                "value_schema": load.schema,
            },
            "sink": {"type": "delta", "path": str(self._on.scratch / name)},
            "spark": {"remote": self._on.spark.remote},
        }
        return float(self._worker.run(config, load.records)["seconds"])


@contextmanager
def _most(pids: Sequence[int]) -> Iterator[list[float]]:
    """The most resident memory of each with all its children, in MiB, until the block ends."""
    most, ended = [0.0 for _ in pids], threading.Event()

    def look() -> None:
        while not ended.wait(_SAMPLED_EACH_S):
            for place, pid in enumerate(pids):
                most[place] = max(most[place], _resident(pid))

    looking = threading.Thread(target=look, daemon=True)
    looking.start()
    try:
        yield most
    finally:
        ended.set()
        looking.join()


def _resident(pid: int) -> float:
    """In MiB; a child may end at any time."""
    held = 0
    with contextlib.suppress(psutil.NoSuchProcess):
        of = psutil.Process(pid)
        for process in (of, *of.children(recursive=True)):
            with contextlib.suppress(psutil.NoSuchProcess):
                held += process.memory_info().rss
    return held / 2**20


@contextmanager
def opened() -> Iterator[Runs]:
    """Warm, and ended with the block."""
    with (
        tempfile.TemporaryDirectory(prefix="eo-growth-") as folder,
        servers(Path(folder), connect=True) as on,
        Worker(Path(__file__).parents[2]) as worker,
    ):
        runs = Runs(on, worker)
        runs.warm_up()
        yield runs


def partitions(runs: Runs, sizes: Sequence[int], rounds: int) -> Iterator[Point]:
    """Seconds of a run of 8,000 records, or of one for each of more partitions."""
    for size in sizes:
        yield "a run, s", size, runs.seconds(named(max(SMALL, size), size), rounds)


def records(runs: Runs, sizes: Sequence[int], rounds: int) -> Iterator[Point]:
    """Seconds of a million in one run of so many millions, and the memory that takes."""
    runs.seconds(bulk(1_000_000), rounds)
    for millions in sizes:
        seconds, own, spark = runs.memory(bulk(millions * 1_000_000))
        yield "a million records, s", millions, seconds / millions
        yield "this process at most, MiB", millions, own
        yield "Spark at most, MiB", millions, spark


def columns(runs: Runs, sizes: Sequence[int], rounds: int) -> Iterator[Point]:
    """Microseconds of a record of so many columns."""
    for size in sizes:
        yield "a record, µs", size, runs.seconds(wide(size), rounds) / ROWS * 1e6


def record_bytes(runs: Runs, sizes: Sequence[int], rounds: int) -> Iterator[Point]:
    """Of records of so many bytes: MB, and how many, in a second."""
    for size in sizes:
        load = long(size)
        seconds = runs.seconds(load, rounds)
        yield "MB a second", size, load.records * size / seconds / 1e6
        yield "records a second", size, load.records / seconds
