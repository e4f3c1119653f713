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

#: Metadata of a folder's marker blob, by Hadoop and by Azure's own folders.
_FOLDER = "hdi_isfolder"


@dataclass(frozen=True)
class AzureBlobs(ObjectStore):
    """Blobs of a container. Spark's file system creates an empty marker blob for each folder. In an
    account with a hierarchical namespace the folder is real: it remains when it is emptied, is
    listed only as a common prefix, and is deleted like a blob.
    """

    def head(self, key: str) -> Head | None:
        head = super().head(key)
        return None if head is not None and not head.size and self._is_folder(key) else head

    def names(self, key: str) -> Names:
        """List the children; markers of folders are not files."""
        import obstore

        with self._errors(key):
            listing = obstore.list_with_delimiter(self.client, key)
        folders = {*listing["common_prefixes"]}
        files = [
            item["path"]
            for item in listing["objects"]
            if item["size"] or not (item["path"] in folders or self._is_folder(item["path"]))
        ]
        return Names(
            [PurePosixPath(path).name for path in sorted(folders)],
            [PurePosixPath(path).name for path in files],
        )

    def below(self, key: str) -> list[Listed]:
        listed = super().below(key)
        if all(item.size for item in listed):
            return listed
        folders = {str(parent) for item in listed for parent in PurePosixPath(item.key).parents}
        return [
            item
            for item in listed
            if item.size or not (item.key in folders or self._is_folder(item.key))
        ]

    def delete_tree(self, key: str) -> None:
        self.delete(item.key for item in super().below(key))
        for folder in (*self._folders_below(key), key):
            self._delete_folder(folder)

    def delete_empty_folders(self, key: str) -> None:
        files = {item.key for item in self.below(key)}
        non_empty = {str(parent) for file in files for parent in PurePosixPath(file).parents}
        markers = {item.key for item in super().below(key)} - files
        for folder in sorted({*markers, *self._folders_below(key), key} - non_empty, reverse=True):
            self._delete_folder(folder)

    def _folders_below(self, key: str) -> list[str]:
        """List the common prefixes below ``key``, innermost first."""
        folders = [f"{key}/{name}" for name in super().names(key).folders]
        return [inner for folder in folders for inner in (*self._folders_below(folder), folder)]

    def _delete_folder(self, key: str) -> None:
        """Delete a folder, ignoring errors: an empty one does no harm, a non-empty one remains."""
        with suppress(OSError):
            self._delete([key])

    def _is_folder(self, key: str) -> bool:
        """Return whether an empty blob is the marker of a folder."""
        import obstore

        with suppress(FileNotFoundError), self._errors(key):
            return obstore.get(self.client, key).attributes.get(_FOLDER) == "true"
        return False


SCHEME = "abfss"

_AUTHORITY = re.compile(
    r"(?P<container>(?=.{3,63}@)[a-z0-9]+(-[a-z0-9]+)*)"
    r"@(?P<account>[a-z0-9]{3,24})\.dfs\.core\.windows\.net"
)

#: Setting with the account's key. Spark redacts settings whose name contains "secret", which is not
#: true of Hadoop's own name.
_SECRET = "eo.azure.secret"  # noqa: S105 - no secret

#: Retries of Hadoop, with pauses up to 25 seconds; its default takes half an hour.
_RETRIES = 15


def invalid_name_reason(name: str) -> str | None:
    """Return the reason why ``name`` is no container of an account; None if it is one."""
    if _AUTHORITY.fullmatch(name):
        return None
    return "names no container: abfss://container@account.dfs.core.windows.net/path"


def account_of(authority: str) -> str:
    """Return the account's name."""
    return _parts(authority)[1]


