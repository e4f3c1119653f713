"""The demo's pipeline as it is declared, on the first flights of the year and all aircraft."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

import dagster_defs.defs.flights
from demo import planes
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
    """The declared pipeline on topics of its own: the first flights of 2013, and the aircraft."""
    # by their timestamps the flights are long out of date
    topic, aircraft = (make_topic(partitions=n, config={"retention.ms": "-1"}) for n in (8, 1))
    publish(kafka.bootstrap_servers, topic=topic, total=FLIGHTS)
    planes.publish(kafka.bootstrap_servers, topic=aircraft)
    monkeypatch.setenv("EO_KAFKA_BOOTSTRAP", kafka.bootstrap_servers)
    monkeypatch.setenv("EO_PG_DSN", database)
    monkeypatch.setenv("EO_STAGING", str(tmp_path))
    attributes: dict[str, Any] = yaml.safe_load(DOCUMENT.read_text())["attributes"]
    attributes["source"]["topics"] = [topic, aircraft]
    for table, its_topic in zip(attributes["tables"], (topic, aircraft), strict=True):
        table["topics"] = its_topic
    component = KafkaPipelineComponent.resolve_from_dict(attributes)
    pipeline = Pipeline.from_config(component.pipeline_config())
    # a transaction's markers reach the partitions a moment after its commit was answered
    admin = KafkaAdmin(pipeline.source)
    wait_until(lambda: sum(admin.cluster().ends().values()) >= FLIGHTS + planes.PLANES)
    return pipeline, Table(database, "flights")


def test_every_flight_is_there_once_with_its_airline_and_joins_what_is_known_of_its_aircraft(
    flights: tuple[Pipeline, Table],
) -> None:
    pipeline, table = flights

    report = pipeline.run()

    assert report.lag == 0
    assert table.query("select count(*), count(distinct flight_id) from flights") == [
        (FLIGHTS, FLIGHTS)
    ]
    assert table.query("select count(*), count(distinct tailnum) from planes") == [
        (planes.PLANES, planes.PLANES)
    ]
    joined = "from flights left join planes using (tailnum)"
    first = table.query(
        "select airline, manufacturer, seats, scheduled_departure, delayed, cancelled "
        f"{joined} where flight_id = '2013-01-01-UA-1545-EWR'"
    )
    assert first == [("United Air Lines Inc.", "BOEING", 149, "05:15", False, False)]
    # the aircraft's table does not know every tail number, and the flights stay
    [(all_, unknown)] = table.query(f"select count(*), count(*) - count(seats) {joined}")
    assert all_ == FLIGHTS
    assert 0 < unknown < FLIGHTS
    [(nobody,)] = table.query("select count(*) from flights where airline is null")
    assert nobody == 0
    assert pipeline.audit().passed
