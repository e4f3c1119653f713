"""One read for several tables: each record is staged for every table that takes it.

The tasks that read Kafka (``SplitRanges.java``) evaluate the conditions of all tables at once, and
decode a record once for the tables that take the same ones. They stage the rows of tables whose
records are their rows, as the fast path does; the records of others they hold, and run the tables'
plans over them, where a plan needs no other task's records. Of any other table they count the
records.
"""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, NamedTuple

from pyspark.sql import Row, SparkSession

from eo_pipeline.batch.native_decode import (
    NativeDecoder,
    is_of_one_record,
    mentions_headers,
    read_options,
    results_of,
    view_of_conditions,
)
from eo_pipeline.batch.stage import Stager, table_named
from eo_pipeline.kafka.planner import Tasks
from eo_pipeline.kafka.source import KafkaSource
from eo_pipeline.ledger.entry import Counts, LedgerEntry
from eo_pipeline.ledger.offsets import OffsetRange
from eo_pipeline.spark.interrupts import cores
from eo_pipeline.spark.native_jar import has_source
from eo_pipeline.staging.attempt import Attempt
from eo_pipeline.staging.rows import StagedOutput

FORMAT = "eo.pipeline.SplitRanges"

#: Most tables that are prepared for one read before anything says which of them take records.
_TOGETHER_MAX = 16

#: Offsets of each range that tell which of more tables those are, if no checkpoint before does.
_SAMPLE = 1_000

#: Tables that one number has bits for.
_BITS = 62

#: Number of the row that counts what was read.
_READ = -1


class Member(NamedTuple):
    """A table: what stages its rows, its part of the entry, and the attempt of its files. It may be
    ``prepared``, or only counted.
    """

    stager: Stager
    part: LedgerEntry
    attempt: Attempt | None
    prepared: bool

    @property
    def takes(self) -> str:
        """Condition on which it takes a record, SQL that is never null."""
        return self.stager.source.takes(self.stager.where)


class Split(NamedTuple):
    """Result of one read: what was ``counted`` over all tasks, with ``taken`` by the tables' names;
    and what is staged, by the name of its table.
    """

    counted: Mapping[str, Any]
    staged: Mapping[str, tuple[StagedOutput, Counts]]


def read_together(
    spark: SparkSession,
    source: KafkaSource,
    stagers: Mapping[str, Stager],
    parts: Mapping[str, LedgerEntry],
    entry: LedgerEntry,
    attempt: Attempt | None,
) -> Split | None:
    """Read ``entry.ranges`` for the tables of ``stagers``, whose entries are ``parts``; None if the
    tasks cannot tell the tables apart, or no two tables are staged so and none need be told apart.

    Raises:
        BadRecordError: by the source's policy.
        PySparkException: the job failed, perhaps because of a condition.
    """
    if any(s.reads_alone or not is_of_one_record(s.where) for s in stagers.values()):
        return None
    if not has_source(spark, FORMAT):
        return None
    sizes = [s.record_bytes for s in stagers.values() if s.record_bytes is not None]
    record_bytes = max(sizes, default=None)

    def read(names: Collection[str], least: int, part: LedgerEntry = entry) -> Split | None:
        members = {
            name: Member(
                stager, parts[name], attempt.of_table(name) if attempt else None, name in names
            )
            for name, stager in stagers.items()
        }
        tasks = Tasks.of(part.ranges, cores(spark), record_bytes, entry.offsets)
        return split(spark, source, members, part, attempt, tasks, record_bytes, least)

    # the rows of a table take time to prepare: those that may take none are left out
    likely = [name for name, stager in stagers.items() if stager.record_bytes is not None]
    if len(stagers) <= _TOGETHER_MAX:
        cheap = [n for n, s in stagers.items() if s.transform is None or s.where is None]
        likely = [*likely, *cheap] if likely else [*stagers]
    elif not likely and (begin := read((), 0, replace(entry, ranges=_begin_of(entry.ranges)))):
        likely = [name for name, taken in begin.counted["taken"].items() if taken]
    has_conditions = any(stager.where is not None for stager in stagers.values())
    first = read(likely, 0 if has_conditions else 2)
    if first is None:
        return None
    missed = [
        name for name, taken in first.counted["taken"].items() if taken and name not in likely
    ]
    second = read(missed, 1) if missed else None
    return first._replace(staged={**first.staged, **second.staged}) if second else first


def _begin_of(ranges: Sequence[OffsetRange]) -> tuple[OffsetRange, ...]:
    """Return the first offsets of each of ``ranges``."""
    return tuple(replace(r, end=min(r.end, r.start + _SAMPLE)) for r in ranges)


