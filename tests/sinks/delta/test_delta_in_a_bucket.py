"""The contract, with table, ledger and staging in a bucket of an object store: all of it is chaos,
with representatives in test_delta_bucket_faults.py and test_lake_pipeline.py.
"""

from __future__ import annotations

from typing import ClassVar

import pytest

from eo_pipeline.ledger.entry import Operation
from eo_pipeline.sinks.config import Sink
from eo_pipeline.sinks.delta import DeltaSink
from eo_pipeline.testing.going_back import GoingBackContract
from eo_pipeline.testing.upsert import UpsertContract
from tests.sinks.delta.test_delta_contract import NOT_IN_DELTA, OnDelta
from tests.stores import Bucket


class InABucket(OnDelta):
    @pytest.fixture(autouse=True)
    def _known(self, bucket: Bucket) -> None:
        self.bucket = bucket

    def options(self) -> dict[str, str]:
        return self.bucket.options()


@pytest.mark.chaos
class TestAppend(GoingBackContract, InABucket):
    @pytest.fixture
    def sink(self, bucket: Bucket) -> Sink:
        return DeltaSink(path=f"{bucket.uri}/tables/flights", storage=bucket.storage)


@pytest.mark.chaos
class TestUpsert(UpsertContract, GoingBackContract, InABucket):
    going_back: ClassVar[tuple[Operation, ...]] = (Operation.REWIND,)
    refused_names: ClassVar[frozenset[str]] = NOT_IN_DELTA | {"a backtick"}

    @pytest.fixture
    def sink(self, bucket: Bucket) -> Sink:
        return DeltaSink(
            path=f"{bucket.uri}/tables/flights",
            storage=bucket.storage,
            mode="upsert",
            key=("id",),
            sequence_by=("_eo_checkpoint",),
        )
