"""A place in a store: a bucket of an object store, or HDFS. What either is told apart by is in
:mod:`eo_pipeline.stores`.

What is put there is whole, seen by everybody once the put was answered, and durable. Errors are
``OSError``, as those of files are, so that nobody need know what a place is to be told.
"""

from __future__ import annotations

import errno
import io
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import IO, Any
from urllib.parse import quote

from eo_pipeline.stores.base import Head, Store, StoreUnfitError


@dataclass(frozen=True)
class Bucket:
    """A bucket or a name node, and how each of those who must reach it is told where it is and who
    asks.
    """

    scheme: str
    name: str
    #: makes the client, in any process; raises ConfigError where its package is not installed
    connect: Callable[[], Store] = field(compare=False, repr=False)
    #: options of delta-rs, under the names that object_store has for them
    delta: Mapping[str, str] = field(compare=False, repr=False)
    #: settings of Hadoop's file system, for Spark
    hadoop: Mapping[str, str] = field(compare=False, repr=False)
    #: properties of PyIceberg's file access
    iceberg: Mapping[str, str] = field(compare=False, repr=False)
    #: what Spark calls it
    hadoop_scheme: str

    @cached_property
    def store(self) -> Store:
        """Raises ConfigError where its client is not installed."""
        return self.connect()

    def __getstate__(self) -> dict[str, Any]:
        """Without the client: another process makes its own."""
        return {name: value for name, value in vars(self).items() if name != "store"}

    def probe(self, folder: BucketPath) -> None:
        """Return if the store puts conditionally, and lists what was just put.

        Raises:
            StoreUnfitError: it does not, and says nothing.
            OSError: it does not answer, or refuses.
        """
        mark = folder / f"_probe-{uuid.uuid4().hex}"
        mark.put_new(b"first")
        try:
            try:
                mark.put_new(b"second")
            except FileExistsError:
                pass
            else:
                raise StoreUnfitError(
                    errno.ENOTSUP,
                    "the store replaces what it was asked to put only where there is none "
                    "(If-None-Match: *), so that two runs could both be let in",
                )
            if mark.read_bytes() != b"first" or mark.name not in folder.names():
                raise StoreUnfitError(
                    errno.ENOTSUP, "the store does not list, or give back, what was just put there"
                )
        finally:
            mark.unlink()
        if mark.name in folder.names():
            raise StoreUnfitError(errno.ENOTSUP, "the store still lists what was just deleted")


