"""Path operations for local folders and remote storage.

:class:`RemotePath` has the same methods as :class:`pathlib.Path` where both can (``/``, ``name``,
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

from eo_pipeline.storage.backend import Head, StorageBackend, StoreUnfitError


@dataclass(frozen=True)
class Bucket:
    """A bucket or a name node, with the connection settings of each client."""

    scheme: str
    name: str
    #: creates the client, in any process; raises ConfigError where its package is not installed
    connect: Callable[[], StorageBackend] = field(compare=False, repr=False)
    #: options of delta-rs, under the names of object_store
    delta: Mapping[str, str] = field(compare=False, repr=False)
    #: settings of Hadoop's file system, for Spark
    hadoop: Mapping[str, str] = field(compare=False, repr=False)
    #: properties of PyIceberg's file access
    iceberg: Mapping[str, str] = field(compare=False, repr=False)
    #: the scheme of its URIs in Spark
    hadoop_scheme: str

    @cached_property
    def store(self) -> StorageBackend:
        """The client; raises ConfigError if its package is not installed."""
        return self.connect()

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the client: another process creates its own."""
        return {name: value for name, value in vars(self).items() if name != "store"}

    def probe(self, folder: RemotePath) -> None:
        """Check that the store puts conditionally, and lists a file that was just put.

        Raises:
            StoreUnfitError: it does not, and reports no error.
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
class RemotePath:
    """A file with this ``key``, or the folder of all files whose keys begin with it and a slash."""

    bucket: Bucket = field(compare=False)
    uri: str = field(init=False, repr=False)
    key: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "uri", f"{self.bucket.scheme}://{self.bucket.name}/{self.key}")

    def __str__(self) -> str:
        return self.uri

    def __truediv__(self, name: str) -> RemotePath:
        return RemotePath(self.bucket, str(PurePosixPath(self.key, name)).removeprefix("./"))

    @property
    def name(self) -> str:
        return PurePosixPath(self.key).name

    @property
    def parent(self) -> RemotePath:
        return RemotePath(self.bucket, str(PurePosixPath(self.key).parent))

    def with_name(self, name: str) -> RemotePath:
        return self.parent / name

    def absolute(self) -> RemotePath:
        """Return itself, for the interface of :class:`pathlib.Path`."""
        return self

    def as_uri(self) -> str:
        return f"{self.bucket.scheme}://{self.bucket.name}/{quote(self.key)}"

    def relative_to(self, other: RemotePath) -> str:
        """Return the path below ``other``; raise ValueError if it is not below."""
        if other.bucket != self.bucket:
            raise ValueError(f"{self} is not below {other}")
        return str(PurePosixPath(self.key).relative_to(other.key))

    def exists(self) -> bool:
        """Return whether there is a file, or any file below it."""
        return self.is_file() or self.is_dir()

    def is_file(self) -> bool:
        return self.size() is not None

    def is_dir(self) -> bool:
        """Return whether there is any file below it."""
        return self.bucket.store.has_any(self.key)

    def names(self) -> list[str]:
        """List the names of its direct children."""
        names = self.bucket.store.names(self.key)
        return sorted({*names.folders, *names.files})

    def folders(self) -> list[str]:
        """List the names of its direct subfolders."""
        return sorted(self.bucket.store.names(self.key).folders)

    def below(self) -> list[tuple[RemotePath, int]]:
        """List all files below it with their sizes in bytes, ordered by key."""
        listed = self.bucket.store.below(self.key)
        return sorted((RemotePath(self.bucket, key), size) for key, size in listed)

    def size(self) -> int | None:
        """Return the bytes of the file; ``None`` if there is none."""
        head = self._head()
        return None if head is None else head.size

    def identity(self) -> tuple[object, ...] | None:
        """Return a fingerprint that a replacement does not share; ``None`` if there is no file."""
        head = self._head()
        return None if head is None else head.identity

    def modified_at(self) -> float | None:
        """Return the seconds since 1970, by the store's clock; ``None`` if there is no file."""
        head = self._head()
        return None if head is None else head.modified_at

    def _head(self) -> Head | None:
        return self.bucket.store.head(self.key)

    def read_bytes(self) -> bytes:
        return self.bucket.store.get(self.key)

    def read_text(self) -> str:
        return self.read_bytes().decode()

    def put(self, content: bytes) -> None:
        """Create or replace the file."""
        self.bucket.store.put(self.key, content)

    def put_file(self, file: Path) -> None:
        """Create or replace the file from a local file of any size."""
        self.bucket.store.put_file(self.key, file)

    def write_bytes(self, content: bytes) -> None:
        self.put(content)

    def write_text(self, content: str) -> None:
        self.put(content.encode())

    def mkdir(self, *, parents: bool = False, exist_ok: bool = False) -> None:
        """Do nothing: a bucket has no folders, and elsewhere a put creates them."""

    def put_new(self, content: bytes) -> None:
        """Create the file if none exists. After a lost answer the put is repeated and finds a file;
        one with exactly this ``content`` counts as created by this call.

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
        """Yield a buffer, which is put at the end of the block if there is no such file.

        Raises:
            FileExistsError: there is another one.
        """
        with io.BytesIO() as buffer:
            yield buffer
            self.put_new(buffer.getvalue())

    def open(self, size: int | None = None) -> ObjectReader:
        """Open the file, which has ``size`` bytes (None: the store is asked), to read parts of it.

        Raises:
            FileNotFoundError: there is none.
        """
        size = self.size() if size is None else size
        if size is None:
            raise FileNotFoundError(errno.ENOENT, "there is no such file", str(self))
        return ObjectReader(self, size)

    def copy_to(self, target: RemotePath) -> None:
        """Copy the file, on the server where the store supports it."""
        self.bucket.store.copy(self.key, target.key)

    def unlink(self, missing_ok: bool = True) -> None:  # noqa: ARG002 - stores ignore missing files
        self.remove_all([self])

    @staticmethod
    def remove_all(places: Iterable[RemotePath]) -> None:
        """Remove these files of one bucket; a missing one is no error."""
        paths = list(places)
        if paths:
            paths[0].bucket.store.delete(path.key for path in paths)

    def remove_tree(self) -> None:
        """Remove all files below it; a missing folder is no error."""
        self.bucket.store.delete_tree(self.key)

    def remove_empty_folders(self) -> None:
        """Remove it and the folders below it if empty, where the store has folders."""
        self.bucket.store.delete_empty_folders(self.key)


class ObjectReader(io.RawIOBase):
    """Random access to a file, one request per read; the Parquet reader needs few."""

    def __init__(self, path: RemotePath, size: int) -> None:
        super().__init__()
        self._path, self._size, self._at = path, size, 0

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
        length = min(len(buffer), self._size - self._at)
        if length <= 0:
            return 0
        part = self._path.bucket.store.get_range(self._path.key, self._at, length)
        buffer[: len(part)] = part
        self._at += len(part)
        return len(part)


#: Time of all files in an archive: the earliest that the format allows.
_MOMENT = (1980, 1, 1, 0, 0, 0)


#: Transient errors of a file system: an unresponsive disk or server, too many open files, a folder
#: in which another process still writes.
_PASSES = frozenset(
    {
        *(errno.EIO, errno.ESTALE, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN),
        *(errno.EBUSY, errno.EINTR, errno.ETIMEDOUT, errno.ENOTEMPTY, errno.EHOSTDOWN),
        *(errno.EHOSTUNREACH, errno.ENETUNREACH, errno.ENOTCONN, errno.ECONNRESET, errno.EDEADLK),
    }
)


def passes(error: OSError) -> bool:
    """Return whether ``error`` is transient."""
    return error.errno in _PASSES


def fsync(path: Path) -> None:
    """Flush a file; or a folder, which makes the names in it durable.

    Raises:
        OSError: the file or name may not survive a power cut.
    """
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def create_file(path: Path, text: str) -> None:
    """Create the file ``path``, flushed. Its name is durable once its folder is (:func:`sync`).

    Raises:
        FileExistsError: there is one.
    """
    with path.open("x") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def replace_file(path: Path, text: str) -> None:
    """Create or replace the file ``path``: whole or not at all, and durable when this returns.

    Several processes may write the same file at once, on several hosts too: the last one wins.
    """
    aside = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    create_file(aside, text)
    aside.replace(path)
    fsync(path.parent)


def zipped(files: Mapping[str, bytes]) -> bytes:
    """Return a ZIP archive of ``files``, by name; deterministic."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in files.items():
            archive.writestr(zipfile.ZipInfo(name, _MOMENT), content)
    return buffer.getvalue()


