"""Where files are kept: a folder of this machine, or a place in a bucket. The one seam between.

What both are asked for alike they answer by the same names (``/``, ``name``, ``parent``,
``exists()``, ``read_bytes()``, ``unlink()`` ...); the rest is asked of the functions here. A local
file is a :class:`pathlib.Path` and written as before: whole or not at all, and flushed. (The
library that speaks to buckets can write local files, too: without flushing any, and it refuses
names with control characters, which folders may have.)
"""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, NamedTuple
from urllib.parse import unquote, urlsplit

from eo_pipeline import files
from eo_pipeline.bucket import BucketPath

#: Somewhere a file or a folder may be.
Place = Path | BucketPath


def local_folder(text: str) -> Path | None:
    """The folder that a path or a ``file:`` URL of this machine names, absolute; ``None`` for
    anything else.
    """
    url = urlsplit(text)
    if url.scheme not in ("", "file") or url.netloc.lower() not in ("", "localhost"):
        return None
    return Path(unquote(url.path) if url.scheme else text).absolute() if text.strip() else None


class Found(NamedTuple):
    """A file that was found, and its size in bytes."""

    place: Place
    size: int


def names_in(folder: Place) -> list[str]:
    """Names of what is in ``folder``, files and folders; none if there is no such folder."""
    if isinstance(folder, BucketPath):
        return folder.names()
    with suppress(FileNotFoundError, NotADirectoryError):
        return os.listdir(folder)
    return []


def names_of_what_is_in(folder: Place) -> list[str]:
    """The same, but for folders of a bucket that hold nothing: some stores (SeaweedFS) list those
    for minutes after they were emptied. So all that is below ``folder`` in a bucket is listed.
    """
    if isinstance(folder, BucketPath):
        return sorted({relative_name(place, folder).split("/")[0] for place, _ in folder.below()})
    return names_in(folder)


def folders_in(folder: Place) -> list[str]:
    """Names of the folders in ``folder``; none if there is no such folder."""
    if isinstance(folder, BucketPath):
        return folder.folders()
    with suppress(FileNotFoundError, NotADirectoryError), os.scandir(folder) as items:
        return [item.name for item in items if item.is_dir()]
    return []


def files_below(folder: Place) -> list[Found]:
    """All files in ``folder`` and its folders, in the order of their names; a bucket is asked
    once, and tells the sizes too. What goes meanwhile is not among them.
    """
    if isinstance(folder, BucketPath):
        return [Found(place, size) for place, size in folder.below()]
    sizes = {path: size_of(path) for path in sorted(folder.rglob("*")) if path.is_file()}
    return [Found(path, size) for path, size in sizes.items() if size is not None]


def size_of(place: Place) -> int | None:
    """Bytes of a file, ``None`` if it is not there."""
    if isinstance(place, BucketPath):
        return place.size()
    try:
        return place.stat().st_size
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENAMETOOLONG):
            return None
        raise


def sizes_of(folder: Place, names: Iterable[str]) -> dict[str, int]:
    """Bytes of the files that ``folder`` has of these ``names`` below it; a bucket is listed, in
    some requests for thousands.
    """
    if isinstance(folder, BucketPath):
        return {relative_name(place, folder): size for place, size in folder.below()}
    found = {name: size_of(folder / name) for name in names}
    return {name: size for name, size in found.items() if size is not None}


def modified_at(place: Place) -> float | None:
    """When a file was written, in seconds since 1970; ``None`` if it is not there."""
    if isinstance(place, BucketPath):
        return place.modified_at()
    try:
        return place.stat().st_mtime
    except FileNotFoundError:
        return None


def identity_of(place: Place) -> tuple[object, ...] | None:
    """What tells this file from any that may take its place; ``None``: it cannot be seen."""
    try:
        if isinstance(place, BucketPath):
            return place.identity()
        found = place.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


def relative_name(place: Place, folder: Place) -> str:
    """The name of ``place`` below ``folder``, with slashes.

    Raises:
        ValueError: it is not there.
    """
    if isinstance(place, Path) and isinstance(folder, Path):
        return place.relative_to(folder).as_posix()
    if isinstance(place, BucketPath) and isinstance(folder, BucketPath):
        return place.relative_to(folder)
    raise ValueError(f"{place} is not below {folder}")


