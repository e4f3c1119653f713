"""Redis against the contract: keys instead of a table, hashes and JSON."""

from __future__ import annotations

from datetime import datetime
from typing import Any, ClassVar

import pytest
import redis

from eo_pipeline.sinks.config import Sink
from eo_pipeline.sinks.redis import RedisSink
from eo_pipeline.sinks.redis.keys import Keys
from eo_pipeline.testing.exactly_once import ExactlyOnceContract
from eo_pipeline.testing.identity import IdentityContract
from eo_pipeline.testing.odd import RARELY_KEPT
from eo_pipeline.testing.pruning import PruningContract
from eo_pipeline.testing.upsert import UpsertContract
from tests.sinks.redis.redis_world import dead_letters_in, rows_in


class TestHashes(UpsertContract, IdentityContract, PruningContract, ExactlyOnceContract):
    refused_values: ClassVar[frozenset[str]] = RARELY_KEPT
    tells_lineage: ClassVar[bool] = False

    @pytest.fixture
    def sink(self, redis_url: str) -> Sink:
        return RedisSink.model_validate({"url": redis_url, "key": ["id"]})

    def read_rows(self, sink: Sink) -> list[dict[str, Any]]:
        assert isinstance(sink, RedisSink)
        return [_with_values(row) for row in rows_in(sink, self.pipeline)]

    def read_dead_letters(self, sink: Sink) -> list[dict[str, Any]]:
        assert isinstance(sink, RedisSink)
        return dead_letters_in(sink, self.pipeline)

    def lose_ledger(self, sink: Sink) -> None:
        self.delete(sink, Keys(self.pipeline).ledger)

    def lose_table(self, sink: Sink) -> None:
        self.delete(sink, Keys(self.pipeline).schema)

    def delete(self, sink: Sink, key: bytes) -> None:
        assert isinstance(sink, RedisSink)
        with redis.Redis.from_url(sink.url.get_secret_value()) as client:
            assert client.delete(key) == 1


class TestJson(TestHashes):
    """One string a row, which goes away after an hour."""

    @pytest.fixture
    def sink(self, redis_url: str) -> Sink:
        settings = {"as": "json", "key": "flight:{id}", "prefix": "ops:today", "ttl": 3600}
        return RedisSink.model_validate({"url": redis_url, **settings})


def _with_values(row: dict[str, Any]) -> dict[str, Any]:
    """Elements of arrays are JSON's own values: times in them are text."""
    times = row.get("instants")
    if times:
        row["instants"] = [t and datetime.fromisoformat(t) for t in times]
    return row
