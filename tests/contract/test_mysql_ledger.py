"""MySQL's users, the ledger as a table, and what a configuration must say."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pymysql
import pytest
from pydantic import ValidationError

from eo_pipeline.embedded.mariadb import EmbeddedMariaDB
from eo_pipeline.errors import (
    ConfigError,
    RefusedError,
    SetupError,
    SinkUnavailableError,
)
from eo_pipeline.sinks.mysql import MySqlSink
from eo_pipeline.sinks.registry import sink_from_config
from eo_pipeline.staging.rows import StagedOutput
from eo_pipeline.testing import first_entry
from tests.contract.mysql_world import World, staged, world

__all__ = ["world"]


class TestUsers:
    @pytest.fixture
    def grant(self, world: World) -> Iterator[Callable[[str], None]]:
        world.run("CREATE USER reader IDENTIFIED BY 's3cret ü'")
        yield lambda what: world.run(f"GRANT {what} TO reader")
        world.run("DROP USER reader")

    def sink(self, world: World, **settings: Any) -> MySqlSink:
        return world.sink(user="reader", password="s3cret ü", **settings)

    def test_a_user_that_may_not_create_needs_a_ledger_made_for_it(
        self, world: World, grant: Callable[[str], None]
    ) -> None:
        grant(f"SELECT, INSERT ON {world.database.name}.*")
        with pytest.raises(ConfigError, match=r"CREATE command denied.*GRANT"):
            self.sink(world).open("p")

    def test_a_user_may_append_to_tables_that_others_made(
        self, world: World, grant: Callable[[str], None]
    ) -> None:
        world.publish(world.sink(), staged(id=[1]))
        grant(f"SELECT, INSERT ON {world.database.name}.*")
        world.publish(self.sink(world), staged(id=[2]))
        assert len(world.rows()) == 2

    def test_a_user_that_may_not_insert_is_refused(
        self, world: World, grant: Callable[[str], None]
    ) -> None:
        world.publish(world.sink(), staged(id=[1]))
        grant(f"SELECT ON {world.database.name}.*")
        grant(f"INSERT ON {world.database.name}.eo_ledger")
        with pytest.raises(RefusedError, match=r"INSERT command denied.*GRANT"):
            world.publish(self.sink(world), staged(id=[2]))

    @pytest.mark.parametrize(
        "wrong", [{"user": "nobody_here"}, {"password": "s3cret?"}, {"database": "no_such_db"}]
    )
    def test_a_login_that_is_refused_is_a_matter_of_configuration(
        self, world: World, grant: Callable[[str], None], wrong: dict[str, str]
    ) -> None:
        settings = {"user": "reader", "password": "s3cret ü", **wrong}
        with pytest.raises(ConfigError, match="refused the connection") as error:
            world.sink(**settings).open("p")
        assert "s3cret" not in f"{error.value} {error.value.__cause__}"

    def test_a_server_that_is_not_there_is_unavailable(self, world: World) -> None:
        with pytest.raises(SinkUnavailableError, match="does not answer"):
            world.sink(port=1, password="s3cret").open("p")

    def test_a_server_without_encryption_is_refused_where_it_is_required(
        self, world: World
    ) -> None:
        with pytest.raises(ConfigError, match="SSL"):
            world.sink(ssl_mode="required").open("p")


class TestLedger:
    def test_any_number_of_runs_may_create_it_at_once(self, world: World) -> None:
        def open_and_close(_: int) -> None:
            world.sink().open("p").close()

        with ThreadPoolExecutor(8) as threads:
            assert list(threads.map(open_and_close, range(16))) == [None] * 16

    def test_opening_leaves_an_empty_ledger_and_nothing_else(self, world: World) -> None:
        world.sink().open("p").close()
        assert world.tables() == {"eo_ledger"}
        assert world.rows("SELECT * FROM eo_ledger") == []

    def test_two_pipelines_cannot_have_one_table(self, world: World) -> None:
        world.publish(world.sink(), staged(id=[1]), pipeline="flights")
        with pytest.raises(ConfigError, match=r"\.t belongs to pipeline 'flights'.*'delays'"):
            world.sink().open("delays")

    def test_of_two_pipelines_that_start_on_one_table_one_is_refused(self, world: World) -> None:
        with world.sink().open("flights") as one, world.sink().open("delays") as two:
            one.publish(first_entry("flights"), StagedOutput())
            with pytest.raises(ConfigError, match=r"belongs to pipeline 'flights'.*'delays'"):
                two.publish(first_entry("delays"), StagedOutput())

    def test_pipelines_with_tables_of_their_own_share_a_ledger(self, world: World) -> None:
        world.publish(world.sink(), staged(id=[1]), pipeline="flights")
        world.publish(world.sink(table="d"), staged(id=[1]), pipeline="delays")
        with world.sink().open("flights") as session:
            assert [entry.version for entry in session.history()] == [0, 1]

    def test_a_pipeline_cannot_move_to_another_table_by_itself(self, world: World) -> None:
        world.publish(world.sink(), staged(id=[1]))
        with pytest.raises(ConfigError, match=r"publishes into db_\w+\.t.*not into db_\w+\.other"):
            world.sink(table="other").open("p")

    def test_a_ledger_that_is_not_transactional_is_refused(self, world: World) -> None:
        world.run("CREATE TABLE eo_ledger (pipeline text) ENGINE = MyISAM")
        with pytest.raises(ConfigError, match=r"ledger.*MyISAM.*ENGINE = InnoDB"):
            world.sink().open("p")

    @pytest.mark.parametrize(
        ("version", "parent", "parent_id", "constraint"),
        [
            (0, "NULL", "NULL", "PRIMARY"),
            (1, "0", "'another'", "eo_ledger_parent"),
            (2, "1", "'0'", "eo_ledger_parent"),
            (2, "0", "'0'", "eo_ledger_step"),
            (1, "NULL", "NULL", "eo_ledger_step"),
            (1, "0", "NULL", "eo_ledger_step"),
            (0, "-1", "'0'", "eo_ledger_step"),
            (-1, "NULL", "NULL", "eo_ledger_step"),
        ],
    )
    def test_the_database_itself_takes_only_the_next_version(
        self, world: World, version: int, parent: str, parent_id: str, constraint: str
    ) -> None:
        world.sink().open("p").close()
        insert = (
            "INSERT INTO eo_ledger (pipeline, ledger_id, version, transaction_id, parent_version,"
            " parent_transaction_id, operation, target_table, offsets, ranges, topic_ids, counts,"
            " run_id, started_at, details) VALUES ('p', 'l', {}, '{}', {}, {}, 'start', '{}',"
            " '{{}}', '{{}}', '{{}}', '{{}}', '', now(), '{{}}')"
        )
        world.run(insert.format(0, "0", "NULL", "NULL", "t"))
        with pytest.raises((pymysql.IntegrityError, pymysql.OperationalError), match=constraint):
            world.run(insert.format(version, "rival", parent, parent_id, "another table"))


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
        monkeypatch.setattr("eo_pipeline.embedded.mariadb._ALSO_IN", ())
        monkeypatch.setenv("PATH", str(tmp_path))
        with pytest.raises(SetupError, match="apt-get install mariadb-server"):
            EmbeddedMariaDB(tmp_path / "data").start()
