"""What Dagster shows of Kafka: of a topic, and of a broker that is away."""

from __future__ import annotations

from dataclasses import replace

import dagster as dg
import pytest
from dagster._core.storage.asset_check_execution_record import (
    AssetCheckExecutionRecord,
    AssetCheckExecutionRecordStatus,
)

from eo_pipeline.dagster.definitions import without_topics
from eo_pipeline.dagster.naming import Automation, DagsterPipeline
from eo_pipeline.dagster.sensors import check_lag
from eo_pipeline.dagster.topics import (
    CHANGE_INTERVAL_S,
    REPORT_INTERVAL_S,
    LagCursor,
    lag_check,
    topic_events,
)
from eo_pipeline.errors import SourceUnavailableError
from eo_pipeline.kafka.partitions import Bounds, Cluster
from eo_pipeline.ledger.offsets import TopicPartition
from eo_pipeline.operations.status import Status
from tests.dagster.steps import materialize, value
from tests.dagster.test_sensors import apply, skipped
from tests.support.engine import Bench

PASSED, FAILED = AssetCheckExecutionRecordStatus.SUCCEEDED, AssetCheckExecutionRecordStatus.FAILED


@pytest.fixture
def limited(bench: Bench) -> DagsterPipeline:
    """The bench's pipeline, of which no 50 offsets should wait."""
    return DagsterPipeline(bench.pipeline(), Automation(lag_limit=50))


def away(declared: DagsterPipeline) -> DagsterPipeline:
    """The same pipeline, whose brokers are gone."""
    source = declared.pipeline.source.model_copy(
        update={"bootstrap_servers": "127.0.0.1:9", "request_timeout": 1.0}
    )
    pipeline = declared.pipeline.model_copy(update={"source": source})
    return DagsterPipeline(pipeline, declared.automation)


def checked(instance: dg.DagsterInstance, declared: DagsterPipeline) -> AssetCheckExecutionRecord:
    """What Dagster shows of the topic's check."""
    key = lag_check(declared, declared.topics[0])
    return instance.event_log_storage.get_latest_asset_check_execution_by_key([key])[key]


def said(record: AssetCheckExecutionRecord) -> str:
    assert record.evaluation
    return str(record.evaluation.description)


def aged(cursor: str | None) -> str:
    """The cursor of a look that was CHANGE_INTERVAL_S earlier."""
    told = LagCursor.from_cursor(cursor)
    return replace(told, at=told.at - CHANGE_INTERVAL_S).to_cursor()


def observations(
    instance: dg.DagsterInstance, declared: DagsterPipeline
) -> list[dg.AssetObservation]:
    """Every observation of the topic, oldest first."""
    page = instance.fetch_observations(declared.topics[0], limit=100, ascending=True)
    return [e for record in page.records if (e := record.asset_observation) is not None]


def test_each_look_shows_where_the_topic_ends_and_what_waits(
    bench: Bench, limited: DagsterPipeline, instance: dg.DagsterInstance
) -> None:
    bench.topic.write(40, partitions=range(4))
    cursor = apply(instance, check_lag(limited, instance))
    materialize(limited, instance)
    bench.topic.write(10)
    apply(instance, check_lag(limited, instance, aged(cursor)))

    first, second = (each.metadata for each in observations(instance, limited))
    assert [value(first, k) for k in ("lag_of_events", "end_offset")] == [40, 40]
    assert [value(second, k) for k in ("lag_of_events", "end_offset")] == [10, 50]
    assert value(second, "retention") == "7.00 days", "Kafka's default"
    assert "offsets_per_second" not in first
    speed = value(second, "offsets_per_second")
    assert isinstance(speed, float)
    assert speed > 0
    positions = second["positions"]
    assert isinstance(positions, dg.TableMetadataValue)
    by_partition = {row.data["partition"]: row.data for row in positions.records}
    assert by_partition[0] == {
        "topic": bench.topic.name,
        "partition": 0,
        "beginning": 0,
        "read_to": 10,
        "end": 20,
        "lag": 10,
    }
    uri = f"kafka://{bench.topic.bootstrap_servers}/{bench.topic.name}"
    assert value(second, "dagster/uri") == uri
    schema = second["dagster/column_schema"]
    assert isinstance(schema, dg.TableSchemaMetadataValue)
    columns = schema.schema.columns
    assert [(c.name, c.type, c.constraints.nullable) for c in columns] == [
        ("id", "BIGINT", False),
        ("name", "STRING", True),
    ]


