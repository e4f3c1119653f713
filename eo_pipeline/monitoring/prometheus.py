"""Metrics of pipelines for Prometheus.

All values come from the ledger and Kafka, so they are independent of this process's start and of
the processes that ran the pipeline: counters start at the ledger's first entry. Names and units
follow Prometheus' rules (https://prometheus.io/docs/practices/naming/).
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from eo_pipeline.errors import EoPipelineError
from eo_pipeline.ledger.entry import EntryId, LedgerEntry
from eo_pipeline.operations.status import Status
from eo_pipeline.pipeline import Pipeline
from eo_pipeline.staging.failures import Failures

#: Entries per request when a ledger is read for the first time.
_PER_REQUEST = 1_000

_GAUGES = {
    "eo_up": "1 if the last poll of the pipeline's sink and Kafka succeeded, else 0.",
    "eo_lag_records": "Kafka offsets that wait to be read: an upper bound on records.",
    "eo_unstable_records": "Kafka offsets behind open producer transactions; not part of the lag.",
    "eo_open_transaction_timestamp_seconds": "Start of the oldest open transaction that blocks "
    "records.",
    "eo_version": "Version of the ledger's newest entry.",
    "eo_table_rows": "Rows of the pipeline in its table, or in each, as counted in the ledger.",
    "eo_last_commit_timestamp_seconds": "When the newest version was committed.",
    "eo_last_record_timestamp_seconds": "When the newest version that read records was committed.",
    "eo_last_checkpoint_seconds": "Seconds from plan to commit of the newest version with records.",
    "eo_obstacles": "Data losses and unreadable staged batches that will fail the next run.",
    "eo_last_failure_timestamp_seconds": "When a run last failed.",
    "eo_look_timestamp_seconds": "When the pipeline was last polled.",
}
_COUNTERS = {
    "eo_checkpoints": "Versions of the ledger, by operation.",
    "eo_records_read": "Kafka records read by runs and replays.",
    "eo_bytes_read": "Bytes of the record values read by runs and replays.",
    "eo_rows_written": "Rows written by runs and replays.",
    "eo_dead_letters": "Records that runs and replays set aside as dead letters.",
    "eo_run_failures": "Failed runs by error class, counted from their notes in staging.",
    "eo_look_errors": "Failed polls of this process, by error class.",
}


@dataclass
class Observed:
    """One pipeline, polled repeatedly; metrics show the last poll.

    Args:
        name: the pipeline's.
        load: creates the pipeline, from its document for example; called until it succeeds.
        tell: called with the reason of a failed poll, once per new reason.
    """

    name: str
    load: Callable[[], Pipeline]
    tell: Callable[[str], None]
    status: Status | None = None
    #: whether the last poll succeeded
    up: bool = False
    #: end of the last poll, by this machine's clock
    looked_at: float | None = None
    errors: Counter[str] = field(default_factory=Counter)
    #: failures of runs, in any process
    failures: Sequence[Failures] = ()
    _totals: _Totals = field(default_factory=lambda: _Totals())
    _pipeline: Pipeline | None = None
    _reported: str = ""

    def look(self) -> None:
        """Poll the sink, then Kafka; count failures."""
        try:
            self._pipeline = self._pipeline or self.load()
            self.failures = self._pipeline.failures()
            totals = self._totals.followed(self._pipeline)
            self.status, self._totals, self.up = self._pipeline.status(), totals, True
            self._reported = ""
        except EoPipelineError as error:
            self.up = False
            self.errors[type(error).__name__] += 1
            if self._reported != str(error):
                self._reported = str(error)
                self.tell(f"{self.name}: {error}")
        self.looked_at = time.time()

    def gauges(self) -> Iterator[tuple[str, float]]:
        """Return values by the names of :data:`_GAUGES`, without unknown ones and those of
        :meth:`rows_of_tables`.
        """
        yield "eo_up", float(self.up)
        if self.looked_at is not None:
            yield "eo_look_timestamp_seconds", self.looked_at
        if self.failures:
            last = max(failure.last for failure in self.failures)
            yield from _moment("eo_last_failure_timestamp_seconds", last)
        if self.status is None:
            return
        yield "eo_lag_records", self.status.lag
        yield "eo_unstable_records", self.status.unstable
        if transactions := self.status.transactions:
            yield from _moment("eo_open_transaction_timestamp_seconds", transactions[0].since)
        yield "eo_obstacles", len(self.status.losses) + len(self.status.blocked)
        if head := self.status.head:
            yield "eo_version", head.version
            yield from _moment("eo_last_commit_timestamp_seconds", head.committed_at)
        if newest := self._totals.newest_read:
            yield from _moment("eo_last_record_timestamp_seconds", newest.committed_at)
            if newest.committed_at and newest.started_at:
                spent = newest.committed_at - newest.started_at
                yield "eo_last_checkpoint_seconds", spent.total_seconds()

    def rows_of_tables(self) -> Mapping[str, int]:
        """Return the rows by table; of a pipeline with one table its name is empty."""
        if self.status is None or (head := self.status.head) is None:
            return {}
        if not head.tables:
            return {"": head.counts.rows_total}
        return {name: head.of_table(name).counts.rows_total for name in head.tables}

    def counters(self) -> Iterator[tuple[str, str, float]]:
        """Return values by the names of :data:`_COUNTERS`, each with its label's value or none."""
        totals = self._totals
        yield from (("eo_checkpoints", kind, n) for kind, n in totals.operations.items())
        yield from (("eo_run_failures", failure.kind, failure.count) for failure in self.failures)
        yield from (("eo_look_errors", kind, n) for kind, n in tuple(self.errors.items()))
        yield "eo_records_read", "", totals.records
        yield "eo_bytes_read", "", totals.bytes
        for name, by_table in (
            ("eo_rows_written", totals.rows),
            ("eo_dead_letters", totals.dead_letters),
        ):
            yield from ((name, table, n) for table, n in (by_table or {"": 0}).items())


