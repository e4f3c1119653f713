"""HDFS, by the address of a name node, or the name of a service that Hadoop's files explain."""

from __future__ import annotations

import re
from functools import partial

from eo_pipeline.bucket import Bucket
from eo_pipeline.reached.hadoop import COMMITTER, RETRIED_FOR
from eo_pipeline.reached.packages import needs
from eo_pipeline.stores.hdfs import Hdfs

SCHEME = "hdfs"

_AUTHORITY = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?(:\d{1,5})?")


def why_not(name: str) -> str | None:
    """Why it is neither a host and a port nor a service's name."""
    if _AUTHORITY.fullmatch(name):
        return None
    return "names no name node: hdfs://host:port/path, or hdfs://service/path with HADOOP_CONF_DIR"


def bucket(authority: str, *, waits: float) -> Bucket:
    """Who asks, and how a service's name is resolved, each client finds where Hadoop's own do:
    ``HADOOP_USER_NAME``, ``HADOOP_CONF_DIR``. A request may go for ``waits`` seconds.
    """
    return Bucket(
        scheme=SCHEME,
        name=authority,
        connect=partial(_connect, f"{SCHEME}://{authority}", waits),
        delta={},
        hadoop=COMMITTER,
        iceberg={},
        hadoop_scheme=SCHEME,
    )


def _connect(root: str, waits: float) -> Hdfs:
    with needs("hdfs"):
        return Hdfs(root, waits, RETRIED_FOR * waits)
