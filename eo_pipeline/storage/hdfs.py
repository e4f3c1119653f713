"""HDFS through hdfs-native: no Java and no libhdfs in this process.

HDFS is consistent, and a rename that does not overwrite is atomic. A file is therefore written
under a temporary name, flushed to the data nodes' disks, closed and renamed: it appears whole or
not at all, and on request only if its name is free. Folders are real: the first file creates them,
and they remain after the last file is deleted.
"""

from __future__ import annotations

import errno
import re
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Any, TypeVar

from eo_pipeline.storage.backend import (
    COMMITTER,
    RETRIED_FOR,
    Head,
    Listed,
    Names,
    StoreUnfitError,
    StoreUnreachableError,
    first_sentence,
    needs,
)
from eo_pipeline.storage.paths import Bucket

_T = TypeVar("_T")

_PART = 4 * 1024**2
_PAUSE_S, _PAUSE_MAX_S = 0.1, 5.0

#: How long files go to one data node when several did not get one; each is on a single disk until
#: HDFS has copied it. A name node sends clients to a node that died for ten minutes and a half.
_TO_ONE_S = 60.0

#: What hdfs-native raises of a name node's answer: ``RPCError("java.io.IOException", "why ...")``.
#: What follows is a stack of Java's, its lines parted by a backslash and an n.
_ANSWER = re.compile(r'RPCError\("([\w.$]+)", "(.*?)(?:\\n|"\)|$)', re.DOTALL)

#: Java's exceptions that stay what they are until somebody does something about it.
_FOR_GOOD = {
    "AccessControlException": errno.EACCES,
    "AuthorizationException": errno.EACCES,
    "DSQuotaExceededException": errno.EDQUOT,
    "NSQuotaExceededException": errno.EDQUOT,
    "QuotaByStorageTypeExceededException": errno.EDQUOT,
    "ParentNotDirectoryException": errno.ENOTDIR,
    "InvalidPathException": errno.EINVAL,
    "UnknownHostException": errno.EINVAL,
}
#: And hdfs-native's own.
_NOT_LET_IN = ("SASLError", "GSSAPIError", "NoSASLMechanism")
_NOT_SAID = ("InvalidArgument", "InvalidPath", "UrlParseError", "XmlParseError")


