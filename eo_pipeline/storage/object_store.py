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
    """A bucket through obstore's ``client``; ``root`` is its URI, for messages. Folders are only
    prefixes of keys.
    """

    client: Any
    root: str

    def head(self, key: str) -> Head | None:
        import obstore

        try:
            with self._errors(key):
                head = obstore.head(self.client, key)
        except FileNotFoundError:
            return None
        size, changed = int(head["size"]), head["last_modified"]
        return Head(size, changed.timestamp(), (head["e_tag"], changed, size))

    def has_any(self, key: str) -> bool:
        import obstore

        with self._errors(key):
            for batch in obstore.list(self.client, key, chunk_size=2):
                if any(item["path"] != key for item in batch):
                    return True
        return False

    def names(self, key: str) -> Names:
        import obstore

        with self._errors(key):
            listing = obstore.list_with_delimiter(self.client, key)
        folders = [PurePosixPath(path).name for path in listing["common_prefixes"]]
        paths = [item["path"] for item in listing["objects"]]
        return Names(folders, [PurePosixPath(path).name for path in paths if path != key])

    def below(self, key: str) -> list[Listed]:
        import obstore

        with self._errors(key):
            return [
                Listed(item["path"], item["size"])
                for batch in obstore.list(self.client, key)
                for item in batch
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
        """Put a file, large ones in parts."""
        import obstore

        with self._errors(key):
            obstore.put(self.client, key, file)

    def put_new(self, key: str, content: bytes) -> None:
        import obstore

        with self._errors(key):
            obstore.put(self.client, key, content, mode="create", use_multipart=False)

    def copy(self, key: str, target: str) -> None:
        """Copy within the store."""
        import obstore

        with self._errors(key):
            obstore.copy(self.client, key, target)

    def delete(self, keys: Iterable[str]) -> None:
        """Delete objects. Azure and Google fail on a missing one, and may leave others, which are
        then deleted one by one.
        """
        unique = sorted(set(keys))
        if not unique:
            return
        try:
            self._delete(unique)
        except FileNotFoundError:
            for key in unique:
                with suppress(FileNotFoundError):
                    self._delete([key])

    def delete_tree(self, key: str) -> None:
        self.delete(item.key for item in self.below(key))

    def delete_empty_folders(self, key: str) -> None:
        """Do nothing: there are no folders."""

    def _delete(self, keys: list[str]) -> None:
        import obstore

        with self._errors(keys[0]):
            obstore.delete(self.client, keys)

    @contextmanager
    def _errors(self, key: str) -> Iterator[None]:
        """Translate obstore's errors to those of the same call on a local file."""
        from obstore import exceptions

        uri = f"{self.root}/{key}"
        try:
            yield
        except FileNotFoundError as error:
            raise FileNotFoundError(errno.ENOENT, "there is no such object", uri) from error
        except exceptions.AlreadyExistsError as error:
            raise FileExistsError(errno.EEXIST, "there is one already", uri) from error
        except (exceptions.PermissionDeniedError, exceptions.UnauthenticatedError) as error:
            raise PermissionError(errno.EACCES, _text(error), uri) from error
        except exceptions.BaseError as error:
            raise StoreUnreachableError(errno.EIO, _text(error), uri) from error


def _text(error: Exception) -> str:
    """Return the error's text without the Rust debug output that follows."""
    return first_sentence(str(error).split("\n\nDebug source")[0])


SCHEME = "s3"

_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")

#: Hadoop's names for credentials.
_OF_HADOOP = {
    "access_key_id": "fs.s3a.access.key",
    "secret_access_key": "fs.s3a.secret.key",
    "session_token": "fs.s3a.session.token",
}


def invalid_name_reason(name: str) -> str | None:
    """Return the reason why no bucket can have that name; None if one can."""
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
    timeout_s: float,
) -> Bucket:
    """Return the bucket with its connection settings.

    Args:
        name: the bucket's.
        endpoint: the store's address, if not Amazon's.
        region: the store's.
        secrets: ``access_key_id``, ``secret_access_key``, ``session_token``, if configured.
        path_style: the bucket's name is in the path and not in the host's name.
        timeout_s: seconds until a request without an answer fails.
    """
    plaintext = endpoint is not None and endpoint.startswith("http://")
    options = {"region": region, **({"endpoint": endpoint} if endpoint else {}), **secrets}
    retry_s = RETRIED_FOR * timeout_s
    client: dict[str, Any] = {
        **options,
        "virtual_hosted_style_request": not path_style,
        "client_options": {"allow_http": plaintext, "timeout": timedelta(seconds=timeout_s)},
        "retry_config": {"retry_timeout": timedelta(seconds=retry_s)},
    }

    return Bucket(
        scheme=SCHEME,
        name=name,
        connect=partial(_connect, name, client),
        delta={
            **{f"aws_{part}": value for part, value in options.items()},
            "aws_virtual_hosted_style_request": str(not path_style).lower(),
            "aws_allow_http": str(plaintext).lower(),
            "timeout": f"{round(1000 * timeout_s)}ms",
            "retry_timeout": f"{round(1000 * retry_s)}ms",
        },
        hadoop=_hadoop(endpoint, region, secrets, path_style, timeout_s),
        iceberg={
            **{f"s3.{part.replace('_', '-')}": value for part, value in options.items()},
            "s3.force-virtual-addressing": str(not path_style).lower(),
            "s3.connect-timeout": str(timeout_s),
            "s3.request-timeout": str(timeout_s),
        },
        hadoop_scheme="s3a",
    )


def _connect(name: str, client: Mapping[str, Any]) -> ObjectStore:
    with needs("s3"):
        from obstore.store import S3Store

    return ObjectStore(S3Store(name, **client), f"{SCHEME}://{name}")


def _hadoop(
    endpoint: str | None,
    region: str,
    secrets: Mapping[str, str],
    path_style: bool,
    timeout_s: float,
) -> dict[str, str]:
    plaintext = endpoint is not None and endpoint.startswith("http://")
    settings = {
        "fs.s3a.endpoint.region": region,
        "fs.s3a.path.style.access": str(path_style).lower(),
        "fs.s3a.connection.ssl.enabled": str(not plaintext).lower(),
        # attempts of the SDK; Hadoop retries each of them seven times
        "fs.s3a.attempts.maximum": "2",
        "fs.s3a.connection.timeout": f"{round(1000 * timeout_s)}ms",
        "fs.s3a.connection.establish.timeout": f"{round(1000 * timeout_s)}ms",
        **COMMITTER,
    }
    if endpoint:
        settings["fs.s3a.endpoint"] = endpoint
    settings |= {_OF_HADOOP[part]: value for part, value in secrets.items()}
    if secrets:
        kind = "Temporary" if "session_token" in secrets else "Simple"
        settings["fs.s3a.aws.credentials.provider"] = (
            f"org.apache.hadoop.fs.s3a.{kind}AWSCredentialsProvider"
        )
    return settings
