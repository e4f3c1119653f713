"""How often a look at Kafka waits for an answer before it can ask on: counted in rounds."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from eo_pipeline.kafka.admin import KafkaAdmin
from eo_pipeline.kafka.diagnostics import DiagnosingAdminClient
from tests.support.engine import Bench


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is asked of Kafka, and each time that an answer is waited for."""
    seen: list[str] = []
    for kind, name in (
        (AdminClient, "describe_topics"),
        (AdminClient, "list_offsets"),
        (DiagnosingAdminClient, "wait_for"),
    ):
        monkeypatch.setattr(kind, name, _noted(getattr(kind, name), name, seen))
    return seen


def _noted(real: Any, name: str, seen: list[str]) -> Any:
    def noted(*arguments: Any, **named: Any) -> Any:
        seen.append(name)
        return real(*arguments, **named)

    return noted


def rounds(events: list[str]) -> list[set[str]]:
    """What is asked together: between two waits."""
    found = [set[str]()]
    for event in events:
        if event != "wait_for":
            found[-1].add(event)
        elif found[-1]:
            found.append(set())
    return found[:-1]


def test_a_look_at_all_partitions_takes_three_rounds(bench: Bench, asked: list[str]) -> None:
    """What there is, what it holds, and whether it is still the same."""
    bench.topic.write(3)
    cluster = KafkaAdmin(bench.pipeline().source).cluster()
    assert {bounds.end for bounds in cluster.bounds.values()} != {0}
    assert rounds(asked) == [{"describe_topics"}, {"list_offsets"}, {"describe_topics"}]
    assert asked.count("list_offsets") == 3


def test_a_run_asks_kafka_first_and_opens_the_sink_meanwhile(
    bench: Bench, asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two rounds are left when the sink has told where the ledger stands."""
    bench.topic.write(3)
    pipeline = bench.pipeline()
    pipeline.run()
    monkeypatch.setattr(
        type(pipeline.sink), "open", _noted(type(pipeline.sink).open, "open", asked)
    )
    asked.clear()
    assert pipeline.run().checkpoints == ()
    assert asked[:2] == ["describe_topics", "open"]
    assert rounds(asked) == [
        {"describe_topics", "open"},
        {"list_offsets"},
        {"describe_topics"},
    ]


def test_offsets_are_asked_for_when_the_ledger_is_known(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Asked before, they could lie below what another run has committed meanwhile."""
    bench.topic.write(3)
    pipeline, behind = bench.pipeline(), bench.pipeline()
    pipeline.run()
    real = type(pipeline.sink).open

    def another_run_first(*arguments: Any) -> Any:
        monkeypatch.undo()
        bench.topic.write(4)
        assert behind.run().head.version == 2
        return real(*arguments)

    monkeypatch.setattr(type(pipeline.sink), "open", another_run_first)
    report = pipeline.run()
    assert (report.head.version, report.lag) == (2, 0)
    bench.table.assert_holds_once(bench.topic.written)


def test_what_was_asked_ahead_in_vain_is_asked_again(
    bench: Bench, asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.topic.write(3)
    counted = AdminClient.describe_topics

    def first_lost(client: AdminClient, topics: Any, **named: Any) -> Mapping[str, Future[Any]]:
        monkeypatch.setattr(AdminClient, "describe_topics", counted)
        lost: Future[Any] = Future()
        lost.set_exception(KafkaException(KafkaError(KafkaError._TIMED_OUT)))
        return {bench.topic.name: lost}

    monkeypatch.setattr(AdminClient, "describe_topics", first_lost)
    bench.pipeline().run()
    assert asked.count("describe_topics") >= 2
    bench.table.assert_holds_once(bench.topic.written)


def test_only_a_run_asks_ahead(bench: Bench, asked: list[str]) -> None:
    """To recover or to look at the ledger nothing is needed of Kafka."""
    bench.topic.write(3)
    pipeline = bench.pipeline()
    pipeline.run()
    asked.clear()
    pipeline.recover()
    pipeline.head()
    assert asked == []
