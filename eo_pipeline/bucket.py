"""A place in a bucket of an object store, spoken to by obstore (the ``object_store`` crate).

What is put there is whole, seen by everybody once the put was answered, and durable. Errors are
``OSError``, as those of files are, so that nobody need know what a place is to be told.
"""

from __future__ import annotations

import errno
import io
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING, Any
from urllib.parse import quote

if TYPE_CHECKING:
    from obstore.store import S3Store

#: How long an error of a store may be; what follows is a page of XML.
_TEXT_MAX = 500


class StoreUnfitError(OSError):
    """A store that does not do what exactness rests on, whatever it answers."""


class StoreUnreachableError(ConnectionError):
    """A store that gives no answer, or the wrong one, however often it is asked."""


@dataclass(frozen=True)
class Bucket:
    """A bucket, and how each of those who must reach it is told where it is and who asks."""

    scheme: str
    name: str
    #: arguments of obstore's store
    obstore: Mapping[str, Any] = field(compare=False, repr=False)
    #: options of delta-rs, under the names that object_store has for them
    delta: Mapping[str, str] = field(compare=False, repr=False)
    #: settings of Hadoop's file system, for Spark
    hadoop: Mapping[str, str] = field(compare=False, repr=False)
    #: properties of PyIceberg's file access
    iceberg: Mapping[str, str] = field(compare=False, repr=False)
    hadoop_scheme: str = "s3a"

    @cached_property
    def store(self) -> S3Store:
        """Raises ModuleNotFoundError where obstore is not installed."""
        from obstore.store import S3Store

        return S3Store(self.name, **self.obstore)

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
                    "the store replaces an object that it was asked to put only where there is "
                    "none (If-None-Match: *), so that two runs could both be let in",
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
    """An object, or what has ``key`` and a slash before its name: a folder."""

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
        """Whether there is an object, or anything below it."""
        return self.is_file() or self.is_dir()

    def is_file(self) -> bool:
        return self.size() is not None

    def is_dir(self) -> bool:
        """Whether there is anything below it."""
        with _errors(self):
            import obstore

            for batch in obstore.list(self.bucket.store, self.key, chunk_size=2):
                if any(each["path"] != self.key for each in batch):
                    return True
        return False

    def names(self) -> list[str]:
        """Names of what is right below it."""
        listed = self._listed()
        paths = [*listed["common_prefixes"], *(each["path"] for each in listed["objects"])]
        return sorted({PurePosixPath(path).name for path in paths if path != self.key})

    def folders(self) -> list[str]:
        """Names of the folders right below it."""
        return sorted(PurePosixPath(path).name for path in self._listed()["common_prefixes"])

    def _listed(self) -> Any:
        import obstore

        with _errors(self):
            return obstore.list_with_delimiter(self.bucket.store, self.key)

    def below(self) -> list[tuple[BucketPath, int]]:
        """All objects below it, and their sizes in bytes, in the order of their keys."""
        import obstore

        with _errors(self):
            found = [
                (BucketPath(self.bucket, each["path"]), each["size"])
                for batch in obstore.list(self.bucket.store, self.key)
                for each in batch
            ]
        return sorted(found)

    def size(self) -> int | None:
        """Bytes of the object; ``None``: there is none."""
        found = self._head()
        return None if found is None else int(found["size"])

    def identity(self) -> tuple[object, ...] | None:
        """What tells this object from another under its key; ``None``: there is none."""
        found = self._head()
        return found and (found["e_tag"], found["last_modified"], found["size"])

    def modified_at(self) -> float | None:
        """Seconds since 1970, by the store's clock; ``None``: there is none."""
        found = self._head()
        return None if found is None else float(found["last_modified"].timestamp())

    def _head(self) -> Any:
        import obstore

        try:
            with _errors(self):
                return obstore.head(self.bucket.store, self.key)
        except FileNotFoundError:
            return None

    def read_bytes(self) -> bytes:
        import obstore

        with _errors(self):
            return bytes(obstore.get(self.bucket.store, self.key).bytes())

    def read_text(self) -> str:
        return self.read_bytes().decode()

    def put(self, content: bytes) -> None:
        """Make or replace the object."""
        import obstore

        with _errors(self):
            obstore.put(self.bucket.store, self.key, content, use_multipart=False)

    def put_file(self, file: Path) -> None:
        """Make or replace the object, of what a file of this machine holds; large ones in parts."""
        import obstore

        with _errors(self):
            obstore.put(self.bucket.store, self.key, file)

    def write_bytes(self, content: bytes) -> None:
        self.put(content)

    def write_text(self, content: str) -> None:
        self.put(content.encode())

    def mkdir(self, *, parents: bool = False, exist_ok: bool = False) -> None:
        """Nothing: a bucket has no folders and needs none."""

    def put_new(self, content: bytes) -> None:
        """Make the object, if there is none. An answer may be lost and the put be repeated, which
        then finds an object: its own, if it has this very ``content``.

        Raises:
            FileExistsError: there is another one.
        """
        import obstore

        try:
            with _errors(self):
                obstore.put(
                    self.bucket.store, self.key, content, mode="create", use_multipart=False
                )
        except FileExistsError:
            if self.read_bytes() != content:
                raise

    @contextmanager
    def new_file(self) -> Iterator[IO[bytes]]:
        """What is written is put when this ends, if there is no such object.

        Raises:
            FileExistsError: there is another one.
        """
        with io.BytesIO() as held:
            yield held
            self.put_new(held.getvalue())

    def open(self) -> ObjectReader:
        """To read parts of the object.

        Raises:
            FileNotFoundError: there is none.
        """
        size = self.size()
        if size is None:
            raise FileNotFoundError(errno.ENOENT, "there is no such object", str(self))
        return ObjectReader(self, size)

    def copy_to(self, target: BucketPath) -> None:
        """Within the store, where no byte of it is seen."""
        import obstore

        with _errors(self):
            obstore.copy(self.bucket.store, self.key, target.key)

    def unlink(self, missing_ok: bool = True) -> None:  # noqa: ARG002 - a store does not tell
        self.remove_all([self])

    @staticmethod
    def remove_all(places: Iterable[BucketPath]) -> None:
        """Remove these objects of one bucket; that one is gone already is no error."""
        keys = sorted({place.key: place for place in places}.items())
        if not keys:
            return
        import obstore

        with _errors(keys[0][1]):
            obstore.delete(keys[0][1].bucket.store, [key for key, _ in keys])