def test_a_look_that_finds_nothing_new_is_told_again_only_after_a_while(
    bench: Bench, limited: DagsterPipeline, instance: dg.DagsterInstance
) -> None:
    materialize(limited, instance)
    status = limited.pipeline.status()
    events, told = topic_events(limited, status, LagCursor(), now=1_000.0)
    assert len(events) == 2
    assert topic_events(limited, status, LagCursor.from_cursor(told.to_cursor()), now=1_010.0) == (
        [],
        told,
    )
    later, _ = topic_events(limited, status, told, now=1_001.0 + REPORT_INTERVAL_S)
    assert len(later) == 2


def test_a_topic_that_grows_all_day_is_observed_once_a_minute_and_at_once_when_its_check_turns(
    limited: DagsterPipeline,
) -> None:
    def status(lag: int) -> Status:
        tp = TopicPartition(limited.pipeline.source.topics[0], 0)
        return Status("p", None, Cluster({tp: Bounds(0, lag)}, {tp.topic: "id"}))

    kept: dict[dg.AssetKey, str] = {}
    told, reports = LagCursor(), []
    for second in range(0, 600, 5):
        now, lag = 1_000.0 + second, 10 + second % 35
        events, told = topic_events(limited, status(lag), told, now, kept=lambda: kept)
        reports += [second] if events else []
    assert reports == [*range(0, 600, 60)]
    events, told = topic_events(limited, status(60), told, 1_601.0, kept=lambda: kept)
    assert events, "the lag is above its limit now"


@pytest.mark.core
def test_the_check_of_the_topic_is_red_while_the_broker_is_away_and_green_when_it_is_back(
    bench: Bench, limited: DagsterPipeline, instance: dg.DagsterInstance
) -> None:
    bench.topic.write(5)
    cursor = apply(instance, check_lag(limited, instance))
    assert checked(instance, limited).status is PASSED
    assert "Kafka is reachable; lag 5, below limit 50" in said(checked(instance, limited))

    with pytest.raises(SourceUnavailableError, match=r"127\.0\.0\.1:9"):
        check_lag(away(limited), instance, cursor)

    record = checked(instance, limited)
    assert record.status is FAILED
    assert "127.0.0.1:9" in said(record)
    # the next tick finds the same and says nothing again
    with pytest.raises(SourceUnavailableError):
        check_lag(away(limited), instance, cursor)
    assert checked(instance, limited).id == record.id
    apply(instance, check_lag(limited, instance, cursor))
    assert checked(instance, limited).status is PASSED


def test_too_much_that_waits_is_a_warning(
    bench: Bench, limited: DagsterPipeline, instance: dg.DagsterInstance
) -> None:
    bench.topic.write(50)
    apply(instance, check_lag(limited, instance))
    record = checked(instance, limited)
    assert record.status is FAILED
    assert record.evaluation
    assert record.evaluation.severity is dg.AssetCheckSeverity.WARN
    assert said(record) == "Kafka is reachable; lag 50, at or above limit 50"


def test_the_check_can_be_run_by_itself(
    bench: Bench, limited: DagsterPipeline, instance: dg.DagsterInstance
) -> None:
    for declared, passed in ((limited, True), (away(limited), False)):
        key = lag_check(declared, declared.topics[0])
        job = dg.define_asset_job("look", dg.AssetSelection.checks(key))
        definitions = dg.Definitions.merge(without_topics(declared), dg.Definitions(jobs=[job]))
        done = definitions.resolve_job_def("look").execute_in_process(instance=instance)
        [evaluation] = done.get_asset_check_evaluations()
        assert evaluation.passed is passed


def test_it_is_looked_at_while_a_run_works_too(
    bench: Bench, limited: DagsterPipeline, instance: dg.DagsterInstance
) -> None:
    instance.add_run(
        dg.DagsterRun(
            job_name=limited.job,
            run_id="0" * 32,
            tags=limited.run_tags,
            status=dg.DagsterRunStatus.STARTED,
        )
    )
    tick = check_lag(limited, instance)
    assert "is in progress" in skipped(tick)
    apply(instance, tick)
    assert checked(instance, limited).status is PASSED
