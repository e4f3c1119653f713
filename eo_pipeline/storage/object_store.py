"""Object stores through obstore (the ``object_store`` crate), and the settings of an S3 bucket."""

from __future__ import annotations

import errno
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

from eo_pipeline.storage.backend import (
    COMMITTER,
    RETRIED_FOR,
    Head,
    Listed,
    Names,
    StoreUnreachableError,
    first_sentence,
    needs,
)
from eo_pipeline.storage.paths import Bucket


@dataclass(frozen=True)
class ObjectStore:
    """``client`` is one of obstore's, and ``root`` the URI of its bucket, for messages. There are
    no folders: they are what keys have before their slashes.
    """

    client: Any
    root: str

    def head(self, key: str) -> Head | None:
        import obstore

        try:
            with self._errors(key):
                found = obstore.head(self.client, key)
        except FileNotFoundError:
            return None
        size, changed = int(found["size"]), found["last_modified"]
        return Head(size, changed.timestamp(), (found["e_tag"], changed, size))

    def has_any(self, key: str) -> bool:
        import obstore

        with self._errors(key):
            for batch in obstore.list(self.client, key, chunk_size=2):
                if any(each["path"] != key for each in batch):
                    return True
        return False

    def names(self, key: str) -> Names:
        import obstore

        with self._errors(key):
            found = obstore.list_with_delimiter(self.client, key)
        folders = [PurePosixPath(path).name for path in found["common_prefixes"]]
        paths = [each["path"] for each in found["objects"]]
        return Names(folders, [PurePosixPath(path).name for path in paths if path != key])

    def below(self, key: str) -> list[Listed]:
        import obstore

        with self._errors(key):
            return [
                Listed(each["path"], each["size"])
                for batch in obstore.list(self.client, key)
                for each in batch
            ]

    def get(self, key: str) -> bytes:
        import obstore

        with self._errors(key):
            return bytes(obstore.get(self.client, key).bytes())

    def get_range(self, key: str, start: int, length: int) -> bytes:
        import obstore

        with self._errors(key):
            return bytes(obstore.get_range(self.client, key, start=start, length=length))

    def put(self, key: str, content: bytes) -> None:
        import obstore

        with self._errors(key):
            obstore.put(self.client, key, content, use_multipart=False)

    def put_file(self, key: str, file: Path) -> None:
        """Large ones in parts."""
        import obstore

        with self._errors(key):
            obstore.put(self.client, key, file)

    def put_new(self, key: str, content: bytes) -> None:
        import obstore

        with self._errors(key):
            obstore.put(self.client, key, content, mode="create", use_multipart=False)

    def copy(self, key: str, target: str) -> None:
        """Within the store, where no byte of it is seen."""
        import obstore

        with self._errors(key):
            obstore.copy(self.client, key, target)

    def delete(self, keys: Iterable[str]) -> None:
        """Azure and Google mind that one is gone already, and may then have left others."""
        found = sorted(set(keys))
        if not found:
            return
        try:
            self._delete(found)
        except FileNotFoundError:
            for key in found:
                with suppress(FileNotFoundError):
                    self._delete([key])

    def delete_tree(self, key: str) -> None:
        self.delete(each.key for each in self.below(key))

    def delete_empty_folders(self, key: str) -> None:
        """There are none."""

    def _delete(self, keys: list[str]) -> None:
        import obstore

        with self._errors(keys[0]):
            obstore.delete(self.client, keys)

    @contextmanager
    def _errors(self, key: str) -> Iterator[None]:
        """obstore's errors as those that the same call on a file would raise."""
        from obstore import exceptions

        place = f"{self.root}/{key}"
        try:
            yield
        except FileNotFoundError as error:
            raise FileNotFoundError(errno.ENOENT, "there is no such object", place) from error
        except exceptions.AlreadyExistsError as error:
            raise FileExistsError(errno.EEXIST, "there is one already", place) from error
        except (exceptions.PermissionDeniedError, exceptions.UnauthenticatedError) as error:
            raise PermissionError(errno.EACCES, _text(error), place) from error
        except exceptions.BaseError as error:
            raise StoreUnreachableError(errno.EIO, _text(error), place) from error


