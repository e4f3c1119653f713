"""Names of a package whose modules are imported when a name is asked for (PEP 562), and modules."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Mapping
from importlib import import_module


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
