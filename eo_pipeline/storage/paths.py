"""Path operations for local folders and remote storage.

:class:`BucketPath` has the same methods as :class:`pathlib.Path` where both can (``/``, ``name``,
``parent``, ``exists()``, ``read_bytes()``, ``unlink()`` ...); the functions of this module take
either. A local file is written whole or not at all, and flushed. (obstore can write local files
too, but it does not flush them, and refuses names with control characters, which folders may
have.)
"""

from __future__ import annotations

import errno
import io
import os
import shutil
import tempfile
import uuid
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import IO, Any, NamedTuple
from urllib.parse import quote, unquote, urlsplit

from eo_pipeline.storage.backend import Head, Store, StoreUnfitError


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


#: A moment for all files of an archive: the first that one can hold.
_MOMENT = (1980, 1, 1, 0, 0, 0)


#: What a file system answers for a while: a disk or a server that does not answer, too many open
#: files, a folder in which somebody still writes.
_PASSES = frozenset(
    {
        *(errno.EIO, errno.ESTALE, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN),
        *(errno.EBUSY, errno.EINTR, errno.ETIMEDOUT, errno.ENOTEMPTY, errno.EHOSTDOWN),
        *(errno.EHOSTUNREACH, errno.ENETUNREACH, errno.ENOTCONN, errno.ECONNRESET, errno.EDEADLK),
    }
)


def passes(error: OSError) -> bool:
    """Whether time may mend ``error``."""
    return error.errno in _PASSES


def fsync(path: Path) -> None:
    """Flush a file; or a folder, which makes the names in it durable.

    Raises:
        OSError: it may not outlive a power cut.
    """
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def create_file(path: Path, text: str) -> None:
    """Make the file ``path``, flushed. Its name is durable once its folder is (:func:`sync`).

    Raises:
        FileExistsError: there is one.
    """
    with path.open("x") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def replace_file(path: Path, text: str) -> None:
    """Make or replace the file ``path``: whole or not at all, and durable when this returns.

    Several processes may write the same file at once, on several hosts too: the last one stands.
    """
    aside = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    create_file(aside, text)
    aside.replace(path)
    fsync(path.parent)


def zipped(files: Mapping[str, bytes]) -> bytes:
    """A ZIP archive of these contents by their names: of the same ones the same bytes."""
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w") as archive:
        for name, content in files.items():
            archive.writestr(zipfile.ZipInfo(name, _MOMENT), content)
    return held.getvalue()


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
    """Flush a file or a folder (:func:`eo_pipeline.storage.paths.sync`); what is in a bucket is."""
    if isinstance(place, Path):
        fsync(place)


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
        create_file(place, text)


def write_atomically(place: Place, text: str, *, flushed: bool = True) -> None:
    """Make or replace the file ``place``: whole or not at all; durable when this returns, if it is
    to be ``flushed``.
    """
    if isinstance(place, BucketPath):
        place.put(text.encode())
    elif flushed:
        replace_file(place, text)
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
    fsync(place)


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
        fsync(to.parent)


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
    fsync(to.parent)


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