class ObjectReader(io.RawIOBase):
    """Parts of an object, each by a request of its own; Parquet's reader asks for few."""

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
        import obstore

        place = self._place
        with _errors(place):
            part = obstore.get_range(place.bucket.store, place.key, start=self._at, length=wanted)
        buffer[: len(part)] = part
        self._at += len(part)
        return len(part)


@contextmanager
def _errors(place: BucketPath) -> Iterator[None]:
    """obstore's errors as those that the same call on a file would raise."""
    from obstore import exceptions

    try:
        yield
    except FileNotFoundError as error:
        raise FileNotFoundError(errno.ENOENT, "there is no such object", str(place)) from error
    except exceptions.AlreadyExistsError as error:
        raise FileExistsError(errno.EEXIST, "there is one already", str(place)) from error
    except (exceptions.PermissionDeniedError, exceptions.UnauthenticatedError) as error:
        raise PermissionError(errno.EACCES, _text(error), str(place)) from error
    except exceptions.BaseError as error:
        raise StoreUnreachableError(errno.EIO, _text(error), str(place)) from error


def _text(error: Exception) -> str:
    """The sentence of it; Rust's own notation of the same follows."""
    said = str(error).split("\n\nDebug source")[0]
    return " ".join(said.split())[:_TEXT_MAX]