class Hdfs:
    """The HDFS behind ``root``, ``hdfs://`` and a name node or a name service.

    hdfs-native waits for a name node for as long as it takes, and tries a lost connection once
    more. Here a request may go for ``waits`` seconds without an answer, and is asked again until
    ``gives_up`` seconds have passed.
    """

    def __init__(self, root: str, waits: float, gives_up: float) -> None:
        """Raises ModuleNotFoundError where hdfs-native is not installed."""
        import hdfs_native

        self._native = hdfs_native
        self._root, self._waits, self._gives_up = root, waits, gives_up
        self._client: Any = None
        self._to_one_until = 0.0

    def head(self, key: str) -> Head | None:
        try:
            found = self._asked(key, lambda client: client.get_file_info(f"/{key}"))
        except FileNotFoundError:
            return None
        changed = found.modification_time
        return None if found.isdir else Head(found.length, changed / 1000, (changed, found.length))

    def has_any(self, key: str) -> bool:
        return bool(self._listed(key, most=1))

    def names(self, key: str) -> Names:
        found = self._listed(key)
        folders = [_name(each) for each in found if each.isdir]
        return Names(folders, [_name(each) for each in found if not each.isdir])

    def below(self, key: str) -> list[Listed]:
        found = self._listed(key)
        files = [Listed(_key(each), each.length) for each in found if not each.isdir]
        deeper = [listed for each in found if each.isdir for listed in self.below(_key(each))]
        return files + deeper

    def get(self, key: str) -> bytes:
        def read(client: Any) -> bytes:
            reader = client.read(f"/{key}")
            return bytes(reader.read_range(0, len(reader))) if len(reader) else b""

        return self._asked(key, read)

    def get_range(self, key: str, start: int, length: int) -> bytes:
        return self._asked(
            key, lambda client: bytes(client.read(f"/{key}").read_range(start, length))
        )

    def put(self, key: str, content: bytes) -> None:
        self._put(key, lambda: iter([content]), overwrite=True)

    def put_new(self, key: str, content: bytes) -> None:
        self._put(key, lambda: iter([content]), overwrite=False)

    def put_file(self, key: str, file: Path) -> None:
        self._put(key, lambda: _parts_of(file), overwrite=True)

    def copy(self, key: str, target: str) -> None:
        """By way of this process: HDFS copies nothing by itself."""
        found = self.head(key)
        if found is None:
            raise FileNotFoundError(errno.ENOENT, "there is no such file", f"{self._root}/{key}")
        size = found.size

        def parts() -> Iterator[bytes]:
            for start in range(0, size, _PART):
                yield self.get_range(key, start, min(_PART, size - start))

        self._put(target, parts, overwrite=True)

    def delete(self, keys: Iterable[str]) -> None:
        for key in sorted(set(keys)):
            self._delete(key, recursive=False)

    def delete_tree(self, key: str) -> None:
        """At once, the folder too."""
        if self.head(key) is None:
            self._delete(key, recursive=True)

    def delete_empty_folders(self, key: str) -> None:
        found = self._listed(key)
        for each in found:
            if each.isdir:
                self.delete_empty_folders(_key(each))
        if all(each.isdir for each in found) and self.head(key) is None:
            with suppress(OSError):  # one of them was not empty
                self._delete(key, recursive=False)

    def _delete(self, key: str, *, recursive: bool) -> None:
        with suppress(FileNotFoundError):
            self._asked(key, lambda client: client.delete(f"/{key}", recursive))

    def _listed(self, key: str, most: int | None = None) -> list[Any]:
        """What is right below; none if there is no such folder."""

        def listed(client: Any) -> list[Any]:
            found = []
            for each in client.list_status(f"/{key}"):
                if _key(each) != key:  # a file lists itself
                    found.append(each)
                if most is not None and len(found) == most:
                    break
            return found

        try:
            return self._asked(key, listed)
        except FileNotFoundError:
            return []

    def _put(self, key: str, parts: Callable[[], Iterator[bytes]], *, overwrite: bool) -> None:
        """All of it again if an answer is lost: who is then told that there is one finds, perhaps,
        its own.
        """
        folder, _, name = f"/{key}".rpartition("/")
        self._again(lambda: self._put_once(key, f"{folder}/.{name}", parts(), overwrite))

    def _put_once(self, key: str, beside: str, parts: Iterator[bytes], overwrite: bool) -> None:
        aside = f"{beside}.{uuid.uuid4().hex}"
        try:
            self._write(key, aside, parts)
            self._answer(key, lambda client: client.rename(aside, f"/{key}", overwrite))
        except OSError:
            # a rename that was asked for and not answered would find nothing any more
            with suppress(OSError):
                self._answer(key, lambda client: client.delete(aside))
            raise

    def _write(self, key: str, path: str, parts: Iterator[bytes]) -> None:
        """To as many data nodes as is usual there; or to one, from which HDFS copies it to the
        others, if what was sent to several did not arrive lately. hdfs-native gives up where one of
        them is dead, and cannot ask for another as Hadoop's own client does.
        """
        writer, close = self._answer(key, lambda client: _opened(client, path))
        to_one = time.monotonic() < self._to_one_until
        if to_one:
            usual = self._answer(key, lambda client: client.get_file_info(path)).replication
            self._answer(key, lambda client: client.set_replication(path, 1))
        try:
            for part in parts:
                self._answer(key, _of_writer(writer.write, part))
            self._answer(key, _of_writer(writer.hsync))
            self._answer(key, _of_writer(close))
        except StoreUnreachableError:
            self._to_one_until = time.monotonic() + _TO_ONE_S
            raise
        if to_one:
            self._answer(key, lambda client: client.set_replication(path, usual))

    def _asked(self, key: str, call: Callable[[Any], _T]) -> _T:
        return self._again(lambda: self._answer(key, call))

    def _again(self, call: Callable[[], _T]) -> _T:
        """``call``, and again while it is not answered, with a pause that grows."""
        until, pause = time.monotonic() + self._gives_up, _PAUSE_S
        while True:
            try:
                return call()
            except StoreUnreachableError:
                if time.monotonic() + pause > until:
                    raise
            time.sleep(pause)
            pause = min(2 * pause, _PAUSE_MAX_S)

    def _answer(self, key: str, call: Callable[[Any], _T]) -> _T:
        """The one place that talks to HDFS: in a thread, since nobody else ends the waiting."""
        answer: Future[_T] = Future()

        def ask() -> None:
            try:
                if self._client is None:
                    self._client = self._native.Client(self._root)
                answer.set_result(call(self._client))
            except Exception as error:  # noqa: BLE001 - handed on
                answer.set_exception(error)

        Thread(target=ask, name="eo-hdfs", daemon=True).start()
        with self._errors(f"{self._root}/{key}"):
            return answer.result(self._waits)

    @contextmanager
    def _errors(self, place: str) -> Iterator[None]:
        """hdfs-native's errors as those that the same call on a file would raise."""
        try:
            yield
        except FileNotFoundError as error:
            raise FileNotFoundError(errno.ENOENT, "there is no such file", place) from error
        except FileExistsError as error:
            raise FileExistsError(errno.EEXIST, "there is one already", place) from error
        except TimeoutError as error:
            self._client = None  # whoever waits on it waits for ever
            said = f"no answer within {self._waits:g} s"
            raise StoreUnreachableError(errno.ETIMEDOUT, said, place) from error
        except NotImplementedError as error:
            raise StoreUnfitError(errno.ENOTSUP, first_sentence(str(error)), place) from error
        except (OSError, RuntimeError) as error:
            found = _found(first_sentence(str(error)))
            if isinstance(found, StoreUnreachableError):
                self._client = None
            found.filename = place
            raise found from error


