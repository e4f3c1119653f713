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

#: Seconds during which files are written to one data node, after a write to several failed; each
#: is on a single disk until HDFS has copied it. A name node assigns clients to a dead data node for
#: ten minutes and a half.
_ONE_REPLICA_S = 60.0

#: hdfs-native's text of a name node's error: ``RPCError("java.io.IOException", "why ...")``. A Java
#: stack follows, its lines separated by a backslash and an n.
_ANSWER = re.compile(r'RPCError\("([\w.$]+)", "(.*?)(?:\\n|"\)|$)', re.DOTALL)

#: Java's exceptions that a retry does not solve.
_PERMANENT = {
    "AccessControlException": errno.EACCES,
    "AuthorizationException": errno.EACCES,
    "DSQuotaExceededException": errno.EDQUOT,
    "NSQuotaExceededException": errno.EDQUOT,
    "QuotaByStorageTypeExceededException": errno.EDQUOT,
    "ParentNotDirectoryException": errno.ENOTDIR,
    "InvalidPathException": errno.EINVAL,
    "UnknownHostException": errno.EINVAL,
}
#: Permanent errors of hdfs-native.
_LOGIN_ERRORS = ("SASLError", "GSSAPIError", "NoSASLMechanism")
_ARGUMENT_ERRORS = ("InvalidArgument", "InvalidPath", "UrlParseError", "XmlParseError")


