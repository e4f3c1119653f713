"""Where partitions start, as numbers: what was found for each, within what it holds."""

from __future__ import annotations

from collections.abc import Mapping

from eo_pipeline.errors import ConfigError
from eo_pipeline.ledger.offsets import Offsets, TopicPartition
from eo_pipeline.source.discovery import Cluster


def explicit(
    wanted: Mapping[str, Mapping[int, int]], cluster: Cluster
) -> dict[TopicPartition, int]:
    """The offsets that the configuration names.

    Raises:
        ConfigError: one lies outside what its partition holds.
    """
    found = {
        TopicPartition(topic, partition): offset
        for topic, partitions in wanted.items()
        for partition, offset in partitions.items()
    }
    for tp, offset in found.items():
        bounds = cluster.bounds.get(tp)
        if bounds is None:
            raise ConfigError(f"source.start.offsets: {tp} does not exist or is not subscribed")
        if not bounds.beginning <= offset <= bounds.end:
            raise ConfigError(
                f"source.start.offsets: {tp} holds [{bounds.beginning}, {bounds.end}), "
                f"{offset} lies outside"
            )
    return found


def completed(
    cluster: Cluster, found: Offsets, or_else: str, what: str
) -> dict[TopicPartition, int]:
    """``found`` for the partitions that have it, the others by ``or_else``.

    Raises:
        ConfigError: one has none, and ``or_else`` is ``error``; ``what`` is what it lacks.
    """
    missing = sorted(cluster.bounds.keys() - found.keys())
    if missing and or_else == "error":
        raise ConfigError(
            f"source.start: {missing[0]} has no {what} ({len(missing)} of {len(cluster.bounds)} "
            "partitions have none). Set or_else to say where such a partition starts."
        )
    ends = or_else == "latest"
    return {
        tp: found.get(tp, bounds.end if ends else bounds.beginning)
        for tp, bounds in cluster.bounds.items()
    }
