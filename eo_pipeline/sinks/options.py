"""Fields that sinks of several stores have, each with what it must fit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from pydantic import Field, ValidationInfo, field_validator

from eo_pipeline.settings import Settings
from eo_pipeline.sinks.upsert import UpsertRule


def each_once(columns: tuple[str, ...]) -> tuple[str, ...]:
    """``columns``, or ``ValueError`` if one is named twice."""
    if len(set(columns)) < len(columns):
        raise ValueError("a column is named twice")
    return columns


class UpsertOptions(Settings):
    """Whether every row is kept or replaces the one with its key; named before the class ``Sink``.

    ``mode``: ``append`` or ``upsert``. ``key``: the columns that identify a row. ``sequence_by``:
    those that tell which of two rows with one key is the newer. Both only for ``upsert``.
    """

    mode: Literal["append", "upsert"] = "append"
    key: tuple[str, ...] = Field(default=(), validate_default=True)
    sequence_by: tuple[str, ...] = ()

    @field_validator("key", "sequence_by")
    @classmethod
    def _fits_the_mode(cls, columns: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        mode = info.data.get("mode")
        if mode == "append" and columns:
            raise ValueError("only for mode: upsert")
        if mode == "upsert" and info.field_name == "key" and not columns:
            raise ValueError("mode: upsert needs the columns that identify a row")
        return each_once(columns)

    def manner(self) -> Mapping[str, str]:
        """See ``Sink.manner``."""
        return {"mode": self.mode, "key": ", ".join(self.key)} if self.key else {"mode": self.mode}

    @property
    def upsert_rule(self) -> UpsertRule | None:
        """How rows replace each other, ``None`` for append."""
        return UpsertRule(self.key, self.sequence_by) if self.mode == "upsert" else None

    @property
    def keeps_every_row(self) -> bool:
        return self.mode == "append"
