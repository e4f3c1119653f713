"""The keeper of the servers that a run's processes share."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

from eo_pipeline.embedded.postgres import EmbeddedPostgres
from tests import shared
from tests.support.servers import is_gone, wait_until


def test_a_server_is_started_once_for_all_and_ends_with_the_last_that_uses_it(
    tmp_path: Path,
) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "tests.shared"], stdout=subprocess.PIPE, text=True, cwd=shared.ROOT
    ) as process:
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        first, second = shared.Keeper(address), shared.Keeper(address)
        server: EmbeddedPostgres = first.server("postgres")
        assert second.server("postgres").pid == server.pid
        first.close()
        with psycopg.connect(server.start().dsn) as connection:
            assert connection.execute("select 1").fetchone() == (1,)
        assert not is_gone(server.pid)
        second.close()
        wait_until(lambda: is_gone(server.pid))
        assert process.wait(60) == 0


def test_no_test_ends_a_server_that_others_use(postgres: EmbeddedPostgres) -> None:
    for end in (postgres.kill, postgres.stop):
        with pytest.raises(AssertionError, match="starts its own"):
            end()
    assert postgres.alive


def test_a_shared_server_that_died_is_told_at_once() -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    with pytest.raises(AssertionError, match="ended: see its log"):
        _ = shared.SharedProcess(gone.pid).alive
