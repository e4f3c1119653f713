"""Rows in a store's own form, put into it by Spark's tasks: publishing only hands them on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pyspark.sql import Column


class Packing(NamedTuple):
    """What a row becomes.

    Args:
        form: names the form, and its version; in the manifest, for whoever commits what was staged.
        packed: the bytes, of a struct with all columns of a row. Lazy.
        beside: columns that are staged as they are too, because publishing looks at their values.
        trial: what can be analysed by a Spark that has the function, and by no other.
    """

    form: str
    packed: Callable[[Column], Column]
    beside: Sequence[str]
    trial: Callable[[], Column]
