"""All databases: a test that takes this ``world`` is run in each.

A case of one of them says so::

    @pytest.mark.parametrize(("world", "code"), [("mysql", "1021")], indirect=["world"])

``MYSQLS`` are the two that speak MySQL's protocol.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial

import pytest

from tests.sinks.mysql import mysql_world
from tests.sinks.postgres import postgres_world
from tests.sinks.sql.sql_world import SqlWorld

MYSQLS = ("mariadb", "mysql")

_OPENED: dict[str, Callable[[pytest.FixtureRequest], AbstractContextManager[SqlWorld]]] = {
    "postgres": postgres_world.opened,
    **{server: partial(mysql_world.opened, server=server) for server in MYSQLS},
}


@pytest.fixture(params=[*_OPENED])
def world(request: pytest.FixtureRequest) -> Iterator[SqlWorld]:
    with _OPENED[request.param](request) as opened:
        yield opened