@dataclass(frozen=True, order=True)
class BucketPath:
    """A file, or what has ``key`` and a slash before its name: a folder."""

    bucket: Bucket = field(compare=False)
    uri: str = field(init=False, repr=False)
    key: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "uri", f"{self.bucket.scheme}://{self.bucket.name}/{self.key}")

    def __str__(self) -> str:
        return self.uri

    def __truediv__(self, name: str) -> BucketPath:
        return BucketPath(self.bucket, str(PurePosixPath(self.key, name)).removeprefix("./"))

    @property
    def name(self) -> str:
        return PurePosixPath(self.key).name

    @property
    def parent(self) -> BucketPath:
        return BucketPath(self.bucket, str(PurePosixPath(self.key).parent))

    def with_name(self, name: str) -> BucketPath:
        return self.parent / name

    def absolute(self) -> BucketPath:
        """Itself."""
        return self

    def as_uri(self) -> str:
        return f"{self.bucket.scheme}://{self.bucket.name}/{quote(self.key)}"

    def relative_to(self, other: BucketPath) -> str:
        """Raises ValueError if it is not below ``other``."""
        if other.bucket != self.bucket:
            raise ValueError(f"{self} is not below {other}")
        return str(PurePosixPath(self.key).relative_to(other.key))

    def exists(self) -> bool:
        """Whether there is a file, or anything below it."""
        return self.is_file() or self.is_dir()

    def is_file(self) -> bool:
        return self.size() is not None

    def is_dir(self) -> bool:
        """Whether there is anything below it."""
        return self.bucket.store.has_any(self.key)

    def names(self) -> list[str]:
        """Names of what is right below it."""
        found = self.bucket.store.names(self.key)
        return sorted({*found.folders, *found.files})

    def folders(self) -> list[str]:
        """Names of the folders right below it."""
        return sorted(self.bucket.store.names(self.key).folders)

    def below(self) -> list[tuple[BucketPath, int]]:
        """All files below it, and their sizes in bytes, in the order of their keys."""
        found = self.bucket.store.below(self.key)
        return sorted((BucketPath(self.bucket, key), size) for key, size in found)

    def size(self) -> int | None:
        """Bytes of the file; ``None``: there is none."""
        found = self._head()
        return None if found is None else found.size

    def identity(self) -> tuple[object, ...] | None:
        """What tells this file from another under its key; ``None``: there is none."""
        found = self._head()
        return None if found is None else found.identity

    def modified_at(self) -> float | None:
        """Seconds since 1970, by the store's clock; ``None``: there is none."""
        found = self._head()
        return None if found is None else found.modified_at

    def _head(self) -> Head | None:
        return self.bucket.store.head(self.key)

    def read_bytes(self) -> bytes:
        return self.bucket.store.get(self.key)

    def read_text(self) -> str:
        return self.read_bytes().decode()

    def put(self, content: bytes) -> None:
        """Make or replace the file."""
        self.bucket.store.put(self.key, content)

    def put_file(self, file: Path) -> None:
        """Make or replace it, of what a file of this machine holds, of any size."""
        self.bucket.store.put_file(self.key, file)

    def write_bytes(self, content: bytes) -> None:
        self.put(content)

    def write_text(self, content: str) -> None:
        self.put(content.encode())

    def mkdir(self, *, parents: bool = False, exist_ok: bool = False) -> None:
        """Nothing: a bucket has no folders, and elsewhere a put makes them."""

    def put_new(self, content: bytes) -> None:
        """Make the file, if there is none. An answer may be lost and the put be repeated, which
        then finds a file: its own, if it has this very ``content``.

        Raises:
            FileExistsError: there is another one.
        """
        try:
            self.bucket.store.put_new(self.key, content)
        except FileExistsError:
            if self.read_bytes() != content:
                raise

    @contextmanager
    def new_file(self) -> Iterator[IO[bytes]]:
        """What is written is put when this ends, if there is no such file.

        Raises:
            FileExistsError: there is another one.
        """
        with io.BytesIO() as held:
            yield held
            self.put_new(held.getvalue())

    def open(self) -> ObjectReader:
        """To read parts of the file.

        Raises:
            FileNotFoundError: there is none.
        """
        size = self.size()
        if size is None:
            raise FileNotFoundError(errno.ENOENT, "there is no such file", str(self))
        return ObjectReader(self, size)

    def copy_to(self, target: BucketPath) -> None:
        """Within the store, where it can do so without a byte being seen."""
        self.bucket.store.copy(self.key, target.key)

    def unlink(self, missing_ok: bool = True) -> None:  # noqa: ARG002 - a store does not tell
        self.remove_all([self])

    @staticmethod
    def remove_all(places: Iterable[BucketPath]) -> None:
        """Remove these files of one bucket; that one is gone already is no error."""
        found = list(places)
        if found:
            found[0].bucket.store.delete(place.key for place in found)

    def remove_tree(self) -> None:
        """Remove all that is below it; that it is gone already is no error."""
        self.bucket.store.delete_tree(self.key)

    def remove_empty_folders(self) -> None:
        """Remove it and the folders below it that hold nothing, where there can be such."""
        self.bucket.store.delete_empty_folders(self.key)


class ObjectReader(io.RawIOBase):
    """Parts of a file, each by a request of its own; Parquet's reader asks for few."""

    def __init__(self, place: BucketPath, size: int) -> None:
        super().__init__()
        self._place, self._size, self._at = place, size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        self._at = max(0, start + offset)
        return self._at

    def readinto(self, buffer: Any) -> int:
        wanted = min(len(buffer), self._size - self._at)
        if wanted <= 0:
            return 0
        part = self._place.bucket.store.get_range(self._place.key, self._at, wanted)
        buffer[: len(part)] = part
        self._at += len(part)
        return len(part)
