"""`eo run --every`: a process that stays, seen from outside."""

from __future__ import annotations

import json
import logging
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from typer.testing import CliRunner

from eo_pipeline.cli.app import app
from eo_pipeline.cli.output import engine_log
from tests.cli.shell import Shell, eo
from tests.support.proxy import Proxy
from tests.support.servers import wait_until

__all__ = ["eo"]


def lines(path: Path, kind: str) -> list[dict[str, Any]]:
    whole = path.read_text().rpartition("\n")[0]
    printed = map(json.loads, whole.splitlines())
    return [line[kind] for line in printed if kind in line]


@pytest.mark.core
def test_it_reads_on_after_an_outage_and_is_silent_without_news(
    eo: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, table, out = eo.bench.topic, eo.bench.table, tmp_path / "out"
    at = conninfo_to_dict(table.dsn)

    def holds_all() -> bool:
        return table.coordinates().keys() == topic.written

    with Proxy(str(at["host"]), int(str(at["port"]))) as proxy, out.open("wb") as file:
        through = make_conninfo(table.dsn, host="127.0.0.1", port=proxy.port)
        monkeypatch.setenv("EO_TEST_DSN", through)
        eo.document()
        topic.write(20, partitions=range(4))
        command = [sys.executable, "-m", "eo_pipeline.cli", "run", "--json", "--every", "1s"]
        process = subprocess.Popen(command, stdout=file)
        try:
            wait_until(lambda: len(lines(out, "run")) == 1)
            proxy.refuse()
            proxy.cut()
            topic.write(20, partitions=range(4))
            wait_until(lambda: len(lines(out, "error")) > 1)
            proxy.refuse(False)
            wait_until(holds_all)
            wait_until(lambda: len(lines(out, "run")) == 2)
            time.sleep(2.5)  # intervals without news
            asked = time.monotonic()
            process.send_signal(signal.SIGTERM)
            code = process.wait(60)
            took_s = time.monotonic() - asked
        finally:
            process.kill()

    assert code == 143
    assert took_s < 10, "it waited for the next interval, or for more"
    table.assert_holds_once(topic.written)
    assert [run["rows"] for run in lines(out, "run")] == [20, 20]
    assert {error["kind"] for error in lines(out, "error")} == {"SinkUnavailableError"}


def test_an_interval_is_a_duration() -> None:
    for text in ("soon", "0s", "60"):
        ended = CliRunner().invoke(app, ["run", "--every", text])
        assert ended.exit_code == 2
        assert "--every takes" in ended.stderr


def test_a_handler_that_others_give_the_root_logger_prints_none_of_our_lines(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Found before: py4j gives it one when it loses Java, and a process that stays printed all."""
    others = logging.StreamHandler(sys.stderr)
    logging.getLogger().addHandler(others)
    try:
        with engine_log(verbose=False):
            logging.getLogger("eo_pipeline.runs").info("version 3")
            logging.getLogger("eo_pipeline.runs").debug("details")
    finally:
        logging.getLogger().removeHandler(others)
    assert capsys.readouterr().err == "version 3\n"