def split(
    spark: SparkSession,
    source: KafkaSource,
    members: Mapping[str, Member],
    entry: LedgerEntry,
    attempt: Attempt | None,
    tasks: Tasks,
    record_bytes: float | None,
    least: int,
) -> Split | None:
    """Read ``entry.ranges`` once, and stage the rows of the tables that can be staged so; None if
    they are less than ``least``.

    Raises:
        BadRecordError: by the source's policy.
        TransformError: a transform raised, or its result cannot be written.
        SchemaChangeError: the sink cannot store a column's type.
        PySparkException: the job failed, perhaps because of a condition or a transform.
    """
    if sum(member.prepared for member in members.values()) < least:
        return None
    job = f"split-{uuid.uuid4().hex}"
    with ExitStack() as stack:
        ready = {
            name: of_table
            for number, (name, member) in enumerate(members.items())
            if member.prepared
            and member.part.ranges
            and (
                of_table := _direct(spark, member)
                or _planned(spark, name, member, {"eo.split": job, "eo.number": str(number)}, stack)
            )
        }
        if len(ready) < least:
            return None
        headers = any(mentions_headers(member.takes) for member in members.values())
        headers = headers or any(of_table.decoder.reads_headers for of_table in ready.values())
        options = read_options(source, entry, tasks, record_bytes, headers=headers) | {
            "eo.split": job,
            "eo.tables": str(len(members)),
            "eo.conditions": view_of_conditions(spark, _bits(members)),
        }
        for number, (name, member) in enumerate(members.items()):
            if name in ready:
                options |= _of_table(spark, member, ready[name], number)
        results = results_of(spark, FORMAT, options, attempt)
        stack.pop_all()  # the views are dropped
    by_number: dict[int, list[Row]] = {}
    for row in results:
        by_number.setdefault(row["number"], []).append(row)
    counted, staged = _counted([*members], by_number.get(_READ, [])), {}
    for number, name in enumerate(members):
        if name in ready and counted["taken"][name]:
            collected = ready[name].collected(by_number.get(number, []))
            if collected is not None:
                staged[name] = collected
    return Split(counted, staged)


class _Ready(NamedTuple):
    """Options by which the tasks stage a table, and what makes a result of what they tell."""

    decoder: NativeDecoder
    options: Mapping[str, str]
    collected: Callable[[Sequence[Row]], tuple[StagedOutput, Counts] | None]


def _direct(spark: SparkSession, member: Member) -> _Ready | None:
    """Return that of a table whose records are its rows; None if they are not."""
    stager, part, attempt, _ = member
    fast_path = stager.fast_path(part, few=stager.is_few(part, attempt))
    bad = stager.had_bad_records
    prepared = fast_path and fast_path.prepared(spark, part, attempt, had_bad_records=bad)
    if not (fast_path and prepared):
        return None

    def collected(results: Sequence[Row]) -> tuple[StagedOutput, Counts] | None:
        return fast_path.collected(results, prepared, part, attempt)

    return _Ready(prepared.decoder, prepared.options, collected)


def _planned(
    spark: SparkSession, name: str, member: Member, of_split: Mapping[str, str], stack: ExitStack
) -> _Ready | None:
    """Return that of a table whose rows Spark makes of what the tasks decoded; None if it cannot.
    Errors: see :func:`split`.
    """
    stager, part, attempt, _ = member
    with table_named(name):
        read = stager.to_split(spark, part, attempt, of_split, member.takes)
    if read is None:
        return None

    def collected(results: Sequence[Row]) -> tuple[StagedOutput, Counts] | None:
        return stager.of_split(read, results, part, attempt)

    decoder = read.source.decoder
    options = decoder.decode_options(spark, part, attempt)
    return _Ready(decoder, options | read.result.to_stage(attempt, stack), collected)


def _bits(members: Mapping[str, Member]) -> list[str]:
    """Return SQL expressions of numbers, whose bits say which tables take a record; see
    ``SplitRanges.java``. One for each table would take seconds to analyze.
    """
    conditions = [member.takes for member in members.values()]
    return [
        " | ".join(
            f"if({takes}, {1 << n}L, 0L)"
            for n, takes in enumerate(conditions[first : first + _BITS])
        )
        for first in range(0, len(conditions), _BITS)
    ]


def _of_table(spark: SparkSession, member: Member, ready: _Ready, number: int) -> dict[str, str]:
    """Return the options of a table as those of table ``number``, with the name of what decodes:
    tables that take the same records, and decode them alike, have one.
    """
    decoding = ready.decoder.decode_options(spark, member.part, None)
    decides = json.dumps([member.takes, decoding], sort_keys=True)
    options = {**ready.options, "eo.decoded": hashlib.sha256(decides.encode()).hexdigest()}
    prefix = f"eo.table.{number}."
    return {prefix + name.removeprefix("eo."): value for name, value in options.items()}


def _counted(names: Sequence[str], rows: Sequence[Row]) -> dict[str, Any]:
    parts = [json.loads(row["part"]) for row in rows]
    sums = {
        name: sum(part[name] for part in parts)
        for name in ("records", "bytes", "key_bytes", "rest")
    }
    firsts = [tuple(part["first"]) for part in parts if part["first"]]
    taken = {name: sum(part["taken"][n] for part in parts) for n, name in enumerate(names)}
    return {**sums, "first": min(firsts, default=("", 0, 0)), "taken": taken}
