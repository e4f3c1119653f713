"""Lazy imports (PEP 562)."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Collection, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

from eo_pipeline.errors import SetupError, to_install


def finder(package: str, homes: Mapping[str, Collection[str]]) -> Callable[[str], object]:
    """Return the ``__getattr__`` of ``package``: it imports the module that ``homes`` maps a name
    to, and caches the attribute in the package.

    Raises:
        AttributeError: when it is called with a name that is not in ``homes``.
    """

    def find(name: str) -> object:
        for module, names in homes.items():
            if name in names:
                value = getattr(import_module(module), name)
                setattr(sys.modules[package], name, value)
                return value
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return find


class Module:
    """Proxy of the module ``name``, which is imported on first access to an attribute."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> object:
        value = getattr(import_module(self._name), attribute)
        setattr(self, attribute, value)
        return value


if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.dataset as pads
    import pyarrow.parquet as pq
    import pyarrow.types as pt
else:
    pa, pc = Module("pyarrow"), Module("pyarrow.compute")
    pads = Module("pyarrow.dataset")
    pq, pt = Module("pyarrow.parquet"), Module("pyarrow.types")

__all__ = ["pa", "pads", "pc", "pq", "pt"]


def library(name: str) -> Any:
    """Import an optional module of the registry extra.

    Raises:
        SetupError: the package is not installed.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise SetupError(
            f"A schema registry takes packages that are not installed ({error}): "
            f"{to_install('registry')}"
        ) from error
