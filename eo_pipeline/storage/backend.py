"""What is asked of a store, whatever it is. Keys have slashes and no first one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, Protocol

from eo_pipeline.errors import ConfigError, to_install

#: How long an error of a store may be; what follows is a page of XML, or a stack of Java's.
_TEXT_MAX = 500


class StoreUnfitError(OSError):
    """A store that does not do what exactness rests on, whatever it answers."""


class StoreUnreachableError(ConnectionError):
    """A store that gives no answer, or the wrong one, however often it is asked."""


class Listed(NamedTuple):
    """A file that was listed, and its size in bytes."""

    key: str
    size: int


class Names(NamedTuple):
    """What is right below a folder."""

    folders: list[str]
    files: list[str]


class Head(NamedTuple):
    """What is known of a file without its content."""

    #: bytes
    size: int
    #: seconds since 1970, by the store's clock
    modified_at: float
    #: tells it from another file under its key
    identity: tuple[object, ...]


class Store(Protocol):
    """Files under keys: whole, seen by everybody once the put was answered, and durable.

    Raises:
        FileNotFoundError: there is no such file, where one is needed.
        PermissionError: the store knows who asks, and refuses.
        StoreUnfitError: it cannot do what it is asked, ever.
        StoreUnreachableError: it gives no answer. What it was asked to do may be done, or still be.
        OSError: it refuses for another reason.
    """

    def head(self, key: str) -> Head | None:
        """None: there is no such file. A folder is none."""

    def has_any(self, key: str) -> bool:
        """Whether there is anything below ``key``."""

    def names(self, key: str) -> Names:
        """Of what is right below ``key``."""

    def below(self, key: str) -> list[Listed]:
        """All files below ``key``, in any order. What comes or goes meanwhile may be among them."""

    def get(self, key: str) -> bytes:
        """A file's content."""

    def get_range(self, key: str, start: int, length: int) -> bytes:
        """So many bytes of a file that has them."""

    def put(self, key: str, content: bytes) -> None:
        """Make or replace a file."""

    def put_file(self, key: str, file: Path) -> None:
        """Make or replace a file, of what one of this machine holds, of any size."""

    def put_new(self, key: str, content: bytes) -> None:
        """Make a file, if there is none; asked again if an answer is lost.

        Raises:
            FileExistsError: there is one; its own, if an answer was lost.
        """

    def copy(self, key: str, target: str) -> None:
        """Make or replace ``target``."""

    def delete(self, keys: Iterable[str]) -> None:
        """That one is gone already is no error."""

    def delete_tree(self, key: str) -> None:
        """Delete all that is below ``key``; that it is gone already is no error."""

    def delete_empty_folders(self, key: str) -> None:
        """Delete ``key`` and the folders below it that hold nothing, where there can be such."""


def first_sentence(text: str) -> str:
    """In one line, and not too long."""
    return " ".join(text.split())[:_TEXT_MAX]


@contextmanager
def needs(extra: str) -> Iterator[None]:
    """For an import.

    Raises:
        ConfigError: it fails; ``extra`` of this package has what is missing.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"the store cannot be reached without the package {error.name}: {to_install(extra)}"
        ) from error


#: Files get their names from the driver, when all tasks have ended well. By version 2 tasks give
#: them: what one names that dies meanwhile stays, and one that was given up and goes on removes
#: what has the names it wants. And nothing else is put there.
COMMITTER: Mapping[str, str] = {
    "mapreduce.fileoutputcommitter.algorithm.version": "1",
    "mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
}

#: Of ``request_timeout``: how long requests are tried again before the store is said not to answer.
RETRIED_FOR = 6