#: Path of a file or folder, local or remote.
Place = Path | RemotePath


def local_folder(text: str) -> Path | None:
    """Return the absolute folder of a local path or ``file:`` URL; ``None`` for anything else."""
    url = urlsplit(text)
    if url.scheme not in ("", "file") or url.netloc.lower() not in ("", "localhost"):
        return None
    return Path(unquote(url.path) if url.scheme else text).absolute() if text.strip() else None


class Found(NamedTuple):
    """A listed file, and its size in bytes."""

    place: Place
    size: int


def names_in(folder: Place) -> list[str]:
    """List the names of files and folders in ``folder``; empty if there is no such folder."""
    if isinstance(folder, RemotePath):
        return folder.names()
    with suppress(FileNotFoundError, NotADirectoryError):
        return os.listdir(folder)
    return []


def nonempty_names(folder: Place) -> list[str]:
    """List the names in ``folder`` without the empty folders of a bucket.

    Some stores (SeaweedFS) list folders for minutes after they were emptied. In a bucket all files
    below ``folder`` are therefore listed.
    """
    if isinstance(folder, RemotePath):
        return sorted({relative_name(file, folder).split("/")[0] for file, _ in folder.below()})
    return names_in(folder)


def folders_in(folder: Place) -> list[str]:
    """List the names of the folders in ``folder``; empty if there is no such folder."""
    if isinstance(folder, RemotePath):
        return folder.folders()
    with suppress(FileNotFoundError, NotADirectoryError), os.scandir(folder) as items:
        return [item.name for item in items if item.is_dir()]
    return []


