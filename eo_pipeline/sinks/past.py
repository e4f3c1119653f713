"""Rows of a table by the checkpoints they belong to, and tables as they once were: pure, no I/O."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from eo_pipeline.arrow import pa, pc
from eo_pipeline.ledger.entry import CHECKPOINT_COLUMN

#: Metadata of an Arrow field: the store keeps such values in a form of its own, which is shown.
OWN_FORM: Mapping[bytes | str, bytes | str] = {"eo.form": "the store's own"}


def is_own_form(field: pa.Field) -> bool:
    """Whether what is read from the column may be spelled otherwise than what was written."""
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
            if (found := batch.filter(inside)).num_rows:
                yield found


@dataclass(frozen=True)
class Past:
    """A table as it once was, kept by the store itself or told by checkpoint: ``where``, in words;
    its rows, read when ``batches`` is called (with how many are asked for, None for all), and
    counted by ``count``; and the ``queries`` that show it, by the engine that they are for.
    """

    where: str
    batches: Callable[[int | None], Iterator[pa.RecordBatch]]
    count: Callable[[], int]
    queries: Mapping[str, str]


def counted(batches: Iterable[pa.RecordBatch]) -> dict[int | None, int]:
    """How many rows each checkpoint has in ``batches``; None: those of none."""
    found: dict[int | None, int] = {}
    for batch in batches:
        add_counts(found, batch)
    return found


def add_counts(found: dict[int | None, int], batch: pa.RecordBatch) -> None:
    """Count the rows of one more batch."""
    if CHECKPOINT_COLUMN not in batch.schema.names:
        found[None] = found.get(None, 0) + batch.num_rows
        return
    for each in pc.value_counts(batch.column(CHECKPOINT_COLUMN)).to_pylist():
        found[each["values"]] = found.get(each["values"], 0) + each["counts"]
