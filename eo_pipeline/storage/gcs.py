"""A bucket of Google Cloud Storage: the backend, and the settings of its clients."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

from eo_pipeline.storage.backend import COMMITTER, RETRIED_FOR, Listed, needs
from eo_pipeline.storage.object_store import ObjectStore
from eo_pipeline.storage.paths import Bucket


@dataclass(frozen=True)
class GoogleStore(ObjectStore):
    """Objects of a bucket. ``marker_client`` creates a client to which a folder's marker is the
    object with an empty name.
    """

    marker_client: Callable[[str], Any]

    def has_any(self, key: str) -> bool:
        import obstore

        with self._errors(key):
            for batch in obstore.list(self.client, key, chunk_size=50):
                files = (Listed(file["path"], file["size"]) for file in batch)
                if any(file.key != key and not self._is_marker(file) for file in files):
                    return True
        return False

    def below(self, key: str) -> list[Listed]:
        """List all files; a folder's marker is listed under its name without the slash, where no
        object exists.
        """
        return [file for file in super().below(key) if not self._is_marker(file)]

    def delete_tree(self, key: str) -> None:
        files = super().below(key)
        markers = {file.key for file in files if self._is_marker(file)}
        self.delete(file.key for file in files if file.key not in markers)
        self._delete_markers(markers)

    def delete_empty_folders(self, key: str) -> None:
        listed = super().below(key)
        markers = {file.key for file in listed if self._is_marker(file)}
        files = [file.key for file in listed if file.key not in markers]
        self._delete_markers(
            marker for marker in markers if not any(file.startswith(f"{marker}/") for file in files)
        )

    def _is_marker(self, listed: Listed) -> bool:
        return listed.size == 0 and self.head(listed.key) is None

    def _delete_markers(self, markers: Iterable[str]) -> None:
        import obstore

        for marker in sorted(markers, reverse=True):
            with suppress(FileNotFoundError), self._errors(marker):
                obstore.delete(self.marker_client(marker), "")


SCHEME = "gs"

_BUCKET = re.compile(r"[a-z0-9][a-z0-9._-]{1,220}[a-z0-9]")
_ADDRESS = "https://storage.googleapis.com"

#: Parts of a service account's key, and the settings of Spark's connector for them.
_OF_HADOOP = {
    "client_email": "fs.gs.auth.service.account.email",
    "private_key_id": "fs.gs.auth.service.account.private.key.id",
    "private_key": "fs.gs.auth.service.account.private.key",
    "token_uri": "fs.gs.token.server.url",
}
_NEEDED = ("client_email", "private_key_id", "private_key")

#: Setting with the key, referenced by others: Spark redacts options whose name has "secret".
_HIDDEN = "fs.gs.secret.of.eo"

#: Anonymous access in object_store: no token is requested.
_ANONYMOUS = {"client_email": "", "private_key": "", "private_key_id": "", "disable_oauth": True}


def invalid_name_reason(name: str) -> str | None:
    """Return the reason why no bucket can have that name; None if one can."""
    if _BUCKET.fullmatch(name):
        return None
    return "names no bucket: 3 to 222 lower-case letters, digits, . _ and -"


def account(text_or_path: str) -> dict[str, Any]:
    """Parse the key of a service account: Google's JSON, or the path of a file with it.

    Raises:
        ValueError: it is no key; the text is not shown.
    """
    text = text_or_path.strip()
    if not text.startswith("{"):
        try:
            text = Path(text).read_text()
        except (OSError, ValueError):
            raise ValueError(
                "is neither a service account's key in JSON nor a file that can be read"
            ) from None
    try:
        key = json.loads(text)
    except ValueError:
        key = None
    if not isinstance(key, dict) or not all(isinstance(key.get(p), str) for p in _NEEDED):
        raise ValueError(f"is no service account's key: a JSON object with {', '.join(_NEEDED)}")
    return key


def bucket(
    name: str, *, endpoint: str | None, service_account: Mapping[str, Any] | None, timeout_s: float
) -> Bucket:
    """Return the bucket with its connection settings.

    Args:
        name: the bucket's.
        endpoint: the store's address, if not Google's. Without TLS only the credentials of
            ``service_account`` are sent.
        service_account: the key; by default each client finds its credentials.
        timeout_s: seconds until a request without an answer fails.
    """
    plaintext = endpoint is not None and endpoint.startswith("http://")
    key = service_account if service_account or not plaintext else _ANONYMOUS
    retry_s = RETRIED_FOR * timeout_s
    credentials = {} if key is None else {"service_account_key": json.dumps(dict(key))}
    client: dict[str, Any] = {
        **credentials,
        "client_options": {"allow_http": plaintext, "timeout": timedelta(seconds=timeout_s)},
        "retry_config": {"retry_timeout": timedelta(seconds=retry_s)},
    }
    address = {"google_base_url": endpoint} if endpoint else {}
    return Bucket(
        scheme=SCHEME,
        name=name,
        connect=partial(_connect, name, endpoint or _ADDRESS, client),
        delta={
            **{f"google_{part}": value for part, value in credentials.items()},
            **address,
            "allow_http": str(plaintext).lower(),
            "timeout": f"{round(1000 * timeout_s)}ms",
            "retry_timeout": f"{round(1000 * retry_s)}ms",
        },
        hadoop=_hadoop(endpoint, key, timeout_s),
        iceberg={},
        hadoop_scheme=SCHEME,
    )


def _connect(name: str, address: str, client: Mapping[str, Any]) -> GoogleStore:
    with needs("gcs"):
        from obstore.store import GCSStore

    def marker_client(folder: str) -> Any:
        above, _, last = f"{name}/{folder}".rpartition("/")
        return GCSStore(last, base_url=f"{address}/{above}", **client)

    return GoogleStore(
        GCSStore(name, base_url=address, **client), f"{SCHEME}://{name}", marker_client
    )


def _hadoop(
    endpoint: str | None, key: Mapping[str, Any] | None, timeout_s: float
) -> dict[str, str]:
    settings = {
        "fs.gs.impl": "com.google.cloud.hadoop.fs.gcs.GoogleHadoopFileSystem",
        # else each emptied folder leaves an object
        "fs.gs.implicit.dir.repair.enable": "false",
        "fs.gs.http.connect-timeout": str(round(1000 * timeout_s)),
        "fs.gs.http.read-timeout": str(round(1000 * timeout_s)),
        **COMMITTER,
    }
    if endpoint:
        settings["fs.gs.storage.root.url"] = f"{endpoint}/"
    if key is _ANONYMOUS:
        # the last is the setting of connectors newer than 2.2
        settings["fs.gs.auth.service.account.enable"] = "false"
        settings["fs.gs.auth.null.enable"] = "true"
        settings["fs.gs.auth.type"] = "UNAUTHENTICATED"
    elif key is not None:
        settings["fs.gs.auth.service.account.enable"] = "true"
        settings |= {name: key[part] for part, name in _OF_HADOOP.items() if key.get(part)}
        settings |= {_OF_HADOOP["private_key"]: f"${{{_HIDDEN}}}", _HIDDEN: key["private_key"]}
    return settings
