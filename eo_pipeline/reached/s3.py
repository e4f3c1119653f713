"""A bucket of an S3 store. obstore, delta-rs, PyIceberg and Spark each have names for the same."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import timedelta
from functools import partial
from typing import Any

from eo_pipeline.bucket import Bucket
from eo_pipeline.reached.hadoop import COMMITTER, RETRIED_FOR
from eo_pipeline.reached.packages import needs
from eo_pipeline.stores.objects import ObjectStore

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
