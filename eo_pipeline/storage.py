"""How buckets are reached: said once, and told to everybody who must get there in his own words.

obstore, delta-rs, PyIceberg and Spark each have names for the same five things. What is not said is
found in the environment (``AWS_ENDPOINT_URL``, ``AWS_REGION``); credentials that are not said each
of them finds itself where programs on that machine find them: environment, profile, the instance's
role.
"""

from __future__ import annotations

import os
import re
from datetime import timedelta
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
from eo_pipeline.settings import Settings

#: Of a bucket's URI. Others are refused: no test of ours has seen them.
SCHEME = "s3"
_OF_HADOOP = ("s3a", "s3n")

#: What a key of ours is made of: nothing that is written otherwise in a URI, that Spark takes for a
#: pattern, or that a table's log writes in two ways.
_KEY = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.=-]*(/[A-Za-z0-9_][A-Za-z0-9_.=-]*)*")
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")

_DEFAULT_REGION = "us-east-1"

#: Of ``request_timeout``: how long requests are tried again before the store is said not to answer.
_RETRIED_FOR = 6


class Storage(Settings):
    """An S3 store, where tables or staging are in buckets (``s3://bucket/path``).

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
        """The folder, or the place in a bucket, that ``text`` names: a path, ``file://`` or
        ``s3://``.

        Raises:
            ValueError: it names neither, or a place that cannot be used.
        """
        if isinstance(text, Path):
            return text.absolute()
        if (folder := local_folder(text)) is not None:
            return folder
        url = urlsplit(text)
        if url.scheme != SCHEME:
            raise ValueError(_why_not(text, url.scheme))
        key = text.partition("://")[2].partition("/")[2].rstrip("/")
        if not _BUCKET.fullmatch(url.netloc):
            raise ValueError("names no bucket: 3 to 63 lower-case letters, digits, . and -")
        if not _KEY.fullmatch(key):
            raise ValueError(
                "a place in a bucket has a name of letters and digits (of ASCII), _ . = - and /"
            )
        return BucketPath(_bucket(self, url.netloc, *self._found()), key)

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
        return f"{scheme}:// is what Spark calls it: write {SCHEME}://bucket/path"
    hint = "" if "://" in text else f"; if a folder is meant, write ./{text}"
    return f"{scheme}:// is not supported: a folder or {SCHEME}://bucket/path is{hint}"


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


@lru_cache(maxsize=64)
def _bucket(storage: Storage, name: str, endpoint: str | None, region: str) -> Bucket:
    """One for all who ask: it holds connections."""
    path_style = storage.path_style if storage.path_style is not None else endpoint is not None
    plain = endpoint is not None and endpoint.startswith("http://")
    secrets = {
        part: value.get_secret_value()
        for part in ("access_key_id", "secret_access_key", "session_token")
        if (value := getattr(storage, part)) is not None
    }
    told = {"region": region, **({"endpoint": endpoint} if endpoint else {}), **secrets}
    waits, gives_up = storage.request_timeout, _RETRIED_FOR * storage.request_timeout
    store: dict[str, Any] = {**told, "virtual_hosted_style_request": not path_style}
    hadoop = {
        "fs.s3a.endpoint.region": region,
        "fs.s3a.path.style.access": str(path_style).lower(),
        "fs.s3a.connection.ssl.enabled": str(not plain).lower(),
        # of its SDK, each of which Hadoop itself repeats seven times
        "fs.s3a.attempts.maximum": "2",
        "fs.s3a.connection.timeout": f"{round(1000 * waits)}ms",
        "fs.s3a.connection.establish.timeout": f"{round(1000 * waits)}ms",
        # files get their names from the driver, when all tasks have ended well. By version 2 tasks
        # give them: what one names that dies meanwhile stays, and one that was given up and goes on
        # removes what has the names it wants. And nothing else is put there
        "mapreduce.fileoutputcommitter.algorithm.version": "1",
        "mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
    }
    if endpoint:
        hadoop["fs.s3a.endpoint"] = endpoint
    names = {
        "access_key_id": "fs.s3a.access.key",
        "secret_access_key": "fs.s3a.secret.key",
        "session_token": "fs.s3a.session.token",
    }
    hadoop |= {names[part]: value for part, value in secrets.items()}
    if secrets:
        kind = "Temporary" if "session_token" in secrets else "Simple"
        hadoop["fs.s3a.aws.credentials.provider"] = (
            f"org.apache.hadoop.fs.s3a.{kind}AWSCredentialsProvider"
        )
    return Bucket(
        scheme=SCHEME,
        name=name,
        obstore={
            **store,
            "client_options": {"allow_http": plain, "timeout": timedelta(seconds=waits)},
            "retry_config": {"retry_timeout": timedelta(seconds=gives_up)},
        },
        delta={
            **{f"aws_{part}": value for part, value in told.items()},
            "aws_virtual_hosted_style_request": str(not path_style).lower(),
            "aws_allow_http": str(plain).lower(),
            "timeout": f"{round(1000 * waits)}ms",
            "retry_timeout": f"{round(1000 * gives_up)}ms",
        },
        hadoop=hadoop,
        iceberg={
            **{f"s3.{part.replace('_', '-')}": value for part, value in told.items()},
            "s3.force-virtual-addressing": str(not path_style).lower(),
            "s3.connect-timeout": str(waits),
            "s3.request-timeout": str(waits),
        },
    )
