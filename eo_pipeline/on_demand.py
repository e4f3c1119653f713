"""Names of a package whose modules are imported when a name is asked for (PEP 562)."""

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
