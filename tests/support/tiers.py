"""Which tier of the suite a test is of.

    make test       each rule once, where it costs least; servers that pip brings, and no other
    make test-all   `slow` tests as well: all servers, all ways, all that is long
    make chaos      `chaos` tests: what is long by nature, tests/support/chaos.py

A test that uses Spark, or a server that pip does not bring, is slow; so is one that is marked so.
A test marked `core` is of `make test` although it uses Spark; with `only`, those of its cases alone
(the names in brackets).
"""

from __future__ import annotations

import os
from collections.abc import Generator, Set

import pytest

from eo_pipeline.errors import SetupError

#: Fixtures that start a Spark, or use the run's.
SPARK = frozenset({"spark_server", "running_cluster"})

#: Fixtures of servers that come from system packages, npm or Go, or as large jars.
NOT_BY_PIP = frozenset(
    {
        *("mariadb", "mysql", "mysql_database", "redis_server"),
        *("azurite", "google_server", "hdfs_server", "name_node", "objects"),
        *("bucket", "azure", "google", "hdfs"),
        *("rest_server", "nessie_server", "secured", "running_cluster"),
    }
)

#: Fixtures that ask for the one that their parameter names.
_ASKING = ("world", "store")

#: Set by `make test`: a test of that tier that asks for such a server fails, and says why.
VARIABLE = "EO_TEST_TIER"


@pytest.hookimpl(tryfirst=True)  # before pytest selects by marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        fixtures = {*getattr(item, "fixturenames", ()), *_asked_for(item)}
        if is_slow(fixtures, core=_is_core(item)) or not _is_chosen(item):
            item.add_marker(pytest.mark.slow)


def _is_chosen(item: pytest.Item) -> bool:
    """Whether the test's class, which inherits a contract, has it in the short tier: all are, or
    those that it names as ``short_tier``.
    """
    chosen = getattr(getattr(item, "cls", None), "short_tier", None)
    return chosen is None or getattr(item, "originalname", None) in chosen


def _is_core(item: pytest.Item) -> bool:
    mark = item.get_closest_marker("core")
    only = mark.kwargs.get("only") if mark else None
    return mark is not None and (only is None or item.name.partition("[")[2][:-1] in only)


def _asked_for(item: pytest.Item) -> set[str]:
    params = item.callspec.params if hasattr(item, "callspec") else {}
    return {str(params[name]) for name in _ASKING if name in params}


def is_slow(fixtures: Set[str], *, core: bool) -> bool:
    """Whether a test that uses ``fixtures`` is slow without being marked so."""
    return bool(fixtures & NOT_BY_PIP or (fixtures & SPARK and not core))


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(
    fixturedef: pytest.FixtureDef[object],
) -> Generator[None, object, object]:
    """Skip what needs a server that is not installed, and say how to get it; in CI all have to be
    there. In `make test`, refuse a test that asks for one while it runs: nobody sees it beforehand.
    """
    name = fixturedef.argname
    if os.environ.get(VARIABLE) == "short" and name in NOT_BY_PIP:
        pytest.fail(f"`make test` has no {name}: mark this test slow (tests/support/tiers.py)")
    try:
        return (yield)
    except SetupError as error:
        if name in NOT_BY_PIP and not os.environ.get("CI"):
            pytest.skip(f"{name}: {error}")
        raise
