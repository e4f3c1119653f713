"""Lazy imports (PEP 562)."""

from __future__ import annotations

import ast
import importlib
import pkgutil
import sys
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any

from eo_pipeline.errors import SetupError, to_install


def exports(package: str) -> tuple[list[str], Callable[[str], object]]:
    """Return ``__all__`` and ``__getattr__`` of ``package``, by the imports of its stub
    ``__init__.pyi``, which type checkers read: a name is imported on first access, and cached.
    """
    stub = pkgutil.get_data(package, "__init__.pyi") or b""
    imports = [node for node in ast.parse(stub).body if isinstance(node, ast.ImportFrom)]
    homes = {alias.name: str(node.module) for node in imports for alias in node.names}

    def find(name: str) -> object:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(homes[name]), name)
        setattr(sys.modules[package], name, value)
        return value

    return [*homes], find


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
