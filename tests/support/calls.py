"""How often something is asked for, counted on its way."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import pytest


def calls_of(kind: type, names: Iterable[str], monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Calls of the methods ``names`` of a ``kind``, by name, from now on."""
    asked: Counter[str] = Counter()
    for name in names:
        monkeypatch.setattr(kind, name, _counted(getattr(kind, name), name, asked))
    return asked


def _counted(real: Any, name: str, asked: Counter[str]) -> Any:
    def counted(one: object, *arguments: Any, **named: Any) -> Any:
        asked[name] += 1
        return real(one, *arguments, **named)

    return counted
