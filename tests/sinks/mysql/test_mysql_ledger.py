"""What MySQL's ledger and configuration have of their own; see test_sql_ledger.py for the rest."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from pydantic import ValidationError

from eo_pipeline.embedded import mariadb
from eo_pipeline.embedded.mariadb import EmbeddedMariaDB
from eo_pipeline.errors import ConfigError, SetupError
from eo_pipeline.sinks.mysql import MySqlSink
from eo_pipeline.sinks.registry import sink_from_config
from tests.sinks.mysql.mysql_world import World, world

__all__ = ["world"]


@pytest.mark.parametrize("world", ["mariadb"], indirect=True)
def test_a_server_without_encryption_is_refused_where_it_is_required(world: World) -> None:
    with pytest.raises(ConfigError, match="SSL"):
        world.sink(ssl_mode="required").open("p")


def test_a_ledger_that_is_not_transactional_is_refused(world: World) -> None:
    world.run("CREATE TABLE eo_ledger (pipeline text) ENGINE = MyISAM")
    with pytest.raises(ConfigError, match=r"ledger.*MyISAM.*ENGINE = InnoDB"):
        world.sink().open("p")


class TestConfiguration:
    @pytest.mark.parametrize(
        ("settings", "field"),
        [
            ({"mode": "upsert"}, "key"),
            ({"key": ["id"]}, "key"),
            ({"sequence_by": ["at"]}, "sequence_by"),
            ({"table": "a.b"}, "table"),
            ({"table": "x" * 65}, "table"),
            ({"table": "x" * 60}, "dead_letter_table"),
            ({"dead_letter_table": "t"}, "dead_letter_table"),
            ({"port": 0}, "port"),
            ({"database": ""}, "database"),
            ({"ssl_mode": "perhaps"}, "ssl_mode"),
            ({"ssl_cert": "client.pem"}, "ssl_key"),
            ({"lock_timeout": 0}, "lock_timeout"),
            ({"colour": "red"}, "colour"),
        ],
    )
    def test_a_wrong_field_is_named(self, settings: dict[str, Any], field: str) -> None:
        with pytest.raises(ValidationError) as error:
            MySqlSink.model_validate({"user": "u", "database": "d", "table": "t", **settings})
        assert [problem["loc"] for problem in error.value.errors()] == [(field,)]

    @pytest.mark.parametrize("name", ["mysql", "mariadb"])
    def test_both_names_mean_this_sink_and_no_secret_is_shown(self, name: str) -> None:
        place = {"host": "db.example", "user": "me", "password": "s3cret", "database": "air"}
        sink = sink_from_config({"type": name, "table": "flights", **place})
        assert isinstance(sink, MySqlSink)
        assert sink.describe() == {
            "kind": "mysql",
            "host": "db.example",
            "port": "3306",
            "dbname": "air",
            "table": "air.flights",
        }
        assert "s3cret" not in f"{sink!r} {sink} {sink.model_dump()} {sink.model_dump_json()}"

    def test_without_the_driver_the_package_to_install_is_named(self) -> None:
        """Neither the package nor the configuration needs it, only an open session does."""
        program = (
            "import sys; sys.modules['pymysql'] = None\n"
            "import eo_pipeline\n"
            "from eo_pipeline.sinks.registry import sink_from_config\n"
            "fields = {'user': 'u', 'database': 'd', 'table': 't'}\n"
            "sink = sink_from_config({'type': 'mysql', **fields})\n"
            "try: sink.open('p')\n"
            "except eo_pipeline.ConfigError as error: print(error)\n"
        )
        said = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, check=True
        ).stdout
        assert "pip install 'eo-pipeline[mysql]'" in said

    def test_a_server_that_is_not_installed_is_named_with_its_remedy(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
    ) -> None:
        monkeypatch.setattr(mariadb, "_ALSO_IN", ())
        monkeypatch.setenv("PATH", str(tmp_path))
        with pytest.raises(SetupError, match="apt-get install mariadb-server"):
            EmbeddedMariaDB(tmp_path / "data").start()
