"""Rows that are handed on as JSON objects, which Spark's tasks can make without a plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple


class Documents(NamedTuple):
    """What a row becomes.

    Args:
        column: the staged column with the object.
        fields: the row's columns that the object is made of, in order.
        beside: the other staged columns by name, each with the row's column that it is.
        as_bytes: the one of these that has the bytes of that column's text, or of its digits.
    """

    column: str
    fields: Sequence[str]
    beside: Mapping[str, str]
    as_bytes: str | None
