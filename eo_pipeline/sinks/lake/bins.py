"""Which small files of a lake table are put together. Pure.

Files side by side in the order of checkpoints, so that a file that was put together holds few
neighbouring ones: a rewind writes only those anew that hold rows of both sides of its target.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby

#: What has this part of the wanted size is not small (Iceberg's ``min-file-size-bytes``).
LARGE_ENOUGH = 0.75

#: So few small files are left for the next time, unless together they are large enough (Iceberg's
#: ``min-input-files``): else each maintenance would write the newest file once more.
FILES_MIN = 5


@dataclass(frozen=True)
class DataFile:
    """One file of the table: the partition it belongs to, in words, and its first checkpoint, if it
    has any; ``rows`` None if the table does not tell. Not ``movable``: it stays as it is. What
    takes its place lies below ``folder``.
    """

    path: str
    size: int
    rows: int | None
    partition: tuple[tuple[str, str | None], ...] = ()
    first: int | None = None
    movable: bool = True
    folder: str = ""


def bins(files: Iterable[DataFile], target: int) -> list[list[DataFile]]:
    """Groups of at least two files, of one partition each, that become one file of about ``target``
    bytes; the oldest checkpoints first.
    """
    small = [each for each in files if each.movable and each.size < target * LARGE_ENOUGH]
    ordered = sorted(small, key=lambda f: (_text(f.partition), _first(f), f.path))
    of_partitions = groupby(ordered, key=lambda f: _text(f.partition))
    return [found for _, of_one in of_partitions for found in _cut(of_one, target)]


def _cut(files: Iterable[DataFile], target: int) -> Iterator[list[DataFile]]:
    found: list[DataFile] = []
    size = 0
    for each in files:
        if found and size + each.size > target:
            yield from _worth_it(found, target)
            found, size = [], 0
        found.append(each)
        size += each.size
    yield from _worth_it(found, target)


def _worth_it(files: list[DataFile], target: int) -> Iterator[list[DataFile]]:
    large = sum(each.size for each in files) >= target * LARGE_ENOUGH
    if len(files) >= (2 if large else FILES_MIN):
        yield files


def _text(partition: tuple[tuple[str, str | None], ...]) -> str:
    return repr(partition)


def _first(file: DataFile) -> int:
    return -1 if file.first is None else file.first