class Hdfs:
    """The HDFS behind ``root``, ``hdfs://`` and a name node or a name service.

    hdfs-native waits for a name node without a timeout, and retries a lost connection once. Here a
    request without an answer fails after ``timeout_s`` seconds, and is retried until ``retry_s``
    seconds have passed.
    """

    def __init__(self, root: str, timeout_s: float, retry_s: float) -> None:
        """Raise ModuleNotFoundError if hdfs-native is not installed."""
        import hdfs_native

        self._native = hdfs_native
        self._root, self._timeout_s, self._retry_s = root, timeout_s, retry_s
        self._client: Any = None
        self._one_replica_until = 0.0

    def head(self, key: str) -> Head | None:
        try:
            status = self._request(key, lambda client: client.get_file_info(f"/{key}"))
        except FileNotFoundError:
            return None
        changed = status.modification_time
        return (
            None if status.isdir else Head(status.length, changed / 1000, (changed, status.length))
        )

    def has_any(self, key: str) -> bool:
        return bool(self._list(key, limit=1))

    def names(self, key: str) -> Names:
        statuses = self._list(key)
        folders = [_name(status) for status in statuses if status.isdir]
        return Names(folders, [_name(status) for status in statuses if not status.isdir])

    def below(self, key: str) -> list[Listed]:
        statuses = self._list(key)
        files = [Listed(_key(status), status.length) for status in statuses if not status.isdir]
        deeper = [
            listed for status in statuses if status.isdir for listed in self.below(_key(status))
        ]
        return files + deeper

    def get(self, key: str) -> bytes:
        def read(client: Any) -> bytes:
            reader = client.read(f"/{key}")
            return bytes(reader.read_range(0, len(reader))) if len(reader) else b""

        return self._request(key, read)

    def get_range(self, key: str, start: int, length: int) -> bytes:
        return self._request(
            key, lambda client: bytes(client.read(f"/{key}").read_range(start, length))
        )

    def put(self, key: str, content: bytes) -> None:
        self._put(key, lambda: iter([content]), overwrite=True)

    def put_new(self, key: str, content: bytes) -> None:
        self._put(key, lambda: iter([content]), overwrite=False)

    def put_file(self, key: str, file: Path) -> None:
        self._put(key, lambda: _parts_of(file), overwrite=True)

    def copy(self, key: str, target: str) -> None:
        """Copy through this process: HDFS has no server-side copy."""
        head = self.head(key)
        if head is None:
            raise FileNotFoundError(errno.ENOENT, "there is no such file", f"{self._root}/{key}")
        size = head.size

        def parts() -> Iterator[bytes]:
            for start in range(0, size, _PART):
                yield self.get_range(key, start, min(_PART, size - start))

        self._put(target, parts, overwrite=True)

    def delete(self, keys: Iterable[str]) -> None:
        for key in sorted(set(keys)):
            self._delete(key, recursive=False)

    def delete_tree(self, key: str) -> None:
        """Delete the folder and its content in one request."""
        if self.head(key) is None:
            self._delete(key, recursive=True)

    def delete_empty_folders(self, key: str) -> None:
        statuses = self._list(key)
        for status in statuses:
            if status.isdir:
                self.delete_empty_folders(_key(status))
        if all(status.isdir for status in statuses) and self.head(key) is None:
            with suppress(OSError):  # one of them was not empty
                self._delete(key, recursive=False)

    def _delete(self, key: str, *, recursive: bool) -> None:
        with suppress(FileNotFoundError):
            self._request(key, lambda client: client.delete(f"/{key}", recursive))

    def _list(self, key: str, limit: int | None = None) -> list[Any]:
        """List the direct children; empty if there is no such folder."""

        def children(client: Any) -> list[Any]:
            statuses = []
            for status in client.list_status(f"/{key}"):
                if _key(status) != key:  # a file lists itself
                    statuses.append(status)
                if limit is not None and len(statuses) == limit:
                    break
            return statuses

        try:
            return self._request(key, children)
        except FileNotFoundError:
            return []

    def _put(self, key: str, parts: Callable[[], Iterator[bytes]], *, overwrite: bool) -> None:
        """Write a file, retried as a whole; FileExistsError may be due to an earlier attempt."""
        folder, _, name = f"/{key}".rpartition("/")
        self._retry(lambda: self._put_once(key, f"{folder}/.{name}", parts(), overwrite))

    def _put_once(self, key: str, prefix: str, parts: Iterator[bytes], overwrite: bool) -> None:
        temporary = f"{prefix}.{uuid.uuid4().hex}"
        try:
            self._write(key, temporary, parts)
            self._call(key, lambda client: client.rename(temporary, f"/{key}", overwrite))
        except OSError:
            # without its source, a pending rename can no longer take effect
            with suppress(OSError):
                self._call(key, lambda client: client.delete(temporary))
            raise

    def _write(self, key: str, path: str, parts: Iterator[bytes]) -> None:
        """Write to the default number of data nodes; or to one, from which HDFS copies to the
        others, if a write to several failed lately. hdfs-native fails if one of them is dead, and
        cannot request another one as Hadoop's own client does.
        """
        writer, close = self._call(key, lambda client: _opened(client, path))
        one_replica = time.monotonic() < self._one_replica_until
        if one_replica:
            replication = self._call(key, lambda client: client.get_file_info(path)).replication
            self._call(key, lambda client: client.set_replication(path, 1))
        try:
            for part in parts:
                self._call(key, _without_client(writer.write, part))
            self._call(key, _without_client(writer.hsync))
            self._call(key, _without_client(close))
        except StoreUnreachableError:
            self._one_replica_until = time.monotonic() + _ONE_REPLICA_S
            raise
        if one_replica:
            self._call(key, lambda client: client.set_replication(path, replication))

    def _request(self, key: str, call: Callable[[Any], _T]) -> _T:
        return self._retry(lambda: self._call(key, call))

    def _retry(self, call: Callable[[], _T]) -> _T:
        """Run ``call``; retry while the store is unreachable, with growing pauses."""
        until, pause = time.monotonic() + self._retry_s, _PAUSE_S
        while True:
            try:
                return call()
            except StoreUnreachableError:
                if time.monotonic() + pause > until:
                    raise
            time.sleep(pause)
            pause = min(2 * pause, _PAUSE_MAX_S)

    def _call(self, key: str, call: Callable[[Any], _T]) -> _T:
        """Run one request in a thread, which can be abandoned: hdfs-native has no timeouts."""
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
            return answer.result(self._timeout_s)

    @contextmanager
    def _errors(self, uri: str) -> Iterator[None]:
        """Translate hdfs-native's errors to those of the same call on a local file."""
        try:
            yield
        except FileNotFoundError as error:
            raise FileNotFoundError(errno.ENOENT, "there is no such file", uri) from error
        except FileExistsError as error:
            raise FileExistsError(errno.EEXIST, "there is one already", uri) from error
        except TimeoutError as error:
            self._client = None  # its requests may wait for ever
            message = f"no answer within {self._timeout_s:g} s"
            raise StoreUnreachableError(errno.ETIMEDOUT, message, uri) from error
        except NotImplementedError as error:
            raise StoreUnfitError(errno.ENOTSUP, first_sentence(str(error)), uri) from error
        except (OSError, RuntimeError) as error:
            translated = _error_of(first_sentence(str(error)))
            if isinstance(translated, StoreUnreachableError):
                self._client = None
            translated.filename = uri
            raise translated from error


