"""Files of rows that publishing itself makes, beside those that were staged in the table."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from eo_pipeline.arrow import pa, pq
from eo_pipeline.places import Place, new_file, sync
from eo_pipeline.sinks.files import link_or_copy
from eo_pipeline.sinks.lake.ledger import Pointer


@dataclass(frozen=True)
class PublishedFiles:
    """``<folder>/<thousand>/<version>-<token>-<number>.parquet`` of one try to publish. Nothing
    refers to them until the commit that carries their pointer ``at``.
    """

    folder: Place
    at: Pointer
    #: gets each file's path before it is made
    written: list[Place]

    def write(self, parts: Iterable[pa.Table]) -> list[Place]:
        """One new file for each of ``parts``, flushed."""
        paths = []
        for number, part in enumerate(parts):
            path = self._path(number)
            with new_file(path) as file:
                pq.write_table(part, file, compression="snappy")
            paths.append(path)
        if paths:
            sync(paths[0].parent)
        return paths

    def link(self, paths: Iterable[Place]) -> list[Place]:
        """A second name here for each of the staged files; see :func:`link_or_copy`."""
        linked = []
        for number, source in enumerate(paths):
            path = self._path(number)
            link_or_copy(source, path)
            linked.append(path)
        if linked:
            sync(linked[0].parent)
        return linked

    def _path(self, number: int) -> Place:
        folder = self.folder / self.at.bucket
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{self.at.stem}-{number}.parquet"
        self.written.append(path)
        return path


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
