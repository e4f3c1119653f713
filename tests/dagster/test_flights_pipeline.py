"""The demo's pipeline as it is declared, on the first flights of the year."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

import dagster_defs.defs.flights
from demo.flights import publish
from eo_pipeline.dagster.component import KafkaPipelineComponent
from eo_pipeline.embedded.kafka import EmbeddedKafka
from eo_pipeline.embedded.spark import EmbeddedSpark
from eo_pipeline.kafka.admin import KafkaAdmin
from eo_pipeline.pipeline import Pipeline
from tests.support.engine import Table
from tests.support.servers import MakeTopic, wait_until

DOCUMENT = Path(dagster_defs.defs.flights.__file__).with_name("defs.yaml")
FLIGHTS = 3_000


@pytest.fixture
def flights(
    kafka: EmbeddedKafka,
    make_topic: MakeTopic,
    database: str,
    spark_server: EmbeddedSpark,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> tuple[Pipeline, Table]:
    """The declared pipeline on a topic of its own that holds the first flights of 2013."""
    # by their timestamps the flights are long out of date
    topic = make_topic(partitions=8, config={"retention.ms": "-1"})
    publish(kafka.bootstrap_servers, topic=topic, total=FLIGHTS)
    monkeypatch.setenv("EO_KAFKA_BOOTSTRAP", kafka.bootstrap_servers)
    monkeypatch.setenv("EO_PG_DSN", database)
    monkeypatch.setenv("EO_STAGING", str(tmp_path))
    attributes: dict[str, Any] = yaml.safe_load(DOCUMENT.read_text())["attributes"]
    attributes["source"]["topics"] = [topic]
    component = KafkaPipelineComponent.resolve_from_dict(attributes)
    pipeline = Pipeline.from_config(component.pipeline_config())
    # a transaction's markers reach the partitions a moment after its commit was answered
    admin = KafkaAdmin(pipeline.source)
    wait_until(lambda: sum(admin.cluster().ends().values()) >= FLIGHTS)
    return pipeline, Table(database, "flights")


def test_every_flight_is_there_once_with_its_airline_and_what_is_known_of_its_aircraft(
    flights: tuple[Pipeline, Table],
) -> None:
    pipeline, table = flights

    report = pipeline.run()

    assert report.lag == 0
    assert table.query("select count(*), count(distinct flight_id) from flights") == [
        (FLIGHTS, FLIGHTS)
    ]
    table.assert_consistent()
    first = table.query(
        "select airline, manufacturer, seats, scheduled_departure, delayed, cancelled "
        "from flights where flight_id = '2013-01-01-UA-1545-EWR'"
    )
    assert first == [("United Air Lines Inc.", "BOEING", 149, "05:15", False, False)]
    # the aircraft table does not know every tail number, and the flights stay
    [(unknown,)] = table.query("select count(*) from flights where manufacturer is null")
    assert 0 < unknown < FLIGHTS
    [(nobody,)] = table.query("select count(*) from flights where airline is null")
    assert nobody == 0