def files_below(folder: Place) -> list[Found]:
    """List all files below ``folder`` with their sizes, in the order of their names.

    A bucket takes one listing. Files deleted meanwhile are left out.
    """
    if isinstance(folder, RemotePath):
        return [Found(path, size) for path, size in folder.below()]
    sizes = {path: size_of(path) for path in sorted(folder.rglob("*")) if path.is_file()}
    return [Found(path, size) for path, size in sizes.items() if size is not None]


def size_of(path: Place) -> int | None:
    """Return the bytes of a file; ``None`` if it does not exist."""
    if isinstance(path, RemotePath):
        return path.size()
    try:
        return path.stat().st_size
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENAMETOOLONG):
            return None
        raise


def sizes_of(folder: Place, names: Iterable[str]) -> dict[str, int]:
    """Return the bytes of the existing files among ``names`` below ``folder``.

    A bucket is listed, in a few requests for thousands of files; the result then holds all files
    below ``folder``.
    """
    if isinstance(folder, RemotePath):
        return {relative_name(file, folder): size for file, size in folder.below()}
    sizes = {name: size_of(folder / name) for name in names}
    return {name: size for name, size in sizes.items() if size is not None}


def modified_at(path: Place) -> float | None:
    """Return the modification time in seconds since 1970; ``None`` if there is no file."""
    if isinstance(path, RemotePath):
        return path.modified_at()
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return None


def fingerprint(path: Place) -> tuple[object, ...] | None:
    """Return a fingerprint that a replacement does not share; ``None`` if it is unreadable."""
    try:
        if isinstance(path, RemotePath):
            return path.identity()
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size


def relative_name(path: Place, folder: Place) -> str:
    """Return the path of ``path`` relative to ``folder``, with slashes.

    Raises:
        ValueError: ``path`` is not below ``folder``.
    """
    if isinstance(path, Path) and isinstance(folder, Path):
        return path.relative_to(folder).as_posix()
    if isinstance(path, RemotePath) and isinstance(folder, RemotePath):
        return path.relative_to(folder)
    raise ValueError(f"{path} is not below {folder}")


