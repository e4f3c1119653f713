"""Both databases: a test that takes this ``world`` is run in each.

A case of one of them says so::

    @pytest.mark.parametrize(("world", "code"), [("mysql", "1021")], indirect=["world"])
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.sinks.mysql import mysql_world
from tests.sinks.postgres import postgres_world
from tests.sinks.sql.sql_world import SqlWorld

_OPENED = {"postgres": postgres_world.opened, "mysql": mysql_world.opened}


@pytest.fixture(params=["postgres", "mysql"])
def world(request: pytest.FixtureRequest) -> Iterator[SqlWorld]:
    with _OPENED[request.param](request) as opened:
        yield opened
