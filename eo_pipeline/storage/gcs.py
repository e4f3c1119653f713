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
    """``mark_of`` makes a client to which the mark of a folder is the object without a name."""

    mark_of: Callable[[str], Any]

    def has_any(self, key: str) -> bool:
        import obstore

        with self._errors(key):
            for batch in obstore.list(self.client, key, chunk_size=50):
                found = (Listed(each["path"], each["size"]) for each in batch)
                if any(each.key != key and not self._is_mark(each) for each in found):
                    return True
        return False

    def below(self, key: str) -> list[Listed]:
        """A folder's mark is listed by the name that it has before its slash, where there is no
        object.
        """
        return [each for each in super().below(key) if not self._is_mark(each)]

    def delete_tree(self, key: str) -> None:
        found = super().below(key)
        marks = {each.key for each in found if self._is_mark(each)}
        self.delete(each.key for each in found if each.key not in marks)
        self._delete_marks(marks)

    def delete_empty_folders(self, key: str) -> None:
        found = super().below(key)
        marks = {each.key for each in found if self._is_mark(each)}
        files = [each.key for each in found if each.key not in marks]
        self._delete_marks(
            mark for mark in marks if not any(file.startswith(f"{mark}/") for file in files)
        )

    def _is_mark(self, listed: Listed) -> bool:
        return listed.size == 0 and self.head(listed.key) is None

    def _delete_marks(self, marks: Iterable[str]) -> None:
        import obstore

        for mark in sorted(marks, reverse=True):
            with suppress(FileNotFoundError), self._errors(mark):
                obstore.delete(self.mark_of(mark), "")


SCHEME = "gs"

_BUCKET = re.compile(r"[a-z0-9][a-z0-9._-]{1,220}[a-z0-9]")
_ADDRESS = "https://storage.googleapis.com"

#: Of a service account's key, what Spark is told, under its connector's names.
_OF_HADOOP = {
    "client_email": "fs.gs.auth.service.account.email",
    "private_key_id": "fs.gs.auth.service.account.private.key.id",
    "private_key": "fs.gs.auth.service.account.private.key",
    "token_uri": "fs.gs.token.server.url",
}
_NEEDED = ("client_email", "private_key_id", "private_key")

#: Where the key is, for Hadoop to look it up: Spark shows no option whose name has this word.
_HIDDEN = "fs.gs.secret.of.eo"

#: Who is nobody, to object_store: no token is asked for.
_NOBODY = {"client_email": "", "private_key": "", "private_key_id": "", "disable_oauth": True}


def why_not(name: str) -> str | None:
    """Why no bucket can have that name."""
    if _BUCKET.fullmatch(name):
        return None
    return "names no bucket: 3 to 222 lower-case letters, digits, . _ and -"


def account(said: str) -> dict[str, Any]:
    """The key of a service account: Google's JSON, or of what is in the file of that name.

    Raises:
        ValueError: it is none. What it is, is not shown.
    """
    text = said.strip()
    if not text.startswith("{"):
        try:
            text = Path(text).read_text()
        except (OSError, ValueError):
            raise ValueError(
                "is neither a service account's key in JSON nor a file that can be read"
            ) from None
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict) or not all(isinstance(found.get(p), str) for p in _NEEDED):
        raise ValueError(f"is no service account's key: a JSON object with {', '.join(_NEEDED)}")
    return found


def bucket(
    name: str, *, endpoint: str | None, service_account: Mapping[str, Any] | None, waits: float
) -> Bucket:
    """How it is reached.

    Args:
        name: the bucket's.
        endpoint: the store's address, if it is not Google's. One without TLS is told no
            credentials but those of ``service_account``.
        service_account: who asks; else what each client finds.
        waits: how many seconds a request may go without an answer.
    """
    plain = endpoint is not None and endpoint.startswith("http://")
    key = service_account if service_account or not plain else _NOBODY
    gives_up = RETRIED_FOR * waits
    told = {} if key is None else {"service_account_key": json.dumps(dict(key))}
    client: dict[str, Any] = {
        **told,
        "client_options": {"allow_http": plain, "timeout": timedelta(seconds=waits)},
        "retry_config": {"retry_timeout": timedelta(seconds=gives_up)},
    }
    at = {"google_base_url": endpoint} if endpoint else {}
    return Bucket(
        scheme=SCHEME,
        name=name,
        connect=partial(_connect, name, endpoint or _ADDRESS, client),
        delta={
            **{f"google_{part}": value for part, value in told.items()},
            **at,
            "allow_http": str(plain).lower(),
            "timeout": f"{round(1000 * waits)}ms",
            "retry_timeout": f"{round(1000 * gives_up)}ms",
        },
        hadoop=_hadoop(endpoint, key, waits),
        iceberg={},
        hadoop_scheme=SCHEME,
    )


def _connect(name: str, address: str, client: Mapping[str, Any]) -> GoogleStore:
    with needs("gcs"):
        from obstore.store import GCSStore

    def mark_of(folder: str) -> Any:
        above, _, last = f"{name}/{folder}".rpartition("/")
        return GCSStore(last, base_url=f"{address}/{above}", **client)

    return GoogleStore(GCSStore(name, base_url=address, **client), f"{SCHEME}://{name}", mark_of)


def _hadoop(endpoint: str | None, key: Mapping[str, Any] | None, waits: float) -> dict[str, str]:
    found = {
        "fs.gs.impl": "com.google.cloud.hadoop.fs.gcs.GoogleHadoopFileSystem",
        # or each folder that is emptied leaves an object
        "fs.gs.implicit.dir.repair.enable": "false",
        "fs.gs.http.connect-timeout": str(round(1000 * waits)),
        "fs.gs.http.read-timeout": str(round(1000 * waits)),
        **COMMITTER,
    }
    if endpoint:
        found["fs.gs.storage.root.url"] = f"{endpoint}/"
    if key is _NOBODY:
        # the last is what connectors of a later kind than 2.2 are told it by
        found["fs.gs.auth.service.account.enable"] = "false"
        found["fs.gs.auth.null.enable"] = "true"
        found["fs.gs.auth.type"] = "UNAUTHENTICATED"
    elif key is not None:
        found["fs.gs.auth.service.account.enable"] = "true"
        found |= {name: key[part] for part, name in _OF_HADOOP.items() if key.get(part)}
        found |= {_OF_HADOOP["private_key"]: f"${{{_HIDDEN}}}", _HIDDEN: key["private_key"]}
    return found