def is_below(place: Place, folder: Place) -> bool:
    """Whether ``place`` is ``folder`` or in it."""
    try:
        relative_name(place, folder)
    except ValueError:
        return False
    return True


def probe(folder: Place) -> None:
    """Return if files can be kept in ``folder``; nothing stays behind.

    Raises:
        OSError: they cannot (permission, disk full, no such bucket).
    """
    if isinstance(folder, BucketPath):
        folder.bucket.probe(folder)
        return
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=folder) as file:
        file.write(b"?")


def sync(place: Place) -> None:
    """Flush a file or a folder (:func:`eo_pipeline.files.sync`); what is in a bucket is."""
    if isinstance(place, Path):
        files.sync(place)


def write_new(place: Place, text: str) -> None:
    """Make the file ``place``, flushed, in a folder that is there.

    ``text`` must be one that nobody else writes there: a bucket's answer may be lost, and who asks
    again finds a file of that name, which is then known by its text.

    Raises:
        FileExistsError: there is one.
    """
    if isinstance(place, BucketPath):
        place.put_new(text.encode())
    else:
        files.write_new(place, text)


def write_atomically(place: Place, text: str, *, flushed: bool = True) -> None:
    """Make or replace the file ``place``: whole or not at all; durable when this returns, if it is
    to be ``flushed``.
    """
    if isinstance(place, BucketPath):
        place.put(text.encode())
    elif flushed:
        files.write_atomically(place, text)
    else:
        aside = place.with_name(f".{place.name}.{uuid.uuid4().hex}")
        aside.write_text(text)
        aside.replace(place)


@contextmanager
def new_file(place: Place) -> Iterator[IO[bytes]]:
    """To write the file ``place``; flushed when this ends, as it was written, whole.

    Raises:
        FileExistsError: there is one.
    """
    if isinstance(place, BucketPath):
        with place.new_file() as held:
            yield held
        return
    with place.open("xb") as file:
        yield file
    files.sync(place)


def name_too(place: Place, to: Place) -> None:
    """Give the file ``place`` a second name, which is then whole and durable.

    Raises:
        FileExistsError: it is taken, by another file.
        FileNotFoundError: ``place`` is gone.
    """
    if isinstance(place, BucketPath) and isinstance(to, BucketPath):
        to.put_new(place.read_bytes())
    elif isinstance(place, Path) and isinstance(to, Path):
        os.link(place, to)
        files.sync(to.parent)


def move(place: Place, to: Place) -> None:
    """Give the file ``place`` another name, whose folder is made; replaces what is there."""
    if isinstance(place, BucketPath):
        assert isinstance(to, BucketPath), "beside it"
        to.put(place.read_bytes())
        place.unlink()
        return
    assert isinstance(to, Path), "beside it"
    to.parent.mkdir(exist_ok=True)
    place.replace(to)
    files.sync(to.parent)


def remove_all(places: Iterable[Place]) -> None:
    """Remove these files; that one is gone already is no error."""
    in_buckets = []
    for place in places:
        if isinstance(place, BucketPath):
            in_buckets.append(place)
        else:
            place.unlink(missing_ok=True)
    BucketPath.remove_all(in_buckets)


def remove_tree(folder: Place) -> None:
    """Remove ``folder`` and all in it; that it is gone already is no error."""
    if isinstance(folder, BucketPath):
        folder.remove_tree()
    else:
        shutil.rmtree(folder, onerror=_raise_unless_missing)


def remove_empty_folders(folder: Place) -> None:
    """Remove the folders in ``folder`` that hold nothing."""
    if isinstance(folder, BucketPath):
        folder.remove_empty_folders()
        return
    for parent, names, _ in os.walk(folder, topdown=False):
        for name in names:
            with suppress(OSError):  # not empty, or gone
                Path(parent, name).rmdir()


def parquet_source(place: Place) -> Any:
    """``place`` as pyarrow takes a Parquet file."""
    return place.open() if isinstance(place, BucketPath) else place


def _raise_unless_missing(_function: object, _path: object, error: Any) -> None:
    """Two runs may delete the same folder at once; that it is gone already is no error."""
    if not issubclass(error[0], FileNotFoundError):
        raise error[1]