def bucket(
    authority: str,
    *,
    endpoint: str | None,
    hierarchical: bool | None,
    secrets: Mapping[str, str],
    timeout_s: float,
) -> Bucket:
    """Return the bucket with its connection settings.

    Args:
        authority: container and account.
        endpoint: replaces Azure's; the account's name is the first part of its paths.
        hierarchical: whether the account has a hierarchical namespace; ``None``: Spark asks for it.
        secrets: ``account_key`` or ``sas_token``, if configured.
        timeout_s: seconds until a request without an answer fails.
    """
    container, account = _parts(authority)
    base = f"{endpoint}/{account}" if endpoint else f"https://{account}.blob.core.windows.net"
    plaintext = base.startswith("http://")
    retry_s = RETRIED_FOR * timeout_s
    client: dict[str, Any] = {
        "account_name": account,
        "endpoint": base,
        **({"credential_provider": partial(_credential, secrets)} if secrets else {}),
        "client_options": {"allow_http": plaintext, "timeout": timedelta(seconds=timeout_s)},
        "retry_config": {"retry_timeout": timedelta(seconds=retry_s)},
    }
    return Bucket(
        scheme=SCHEME,
        name=authority,
        connect=partial(_connect, container, client, f"{SCHEME}://{authority}"),
        delta={
            "azure_storage_account_name": account,
            "azure_storage_endpoint": base,
            **{f"azure_storage_{part}": value for part, value in secrets.items()},
            "azure_allow_http": str(plaintext).lower(),
            "timeout": f"{round(1000 * timeout_s)}ms",
            "retry_timeout": f"{round(1000 * retry_s)}ms",
        },
        hadoop=_hadoop(account, endpoint, hierarchical, secrets, timeout_s),
        iceberg={},
        # Hadoop's scheme without TLS
        hadoop_scheme="abfs" if plaintext else SCHEME,
    )


def _parts(authority: str) -> tuple[str, str]:
    """Return container and account."""
    match = _AUTHORITY.fullmatch(authority)
    assert match is not None, "checked by invalid_name_reason"
    return match["container"], match["account"]


def _connect(container: str, client: Mapping[str, Any], root: str) -> AzureBlobs:
    with needs("azure"):
        from obstore.store import AzureStore

    return AzureBlobs(AzureStore(container, **client), root)


def _credential(secrets: Mapping[str, str]) -> dict[str, Any]:
    """Return the credential for obstore, which then ignores the environment."""
    names = {"account_key": "access_key", "sas_token": "sas_token"}
    return {"expires_at": None, **{names[part]: value for part, value in secrets.items()}}


def _hadoop(
    account: str,
    endpoint: str | None,
    hierarchical: bool | None,
    secrets: Mapping[str, str],
    timeout_s: float,
) -> dict[str, str]:
    host = f"{account}.dfs.core.windows.net"
    settings = {
        "fs.azure.http.connection.timeout": str(round(1000 * timeout_s)),
        "fs.azure.http.read.timeout": str(round(1000 * timeout_s)),
        "fs.azure.io.retry.max.retries": str(_RETRIES),
        **COMMITTER,
    }
    if endpoint:
        url = urlsplit(endpoint)
        port = url.port or (443 if url.scheme == "https" else 80)
        settings["fs.azure.abfs.endpoint"] = f"{url.hostname}:{port}"
        settings["fs.azure.always.use.https"] = str(url.scheme == "https").lower()
    if hierarchical is not None:
        settings["fs.azure.account.hns.enabled"] = str(hierarchical).lower()
    if hierarchical is False:
        settings["fs.azure.fns.account.service.type"] = "BLOB"
    if "account_key" in secrets:
        settings[f"fs.azure.account.auth.type.{host}"] = "SharedKey"
        settings[f"fs.azure.account.key.{host}"] = f"${{{_SECRET}}}"
        settings[_SECRET] = secrets["account_key"]
    elif "sas_token" in secrets:
        settings[f"fs.azure.account.auth.type.{host}"] = "SAS"
        settings[f"fs.azure.sas.fixed.token.{host}"] = secrets["sas_token"]
    return settings