def _found(said: str) -> OSError:
    """What an error of hdfs-native means."""
    if answer := _ANSWER.search(said):
        name, why = answer[1].rpartition(".")[2].rpartition("$")[2], answer[2].replace('\\"', '"')
        if name == "FileNotFoundException":
            return FileNotFoundError(errno.ENOENT, why)
        if name == "PathIsNotEmptyDirectoryException":
            return OSError(errno.ENOTEMPTY, why)
        if number := _FOR_GOOD.get(name):
            return OSError(number, f"{name}: {why}")
        return StoreUnreachableError(errno.EIO, f"{name}: {why}")
    if "All DataNodes failed" in said:  # and a page of what is known of each
        return StoreUnreachableError(errno.EIO, "no data node that has it answers")
    if said.startswith(_NOT_LET_IN):
        return PermissionError(errno.EACCES, said)
    if said.startswith(_NOT_SAID):
        return OSError(errno.EINVAL, said)
    if said.startswith("UnsupportedFeature"):
        return StoreUnfitError(errno.ENOTSUP, said)
    return StoreUnreachableError(errno.EIO, said)


def _opened(client: Any, path: str) -> tuple[Any, Callable[[], object]]:
    """A new file, and what closes it. Nothing else does: Python would close one that is let go, at
    the latest when the process ends, and wait for HDFS for as long as it takes.
    """
    writer = client.create(path)
    close = writer.close
    writer.close = lambda: None
    return writer, close


def _of_writer(call: Callable[..., Any], *arguments: Any) -> Callable[[Any], Any]:
    """For :meth:`Hdfs._answer`, whose client it does not take."""
    return lambda _: call(*arguments)


def _key(status: Any) -> str:
    return str(status.path).strip("/")


def _name(status: Any) -> str:
    return _key(status).rpartition("/")[2]


def _parts_of(file: Path) -> Iterator[bytes]:
    with file.open("rb") as content:
        while part := content.read(_PART):
            yield part


SCHEME = "hdfs"

_AUTHORITY = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?(:\d{1,5})?")


def why_not(name: str) -> str | None:
    """Why it is neither a host and a port nor a service's name."""
    if _AUTHORITY.fullmatch(name):
        return None
    return "names no name node: hdfs://host:port/path, or hdfs://service/path with HADOOP_CONF_DIR"


def bucket(authority: str, *, waits: float) -> Bucket:
    """Who asks, and how a service's name is resolved, each client finds where Hadoop's own do:
    ``HADOOP_USER_NAME``, ``HADOOP_CONF_DIR``. A request may go for ``waits`` seconds.
    """
    return Bucket(
        scheme=SCHEME,
        name=authority,
        connect=partial(_connect, f"{SCHEME}://{authority}", waits),
        delta={},
        hadoop=COMMITTER,
        iceberg={},
        hadoop_scheme=SCHEME,
    )


def _connect(root: str, waits: float) -> Hdfs:
    with needs("hdfs"):
        return Hdfs(root, waits, RETRIED_FOR * waits)
