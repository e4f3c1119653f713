"""Runs in processes of their own, and what OpenTelemetry, OpenLineage and `eo metrics` hear."""

from __future__ import annotations

from pathlib import Path

import dagster as dg
import pytest
import yaml
from opentelemetry.proto.trace.v1.trace_pb2 import Status

from eo_pipeline.dagster.naming import Automation, DagsterPipeline
from eo_pipeline.embedded.ports import free_port
from tests.cli.shell import Shell, eo
from tests.cli.test_metrics import parsed
from tests.dagster.steps import materialize
from tests.observers.receivers import Received, receiver, said

__all__ = ["eo"]

PARENT = "11111111-2222-4333-8444-555555555555"


def told(monkeypatch: pytest.MonkeyPatch, received: Received) -> None:
    for name, value in received.environment().items():
        monkeypatch.setenv(name, value)


@pytest.mark.core
def test_a_run_is_a_trace_and_numbers_and_events(
    eo: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    eo.bench.topic.write(130)
    eo.document(name="events")
    with receiver() as received:
        told(monkeypatch, received)
        monkeypatch.setenv("TRACEPARENT", f"00-{'a' * 32}-{'b' * 16}-01")
        monkeypatch.setenv("OPENLINEAGE_PARENT_ID", f"shop/nightly.orders/{PARENT}")
        ran = eo.process("run")
        assert ran.code == 0, ran.err
    _is_a_trace(eo, received)
    _are_numbers(received)
    _are_events(eo, received)


def _is_a_trace(eo: Shell, received: Received) -> None:
    assert received.resources[0]["service.name"] == "orders-team"
    run = received.span("forward events")
    assert run.parent_span_id == bytes.fromhex("b" * 16)
    assert said(run.attributes)["messaging.destination.name"] == eo.bench.topic.name
    first, second = received.span("checkpoint 1"), received.span("checkpoint 2")
    assert first.parent_span_id == second.parent_span_id == run.span_id
    about = said(first.attributes)
    assert (about["eo.version"], about["eo.records"], about["eo.rows"]) == (1, 100, 100)
    assert (about["eo.partitions"], about["eo.lag"]) == (1, 30)
    within = [span for span in received.spans if span.parent_span_id == first.span_id]
    assert [span.name for span in within] == ["plan", "stage", "pre_commit", "commit"]
    stage = within[1]
    assert first.start_time_unix_nano <= stage.start_time_unix_nano
    assert stage.end_time_unix_nano <= first.end_time_unix_nano
    assert {span.trace_id for span in received.spans} == {run.trace_id}
    assert run.status.code == Status.STATUS_CODE_UNSET


def _are_numbers(received: Received) -> None:
    forward = (("eo.operation", "forward"), ("eo.pipeline", "events"))
    assert received.metric("eo.records")[forward] == 130
    assert received.metric("eo.rows")[forward] == 130
    assert received.metric("eo.checkpoints")[forward] == 2
    assert received.metric("eo.lag")[("eo.pipeline", "events"),] == 0
    phases = received.metric("eo.phase.duration")
    assert phases[("eo.operation", "forward"), ("eo.phase", "stage"), ("eo.pipeline", "events")] > 0
    assert received.metric("eo.failures") == {}


def _are_events(eo: Shell, received: Received) -> None:
    kinds = [event["eventType"] for event in received.events]
    assert kinds == ["START", "RUNNING", "RUNNING", "RUNNING", "COMPLETE"]
    start, end = received.events[0], received.events[-1]
    assert start["run"]["runId"] == end["run"]["runId"]
    assert (end["job"]["namespace"], end["job"]["name"]) == ("shop", "events")
    parent = end["run"]["facets"]["parent"]
    assert (parent["job"]["name"], parent["run"]["runId"]) == ("nightly.orders", PARENT)
    [topic], [table] = end["inputs"], end["outputs"]
    assert topic["namespace"] == f"kafka://{eo.bench.topic.bootstrap_servers}"
    assert topic["name"] == eo.bench.topic.name
    assert topic["inputFacets"]["inputStatistics"]["rowCount"] == 130
    assert table["namespace"].startswith("postgres://")
    assert table["name"].endswith(".public.events")
    assert table["outputFacets"]["outputStatistics"]["rowCount"] == 130
    fields = {each["name"]: each["type"] for each in table["facets"]["schema"]["fields"]}
    assert fields["id"] == "bigint"
    columns = table["facets"]["columnLineage"]["fields"]
    assert columns["name"]["inputFields"][0]["field"] == "name"
    assert "_eo_offset" not in columns


def test_a_run_that_fails_is_told_with_its_kind_everywhere(
    eo: Shell, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    eo.bench.topic.write_value(b"not JSON")
    eo.document(name="events")
    with receiver() as received:
        told(monkeypatch, received)
        for _ in range(2):
            assert eo.process("run").code == 1
    run = [span for span in received.spans if span.name == "forward events"][-1]
    assert run.status.code == Status.STATUS_CODE_ERROR
    assert "1 bad record" in run.status.message
    assert said(run.attributes)["error.type"] == "BadRecordError"
    [checkpoint] = [
        span
        for span in received.spans
        if span.parent_span_id == run.span_id and span.name == "checkpoint"
    ]
    failed = [
        span.name
        for span in received.spans
        if span.parent_span_id == checkpoint.span_id
        and span.status.code == Status.STATUS_CODE_ERROR
    ]
    assert failed == ["stage"]
    kind = (
        ("eo.operation", "forward"),
        ("eo.pipeline", "events"),
        ("error.type", "BadRecordError"),
    )
    assert received.metric("eo.failures")[kind] == 1
    last = received.events[-1]
    assert last["eventType"] == "FAIL"
    assert last["run"]["facets"]["errorMessage"]["message"].startswith("BadRecordError: 1 bad")

    file = tmp_path / "eo.prom"
    assert eo("metrics", "--textfile", str(file)).code == 0
    found = parsed(file.read_text())
    assert found["eo_run_failures_total", "events", "BadRecordError"] == 2
    assert found["eo_last_failure_timestamp_seconds", "events", ""] > 1e9
    [noted] = eo.bench.pipeline().failures()
    assert "1 bad record" in noted.message


def test_who_listens_may_be_away(eo: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    eo.bench.topic.write(10)
    eo.document(name="events")
    told(monkeypatch, Received(f"http://127.0.0.1:{free_port()}"))
    ran = eo.process("run")
    assert ran.code == 0, ran.err
    eo.bench.table.assert_holds_once(eo.bench.topic.written)
    assert "OpenLineage" in ran.err


def test_an_interruption_is_no_failure(eo: Shell) -> None:
    eo.document(name="events")
    pipeline = eo.bench.pipeline()
    with pytest.raises(KeyboardInterrupt), pipeline._open_context(operation="forward"):
        raise KeyboardInterrupt
    assert pipeline.failures() == []


def test_a_run_in_dagster_says_which_run_of_dagster_it_belongs_to(eo: Shell) -> None:
    eo.bench.topic.write(10)
    declared = DagsterPipeline(eo.bench.pipeline(), Automation(retries=0))
    with receiver() as received, dg.DagsterInstance.ephemeral() as instance:
        # its client turns variables into others, for good: a file leaves this process as it was
        transport = {"type": "http", "url": received.url}
        Path("openlineage.yml").write_text(yaml.safe_dump({"transport": transport}))
        done = materialize(declared, instance)
    assert done.success
    parent = received.events[-1]["run"]["facets"]["parent"]
    assert parent["job"]["name"] == declared.job
    assert parent["run"]["runId"] == done.run_id
