"""Names of a package whose modules are imported when a name is asked for (PEP 562), and modules."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Collection, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

from eo_pipeline.errors import SetupError, to_install


def finder(package: str, homes: Mapping[str, Collection[str]]) -> Callable[[str], object]:
    """The ``__getattr__`` of ``package``: finds a name in the module that ``homes`` names for it,
    and leaves it in the package for the next time.

    Raises:
        AttributeError: when it is called with a name that none of them has.
    """

    def find(name: str) -> object:
        for module, names in homes.items():
            if name in names:
                found = getattr(import_module(module), name)
                setattr(sys.modules[package], name, found)
                return found
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return find


class Module:
    """Stands for the module ``name``, which is imported when something of it is asked for."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, wanted: str) -> object:
        found = getattr(import_module(self._name), wanted)
        setattr(self, wanted, found)
        return found


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
    """The module.

    Raises:
        SetupError: it is not installed.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise SetupError(
            f"A schema registry takes packages that are not installed ({error}): "
            f"{to_install('registry')}"
        ) from error
