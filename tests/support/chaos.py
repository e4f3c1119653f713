"""What is long by nature: `make chaos` runs it, `make test-all` has a representative of each.

Marked ``chaos`` is a case whose number is a matter of patience: the same kill in every store, at
every point and of every size; random moments, walks and lives. Whatever promise such a case tests,
another one without the mark tests too.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from typing import Any

import pytest


def rest_is_chaos(cases: Iterable[Any], *, but: Sequence[Any]) -> list[Any]:
    """``cases`` for ``parametrize``; all but the representatives are marked ``chaos``."""
    each = list(cases)
    assert all(kept in each for kept in but)
    return [case if case in but else _marked(case) for case in each]


def _marked(case: Any) -> Any:
    values = case if isinstance(case, tuple) else (case,)
    return pytest.param(*values, marks=pytest.mark.chaos)


def _only_here(item: pytest.Item) -> bool:
    """Whether the test is one of those that its class names as ``only_chaos``: what it inherits of
    a contract and has in common with another class of the same store.
    """
    function = isinstance(item, pytest.Function) and item.originalname
    return function in getattr(getattr(item, "cls", None), "only_chaos", ())


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--one-in", type=int, default=1, help="run a random share of `chaos`")
    parser.addoption("--share-seed", type=int, default=0, help="which share")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Every process of xdist draws the same share: it is told the seed."""
    for item in filter(_only_here, items):
        item.add_marker(pytest.mark.chaos)
    one_in = config.getoption("--one-in")
    chosen = random.Random(config.getoption("--share-seed"))
    left = [
        item
        for item in items
        if one_in > 1 and item.get_closest_marker("chaos") and chosen.randrange(one_in)
    ]
    if left:
        config.hook.pytest_deselected(items=left)
        items[:] = [item for item in items if item not in set(left)]
