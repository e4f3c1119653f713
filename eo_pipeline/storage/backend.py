"""Protocol and errors of a storage backend. Keys contain slashes and never begin with one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, Protocol

from eo_pipeline.errors import ConfigError, to_install

#: Characters of a store's error that are kept; the rest is a page of XML or a Java stack trace.
_TEXT_MAX = 500


class StoreUnfitError(OSError):
    """The store lacks an operation that exactly-once requires; a retry does not help."""


class StoreUnreachableError(ConnectionError):
    """The store gave no answer, or an error, to every attempt of a request."""


class Listed(NamedTuple):
    """A file that was listed, and its size in bytes."""

    key: str
    size: int


class Names(NamedTuple):
    """Names of the direct children of a folder."""

    folders: list[str]
    files: list[str]


class Head(NamedTuple):
    """Metadata of a file."""

    #: bytes
    size: int
    #: seconds since 1970, by the store's clock
    modified_at: float
    #: differs from that of another file under the same key
    identity: tuple[object, ...]


class StorageBackend(Protocol):
    """Files under keys: whole, durable, and visible to every client once the put was answered.

    Raises:
        FileNotFoundError: the file does not exist, and the operation needs it.
        PermissionError: the store refuses these credentials.
        StoreUnfitError: the store does not support the operation.
        StoreUnreachableError: no answer. The operation may have been done, or may still be.
        OSError: the store refuses for another reason.
    """

    def head(self, key: str) -> Head | None:
        """Return the file's metadata; ``None`` for a missing file and for a folder."""

    def has_any(self, key: str) -> bool:
        """Return whether any file is below ``key``."""

    def names(self, key: str) -> Names:
        """List the direct children of ``key``."""

    def below(self, key: str) -> list[Listed]:
        """List all files below ``key``, unordered; concurrent changes may be included or not."""

    def get(self, key: str) -> bytes:
        """Return a file's content."""

    def get_range(self, key: str, start: int, length: int) -> bytes:
        """Return ``length`` bytes from ``start``; the file must have them."""

    def put(self, key: str, content: bytes) -> None:
        """Create or replace a file."""

    def put_file(self, key: str, file: Path) -> None:
        """Create or replace a file from a local file of any size."""

    def put_new(self, key: str, content: bytes) -> None:
        """Create a file if none exists; retried if an answer is lost.

        Raises:
            FileExistsError: one exists; after a lost answer it may be from an earlier attempt.
        """

    def copy(self, key: str, target: str) -> None:
        """Create or replace ``target``."""

    def delete(self, keys: Iterable[str]) -> None:
        """Delete files; a missing one is no error."""

    def delete_tree(self, key: str) -> None:
        """Delete all files below ``key``; a missing folder is no error."""

    def delete_empty_folders(self, key: str) -> None:
        """Delete ``key`` and the folders below it if empty, where the store has folders."""


def first_sentence(text: str) -> str:
    """Return ``text`` in one line, truncated."""
    return " ".join(text.split())[:_TEXT_MAX]


@contextmanager
def needs(extra: str) -> Iterator[None]:
    """Wrap the import of an optional package.

    Raises:
        ConfigError: the package is missing; the message names ``extra``, which installs it.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"the store cannot be reached without the package {error.name}: {to_install(extra)}"
        ) from error


#: Version 1: the driver renames the files after all tasks succeeded. In version 2 the tasks do:
#: files of a task that dies remain, and an abandoned task that continues removes files that have
#: its target names. No ``_SUCCESS`` file is written.
COMMITTER: Mapping[str, str] = {
    "mapreduce.fileoutputcommitter.algorithm.version": "1",
    "mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
}

#: Retries end after this multiple of ``request_timeout``, and the store counts as unreachable.
RETRIED_FOR = 6
