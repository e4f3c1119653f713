"""Optional abilities of a session: lineage, selection of rows, time travel, maintenance."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any, ClassVar

from pydantic import ByteSize, Field, TypeAdapter

from eo_pipeline._lazy import pa, pc
from eo_pipeline.config.settings import Settings
from eo_pipeline.errors import RefusedError
from eo_pipeline.ledger.entry import CHECKPOINT_COLUMN, LedgerEntry


@functools.cache
def whole_lineage() -> pa.Schema:
    """The columns and their types."""
    return pa.schema(
        [
            (CHECKPOINT_COLUMN, pa.int64()),
            ("_eo_topic", pa.string()),
            ("_eo_partition", pa.int32()),
            ("_eo_offset", pa.int64()),
        ]
    )


def lineage_schema(columns: Collection[str]) -> pa.Schema:
    """Return the lineage columns of a table with ``columns``. The checkpoint is always among them:
    a table without the column holds rows of no checkpoint.
    """
    present = {*columns, CHECKPOINT_COLUMN}
    return pa.schema([field for field in whole_lineage() if field.name in present])


def lineage_of_rows(
    pages: Iterable[Sequence[Sequence[Any]]], schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """``pages`` of rows with a value for each field of ``schema``, as Arrow."""
    for page in pages:
        columns = zip(*page, strict=True)
        arrays = [pa.array(c, f.type) for c, f in zip(columns, schema, strict=True)]
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def lineage_of_batches(
    batches: Iterable[pa.RecordBatch], schema: pa.Schema, since: int = 0
) -> Iterator[pa.RecordBatch]:
    """``batches`` with the columns and types of ``schema``, a column they lack as null; without the
    rows of checkpoints before ``since``.
    """
    for batch in batches:
        arrays = [_column(batch, field) for field in schema]
        lineage = pa.RecordBatch.from_arrays(arrays, schema=schema)
        checkpoint = lineage.column(CHECKPOINT_COLUMN)
        recent = pc.or_kleene(pc.is_null(checkpoint), pc.greater_equal(checkpoint, since))
        if (lineage := lineage.filter(recent)).num_rows:
            yield lineage


def _column(batch: pa.RecordBatch, field: pa.Field) -> pa.Array:
    if field.name not in batch.schema.names:
        return pa.nulls(batch.num_rows, field.type)
    return batch.column(field.name).cast(field.type)


#: Metadata of an Arrow field: the store keeps such values in a form of its own, which is shown.
OWN_FORM: Mapping[bytes | str, bytes | str] = {"eo.form": "the store's own"}


def is_own_form(field: pa.Field) -> bool:
    """True if a value read from the column may be spelled otherwise than the value written."""
    return b"eo.form" in (field.metadata or {})


@dataclass(frozen=True)
class Selected:
    """The rows of the checkpoints ``first`` to ``last``, without those of the checkpoints ``but``.
    Rows that belong to no checkpoint are somebody else's, and never among them. A store that is
    asked by SQL gives any ``limit`` of them, if that is set.
    """

    first: int
    last: int
    but: tuple[int, ...] = ()
    limit: int | None = None

    def condition(self, name: str) -> str:
        """In SQL, ``name`` being the column of the checkpoint's number, quoted."""
        if self.first == self.last:
            return f"{name} = {self.last}"
        least = f"{name} >= {self.first} AND " if self.first else ""
        but = f" AND {name} NOT IN ({', '.join(map(str, self.but))})" if self.but else ""
        return f"{least}{name} <= {self.last}{but}"

    def of(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Those of ``batches``, none of them empty."""
        left_out = pa.array(self.but, pa.int64())
        for batch in batches:
            if CHECKPOINT_COLUMN not in batch.schema.names:
                continue
            number = batch.column(CHECKPOINT_COLUMN).cast(pa.int64())
            inside = pc.and_(pc.greater_equal(number, self.first), pc.less_equal(number, self.last))
            if self.but:
                inside = pc.and_(inside, pc.invert(pc.is_in(number, left_out)))
            if (rows := batch.filter(inside)).num_rows:
                yield rows


@dataclass(frozen=True)
class TimeTravelView:
    """A table as it once was, kept by the store itself or told by checkpoint: ``where``, in words;
    its rows, read when ``batches`` is called (with how many are asked for, None for all), and
    counted by ``count``; and the ``queries`` that show it, by the engine that they are for.
    """

    where: str
    batches: Callable[[int | None], Iterator[pa.RecordBatch]]
    count: Callable[[], int]
    queries: Mapping[str, str]


def counted(batches: Iterable[pa.RecordBatch]) -> dict[int | None, int]:
    """Return the number of rows per checkpoint; None is the key of rows without one."""
    counts: dict[int | None, int] = {}
    for batch in batches:
        add_counts(counts, batch)
    return counts


def add_counts(counts: dict[int | None, int], batch: pa.RecordBatch) -> None:
    """Add the number of rows per checkpoint of ``batch`` to ``counts``."""
    if CHECKPOINT_COLUMN not in batch.schema.names:
        counts[None] = counts.get(None, 0) + batch.num_rows
        return
    for group in pc.value_counts(batch.column(CHECKPOINT_COLUMN)).to_pylist():
        counts[group["values"]] = counts.get(group["values"], 0) + group["counts"]


_UNITS = {"h": "hours", "d": "days"}
_AGE = r"^[1-9]\d*[hd]$"


class Maintenance(Settings):
    """Settings of ``eo maintain``, for lake tables.

    Args:
        target_file_size: small files are put together up to this, ``128MB``.
        keep: hours or days, ``7d``, for which files that left the table stay: for readers of an
            older state, and for the rewind of an upserted table.
        ledger: hours or days, ``365d``, for which one can go back; what the ledger holds of the
            time before is removed. Absent: all of it is kept.
        rewrite_layout: of a partitioned Delta table, files that do not lie in folders
            ``name=value`` (those of earlier releases) are written anew too, however large.
    """

    target_file_size: str = Field(default="128MB", pattern=r"^[1-9]\d*([kKMG]i?)B$")
    keep: str = Field(default="7d", pattern=_AGE)
    ledger: str | None = Field(default=None, pattern=_AGE)
    rewrite_layout: bool = False

    @property
    def target_bytes(self) -> int:
        """Bytes."""
        return int(TypeAdapter(ByteSize).validate_python(self.target_file_size))

    @property
    def kept_for(self) -> timedelta:
        """At least an hour."""
        return _age(self.keep)

    @property
    def ledger_kept_for(self) -> timedelta | None:
        """At least an hour; None: for ever."""
        return None if self.ledger is None else _age(self.ledger)


def _age(text: str) -> timedelta:
    return timedelta(**{_UNITS[text[-1]]: int(text[:-1])})


@dataclass(frozen=True)
class Upkeep:
    """One kind of work: ``files`` with ``bytes`` before it, and after it; of a dry run, as they
    would be, as far as that can be told.
    """

    work: str
    remark: str
    files: int = 0
    files_after: int = 0
    bytes: int = 0
    bytes_after: int = 0
    seconds: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self) | {"seconds": round(self.seconds, 3)}


class Maintained:
    """The part of a session that keeps its table and ledger in order. Changes no row."""

    #: What is said of a store that needs nothing of this.
    keeps_itself: ClassVar[str] = "the store keeps its table by itself: nothing to do"
    #: Why entries are never removed from this store's ledger; None: :meth:`prune` does.
    keeps_ledger: str | None = "this store cannot remove entries"

    def maintain(self, rules: Maintenance, *, dry_run: bool) -> Iterator[Upkeep]:  # noqa: ARG002
        """Do the maintenance, and yield each kind of work; ``dry_run`` changes nothing. Safe beside
        runs, readers and other maintenance, and at any interruption: a second call resumes.

        Raises:
            SinkUnavailableError: the store does not answer, or another maintenance took over.
        """
        yield Upkeep("none", self.keeps_itself)

    def prune(self, *, dry_run: bool) -> int:
        """Remove what the store holds of entries below the head's floor; ``dry_run`` only looks.
        Returns how many. Idempotent: a second call resumes.

        Raises:
            SinkUnavailableError: the store does not answer.
        """
        raise NotImplementedError(f"{type(self).__name__} keeps its ledger: dry_run={dry_run}")


class Showing:
    """The part of a session that reads back. A store that cannot leaves all of it as it is."""

    def lineage(self, since: int = 0) -> Iterator[pa.RecordBatch]:  # noqa: ARG002
        """Yield the origin of every row of the table, for the audit; in bounded memory, any order.

        Columns: ``_eo_checkpoint`` (int64), and ``_eo_topic`` (string), ``_eo_partition`` (int32)
        and ``_eo_offset`` (int64) if the table has them. Rows whose checkpoint is ``since`` or
        later, and those that belong to none (null); nothing if there is no table yet. One
        consistent snapshot of the table.

        Raises:
            RefusedError: rows cannot be read back from this store.
            SinkUnavailableError: the store does not answer.
        """
        raise RefusedError(
            "this sink cannot read its rows back, so that an audit can only look at the ledger."
        )

    def values(self, since: int = 0) -> Iterator[pa.RecordBatch]:  # noqa: ARG002
        """The table's rows as :meth:`lineage` takes them, with all columns that the sink
        :meth:`~eo_pipeline.sinks.config.Sink.gives_back`, and others or not. Batches may have
        different columns.

        Raises:
            RefusedError: rows cannot be read back from this store.
            SinkUnavailableError: the store does not answer.
        """
        raise RefusedError("this sink cannot read its rows back.")

    def dead_letter_values(self, since: int = 0) -> Iterator[pa.RecordBatch]:  # noqa: ARG002
        """Yield the visible dead letters, with ``_eo_checkpoint``; see :meth:`values`."""
        raise RefusedError("this sink cannot read its dead letters back.")

    def rows_of(self, selected: Selected) -> Iterator[pa.RecordBatch]:
        """The ``selected`` rows, in bounded memory, in any order, with all columns; those of which
        the store keeps a form of its own as text, and so marked
        (:func:`~eo_pipeline.sinks.capabilities.is_own_form`). One consistent snapshot of the table.

        Raises:
            RefusedError: rows cannot be read back from this store.
            SinkUnavailableError: the store does not answer.
        """
        self.refuse_shared_numbers()
        return _selected(selected, self.values(selected.first))

    def counts_of(self, selected: Selected) -> dict[int | None, int]:
        """Return the number of ``selected`` rows per checkpoint; raises as :meth:`rows_of`."""
        self.refuse_shared_numbers()
        return counted(_selected(selected, self.lineage(selected.first)))

    def refuse_shared_numbers(self) -> None:
        """Raise RefusedError if rows of several pipelines share a checkpoint's number."""

    def queries(self, selected: Selected) -> Mapping[str, str]:  # noqa: ARG002
        """Return the SQL that shows the ``selected`` rows, by the name of its engine; empty where
        there is none.
        """
        return {}

    def past(self, entry: LedgerEntry) -> TimeTravelView | None:  # noqa: ARG002
        """The whole table as ``entry`` left it, by what the store keeps of earlier states itself;
        None from a store that keeps none.

        Raises:
            RefusedError: it keeps some, and not that one; says why.
        """
        return None


def _selected(selected: Selected, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from selected.of(batches)
