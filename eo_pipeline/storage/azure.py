"""A container of an Azure Storage account: the backend, and the settings of its clients.

obstore and delta-rs use the Blob endpoint; Spark uses the endpoint of the account's kind.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import urlsplit

from eo_pipeline.storage.backend import COMMITTER, RETRIED_FOR, Head, Listed, Names, needs
from eo_pipeline.storage.object_store import ObjectStore
from eo_pipeline.storage.paths import Bucket

#: What Hadoop, and Azure's own folders, write on a blob that stands for a folder.
_FOLDER = "hdi_isfolder"


@dataclass(frozen=True)
class AzureBlobs(ObjectStore):
    """Spark's file system marks each folder that it makes by a blob under its name, which holds
    nothing. Where the account has a hierarchical namespace it is a folder indeed: it stays when
    it is emptied, is given away by its name before a slash alone, and is deleted like a blob.
    """

    def head(self, key: str) -> Head | None:
        found = super().head(key)
        return None if found is not None and not found.size and self._is_folder(key) else found

    def names(self, key: str) -> Names:
        """A folder that holds nothing but its mark is none."""
        import obstore

        with self._errors(key):
            found = obstore.list_with_delimiter(self.client, key)
        folders = {*found["common_prefixes"]}
        files = [
            each["path"]
            for each in found["objects"]
            if each["size"] or not (each["path"] in folders or self._is_folder(each["path"]))
        ]
        return Names(
            [PurePosixPath(path).name for path in sorted(folders)],
            [PurePosixPath(path).name for path in files],
        )

    def below(self, key: str) -> list[Listed]:
        found = super().below(key)
        if all(each.size for each in found):
            return found
        above = {str(parent) for each in found for parent in PurePosixPath(each.key).parents}
        return [
            each
            for each in found
            if each.size or not (each.key in above or self._is_folder(each.key))
        ]

    def delete_tree(self, key: str) -> None:
        self.delete(each.key for each in super().below(key))
        for folder in (*self._folders_below(key), key):
            self._delete_folder(folder)

    def delete_empty_folders(self, key: str) -> None:
        files = {each.key for each in self.below(key)}
        full = {str(parent) for file in files for parent in PurePosixPath(file).parents}
        marks = {each.key for each in super().below(key)} - files
        for folder in sorted({*marks, *self._folders_below(key), key} - full, reverse=True):
            self._delete_folder(folder)

    def _folders_below(self, key: str) -> list[str]:
        """Those that are listed by their names before a slash, the innermost first."""
        found = [f"{key}/{name}" for name in super().names(key).folders]
        return [each for folder in found for each in (*self._folders_below(folder), folder)]

    def _delete_folder(self, key: str) -> None:
        """That it cannot be is no error: an empty folder harms nobody, and a full one stays."""
        with suppress(OSError):
            self._delete([key])

    def _is_folder(self, key: str) -> bool:
        """Of a blob that holds nothing."""
        import obstore

        with suppress(FileNotFoundError), self._errors(key):
            return obstore.get(self.client, key).attributes.get(_FOLDER) == "true"
        return False


SCHEME = "abfss"

_AUTHORITY = re.compile(
    r"(?P<container>(?=.{3,63}@)[a-z0-9]+(-[a-z0-9]+)*)"
    r"@(?P<account>[a-z0-9]{3,24})\.dfs\.core\.windows\.net"
)

#: Where Spark finds the account's key: it hides the values of what is called a secret, and of
#: Hadoop's own name for it does not know that it is one.
_SECRET = "eo.azure.secret"  # noqa: S105 - no secret

#: How often Hadoop asks again, after a wait that grows to 25 seconds: half an hour, by itself.
_RETRIES = 15


def why_not(name: str) -> str | None:
    """Why it is no container of an account."""
    if _AUTHORITY.fullmatch(name):
        return None
    return "names no container: abfss://container@account.dfs.core.windows.net/path"


def account_of(authority: str) -> str:
    """The account's name."""
    return _parts(authority)[1]


