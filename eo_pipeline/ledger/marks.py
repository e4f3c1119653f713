"""Marks: they distinguish two logs at the same offset of the ledger. Pure values, no I/O.

An offset alone is not enough: a log that was truncated and has grown again holds other records
below it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, NamedTuple

from pydantic import PlainSerializer, PlainValidator

from eo_pipeline.ledger.offsets import TopicPartition


class Mark(NamedTuple):
    """One partition's log below the offset that the ledger stands at.

    ``epoch``: the leader's epoch (KIP-320) when the log was looked at; None: the broker gave none.
    ``offset`` and ``digest``: of a record at the end of what was read; None: there was none to
    see. ``since``: what was read below that offset belongs to a log that was truncated, which
    somebody accepted.
    """

    epoch: int | None = None
    offset: int | None = None
    digest: str | None = None
    since: int = 0


Marks = Mapping[TopicPartition, Mark]

_UNSAID = Mark()


def marks_to_json(marks: Marks) -> dict[str, dict[str, list[Any]]]:
    """``{"t": {"0": [epoch, offset, digest, since]}}``, sorted; what is not known at the end of a
    list is left out.
    """
    nested: dict[str, dict[str, list[Any]]] = {}
    for (topic, partition), mark in sorted(marks.items()):
        length = max((n + 1 for n in range(4) if mark[n] != _UNSAID[n]), default=0)
        nested.setdefault(topic, {})[str(partition)] = list(mark[:length])
    return nested


def marks_from_json(nested: Mapping[str, Mapping[str, list[Any]]]) -> dict[TopicPartition, Mark]:
    """The inverse of :func:`marks_to_json`; what a later release adds is ignored."""
    return {
        TopicPartition(topic, int(partition)): Mark(*values[:4])
        for topic, partitions in nested.items()
        for partition, values in partitions.items()
    }


#: How a stored value holds them.
StoredMarks = Annotated[Marks, PlainValidator(marks_from_json), PlainSerializer(marks_to_json)]