def is_below(path: Place, folder: Place) -> bool:
    """Return whether ``path`` is ``folder`` or in it."""
    try:
        relative_name(path, folder)
    except ValueError:
        return False
    return True


def probe(folder: Place) -> None:
    """Check that files can be written to ``folder``; leaves no file behind.

    Raises:
        OSError: they cannot (permission, disk full, no such bucket).
    """
    if isinstance(folder, RemotePath):
        folder.bucket.probe(folder)
        return
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=folder) as file:
        file.write(b"?")


def sync(path: Place) -> None:
    """Flush a local file or folder (:func:`fsync`); remote files are durable already."""
    if isinstance(path, Path):
        fsync(path)


def write_new(path: Place, text: str) -> None:
    """Create the file ``path``, flushed, in an existing folder.

    ``text`` must be unique to this writer: after a lost answer of a bucket the request is repeated
    and finds a file of that name, which is recognized by its text.

    Raises:
        FileExistsError: there is one.
    """
    if isinstance(path, RemotePath):
        path.put_new(text.encode())
    else:
        create_file(path, text)


def write_atomically(path: Place, text: str, *, flushed: bool = True) -> None:
    """Create or replace the file ``path``: whole or not at all; if ``flushed``, durable when this
    returns.
    """
    if isinstance(path, RemotePath):
        path.put(text.encode())
    elif flushed:
        replace_file(path, text)
    else:
        aside = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
        aside.write_text(text)
        aside.replace(path)


@contextmanager
def new_file(path: Place) -> Iterator[IO[bytes]]:
    """Open ``path`` to write it; whole and flushed at the end of the block.

    Raises:
        FileExistsError: there is one.
    """
    if isinstance(path, RemotePath):
        with path.new_file() as buffer:
            yield buffer
        return
    with path.open("xb") as file:
        yield file
    fsync(path)


def hard_link(path: Place, to: Place) -> None:
    """Hard-link the file ``path`` under ``to``, or put it there conditionally; durable.

    Raises:
        FileExistsError: another file has that name.
        FileNotFoundError: ``path`` does not exist.
    """
    if isinstance(path, RemotePath) and isinstance(to, RemotePath):
        to.put_new(path.read_bytes())
    elif isinstance(path, Path) and isinstance(to, Path):
        os.link(path, to)
        fsync(to.parent)


def move(path: Place, to: Place) -> None:
    """Rename the file ``path`` to ``to``; creates the folder, and replaces an existing file."""
    if isinstance(path, RemotePath):
        assert isinstance(to, RemotePath), "beside it"
        to.put(path.read_bytes())
        path.unlink()
        return
    assert isinstance(to, Path), "beside it"
    to.parent.mkdir(exist_ok=True)
    path.replace(to)
    fsync(to.parent)


def remove_all(places: Iterable[Place]) -> None:
    """Remove these files; a missing one is no error."""
    in_buckets = []
    for path in places:
        if isinstance(path, RemotePath):
            in_buckets.append(path)
        else:
            path.unlink(missing_ok=True)
    RemotePath.remove_all(in_buckets)


def remove_tree(folder: Place) -> None:
    """Remove ``folder`` and its content; a missing folder is no error."""
    if isinstance(folder, RemotePath):
        folder.remove_tree()
    else:
        shutil.rmtree(folder, onerror=_raise_unless_missing)


def remove_empty_folders(folder: Place) -> None:
    """Remove the empty folders in ``folder``."""
    if isinstance(folder, RemotePath):
        folder.remove_empty_folders()
        return
    for parent, names, _ in os.walk(folder, topdown=False):
        for name in names:
            with suppress(OSError):  # not empty, or gone
                Path(parent, name).rmdir()


def parquet_source(path: Place, size: int | None = None) -> Any:
    """Return ``path`` in a form that pyarrow reads Parquet from; a known ``size`` in bytes saves a
    request.
    """
    return path.open(size) if isinstance(path, RemotePath) else path


def _raise_unless_missing(_function: object, _path: object, error: Any) -> None:
    """Ignore a missing file: two runs may delete the same folder at once."""
    if not issubclass(error[0], FileNotFoundError):
        raise error[1]
