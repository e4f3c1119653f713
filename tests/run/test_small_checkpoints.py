"""A small checkpoint asks Spark for little: counted in requests, whatever a machine's mood."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from pyspark.sql.connect.client.core import SparkConnectClient

from tests.engine import Bench


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """What this process asks of its Spark Connect server."""
    asked: Counter[str] = Counter()
    for name in ("_analyze", "_execute", "_execute_and_fetch", "config"):
        monkeypatch.setattr(SparkConnectClient, name, counting(name, asked))
    return asked


def counting(name: str, asked: Counter[str]) -> Any:
    real = getattr(SparkConnectClient, name)

    def counted(client: SparkConnectClient, *arguments: Any, **named: Any) -> Any:
        asked[name] += 1
        return real(client, *arguments, **named)

    return counted


@pytest.mark.parametrize("inline", [0, 100_000])
def test_a_checkpoint_is_one_job_one_look_at_a_schema_and_two_at_settings(
    bench: Bench, requests: Counter[str], inline: int
) -> None:
    pipeline = bench.pipeline(inline_records=inline)
    for _ in range(2):  # what is asked once in a session
        bench.topic.write(10)
        pipeline.run()
    requests.clear()
    bench.topic.write(10)
    assert pipeline.run().rows == 10
    kinds = {"_analyze": 1, "config": 2}
    jobs = requests["_execute"] + requests["_execute_and_fetch"]
    assert {kind: requests[kind] for kind in kinds} == kinds
    assert jobs == 1
    bench.table.assert_holds_once(bench.topic.written)
