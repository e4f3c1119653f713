"""A Kafka cluster that is away: found out once, and not by each sensor that looks at it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, TypeVar

from eo_pipeline.errors import SourceUnavailableError
from eo_pipeline.source.config import KafkaSource

T = TypeVar("T")

#: Seconds for which nobody asks a cluster again that did not answer: about one round of sensors.
TOLD_SECONDS = 10.0

#: Until when (monotonic), and what was said; by how the cluster is reached.
_away: dict[Any, tuple[float, str]] = {}


def asked_once(source: KafkaSource, look: Callable[[], T]) -> T:
    """What ``look`` at the cluster of ``source`` gives; at one that just did not answer nobody
    looks, so that the sensors behind need not wait for it as well.

    Raises:
        SourceUnavailableError: it does not answer, or just did not.
    """
    # with other credentials it is another matter
    cluster = (source.bootstrap_servers, tuple(sorted(source.client.items(), key=lambda i: i[0])))
    until, said = _away.get(cluster, (0.0, ""))
    if time.monotonic() < until:
        raise SourceUnavailableError(said)
    try:
        return look()
    except SourceUnavailableError as error:
        _away[cluster] = (time.monotonic() + TOLD_SECONDS, str(error))
        raise
