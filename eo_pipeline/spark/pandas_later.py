"""pyspark's client of Spark Connect without pandas, which it imports and hardly uses: a third of a
second in each process, and no pipeline needs it. It is imported when something of it is used.
"""

from __future__ import annotations

import importlib.metadata
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType
from typing import Any

from eo_pipeline.lifetime import process_ends

_NAME, _TYPES = "pandas", "pandas.api.types"


class _FrameType(type):
    """Of what stands for ``pandas.DataFrame``: who has no pandas has no such frame."""

    def __instancecheck__(cls, instance: object) -> bool:
        pandas = sys.modules.get(_NAME)
        return pandas is not None and isinstance(instance, pandas.DataFrame)

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        return import_module(_NAME).DataFrame(*args, **kwargs)

    def __getattr__(cls, name: str) -> Any:
        return getattr(import_module(_NAME).DataFrame, name)


class _Frame(metaclass=_FrameType):
    """Stands for ``pandas.DataFrame``."""


class _Pandas(ModuleType):
    """Stands for pandas in the modules that were imported meanwhile."""

    DataFrame = _Frame

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(import_module(_NAME), name)


class _Types(ModuleType):
    """Stands for its functions that tell types apart."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if not name.startswith("is_"):
            raise AttributeError(name)
        return lambda *args: getattr(import_module(_TYPES), name)(*args)


@contextmanager
def without_pandas() -> Iterator[None]:
    """Imports in the block get what stands for pandas, if that was not imported before; where the
    process ends with its work, so that no other thread is at its own imports meanwhile.
    """
    if _NAME in sys.modules or not process_ends():
        yield
        return
    stand_in = _Pandas(_NAME)
    stand_in.__version__ = importlib.metadata.version(_NAME)  # type: ignore[attr-defined]
    standing = {_NAME: stand_in, "pandas.api": ModuleType("pandas.api"), _TYPES: _Types(_TYPES)}
    sys.modules.update(standing)
    try:
        yield
    finally:
        for name, each in standing.items():
            if sys.modules.get(name) is each:
                del sys.modules[name]