def bucket(
    authority: str,
    *,
    endpoint: str | None,
    hierarchical: bool | None,
    secrets: Mapping[str, str],
    waits: float,
) -> Bucket:
    """How it is reached.

    Args:
        authority: container and account.
        endpoint: what stands for Azure; the account's name follows in its paths.
        hierarchical: whether the account has a hierarchical namespace; ``None``: Spark asks it.
        secrets: ``account_key`` or ``sas_token``, if either is said.
        waits: how many seconds a request may go without an answer.
    """
    container, account = _parts(authority)
    base = f"{endpoint}/{account}" if endpoint else f"https://{account}.blob.core.windows.net"
    plain = base.startswith("http://")
    gives_up = RETRIED_FOR * waits
    client: dict[str, Any] = {
        "account_name": account,
        "endpoint": base,
        **({"credential_provider": partial(_credential, secrets)} if secrets else {}),
        "client_options": {"allow_http": plain, "timeout": timedelta(seconds=waits)},
        "retry_config": {"retry_timeout": timedelta(seconds=gives_up)},
    }
    return Bucket(
        scheme=SCHEME,
        name=authority,
        connect=partial(_connect, container, client, f"{SCHEME}://{authority}"),
        delta={
            "azure_storage_account_name": account,
            "azure_storage_endpoint": base,
            **{f"azure_storage_{part}": value for part, value in secrets.items()},
            "azure_allow_http": str(plain).lower(),
            "timeout": f"{round(1000 * waits)}ms",
            "retry_timeout": f"{round(1000 * gives_up)}ms",
        },
        hadoop=_hadoop(account, endpoint, hierarchical, secrets, waits),
        iceberg={},
        # its name for the same without TLS
        hadoop_scheme="abfs" if plain else SCHEME,
    )


def _parts(authority: str) -> tuple[str, str]:
    """Container and account."""
    found = _AUTHORITY.fullmatch(authority)
    assert found is not None, "why_not was asked"
    return found["container"], found["account"]


def _connect(container: str, client: Mapping[str, Any], root: str) -> AzureBlobs:
    with needs("azure"):
        from obstore.store import AzureStore

    return AzureBlobs(AzureStore(container, **client), root)


def _credential(secrets: Mapping[str, str]) -> dict[str, Any]:
    """As obstore takes it, whatever the environment says besides."""
    names = {"account_key": "access_key", "sas_token": "sas_token"}
    return {"expires_at": None, **{names[part]: value for part, value in secrets.items()}}


def _hadoop(
    account: str,
    endpoint: str | None,
    hierarchical: bool | None,
    secrets: Mapping[str, str],
    waits: float,
) -> dict[str, str]:
    host = f"{account}.dfs.core.windows.net"
    found = {
        "fs.azure.http.connection.timeout": str(round(1000 * waits)),
        "fs.azure.http.read.timeout": str(round(1000 * waits)),
        "fs.azure.io.retry.max.retries": str(_RETRIES),
        **COMMITTER,
    }
    if endpoint:
        url = urlsplit(endpoint)
        port = url.port or (443 if url.scheme == "https" else 80)
        found["fs.azure.abfs.endpoint"] = f"{url.hostname}:{port}"
        found["fs.azure.always.use.https"] = str(url.scheme == "https").lower()
    if hierarchical is not None:
        found["fs.azure.account.hns.enabled"] = str(hierarchical).lower()
    if hierarchical is False:
        found["fs.azure.fns.account.service.type"] = "BLOB"
    if "account_key" in secrets:
        found[f"fs.azure.account.auth.type.{host}"] = "SharedKey"
        found[f"fs.azure.account.key.{host}"] = f"${{{_SECRET}}}"
        found[_SECRET] = secrets["account_key"]
    elif "sas_token" in secrets:
        found[f"fs.azure.account.auth.type.{host}"] = "SAS"
        found[f"fs.azure.sas.fixed.token.{host}"] = secrets["sas_token"]
    return found
