"""Where a pipeline that never ran begins to read: configuration only, no I/O."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AwareDatetime, Discriminator, Field, Tag

from eo_pipeline.settings import Settings


class StartAtTimestamp(Settings):
    """The first record whose timestamp is not before ``timestamp``; per partition.

    ``or_else`` says what a partition without such a record does: ``error`` or ``latest``.
    """

    timestamp: AwareDatetime
    or_else: Literal["error", "latest"] = "error"


class StartAtGroup(Settings):
    """The offsets a consumer group committed to Kafka; read once, never again.

    ``or_else`` says where a partition without a committed offset starts.
    """

    group: str = Field(min_length=1)
    or_else: Literal["error", "earliest", "latest"] = "error"


class StartAtOffsets(Settings):
    """Exact offsets, ``{topic: {partition: next offset}}``.

    ``or_else`` says where a partition that is not listed starts.
    """

    offsets: Mapping[str, Mapping[int, Annotated[int, Field(ge=0)]]]
    or_else: Literal["error", "earliest", "latest"] = "error"


def _start_kind(value: Any) -> str:
    """Pick the one start mode a document means, so that an error names its field and no other."""
    for mode in ("timestamp", "group", "offsets"):
        if (mode in value) if isinstance(value, Mapping) else hasattr(value, mode):
            return mode
    return "named"


Start = Annotated[
    Annotated[Literal["earliest", "latest"], Tag("named")]
    | Annotated[StartAtTimestamp, Tag("timestamp")]
    | Annotated[StartAtGroup, Tag("group")]
    | Annotated[StartAtOffsets, Tag("offsets")],
    Discriminator(_start_kind),
]
