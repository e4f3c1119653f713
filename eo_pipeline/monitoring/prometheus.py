"""Where pipelines stand, as numbers that Prometheus collects.

Everything comes from the ledger and from Kafka, so that it is right whoever ran the pipeline and
whenever this began to look: counters count from the ledger's first entry. Names and units follow
Prometheus' own rules (https://prometheus.io/docs/practices/naming/).
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from eo_pipeline.errors import EoPipelineError
from eo_pipeline.ledger.entry import EntryId, LedgerEntry
from eo_pipeline.operations.status import Status
from eo_pipeline.pipeline import Pipeline
from eo_pipeline.staging.failures import Failures

#: Entries one request takes of a ledger that is read for the first time.
_PER_REQUEST = 1_000

_GAUGES = {
    "eo_up": "1 if the last look at the pipeline's sink and at Kafka worked, else 0.",
    "eo_lag_records": "Kafka offsets that wait to be read: an upper bound on records.",
    "eo_unstable_records": "Kafka offsets that wait until producers' transactions end; not in the "
    "lag.",
    "eo_open_transaction_timestamp_seconds": "When the oldest transaction began that records wait "
    "for.",
    "eo_version": "Version of the ledger's newest entry.",
    "eo_table_rows": "Rows the pipeline has in its table, by the ledger.",
    "eo_last_commit_timestamp_seconds": "When the newest version was committed.",
    "eo_last_record_timestamp_seconds": "When the newest version that read records was committed.",
    "eo_last_checkpoint_seconds": "From plan to commit of the newest version that read records.",
    "eo_obstacles": "Losses and damaged promises at which the next run stops.",
    "eo_last_failure_timestamp_seconds": "When a run last failed.",
    "eo_look_timestamp_seconds": "When the pipeline was last looked at.",
}
_COUNTERS = {
    "eo_checkpoints": "Versions of the ledger, by what was done.",
    "eo_records_read": "Kafka records read by runs and replays.",
    "eo_bytes_read": "Bytes of those records' values.",
    "eo_rows_written": "Rows written by runs and replays.",
    "eo_dead_letters": "Records set aside by runs and replays.",
    "eo_run_failures": "Runs that failed, by the kind of error, as they noted it in staging.",
    "eo_look_errors": "Looks of this process that failed, by the kind of error.",
}


@dataclass
class Observed:
    """One pipeline, looked at again and again; what the last look found is what is told.

    Args:
        name: the pipeline's.
        load: makes it, from its document for example; called until it works.
        tell: hears why a look failed, once for each new reason.
    """

    name: str
    load: Callable[[], Pipeline]
    tell: Callable[[str], None]
    status: Status | None = None
    #: whether the last look worked
    up: bool = False
    #: when it ended, by this machine's clock
    looked_at: float | None = None
    errors: Counter[str] = field(default_factory=Counter)
    #: of runs, which this process need not have seen
    failures: Sequence[Failures] = ()
    _totals: _Totals = field(default_factory=lambda: _Totals())
    _pipeline: Pipeline | None = None
    _told: str = ""

    def look(self) -> None:
        """Ask the sink, then Kafka; what fails is counted."""
        try:
            self._pipeline = self._pipeline or self.load()
            self.failures = self._pipeline.failures()
            totals = self._totals.followed(self._pipeline)
            self.status, self._totals, self.up = self._pipeline.status(), totals, True
            self._told = ""
        except EoPipelineError as error:
            self.up = False
            self.errors[type(error).__name__] += 1
            if self._told != str(error):
                self._told = str(error)
                self.tell(f"{self.name}: {error}")
        self.looked_at = time.time()

    def gauges(self) -> Iterator[tuple[str, float]]:
        """Values by the names of :data:`_GAUGES`; what is not known is left out."""
        yield "eo_up", float(self.up)
        if self.looked_at is not None:
            yield "eo_look_timestamp_seconds", self.looked_at
        if self.failures:
            last = max(each.last for each in self.failures)
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
            yield "eo_table_rows", head.counts.rows_total
            yield from _moment("eo_last_commit_timestamp_seconds", head.committed_at)
        if newest := self._totals.newest_read:
            yield from _moment("eo_last_record_timestamp_seconds", newest.committed_at)
            if newest.committed_at and newest.started_at:
                spent = newest.committed_at - newest.started_at
                yield "eo_last_checkpoint_seconds", spent.total_seconds()

    def counters(self) -> Iterator[tuple[str, str, float]]:
        """Values by the names of :data:`_COUNTERS`, each with what it is a count of, or nothing."""
        totals = self._totals
        yield from (("eo_checkpoints", kind, n) for kind, n in totals.operations.items())
        yield from (("eo_run_failures", each.kind, each.count) for each in self.failures)
        yield from (("eo_look_errors", kind, n) for kind, n in tuple(self.errors.items()))
        yield "eo_records_read", "", totals.records
        yield "eo_bytes_read", "", totals.bytes
        yield "eo_rows_written", "", totals.rows
        yield "eo_dead_letters", "", totals.dead_letters


@dataclass
class _Totals:
    """Sums over a whole ledger, of which only what is new is read."""

    operations: Counter[str] = field(default_factory=Counter)
    records: int = 0
    bytes: int = 0
    rows: int = 0
    dead_letters: int = 0
    newest_read: LedgerEntry | None = None
    _known: EntryId | None = None

    def followed(self, pipeline: Pipeline) -> _Totals:
        """With what was committed since; anew if the ledger was replaced by another one. A scrape
        meanwhile sees none of it or all.
        """
        totals = replace(self, operations=Counter(self.operations))
        while (fresh := pipeline.following(totals._known, _PER_REQUEST)) != []:
            if fresh is None:
                totals = _Totals()
            for entry in fresh or ():
                totals._add(entry)
        return totals

    def _add(self, entry: LedgerEntry) -> None:
        counts = entry.counts
        self._known = entry.id
        self.operations[entry.operation.value] += 1
        if entry.ranges:
            self.newest_read = entry
            self.records += counts.records
            self.bytes += counts.bytes
            self.rows += counts.rows
            self.dead_letters += counts.dead_letters


def _moment(name: str, at: datetime | None) -> Iterator[tuple[str, float]]:
    if at is not None:
        yield name, at.timestamp()


class PipelineMetrics(Collector):
    """What Prometheus is told of ``observed``; asking it looks at nothing."""

    def __init__(self, observed: Sequence[Observed]) -> None:
        self._observed = observed

    def collect(self) -> Iterable[Metric]:
        """All metrics, labelled with the name of the pipeline."""
        gauges = {
            name: GaugeMetricFamily(name, text, None, ["pipeline"])
            for name, text in _GAUGES.items()
        }
        counters = {
            name: CounterMetricFamily(name, text, None, ["pipeline", *_label(name)])
            for name, text in _COUNTERS.items()
        }
        for each in self._observed:
            for name, value in each.gauges():
                gauges[name].add_metric([each.name], value)
            for name, kind, value in each.counters():
                counters[name].add_metric([each.name, *([kind] if kind else [])], value)
        return [*gauges.values(), *counters.values()]


_LABELS = {
    "eo_checkpoints": ["operation"],
    "eo_run_failures": ["kind"],
    "eo_look_errors": ["kind"],
}


def _label(name: str) -> list[str]:
    return _LABELS.get(name, [])


def look_at_all(observed: Sequence[Observed]) -> None:
    """One look at each, side by side: one whose store is away holds up no other."""
    threads = [threading.Thread(target=each.look, daemon=True) for each in observed]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def keep_looking(each: Observed, every_s: float) -> threading.Thread:
    """Look at ``each`` every so many seconds, in a thread of its own, until the process ends."""

    def go_on() -> None:
        while True:
            each.look()
            time.sleep(every_s)

    thread = threading.Thread(target=go_on, name=f"looks at {each.name}", daemon=True)
    thread.start()
    return thread
