"""Storage settings, translated for each client (obstore, delta-rs, PyIceberg, Hadoop).

Missing settings come from the environment (``AWS_ENDPOINT_URL``, ``AWS_REGION``,
``STORAGE_EMULATOR_HOST``, ``HADOOP_CONF_DIR``). Each library resolves missing
credentials in its usual way: environment, profile, the instance's role.
"""

from __future__ import annotations

import os
import re
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Self
from urllib.parse import urlsplit

from pydantic import (
    Field,
    PlainValidator,
    SecretStr,
    ValidationInfo,
    WithJsonSchema,
    model_validator,
)

from eo_pipeline.config.settings import Settings
from eo_pipeline.storage import azure, gcs, hdfs, object_store
from eo_pipeline.storage.paths import Bucket, Place, RemotePath, local_folder

#: Hadoop's names of S3's scheme.
_HADOOP_SCHEMES = ("s3a", "s3n")

#: Characters of keys: none that a URI escapes, that Spark takes for a pattern, or that a table's
#: log may write in two ways.
_KEY = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.=-]*(/[A-Za-z0-9_][A-Za-z0-9_.=-]*)*")

_DEFAULT_REGION = "us-east-1"

#: Fields of :class:`Storage` by the kind of store that they are for.
_FIELDS_OF = {
    object_store.SCHEME: (
        *("endpoint", "region", "path_style"),
        *("access_key_id", "secret_access_key", "session_token"),
    ),
    hdfs.SCHEME: (),
    azure.SCHEME: ("endpoint", "account_key", "sas_token", "hierarchical_namespace"),
    gcs.SCHEME: ("endpoint", "service_account"),
}
_KINDS = {
    object_store.SCHEME: object_store,
    hdfs.SCHEME: hdfs,
    azure.SCHEME: azure,
    gcs.SCHEME: gcs,
}
#: Containers of keys, for messages.
_INSIDE = {
    object_store.SCHEME: "a bucket",
    hdfs.SCHEME: "HDFS",
    azure.SCHEME: "a container",
    gcs.SCHEME: "a bucket",
}
_SECRETS = ("access_key_id", "secret_access_key", "session_token")

#: Fields with the secret of an Azure account, and the variables used without them.
_AZURE_SECRETS = {
    "account_key": ("AZURE_STORAGE_KEY", "AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_ACCESS_KEY"),
    "sas_token": ("AZURE_STORAGE_SAS_TOKEN",),
}
_AZURE_ACCOUNT = ("AZURE_STORAGE_ACCOUNT", "AZURE_STORAGE_ACCOUNT_NAME")


