"""Staged rows, invisible until the sink's transaction: in Parquet files or in memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from eo_pipeline import _process
from eo_pipeline._lazy import pa, pq
from eo_pipeline.errors import RefusedError
from eo_pipeline.ledger.entry import LedgerEntry
from eo_pipeline.progress import current
from eo_pipeline.storage.paths import Place, parquet_source, sizes_of

#: The column of a file that holds rows in a sink's own form.
PACKED_COLUMN = "_eo_packed"

#: In a column's metadata: its id in the file's schema, and those of all within it, each before what
#: is within that. For columns of which Spark's Parquet cannot write all.
IDS = "eo.ids"

#: Rows per Arrow batch handed to a sink: bounds memory, large enough for a fast COPY. Of long rows
#: as many as have so many bytes in their file.
BATCH_ROWS = 50_000
BATCH_BYTES = 32 * 1024 * 1024


@dataclass(frozen=True)
class StagedFile:
    """One Parquet file, its path relative to the attempt's folder."""

    path: str
    size: int
    rows: int


@dataclass(frozen=True)
class StagedTable:
    """Rows of one table, either in ``files`` below ``root`` or in ``table``; never both.

    ``form``: each row in the files is one value, bytes in this form of the sink's own, of the
    columns ``schema``; None: the files have these columns.
    """

    schema: pa.Schema
    root: Place | None = None
    files: tuple[StagedFile, ...] = ()
    table: pa.Table | None = None
    form: str | None = None

    @classmethod
    def in_memory(cls, table: pa.Table) -> StagedTable:
        return cls(schema=table.schema, table=table)

    def paths(self) -> list[Place]:
        """Absolute paths of the files. Empty for rows in memory."""
        root = self.root
        return [] if root is None else [root / file.path for file in self.files]

    def sizes(self) -> dict[Place, int]:
        """Return the bytes of each file, as :meth:`verify` found them, by its absolute path."""
        return {path: file.size for path, file in zip(self.paths(), self.files, strict=True)}

    @property
    def rows(self) -> int:
        """Number of rows that :meth:`batches` gives."""
        if self.table is not None:
            return int(self.table.num_rows)
        return sum(file.rows for file in self.files)

    @property
    def size(self) -> int:
        """Bytes of its files, or in memory."""
        if self.table is not None:
            return int(self.table.nbytes)
        return sum(file.size for file in self.files)

    def verify(self) -> None:
        """Raise :class:`RefusedError` unless every file is there with the size it was given, and
        says in its footer that it holds as many rows.

        Asked before anything is published: a file cut short or removed must not be half-read.
        """
        if self.root is None:
            return
        sizes = sizes_of(self.root, [file.path for file in self.files])
        staged = zip(self.files, self.paths(), strict=True)
        _process.each(_verify, [(file, path, sizes.get(file.path)) for file, path in staged])

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows, at most :data:`BATCH_ROWS` at a time, fewer of long ones, so that memory stays
        flat.

        Raises:
            RefusedError: a file cannot be read, or gives another number of rows than it was given;
                only the last batch shows that, so that nothing may be committed before.
        """
        assert self.form is None, f"rows in the form {self.form} have no columns to be read"
        return self._given(None)

    def packed(self, form: str) -> Iterator[pa.BinaryArray]:
        """The rows that were staged in ``form``, as :meth:`batches` gives them, each its bytes.

        Raises:
            RefusedError: they are in another one, of another release; or as for :meth:`batches`.
        """
        if self.form != form:
            raise RefusedError(
                f"rows were staged in the form {self.form}, and this release reads {form}. Nothing "
                "was published; the next run reads the ranges again."
            )
        return (batch.column(0) for batch in self._given([PACKED_COLUMN]))

    def _given(self, columns: list[str] | None) -> Iterator[pa.RecordBatch]:
        given, phase = 0, current()
        for batch in self._batches(columns):
            given += batch.num_rows
            yield batch
            phase.advance(given, self.rows, "rows sent")

    def column(self, name: str) -> Iterator[pa.Array]:
        """The values of one column, and no other is read; of packed rows only one that is staged
        beside them.

        Raises:
            RefusedError: a file cannot be read.
        """
        if self.table is not None:
            yield from self.table[name].chunks
        for staged, path in zip(self.files, self.paths(), strict=True):
            with _reading(staged), pq.ParquetFile(parquet_source(path, staged.size)) as file:
                for batch in batches_of(file, [name]):
                    yield batch.column(0)

    def _batches(self, columns: list[str] | None) -> Iterator[pa.RecordBatch]:
        """Of the files only ``columns``, if that is not None."""
        if self.table is not None:
            yield from self.table.to_batches(max_chunksize=BATCH_ROWS)
        for staged, path in zip(self.files, self.paths(), strict=True):
            with _reading(staged), pq.ParquetFile(parquet_source(path, staged.size)) as file:
                seen = 0
                for batch in batches_of(file, columns):
                    seen += batch.num_rows
                    yield batch
                _check_rows(staged, seen)


def batches_of(
    file: pq.ParquetFile,
    columns: Sequence[str] | None = None,
    groups: Iterable[int] | None = None,
) -> Iterator[pa.RecordBatch]:
    """The rows of ``file``, or of its row ``groups``, one group after the other, whatever its size
    in the memory of one: of all at once Arrow keeps the bytes until the last was read.
    """
    for number in range(file.num_row_groups) if groups is None else groups:
        held = file.metadata.row_group(number)
        rows = BATCH_BYTES * held.num_rows // max(held.total_byte_size, 1)
        size = max(1, min(BATCH_ROWS, rows))
        yield from file.iter_batches(size, row_groups=[number], columns=columns)


@contextmanager
def _reading(file: StagedFile) -> Iterator[None]:
    """Raise any error of a read as one of the file: Parquet's reader raises the same for a damaged
    page and for a broken disk.
    """
    try:
        yield
    except (OSError, pa.ArrowException) as error:
        raise _not_as_promised(file, f"cannot be read: {error}") from error


def _verify(staged: tuple[StagedFile, Place, int | None]) -> None:
    file, path, size = staged
    if size is None:
        raise _not_as_promised(file, "is missing")
    if size != file.size:
        raise _not_as_promised(file, f"has {size} bytes, the manifest says {file.size}")
    with _reading(file):
        rows = pq.read_metadata(parquet_source(path, size)).num_rows
    _check_rows(file, rows)


def _check_rows(file: StagedFile, rows: int) -> None:
    if rows != file.rows:
        raise _not_as_promised(file, f"has {rows} rows, the manifest says {file.rows}")


def _not_as_promised(file: StagedFile, fault: str) -> RefusedError:
    return RefusedError(
        f"staged file {file.path} {fault}. Nothing was published; the next run reads the ranges "
        "again."
    )


@dataclass(frozen=True)
class StagedOutput:
    """Everything one checkpoint will make visible. ``rows`` is ``None`` for a ledger-only entry
    (start, adopt, accept-loss); ``dead_letters`` is ``None`` when there are none. Of a pipeline
    that fills several tables ``tables`` has both for each, by its name, and there is nothing else.
    """

    rows: StagedTable | None = None
    dead_letters: StagedTable | None = None
    tables: Mapping[str, StagedOutput] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """Bytes that are staged, of all tables."""
        staged = sum(table.size for table in (self.rows, self.dead_letters) if table)
        return staged + sum(output.size for output in self.tables.values())

    def verify(self, entry: LedgerEntry) -> None:
        """Check that the files are as the manifest says, and hold as many rows and dead letters as
        ``entry``, so that all that was staged is published and nothing else.

        Raises:
            RefusedError: with the numbers, or the file's name.
        """
        if self.tables or entry.counts.tables:
            self._verify_tables(entry)
            return
        counted = (entry.counts.rows, entry.counts.dead_letters)
        staged = tuple(table.rows if table else 0 for table in (self.rows, self.dead_letters))
        if staged != counted:
            raise RefusedError(
                f"Pipeline {entry.pipeline!r}, version {entry.version}: {staged[0]} rows and "
                f"{staged[1]} dead letters are staged, the ledger entry says {counted[0]} and "
                f"{counted[1]}. Nothing was published; the next run reads the ranges again."
            )
        for table in (self.rows, self.dead_letters):
            if table is not None:
                table.verify()

    def _verify_tables(self, entry: LedgerEntry) -> None:
        """Check each table, and that the entry's rows are those of its tables."""
        counts = entry.counts
        for name in {**self.tables, **counts.tables}:
            self.tables.get(name, StagedOutput()).verify(entry.of_table(name))
        rows = sum(of_table.rows for of_table in counts.tables.values())
        if rows != counts.rows:
            raise RefusedError(
                f"Pipeline {entry.pipeline!r}, version {entry.version}: its tables have {rows} "
                f"rows, the ledger entry says {counts.rows}. Nothing was published; the next run "
                "reads the ranges again."
            )
