"""The alerts of examples/dagster_alerts: what they tell of real runs, by a real request."""

from __future__ import annotations

import importlib.util
import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import ModuleType
from typing import Any

import dagster as dg
import pytest

from eo_pipeline.dagster.definitions import without_topics
from eo_pipeline.dagster.naming import Automation, DagsterPipeline, Freshness
from tests.dagster.steps import materialize
from tests.support.engine import Bench

EXAMPLE = Path(__file__).parents[2] / "examples" / "dagster_alerts" / "alerts.py"


@pytest.fixture(scope="module")
def alerts() -> ModuleType:
    spec = importlib.util.spec_from_file_location("alerts_example", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """What was posted to somebody's pager."""
    texts: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            texts.append(json.loads(self.rfile.read(int(self.headers["Content-Length"])))["text"])
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("EO_ALERT_URL", f"http://127.0.0.1:{server.server_port}")
    yield texts
    server.shutdown()
    server.server_close()


def test_a_run_that_failed_is_told_with_its_kind_and_its_sentence(
    bench: Bench, instance: dg.DagsterInstance, alerts: Any, told: list[str]
) -> None:
    declared = DagsterPipeline(
        bench.pipeline(source={"topics": ["no-such-topic"]}), Automation(retries=0)
    )
    result = materialize(declared, instance)
    assert not result.success
    [failed] = [event for event in result.all_events if event.is_failure and event.is_run_failure]
    context = dg.build_run_status_sensor_context(
        sensor_name="tell_of_failed_runs",
        dagster_instance=instance,
        dagster_run=result.dagster_run,
        dagster_event=failed,
    ).for_run_failure()
    alerts.tell_of_failed_runs(context)
    [text] = told
    assert text.startswith(f"{declared.job} failed ({result.run_id[:8]}): SourceError: ")
    assert "no-such-topic" in text


def test_a_table_that_grows_old_is_told_once_and_once_when_it_is_fresh_again(
    bench: Bench,
    instance: dg.DagsterInstance,
    alerts: Any,
    told: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    automation = Automation(freshness=Freshness(fail_minutes=60))
    declared = DagsterPipeline(bench.pipeline(), automation)
    definitions = dg.Definitions.merge(without_topics(declared), alerts.alerts())
    repository = definitions.get_repository_def()
    cursor: str | None = None

    def tick() -> None:
        nonlocal cursor
        context = dg.build_sensor_context(
            instance=instance, repository_def=repository, cursor=cursor
        )
        repository.get_sensor_def("tell_of_stale_tables")(context)
        cursor = context.cursor

    table = declared.table
    tick()
    instance.report_runless_asset_event(dg.AssetMaterialization(table))
    tick()
    assert told == []
    now = time.time
    with monkeypatch.context() as later:
        later.setattr(time, "time", lambda: now() + 3_700)
        tick()
        tick()
    tick()
    name = table.to_user_string()
    assert told == [f"{name} is older than its freshness policy allows", f"{name} is fresh again"]
