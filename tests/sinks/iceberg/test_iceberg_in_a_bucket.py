"""The contract, with table, ledger and staging in a bucket of an object store and the catalog in a
database: all of it is chaos, with representatives in test_iceberg_bucket_faults.py and
test_iceberg_parquet_pipeline.py.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from eo_pipeline.sinks.config import Sink
from tests.sinks.iceberg.iceberg_world import sink_in
from tests.sinks.iceberg.test_iceberg_contract import OnIceberg
from tests.support.stores import Bucket


@pytest.mark.chaos
class TestAppend(OnIceberg):
    @pytest.fixture
    def sink(self, bucket: Bucket, tmp_path: Path) -> Sink:
        return sink_in(bucket, tmp_path)
