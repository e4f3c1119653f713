"""A session with settings of its caller's: what is staged does not depend on them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from eo_pipeline import ConfigError, SparkSettings
from eo_pipeline.errors import TransformError
from tests.support.engine import Bench

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: Each would change what a time or a date becomes.
CALLERS = {
    "spark.sql.session.timeZone": "America/New_York",
    "spark.sql.timestampType": "TIMESTAMP_NTZ",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "LEGACY",
    "spark.sql.parquet.outputTimestampType": "INT96",
}


@pytest.fixture
def callers_session(bench: Bench) -> Iterator[SparkSession]:
    """The session this process has, as its caller has set it."""
    session = bench.pipeline().spark.session()
    before = {key: session.conf.get(key) for key in CALLERS}
    for key, value in CALLERS.items():
        session.conf.set(key, value)
    yield session
    for key, found in before.items():
        session.conf.set(key, found or "")


def settings_of(session: SparkSession) -> dict[str, str | None]:
    return {key: session.conf.get(key) for key in CALLERS}


@pytest.mark.core(only=["0"])
@pytest.mark.parametrize("inline_records", [0, 10_000])
def test_noon_is_noon_whatever_the_callers_session_says(
    bench: Bench, callers_session: SparkSession, inline_records: int
) -> None:
    bench.topic.write_value(b'{"at": "2026-07-01T12:00:00", "day": "1492-10-12"}')
    source = {"value_schema": "at TIMESTAMP, day DATE"}
    pipeline = bench.pipeline(source=source, inline_records=inline_records)
    pipeline.run(spark=lambda: callers_session)
    columns = "at at time zone 'UTC', pg_typeof(at), day"
    [(noon, kind, day)] = bench.table.query(f"select {columns}::text from events")
    assert (str(noon), kind, day) == (
        "2026-07-01 12:00:00",
        "timestamp with time zone",
        "1492-10-12",
    )
    assert settings_of(callers_session) == CALLERS


def test_a_caller_gets_its_settings_back_also_when_staging_fails(
    bench: Bench, callers_session: SparkSession
) -> None:
    def looks_and_fails(df: DataFrame) -> DataFrame:
        assert df.sparkSession.conf.get("spark.sql.session.timeZone") == "UTC"
        raise ValueError("that is enough")

    bench.topic.write(1)
    pipeline = bench.pipeline(transform=looks_and_fails)
    with pytest.raises(TransformError, match="that is enough"):
        pipeline.run(spark=lambda: callers_session)
    assert settings_of(callers_session) == CALLERS


def test_a_pipelines_own_time_zone_is_refused_and_not_overruled_in_silence() -> None:
    with pytest.raises(ConfigError, match=r"spark.sql.session.timeZone .* UTC"):
        SparkSettings(config={"spark.sql.session.timeZone": "Europe/Berlin"}).session()
