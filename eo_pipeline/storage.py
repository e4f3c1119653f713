"""How stores are reached: said once, and told to everybody who must get there in his own words.

What is not said is found in the environment (``AWS_ENDPOINT_URL``, ``AWS_REGION``,
``HADOOP_CONF_DIR``); credentials that are not said each library finds itself where programs on that
machine find them: environment, profile, the instance's role.
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

from eo_pipeline.bucket import Bucket, BucketPath
from eo_pipeline.places import Place, local_folder
from eo_pipeline.reached import hdfs, s3
from eo_pipeline.settings import Settings

#: What is a name for the same to Hadoop.
_OF_HADOOP = ("s3a", "s3n")

#: What a key of ours is made of: nothing that is written otherwise in a URI, that Spark takes for a
#: pattern, or that a table's log writes in two ways.
_KEY = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.=-]*(/[A-Za-z0-9_][A-Za-z0-9_.=-]*)*")

_DEFAULT_REGION = "us-east-1"

#: Fields of :class:`Storage` that say something to one kind of store alone.
_FIELDS_OF = {
    s3.SCHEME: (
        *("endpoint", "region", "path_style"),
        *("access_key_id", "secret_access_key", "session_token"),
    ),
    hdfs.SCHEME: (),
}
_SECRETS = ("access_key_id", "secret_access_key", "session_token")


class Storage(Settings):
    """Where tables or staging are in a store: S3's buckets (``s3://bucket/path``), or HDFS
    (``hdfs://host:port/path``), for which all but the last field must be left out.

    Args:
        endpoint: its address, if it is not Amazon's; else ``AWS_ENDPOINT_URL`` says it.
        region: else ``AWS_REGION`` says it, or it is us-east-1.
        access_key_id: with ``secret_access_key``. Without: whatever credentials the environment,
            the profile or the machine's role give, to this process and to Spark. Never shown.
        secret_access_key: never shown.
        session_token: of temporary credentials. Never shown.
        path_style: the bucket's name is in the path and not in the host's name; by default where
            there is an endpoint.
        request_timeout: how many seconds a request may go without an answer. It is then tried
            again, for six times as long in all; Spark's tasks do so for sixteen times as long.
    """

    endpoint: str | None = Field(default=None, pattern=r"^https?://[^/@]+$")
    region: str | None = None
    access_key_id: SecretStr | None = None
    secret_access_key: SecretStr | None = None
    session_token: SecretStr | None = None
    path_style: bool | None = None
    request_timeout: float = Field(default=30.0, gt=0, allow_inf_nan=False)

    @model_validator(mode="after")
    def _has_both_halves_of_a_key(self) -> Self:
        if (self.access_key_id is None) != (self.secret_access_key is None):
            raise ValueError("access_key_id and secret_access_key are only of use together")
        if self.session_token is not None and self.access_key_id is None:
            raise ValueError("session_token belongs to an access_key_id")
        return self

    def place(self, text: str | Path) -> Place:
        """The folder, or the place in a store, that ``text`` names: a path, ``file://``, ``s3://``
        or ``hdfs://``.

        Raises:
            ValueError: it names neither, or a place that cannot be used.
        """
        if isinstance(text, Path):
            return text.absolute()
        if (folder := local_folder(text)) is not None:
            return folder
        url = urlsplit(text)
        if url.scheme not in _FIELDS_OF:
            raise ValueError(_why_not(text, url.scheme))
        if problem := (hdfs if url.scheme == hdfs.SCHEME else s3).why_not(url.netloc):
            raise ValueError(problem + _hint(text))
        key = text.partition("://")[2].partition("/")[2].rstrip("/")
        if not _KEY.fullmatch(key):
            what = "in a bucket" if url.scheme == s3.SCHEME else "in HDFS"
            raise ValueError(
                f"a place {what} has a name of letters and digits (of ASCII), _ . = - and /"
            )
        self._refuse_fields_of_others(url.scheme)
        if url.scheme == hdfs.SCHEME:
            return BucketPath(_hdfs(url.netloc, self.request_timeout), key)
        return BucketPath(_s3(self, url.netloc, *self._found()), key)

    def _refuse_fields_of_others(self, scheme: str) -> None:
        others = {name for fields in _FIELDS_OF.values() for name in fields} - {*_FIELDS_OF[scheme]}
        if said := [name for name in sorted(others) if getattr(self, name) is not None]:
            named = ", ".join(f"storage.{name}" for name in said)
            raise ValueError(f"{scheme}:// knows no {named}: another kind of store does")

    def _found(self) -> tuple[str | None, str]:
        """Endpoint and region, as they are said or else found."""
        environment = os.environ
        endpoint = self.endpoint or environment.get(
            "AWS_ENDPOINT_URL_S3", environment.get("AWS_ENDPOINT_URL")
        )
        named = environment.get("AWS_REGION", environment.get("AWS_DEFAULT_REGION"))
        return endpoint or None, self.region or named or _DEFAULT_REGION


def _why_not(text: str, scheme: str) -> str:
    """What is wrong with ``text``, which names neither a folder of this machine nor a bucket."""
    if not scheme:
        return "is empty"
    if scheme == "file":
        return "file:// names a folder of another machine"
    if scheme in _OF_HADOOP:
        return f"{scheme}:// is what Spark calls it: write s3://bucket/path"
    return (
        f"{scheme}:// is not supported: a folder, s3://bucket/path or hdfs://host:port/path is"
        f"{_hint(text)}"
    )


def _hint(text: str) -> str:
    return "" if "://" in text else f"; if a folder is meant, write ./{text}"


def _placed(value: Any, info: ValidationInfo) -> Place:
    """A folder is the path that was given; a bucket is reached by the field ``storage``."""
    if isinstance(value, Path | BucketPath):
        return value
    if not isinstance(value, str):
        raise ValueError("is not a text")
    if value.strip() and not urlsplit(value).scheme:
        return Path(value)
    storage: Storage = info.data.get("storage") or Storage()
    return storage.place(value)


#: A field for a place, below a field ``storage`` of the same model.
PlaceField = Annotated[
    Place, PlainValidator(_placed), WithJsonSchema({"type": "string", "format": "path"})
]


def checked_place(text: str) -> str:
    """``text``, for a pydantic validator, if :meth:`Storage.place` takes it.

    Raises:
        ValueError: it does not.
    """
    Storage().place(text)
    return text


def checked_table(text: str) -> str:
    """The same for a table of Iceberg's, which is in a bucket or in a folder.

    Raises:
        ValueError: it is not.
    """
    if urlsplit(text).scheme == hdfs.SCHEME:
        raise ValueError(
            "hdfs:// is not supported here: PyIceberg reaches it by libhdfs alone, Hadoop's own "
            "library with a Java in this process. type: delta takes it"
        )
    return checked_place(text)


@lru_cache(maxsize=64)
def _s3(storage: Storage, name: str, endpoint: str | None, region: str) -> Bucket:
    """One for all who ask: it holds connections."""
    path_style = storage.path_style if storage.path_style is not None else endpoint is not None
    secrets = {
        part: value.get_secret_value()
        for part in _SECRETS
        if (value := getattr(storage, part)) is not None
    }
    return s3.bucket(
        name,
        endpoint=endpoint,
        region=region,
        secrets=secrets,
        path_style=path_style,
        waits=storage.request_timeout,
    )


@lru_cache(maxsize=64)
def _hdfs(authority: str, waits: float) -> Bucket:
    """The same."""
    return hdfs.bucket(authority, waits=waits)