def _text(error: Exception) -> str:
    """The sentence of it; Rust's own notation of the same follows."""
    return first_sentence(str(error).split("\n\nDebug source")[0])


SCHEME = "s3"

_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")

#: Hadoop's names for credentials.
_OF_HADOOP = {
    "access_key_id": "fs.s3a.access.key",
    "secret_access_key": "fs.s3a.secret.key",
    "session_token": "fs.s3a.session.token",
}


def why_not(name: str) -> str | None:
    """Why no bucket can have that name."""
    if _BUCKET.fullmatch(name):
        return None
    return "names no bucket: 3 to 63 lower-case letters, digits, . and -"


def bucket(
    name: str,
    *,
    endpoint: str | None,
    region: str,
    secrets: Mapping[str, str],
    path_style: bool,
    waits: float,
) -> Bucket:
    """How it is reached.

    Args:
        name: the bucket's.
        endpoint: the store's address, if it is not Amazon's.
        region: the store's.
        secrets: of ``access_key_id``, ``secret_access_key``, ``session_token`` what is said.
        path_style: the bucket's name is in the path and not in the host's name.
        waits: how many seconds a request may go without an answer.
    """
    plain = endpoint is not None and endpoint.startswith("http://")
    told = {"region": region, **({"endpoint": endpoint} if endpoint else {}), **secrets}
    gives_up = RETRIED_FOR * waits
    client: dict[str, Any] = {
        **told,
        "virtual_hosted_style_request": not path_style,
        "client_options": {"allow_http": plain, "timeout": timedelta(seconds=waits)},
        "retry_config": {"retry_timeout": timedelta(seconds=gives_up)},
    }

    return Bucket(
        scheme=SCHEME,
        name=name,
        connect=partial(_connect, name, client),
        delta={
            **{f"aws_{part}": value for part, value in told.items()},
            "aws_virtual_hosted_style_request": str(not path_style).lower(),
            "aws_allow_http": str(plain).lower(),
            "timeout": f"{round(1000 * waits)}ms",
            "retry_timeout": f"{round(1000 * gives_up)}ms",
        },
        hadoop=_hadoop(endpoint, region, secrets, path_style, waits),
        iceberg={
            **{f"s3.{part.replace('_', '-')}": value for part, value in told.items()},
            "s3.force-virtual-addressing": str(not path_style).lower(),
            "s3.connect-timeout": str(waits),
            "s3.request-timeout": str(waits),
        },
        hadoop_scheme="s3a",
    )


def _connect(name: str, client: Mapping[str, Any]) -> ObjectStore:
    with needs("s3"):
        from obstore.store import S3Store

    return ObjectStore(S3Store(name, **client), f"{SCHEME}://{name}")


def _hadoop(
    endpoint: str | None, region: str, secrets: Mapping[str, str], path_style: bool, waits: float
) -> dict[str, str]:
    plain = endpoint is not None and endpoint.startswith("http://")
    found = {
        "fs.s3a.endpoint.region": region,
        "fs.s3a.path.style.access": str(path_style).lower(),
        "fs.s3a.connection.ssl.enabled": str(not plain).lower(),
        # of its SDK, each of which Hadoop itself repeats seven times
        "fs.s3a.attempts.maximum": "2",
        "fs.s3a.connection.timeout": f"{round(1000 * waits)}ms",
        "fs.s3a.connection.establish.timeout": f"{round(1000 * waits)}ms",
        **COMMITTER,
    }
    if endpoint:
        found["fs.s3a.endpoint"] = endpoint
    found |= {_OF_HADOOP[part]: value for part, value in secrets.items()}
    if secrets:
        kind = "Temporary" if "session_token" in secrets else "Simple"
        found["fs.s3a.aws.credentials.provider"] = (
            f"org.apache.hadoop.fs.s3a.{kind}AWSCredentialsProvider"
        )
    return found
