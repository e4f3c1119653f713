"""Staged rows as add actions: files that are there already, and files for rows in memory."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake.transaction import AddAction

from eo_pipeline.errors import RefusedError
from eo_pipeline.sinks.delta.sink import ROWS_FOLDER
from eo_pipeline.sinks.delta.stats import null_counts, stats_json
from eo_pipeline.sinks.delta.types import stored_schema, stored_table
from eo_pipeline.sinks.lake.ledger import Pointer, sync
from eo_pipeline.staging.rows import StagedTable

#: Below a pipeline's folder of rows: files made by publishing, each named by its ledger pointer.
PUBLISHED_FOLDER = "published"


@dataclass(frozen=True)
class RowFiles:
    """Makes add actions for one pipeline's rows in one table."""

    root: Path
    pipeline: str
    partition_by: tuple[str, ...]
    #: columns of the table that may not be null
    required: frozenset[str] = frozenset()

    def actions(self, staged: StagedTable, at: Pointer, written: list[Path]) -> list[AddAction]:
        """What makes ``staged`` part of the table. Rows in memory are written first.

        Raises:
            RefusedError: a file is not what it should be, or a value cannot be stored.
        """
        if staged.table is not None:
            paths = list(self._write(stored_table(staged.table), at, written))
        else:
            paths = [self._in_the_table(p, n, at, written) for n, p in enumerate(staged.paths())]
        return [self._action(path) for path in paths]

    def _in_the_table(self, path: Path, number: int, at: Pointer, written: list[Path]) -> Path:
        """``path`` itself if it is staged where the table's rows lie; otherwise a second name for
        the same file there, or where a file system has no such names, a copy.
        """
        if path.is_relative_to(self.root / ROWS_FOLDER):
            return path
        target = self._target(at, number)
        written.append(target)
        try:
            os.link(path, target)
        except OSError:
            shutil.copyfile(path, target)
        sync(target.parent)
        return target

    def _target(self, at: Pointer, number: int) -> Path:
        folder = self.published_folder / at.bucket
        folder.mkdir(parents=True, exist_ok=True)
        return folder / f"{at.stem}-{number}.parquet"

    def _action(self, path: Path) -> AddAction:
        try:
            with pq.ParquetFile(path) as file:
                schema, metadata = stored_schema(file.schema_arrow), file.metadata
                values = self._partition_values(file)
        except pa.ArrowException as error:
            raise RefusedError(f"the staged file {path} cannot be read: {error}") from error
        self._refuse_nulls(metadata, schema)
        own = pa.schema([field for field in schema if field.name not in self.partition_by])
        return AddAction(
            path=path.relative_to(self.root).as_posix(),
            size=path.stat().st_size,
            partition_values=values,
            modification_time=int(time.time() * 1000),
            data_change=True,
            stats=stats_json(metadata, own),
        )

    def _refuse_nulls(self, metadata: pq.FileMetaData, schema: pa.Schema) -> None:
        counts = null_counts(metadata, schema)
        bad = [name for name in sorted(self.required) if counts.get(name, None) != 0]
        if bad:
            raise RefusedError(
                f"the table does not take null in {', '.join(bad)}, and the result has nulls "
                "there. Nothing was written; fill the column in the transform."
            )

    def _partition_values(self, file: pq.ParquetFile) -> dict[str, str | None]:
        """What staging laid the file out by: its rows have one value in each such column."""
        if not self.partition_by:
            return {}
        columns = file.read(columns=list(self.partition_by))
        return {name: self._only_value(name, columns[name]) for name in self.partition_by}

    def _only_value(self, name: str, column: pa.ChunkedArray) -> str | None:
        values = column.unique().to_pylist()
        if len(values) != 1:
            raise RefusedError(
                f"a staged file holds {len(values)} values of the partition column {name!r}: it "
                "was staged for another layout. Nothing was published; the next run reads the "
                "ranges again."
            )
        return partition_value(name, values[0])

    def _write(self, table: pa.Table, at: Pointer, written: list[Path]) -> Iterator[Path]:
        """One file for each partition; nothing refers to them until the commit."""
        for number, part in enumerate(self._parts(table)):
            path = self._target(at, number)
            written.append(path)
            with path.open("xb") as file:
                pq.write_table(part, file, compression="snappy")
            sync(path)
            sync(path.parent)
            yield path

    def _parts(self, table: pa.Table) -> Iterator[pa.Table]:
        if not table.num_rows:
            return
        if not self.partition_by:
            yield table
            return
        rows: dict[tuple[Any, ...], list[int]] = {}
        keys = zip(*(table[name].to_pylist() for name in self.partition_by), strict=True)
        for index, key in enumerate(keys):
            rows.setdefault(key, []).append(index)
        for indices in rows.values():
            yield table.take(indices)

    @property
    def published_folder(self) -> Path:
        return self.root / ROWS_FOLDER / self.pipeline / PUBLISHED_FOLDER


def partition_value(name: str, value: Any) -> str | None:
    """As the log has it (Delta protocol, "Partition Value Serialization").

    Raises:
        RefusedError: the value has no such form.
    """
    if value is None:
        return None
    if value == "":
        raise RefusedError(
            f"partition column {name!r} holds an empty text, which Delta reads back as null. "
            "Nothing was written; give it another value in the transform."
        )
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, datetime):
        utc = value.astimezone(UTC).replace(tzinfo=None) if value.tzinfo else value
        return utc.isoformat(sep=" ", timespec="microseconds")
    if isinstance(value, Decimal):
        return f"{value:f}"
    if isinstance(value, int | str | date):
        return str(value)
    raise RefusedError(
        f"partition column {name!r} is of a type by which a table is not laid out "
        f"({type(value).__name__}). Nothing was written; choose another column."
    )