class Storage(Settings):
    """Connection settings of remote tables and staging: S3 (``s3://bucket/path``), Google Cloud
    Storage (``gs://bucket/path``), Azure Storage
    (``abfss://container@account.dfs.core.windows.net/path``), or HDFS (``hdfs://host:port/path``),
    which allows only the last field.

    Args:
        endpoint: the store's address, if not Amazon's, Google's or Azure's; else
            ``AWS_ENDPOINT_URL`` or ``STORAGE_EMULATOR_HOST``. For an Azure emulator such as
            Azurite: without the account's name, which becomes the first part of paths.
        region: else ``AWS_REGION``, or us-east-1.
        access_key_id: with ``secret_access_key``. Default: the credentials of the environment, the
            profile or the machine's role, for this process and for Spark. Never shown.
        secret_access_key: never shown.
        session_token: of temporary credentials. Never shown.
        path_style: put the bucket's name in the path, not in the host's name; default with an
            endpoint.
        account_key: of the Azure account. Default without ``sas_token``: ``AZURE_STORAGE_KEY`` or
            ``AZURE_STORAGE_SAS_TOKEN``; or the identity of the environment or the machine for this
            process, and Spark's own settings for Spark. Never shown.
        sas_token: of the account or the container, instead. Never shown.
        hierarchical_namespace: whether the Azure account has one. By default Spark requests it
            from the account; ``false`` makes Spark use the Blob endpoint.
        service_account: of Google: a key in JSON, or the path of a file with one. Default:
            ``GOOGLE_APPLICATION_CREDENTIALS`` or the machine's role, for this process and for
            Spark. Never shown.
        request_timeout: seconds until an unanswered request is retried; retries go on for six times
            as long in total, in Spark's tasks for sixteen times.
    """

    endpoint: str | None = Field(default=None, pattern=r"^https?://[^/@]+$")
    region: str | None = None
    access_key_id: SecretStr | None = None
    secret_access_key: SecretStr | None = None
    session_token: SecretStr | None = None
    path_style: bool | None = None
    account_key: SecretStr | None = None
    sas_token: SecretStr | None = None
    hierarchical_namespace: bool | None = None
    service_account: SecretStr | None = None
    request_timeout: float = Field(default=30.0, gt=0, allow_inf_nan=False)

    @model_validator(mode="after")
    def _has_both_halves_of_a_key(self) -> Self:
        if (self.access_key_id is None) != (self.secret_access_key is None):
            raise ValueError("set both access_key_id and secret_access_key, or neither")
        if self.session_token is not None and self.access_key_id is None:
            raise ValueError("session_token belongs to an access_key_id")
        if self.account_key is not None and self.sas_token is not None:
            raise ValueError("set only one of account_key and sas_token")
        return self

    def place(self, text: str | Path) -> Place:
        """Return the local or remote path that ``text`` names: a path, ``file://``, ``s3://``,
        ``gs://``, ``abfss://`` or ``hdfs://``.

        Raises:
            ValueError: it names neither, or an unusable one.
        """
        if isinstance(text, Path):
            return text.absolute()
        if (folder := local_folder(text)) is not None:
            return folder
        url = urlsplit(text)
        if url.scheme not in _FIELDS_OF:
            raise ValueError(_unsupported_reason(text, url.scheme))
        if problem := _KINDS[url.scheme].invalid_name_reason(url.netloc):
            raise ValueError(problem + _hint(text))
        key = text.partition("://")[2].partition("/")[2].rstrip("/")
        if not _KEY.fullmatch(key):
            raise ValueError(
                f"a path in {_INSIDE[url.scheme]} is required, of ASCII letters and digits, "
                "_ . = - and / only"
            )
        self._refuse_foreign_fields(url.scheme)
        if url.scheme == hdfs.SCHEME:
            return RemotePath(_hdfs(url.netloc, self.request_timeout), key)
        if url.scheme == azure.SCHEME:
            return RemotePath(_azure(self, url.netloc, *self._azure_secrets(url.netloc)), key)
        if url.scheme == gcs.SCHEME:
            return RemotePath(_google(self, url.netloc, self._google_endpoint()), key)
        return RemotePath(_s3(self, url.netloc, *self._endpoint_and_region()), key)

    def _refuse_foreign_fields(self, scheme: str) -> None:
        others = {name for fields in _FIELDS_OF.values() for name in fields} - {*_FIELDS_OF[scheme]}
        if set_fields := [name for name in sorted(others) if getattr(self, name) is not None]:
            names = ", ".join(f"storage.{name}" for name in set_fields)
            raise ValueError(f"{scheme}:// does not use {names}; remove these fields")

    def _endpoint_and_region(self) -> tuple[str | None, str]:
        """Return endpoint and region, from the fields or else the environment."""
        environment = os.environ
        endpoint = self.endpoint or environment.get(
            "AWS_ENDPOINT_URL_S3", environment.get("AWS_ENDPOINT_URL")
        )
        region = environment.get("AWS_REGION", environment.get("AWS_DEFAULT_REGION"))
        return endpoint or None, self.region or region or _DEFAULT_REGION

    def _azure_secrets(self, authority: str) -> tuple[tuple[str, str], ...]:
        """Return the secret, from a field, or else a variable that is not for another account."""
        fields = [(part, getattr(self, part)) for part in _AZURE_SECRETS]
        if values := [
            (part, value.get_secret_value()) for part, value in fields if value is not None
        ]:
            return tuple(values)
        environment = os.environ
        accounts = {environment[name] for name in _AZURE_ACCOUNT if environment.get(name)}
        if accounts - {azure.account_of(authority)}:
            return ()
        variables = [(part, name) for part, names in _AZURE_SECRETS.items() for name in names]
        values = [(part, environment[name]) for part, name in variables if environment.get(name)]
        return tuple(values[:1])

    def _google_endpoint(self) -> str | None:
        """Return the endpoint, from the field or else the environment, with a scheme."""
        endpoint = self.endpoint or os.environ.get("STORAGE_EMULATOR_HOST")
        return endpoint if not endpoint or "://" in endpoint else f"http://{endpoint}"


