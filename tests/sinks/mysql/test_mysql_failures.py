"""What can go wrong with MySQL alone; see test_sql_failures.py for the rest."""

from __future__ import annotations

import pymysql
import pytest

from eo_pipeline.sinks.mysql.session import MySqlSession
from tests.sinks.mysql.mysql_world import World, staged, world

__all__ = ["world"]


class TestServer:
    def test_a_server_that_takes_no_local_data_gets_inserts(self, world: World) -> None:
        world.run("SET GLOBAL local_infile = OFF")
        try:
            world.publish(world.sink(), staged(id=[1, 2]), staged(id=[3]))
        finally:
            world.run("SET GLOBAL local_infile = ON")
        assert len(world.rows()) == 3

    def test_a_server_cannot_make_us_send_a_file(self, world: World) -> None:
        with world.sink().open("p") as session:
            assert isinstance(session, MySqlSession)
            connection = session.store.connection
            with pytest.raises(pymysql.OperationalError, match="unasked"):
                connection.query("LOAD DATA LOCAL INFILE '/etc/hostname' INTO TABLE eo_ledger")
            assert session.head() is None