def _error_of(text: str) -> OSError:
    """Return the error for a text of hdfs-native."""
    if answer := _ANSWER.search(text):
        name, why = answer[1].rpartition(".")[2].rpartition("$")[2], answer[2].replace('\\"', '"')
        if name == "FileNotFoundException":
            return FileNotFoundError(errno.ENOENT, why)
        if name == "PathIsNotEmptyDirectoryException":
            return OSError(errno.ENOTEMPTY, why)
        if number := _PERMANENT.get(name):
            return OSError(number, f"{name}: {why}")
        return StoreUnreachableError(errno.EIO, f"{name}: {why}")
    if "All DataNodes failed" in text:  # followed by a page of details
        return StoreUnreachableError(errno.EIO, "no data node that has it answers")
    if text.startswith(_LOGIN_ERRORS):
        return PermissionError(errno.EACCES, text)
    if text.startswith(_ARGUMENT_ERRORS):
        return OSError(errno.EINVAL, text)
    if text.startswith("UnsupportedFeature"):
        return StoreUnfitError(errno.ENOTSUP, text)
    return StoreUnreachableError(errno.EIO, text)


def _opened(client: Any, path: str) -> tuple[Any, Callable[[], object]]:
    """Create a file; return its writer and its close function, detached from the writer: else the
    garbage collector would close an abandoned file, at the latest at exit, and wait for HDFS
    without a timeout.
    """
    writer = client.create(path)
    close = writer.close
    writer.close = lambda: None
    return writer, close


def _without_client(call: Callable[..., Any], *arguments: Any) -> Callable[[Any], Any]:
    """Adapt ``call`` for :meth:`Hdfs._call`, ignoring the client."""
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


def invalid_name_reason(name: str) -> str | None:
    """Return the reason why ``name`` is no ``host:port`` or name service; None if it is one."""
    if _AUTHORITY.fullmatch(name):
        return None
    return "names no name node: hdfs://host:port/path, or hdfs://service/path with HADOOP_CONF_DIR"


def bucket(authority: str, *, timeout_s: float) -> Bucket:
    """Return the HDFS with its connection settings. Each client finds user and name services as
    Hadoop does: ``HADOOP_USER_NAME``, ``HADOOP_CONF_DIR``. A request without an answer fails
    after ``timeout_s`` seconds.
    """
    return Bucket(
        scheme=SCHEME,
        name=authority,
        connect=partial(_connect, f"{SCHEME}://{authority}", timeout_s),
        delta={},
        hadoop=COMMITTER,
        iceberg={},
        hadoop_scheme=SCHEME,
    )


def _connect(root: str, timeout_s: float) -> Hdfs:
    with needs("hdfs"):
        return Hdfs(root, timeout_s, RETRIED_FOR * timeout_s)