def _unsupported_reason(text: str, scheme: str) -> str:
    """Return the error for ``text``, which names neither a local folder nor a bucket."""
    if not scheme:
        return "is empty"
    if scheme == "file":
        return "file:// names a folder of another machine"
    if scheme in _HADOOP_SCHEMES:
        return f"{scheme}:// is what Spark calls it: write s3://bucket/path"
    return (
        f"{scheme}:// is not supported; use a folder, s3://bucket/path, gs://bucket/path, "
        "abfss://container@account.dfs.core.windows.net/path or hdfs://host:port/path"
        f"{_hint(text)}"
    )


def _hint(text: str) -> str:
    return "" if "://" in text else f"; if a folder is meant, write ./{text}"


def _placed(value: Any, info: ValidationInfo) -> Place:
    """Validate a path; a remote one uses the connection settings of the field ``storage``."""
    if isinstance(value, Path | RemotePath):
        return value
    if not isinstance(value, str):
        raise ValueError("is not a text")
    if value.strip() and not urlsplit(value).scheme:
        return Path(value)
    storage: Storage = info.data.get("storage") or Storage()
    return storage.place(value)


#: Type of a field for a local or remote path, below a field ``storage`` of the same model.
PlaceField = Annotated[
    Place, PlainValidator(_placed), WithJsonSchema({"type": "string", "format": "path"})
]


def checked_place(text: str) -> str:
    """Return ``text`` if :meth:`Storage.place` accepts it; a pydantic validator.

    Raises:
        ValueError: it does not.
    """
    Storage().place(text)
    return text


def checked_table(text: str) -> str:
    """Return ``text`` if it names an S3 bucket or a local folder, for an Iceberg table.

    Raises:
        ValueError: it does not.
    """
    if urlsplit(text).scheme == hdfs.SCHEME:
        raise ValueError(
            "hdfs:// is not supported here: PyIceberg reaches it by libhdfs alone, Hadoop's own "
            "library, which needs a JVM in this process. Use type: delta."
        )
    if urlsplit(text).scheme == azure.SCHEME:
        raise ValueError(
            "abfss:// is not supported here: PyIceberg's file access, by Arrow, takes "
            "container@account for the name of a container. Use type: delta."
        )
    if urlsplit(text).scheme == gcs.SCHEME:
        raise ValueError(
            "gs:// is not supported here: PyIceberg takes no key of a service account there, but a "
            "token, which expires during a pipeline's life. Use type: delta."
        )
    return checked_place(text)


@lru_cache(maxsize=64)
def _s3(storage: Storage, name: str, endpoint: str | None, region: str) -> Bucket:
    """Return the bucket, one for equal settings, to share its connections."""
    path_style = storage.path_style if storage.path_style is not None else endpoint is not None
    secrets = {
        part: value.get_secret_value()
        for part in _SECRETS
        if (value := getattr(storage, part)) is not None
    }
    return object_store.bucket(
        name,
        endpoint=endpoint,
        region=region,
        secrets=secrets,
        path_style=path_style,
        timeout_s=storage.request_timeout,
    )


@lru_cache(maxsize=64)
def _hdfs(authority: str, timeout_s: float) -> Bucket:
    """Return the HDFS, one for equal settings."""
    return hdfs.bucket(authority, timeout_s=timeout_s)


@lru_cache(maxsize=64)
def _azure(storage: Storage, authority: str, *secrets: tuple[str, str]) -> Bucket:
    """Return the container, one for equal settings."""
    return azure.bucket(
        authority,
        endpoint=storage.endpoint,
        hierarchical=storage.hierarchical_namespace,
        secrets={part: value.removeprefix("?") for part, value in secrets},
        timeout_s=storage.request_timeout,
    )


@lru_cache(maxsize=64)
def _google(storage: Storage, name: str, endpoint: str | None) -> Bucket:
    """Return the bucket, one for equal settings.

    Raises:
        ValueError: ``service_account`` is no key.
    """
    key = storage.service_account
    try:
        account = gcs.account(key.get_secret_value()) if key is not None else None
    except ValueError as error:
        raise ValueError(f"storage.service_account {error}") from None
    return gcs.bucket(
        name, endpoint=endpoint, service_account=account, timeout_s=storage.request_timeout
    )
