"""The table as it stood when a version was the ledger's head. Nothing is changed.

A store that keeps earlier states returns that one. Elsewhere rows are selected by the checkpoint
they carry, up to the version: the past table, if no later entry removed or replaced such rows. The
ledger has those entries, and the number of rows of each checkpoint, which must match: a part is
never shown as the whole.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar

from eo_pipeline.errors import PastGoneError, RefusedError, some_of
from eo_pipeline.ledger.entry import START_VERSION, LedgerEntry, Operation
from eo_pipeline.ledger.history import Checkpoint, checkpoints, follow
from eo_pipeline.operations.change_plan import current_head, look_again, newest_by, refuse_unkept
from eo_pipeline.sinks.capabilities import Selected, TimeTravelView, add_counts
from eo_pipeline.sinks.config import Sink
from eo_pipeline.sinks.session import SinkSession

if TYPE_CHECKING:
    import pyarrow as pa

_Answer = TypeVar("_Answer")

log = logging.getLogger(__name__)

#: Versions named in a message before they are only counted.
_NAMED_MAX = 10

_REMEDY = (
    "Use --what-is-left (what_is_left=True) to see the remaining rows. For all rows: a "
    "backup of that time, or `eo fork --at 0` into another table, which re-reads the records with "
    "today's transform."
)


@dataclass(frozen=True)
class AsOf:
    """The table as it stood at ``entry``, seen from ``head``; usable while it is open.

    ``missing`` describes rows known to be gone, if that was accepted.
    """

    pipeline: str
    entry: LedgerEntry
    head: LedgerEntry
    past: TimeTravelView = field(repr=False, compare=False)
    missing: tuple[str, ...] = ()

    @property
    def version(self) -> int:
        return self.entry.version

    @property
    def how(self) -> str:
        """Describe how its rows are selected."""
        return self.past.where

    @property
    def queries(self) -> Mapping[str, str]:
        """SQL that shows the rows, by engine."""
        return self.past.queries

    def count(self) -> int:
        """Return the number of rows of the table as of the version.

        Raises:
            PastGoneError: they are not all there any more.
            SinkUnavailableError: the store does not answer.
        """
        return self.past.count()

    def batches(self) -> Iterator[pa.RecordBatch]:
        """All rows, in bounded memory, in any order; batches may have different columns.

        Raises:
            PastGoneError: at the end: what was given was not all, or more.
            RefusedError, SinkUnavailableError: the store does not give them.
        """
        return self.past.batches(None)

    def first(self, count: int) -> list[dict[str, Any]]:
        """Return any ``count`` of the rows, fewer if there are no more; others are not read."""
        with closing(self._rows(count)) as rows:
            return list(islice(rows, count))

    def _rows(self, count: int) -> Generator[dict[str, Any], None, None]:
        for batch in self.past.batches(count):
            yield from batch.slice(0, count).to_pylist()

    def to_json(self) -> dict[str, Any]:
        """Plain values, without rows."""
        at = self.entry.committed_at
        return {
            "pipeline": self.pipeline,
            "version": self.version,
            "committed_at": at.isoformat() if at else None,
            "head": self.head.version,
            "how": self.how,
            "missing": list(self.missing),
            "sql": dict(self.queries),
        }


@dataclass(frozen=True)
class _ByCheckpoint:
    """The ``selected`` rows of a table whose ledger's head is ``head``; ``counts`` are the rows
    that each checkpoint must have, None where rows may replace each other.
    """

    session: SinkSession
    version: int
    head: LedgerEntry
    selected: Selected
    counts: Mapping[int, int] | None
    what_is_left: bool

    def past(self) -> TimeTravelView:
        """Return the view for an :class:`AsOf`."""
        where = f"the rows that carry a checkpoint up to {self.version}"
        if self.selected.but:
            where += f", without {_named(self.selected.but)}"
        queries = self.session.queries(self.selected)
        return TimeTravelView(where, self._batches, self._count, queries)

    def _count(self) -> int:
        counts = self._call(lambda: self.session.counts_of(self.selected))
        self._check(counts)
        return sum(counts.values())

    def _batches(self, limit: int | None) -> Iterator[pa.RecordBatch]:
        """Yield the rows; without a limit their number is checked at the end."""
        counts: dict[int | None, int] = {}
        selected = replace(self.selected, limit=limit)
        for batch in self._call(lambda: self.session.rows_of(selected)):
            add_counts(counts, batch)
            yield batch
        if limit is None:
            self._check(counts)

    def _call(self, read: Callable[[], _Answer]) -> _Answer:
        try:
            return read()
        except RefusedError as error:
            raise PastGoneError(
                self.session.pipeline, self.version, str(error), "`eo show` tells of its ledger."
            ) from error

    def _check(self, counts: Mapping[int | None, int]) -> None:
        """Compare the rows read with the ledger, which may have gone back meanwhile."""
        pipeline = self.session.pipeline
        _, went_back = look_again(self.session, self.head)
        if went_back:
            text = "a rewind or replay removed rows while it was read"
            raise PastGoneError(pipeline, self.version, text, "Ask again.")
        if self.counts is None:
            return
        # the ledger does not keep the counts of checkpoints below the floor
        versions = (n for n in counts if n is not None and n >= self.head.floor)
        numbers = sorted({*self.counts, *versions})
        differing = [
            f"checkpoint {n} has {counts.get(n, 0):,} rows and had {self.counts.get(n, 0):,}"
            for n in numbers
            if counts.get(n, 0) != self.counts.get(n, 0)
        ]
        if not differing:
            return
        named = some_of(differing, _NAMED_MAX, "; ", "; and ")
        text = f"somebody else changed the table: {named}"
        if not self.what_is_left:
            raise PastGoneError(pipeline, self.version, text, _REMEDY)
        log.warning("%s: %s", pipeline, text)


def open_as_of(
    session: SinkSession, sink: Sink, wanted: int | datetime, *, what_is_left: bool
) -> AsOf:
    """See :meth:`eo_pipeline.pipeline.Pipeline.as_of`."""
    head = current_head(session)
    version = newest_by(session, head, wanted) if isinstance(wanted, datetime) else wanted
    refuse_unkept(head, version)
    floor = head.floor
    entries = follow(session.history(floor), floor)
    history = [entry for entry in entries if entry.version <= head.version]
    try:
        past, why = session.past(history[version - floor]), ""
    except RefusedError as error:
        past, why = None, str(error)
    if past is None:
        return _by_checkpoint(session, sink, history, version, why, what_is_left=what_is_left)
    return AsOf(session.pipeline, history[version - floor], history[-1], past)


def _by_checkpoint(
    session: SinkSession,
    sink: Sink,
    history: Sequence[LedgerEntry],
    version: int,
    why: str,
    *,
    what_is_left: bool,
) -> AsOf:
    """Select rows by the checkpoint they carry; ``why`` the store's own states do not serve.

    Raises:
        PastGoneError: the selection is not the past table.
    """
    head = history[-1]
    until, later = history[: version - head.floor + 1], history[version - head.floor + 1 :]
    then = {checkpoint.version: checkpoint for checkpoint in checkpoints(until)}
    now = {checkpoint.version: checkpoint for checkpoint in checkpoints(history)}
    # below the floor a replay is all that is known of a checkpoint
    common = now.keys() & then.keys()
    replayed = {n: by for n, by in _replays(later) if n < head.floor or n in common}
    keeps = sink.keeps_every_row
    missing = tuple(_gone(later, head.floor, then, now, replayed, keeps))
    if missing and not what_is_left:
        reason = "; ".join(missing) + (f" (and {why})" if why else "")
        raise PastGoneError(session.pipeline, version, reason, _REMEDY)
    selected = Selected(START_VERSION, version, tuple(replayed))
    counts = {
        n: checkpoint.counts.rows
        for n, checkpoint in then.items()
        if n in now and n not in replayed
    }
    rows = _ByCheckpoint(session, version, head, selected, counts if keeps else None, what_is_left)
    return AsOf(session.pipeline, until[-1], head, rows.past(), missing)


def _replays(entries: Sequence[LedgerEntry]) -> Iterator[tuple[int, int]]:
    """Yield the checkpoints that ``entries`` replayed, each with the version of the replay."""
    for entry in entries:
        if entry.operation is Operation.REPLAY and entry.target is not None:
            yield entry.target, entry.version


def _gone(
    later: Sequence[LedgerEntry],
    floor: int,
    then: Mapping[int, Checkpoint],
    now: Mapping[int, Checkpoint],
    replayed: Mapping[int, int],
    keeps_every_row: bool,
) -> Iterator[str]:
    """Describe the rows of the past table that the entries ``later`` removed, a sentence each."""
    for entry in later:
        target = entry.target
        if entry.operation is not Operation.REWIND or target is None:
            continue
        if taken := [n for n in then if n > target and n not in now]:
            yield f"version {entry.version} rewound to {target} and removed {_named(taken)}"
        elif target < floor:
            yield f"version {entry.version} rewound to {target} and removed all later rows"
    for n, version in replayed.items():
        yield f"version {version} replayed checkpoint {n}"
    writers = [entry.version for entry in later if entry.counts.rows]
    if writers and not keeps_every_row:
        yield (
            f"rows replace each other by key, and what version {writers[0]} and later ones "
            "overwrote is not kept"
        )


def _named(versions: Sequence[int]) -> str:
    return f"checkpoint {some_of(versions, _NAMED_MAX)}"