@dataclass
class _Totals:
    """Sums over a ledger, updated from its new entries."""

    operations: Counter[str] = field(default_factory=Counter)
    records: int = 0
    bytes: int = 0
    #: by table; of a pipeline with one its name is empty
    rows: Counter[str] = field(default_factory=Counter)
    dead_letters: Counter[str] = field(default_factory=Counter)
    newest_read: LedgerEntry | None = None
    _last_entry: EntryId | None = None

    def followed(self, pipeline: Pipeline) -> _Totals:
        """Return new totals that include the entries committed since; recomputed if the ledger was
        replaced. A concurrent scrape sees the old totals or the new ones.
        """
        totals = replace(
            self,
            operations=Counter(self.operations),
            rows=Counter(self.rows),
            dead_letters=Counter(self.dead_letters),
        )
        while (entries := pipeline.following(totals._last_entry, _PER_REQUEST)) != []:
            if entries is None:
                totals = _Totals()
            for entry in entries or ():
                totals._add(entry)
        return totals

    def _add(self, entry: LedgerEntry) -> None:
        counts = entry.counts
        self._last_entry = entry.id
        self.operations[entry.operation.value] += 1
        if entry.ranges:
            self.newest_read = entry
            self.records += counts.records
            self.bytes += counts.bytes
            for table, of_table in (counts.tables or {"": counts}).items():
                self.rows[table] += of_table.rows
                self.dead_letters[table] += of_table.dead_letters


def _moment(name: str, at: datetime | None) -> Iterator[tuple[str, float]]:
    if at is not None:
        yield name, at.timestamp()


class PipelineMetrics(Collector):
    """Collector of the metrics of ``observed``; a scrape polls nothing."""

    def __init__(self, observed: Sequence[Observed]) -> None:
        self._observed = observed

    def collect(self) -> Iterable[Metric]:
        """Return all metrics, labelled with the name of the pipeline."""
        gauges = {
            name: GaugeMetricFamily(name, text, None, ["pipeline", *_label(name)])
            for name, text in _GAUGES.items()
        }
        counters = {
            name: CounterMetricFamily(name, text, None, ["pipeline", *_label(name)])
            for name, text in _COUNTERS.items()
        }
        for pipeline in self._observed:
            for name, value in pipeline.gauges():
                gauges[name].add_metric([pipeline.name], value)
            for table, rows in pipeline.rows_of_tables().items():
                gauges["eo_table_rows"].add_metric(_labels(pipeline.name, table), rows)
            for name, label, value in pipeline.counters():
                counters[name].add_metric(_labels(pipeline.name, label), value)
        return [*gauges.values(), *counters.values()]


_LABELS = {
    "eo_table_rows": ["table"],
    "eo_rows_written": ["table"],
    "eo_dead_letters": ["table"],
    "eo_checkpoints": ["operation"],
    "eo_run_failures": ["kind"],
    "eo_look_errors": ["kind"],
}


def _labels(pipeline: str, value: str) -> list[str]:
    """Return the values of the labels; an empty one is left out."""
    return [pipeline, value] if value else [pipeline]


def _label(name: str) -> list[str]:
    return _LABELS.get(name, [])


def poll_all(observed: Sequence[Observed]) -> None:
    """Poll all pipelines in parallel: an unreachable store does not delay the others."""
    threads = [threading.Thread(target=pipeline.look, daemon=True) for pipeline in observed]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def poll_in_background(pipeline: Observed, every_s: float) -> threading.Thread:
    """Poll ``pipeline`` every ``every_s`` seconds, in a daemon thread."""

    def poll() -> None:
        while True:
            pipeline.look()
            time.sleep(every_s)

    thread = threading.Thread(target=poll, name=f"polls {pipeline.name}", daemon=True)
    thread.start()
    return thread
