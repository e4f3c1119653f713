"""One read for several tables: each record is staged for every table that takes it.

The tasks that read Kafka (``SplitRanges.java``) evaluate the conditions of all tables at once, and
stage the rows of those whose records are their rows, as the fast path does; of the others they
count the records.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from pyspark.sql import Row, SparkSession

from eo_pipeline.batch.fast_path import FastPath
from eo_pipeline.batch.native_decode import (
    is_of_one_record,
    mentions_headers,
    read_options,
    results_of,
    view_of_conditions,
)
from eo_pipeline.batch.stage import Stager
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
    """A table: the condition on which it takes a record, SQL that is never null; the fast path of
    its rows, if there is one; its part of the entry; whether the checkpoint before had bad records.
    """

    takes: str
    fast_path: FastPath | None
    part: LedgerEntry
    had_bad_records: bool


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
    span = sum(offset_range.span for offset_range in entry.ranges)
    sizes = [s.record_bytes for s in stagers.values() if s.record_bytes is not None]
    record_bytes = max(sizes, default=None)

    def fast_paths_of(names: Iterable[str]) -> dict[str, FastPath]:
        usable = {}
        for name in names:
            few = attempt is None or span <= stagers[name].fetched_max
            if fast_path := stagers[name].fast_path(parts[name], few=few):
                usable[name] = fast_path
        return usable

    def read(fast_paths: Mapping[str, FastPath], part: LedgerEntry = entry) -> Split:
        members = {
            name: Member(
                stager.source.takes(stager.where),
                fast_paths.get(name),
                parts[name],
                stager.had_bad_records,
            )
            for name, stager in stagers.items()
        }
        tasks = Tasks.of(part.ranges, cores(spark), record_bytes, entry.offsets)
        return split(spark, source, members, part, attempt, tasks, record_bytes)

    if len(stagers) <= _TOGETHER_MAX:
        fast_paths = fast_paths_of(stagers)
        has_conditions = any(stager.where is not None for stager in stagers.values())
        return read(fast_paths) if has_conditions or len(fast_paths) > 1 else None
    # the rows of a table take time to prepare: of many, those that may take none are left out
    likely = [name for name, stager in stagers.items() if stager.record_bytes is not None]
    if not likely:
        begin = read({}, replace(entry, ranges=_begin_of(entry.ranges)))
        likely = [name for name, taken in begin.counted["taken"].items() if taken]
    first = read(fast_paths_of(likely))
    taking = [name for name, taken in first.counted["taken"].items() if taken]
    if missed := fast_paths_of(name for name in taking if name not in likely):
        return first._replace(staged={**first.staged, **read(missed).staged})
    return first


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
) -> Split:
    """Read ``entry.ranges`` once, and stage the rows of the tables with a fast path that serves.

    Raises:
        BadRecordError: by the source's policy.
        PySparkException: the job failed, perhaps because of a condition.
    """
    prepared = {
        name: ready
        for name, member in members.items()
        if member.fast_path
        and member.part.ranges
        and (
            ready := member.fast_path.prepared(
                *(spark, member.part, attempt.of_table(name) if attempt else None),
                had_bad_records=member.had_bad_records,
            )
        )
    }
    headers = any(mentions_headers(member.takes) for member in members.values())
    headers = headers or any(ready.decoder.reads_headers for ready in prepared.values())
    options = read_options(source, entry, tasks, record_bytes, headers=headers)
    options |= {
        "eo.tables": str(len(members)),
        "eo.conditions": view_of_conditions(spark, _bits(members)),
    }
    for number, name in enumerate(members):
        if name in prepared:
            options |= _of_table(prepared[name].options, number)
    results = results_of(spark, FORMAT, options, attempt)
    by_number: dict[int, list[Row]] = {}
    for row in results:
        by_number.setdefault(row["number"], []).append(row)
    counted, staged = _counted([*members], by_number.get(_READ, [])), {}
    for number, (name, member) in enumerate(members.items()):
        if member.fast_path and name in prepared and counted["taken"][name]:
            files = attempt.of_table(name) if attempt else None
            rows = by_number.get(number, [])
            collected = member.fast_path.collected(rows, prepared[name], member.part, files)
            if collected is not None:
                staged[name] = collected
    return Split(counted, staged)


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


def _of_table(options: Mapping[str, str], number: int) -> dict[str, str]:
    """Return the ``options`` of a table as those of table ``number``."""
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
