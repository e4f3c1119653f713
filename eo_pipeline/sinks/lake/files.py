"""Data files that a publication writes or links, in addition to those staged in the table."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from eo_pipeline._lazy import pa, pq
from eo_pipeline.sinks.files import link_or_copy
from eo_pipeline.sinks.lake.ledger import Pointer
from eo_pipeline.storage.paths import Place, new_file, sync


@dataclass(frozen=True)
class PublishedFiles:
    """``<folder>/<thousand>/<version>-<token>-<number>.parquet`` of one try to publish. Nothing
    refers to them until the commit that carries their pointer ``at``. Between folder and file there
    may be folders that say how a table is laid out.
    """

    folder: Place
    at: Pointer
    #: gets each file's path before it is made
    written: list[Place]

    def write(
        self, parts: Iterable[pa.Table], below: Callable[[pa.Table], str] = lambda _: ""
    ) -> list[Place]:
        """One new file for each of ``parts``, flushed, in the folder ``below``."""
        paths = []
        for part in parts:
            path = self.new(below(part))
            with new_file(path) as file:
                pq.write_table(part, file, compression="snappy")
            paths.append(path)
        self._flush(paths)
        return paths

    def link(self, paths: Sequence[Place], below: Sequence[str]) -> list[Place]:
        """A second name here for each of the staged files; see :func:`link_or_copy`."""
        linked = [self.new(folder) for folder in below]
        for source, path in zip(paths, linked, strict=True):
            link_or_copy(source, path)
        self._flush(linked)
        return linked

    def new(self, below: str = "") -> Place:
        """Return the path of one more file of this try."""
        folder = self.folder / self.at.bucket / below if below else self.folder / self.at.bucket
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{self.at.stem}-{len(self.written)}.parquet"
        self.written.append(path)
        return path

    def _flush(self, paths: Iterable[Place]) -> None:
        """Their names, and those of the folders that were made for them."""
        top, folders = self.folder / self.at.bucket, set[Place]()
        for path in paths:
            folder = path.parent
            while folder not in folders:
                folders.add(folder)
                folder = folder if folder == top else folder.parent
        for folder in folders:
            sync(folder)


def one_file_each(table: pa.Table, keys: list[pa.ChunkedArray]) -> Iterator[pa.Table]:
    """``table`` cut into the rows that share all ``keys``. Nothing for no rows."""
    if not table.num_rows:
        return
    if not keys:
        yield table
        return
    rows: dict[tuple[Any, ...], list[int]] = {}
    for index, key in enumerate(zip(*(column.to_pylist() for column in keys), strict=True)):
        rows.setdefault(key, []).append(index)
    for indices in rows.values():
        yield table.take(indices)
