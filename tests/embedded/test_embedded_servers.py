"""The embedded servers are real: they crash, come back with their data, die with their owner."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient

from eo_pipeline.embedded.jars import kafka_broker_jars, registry_jar
from eo_pipeline.embedded.kafka import EmbeddedKafka
from eo_pipeline.embedded.ports import HOST
from eo_pipeline.embedded.postgres import EmbeddedPostgres
from eo_pipeline.embedded.registry import EmbeddedRegistry
from eo_pipeline.errors import SetupError
from tests.support.servers import SASL_USERS, STATE, is_gone, own_kafka, wait_until

pytestmark = pytest.mark.slow

kafka = own_kafka

RECORDS = 500


def publish(kafka: EmbeddedKafka, topic: str, count: int = RECORDS) -> None:
    """In one committed transaction."""
    producer = Producer(
        {"bootstrap.servers": kafka.bootstrap_servers, "transactional.id": topic, "log_level": 0}
    )
    producer.init_transactions(30)
    producer.begin_transaction()
    for number in range(count):
        producer.produce(topic, str(number))
    producer.commit_transaction(30)


def records(kafka: EmbeddedKafka, topic: str) -> list[str]:
    """What a reader of committed records finds in the topic's only partition."""
    consumer = Consumer(
        {
            "bootstrap.servers": kafka.bootstrap_servers,
            "group.id": topic,
            "enable.partition.eof": True,
            "log_level": 0,
        }
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    found = []
    while (message := consumer.poll(120)) is not None and message.error() is None:
        found.append((message.value() or b"").decode())
    consumer.close()
    return found


@pytest.fixture
def own_postgres(tmp_path: Path) -> Iterator[EmbeddedPostgres]:
    """A server that a test may ruin."""
    with EmbeddedPostgres(tmp_path / "postgres", settings={"fsync": "off"}) as server:
        yield server


def test_kafka_killed_and_started_again_holds_every_committed_record_at_the_same_address(
    kafka: EmbeddedKafka, topic: str
) -> None:
    address, pid = kafka.bootstrap_servers, kafka.pid
    publish(kafka, topic)
    kafka.kill()
    assert is_gone(pid)
    kafka.start()
    publish(kafka, topic)
    assert kafka.bootstrap_servers == address
    assert records(kafka, topic) == [str(n) for n in range(RECORDS)] * 2


def test_kafka_stopped_and_started_again_holds_its_records(
    kafka: EmbeddedKafka, topic: str
) -> None:
    publish(kafka, topic)
    kafka.stop()
    assert not kafka.alive
    assert len(records(kafka.start(), topic)) == RECORDS


def test_kafka_does_not_create_a_topic_that_is_only_misspelt(kafka: EmbeddedKafka) -> None:
    outcomes: list[KafkaError | None] = []
    producer = Producer(
        {
            "bootstrap.servers": kafka.start().bootstrap_servers,
            "topic.metadata.propagation.max.ms": 0,
        }
    )
    producer.produce("misspelt", on_delivery=lambda error, _: outcomes.append(error))
    producer.flush(120)
    assert [error and error.code() for error in outcomes] == [KafkaError.UNKNOWN_TOPIC_OR_PART]


def sasl_client(kafka: EmbeddedKafka, password: str) -> AdminClient:
    return AdminClient(
        {
            "bootstrap.servers": kafka.sasl_bootstrap_servers,
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.username": "reader",
            "sasl.password": password,
            "log_level": 0,
        }
    )


def test_kafka_lets_a_sasl_user_in_by_the_right_password_only(
    kafka: EmbeddedKafka, topic: str
) -> None:
    assert topic in sasl_client(kafka, SASL_USERS["reader"]).list_topics(timeout=120).topics
    with pytest.raises(KafkaException):
        sasl_client(kafka, "wrong").list_topics(timeout=1)


def test_kafka_without_sasl_users_says_that_it_has_no_such_listener(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="sasl_users"):
        _ = EmbeddedKafka(tmp_path, jars=[]).sasl_bootstrap_servers


def test_kafka_that_ends_while_starting_shows_the_end_of_its_log(tmp_path: Path) -> None:
    broken = EmbeddedKafka(
        tmp_path, jars=kafka_broker_jars(STATE), properties={"log.retention.hours": "soon"}
    )
    with pytest.raises(SetupError, match=r"log\.retention\.hours"):
        broken.start()


def test_postgres_killed_in_a_transaction_keeps_what_was_committed_and_nothing_else(
    own_postgres: EmbeddedPostgres,
) -> None:
    with psycopg.connect(own_postgres.dsn) as session:
        session.execute("CREATE TABLE t AS SELECT generate_series(1, 1000) AS n")
        session.commit()
        session.execute("INSERT INTO t VALUES (1001)")
        own_postgres.kill()
        with pytest.raises(psycopg.OperationalError):
            session.commit()
    with psycopg.connect(own_postgres.start().dsn) as session:
        assert session.execute("SELECT count(*), max(n) FROM t").fetchone() == (1000, 1000)


def test_postgres_killed_leaves_no_session_at_work(own_postgres: EmbeddedPostgres) -> None:
    """A backend outlives its postmaster until it looks up; a long query may take minutes."""
    with psycopg.connect(own_postgres.dsn) as session:
        backend = session.info.backend_pid
        own_postgres.kill()
        if sys.platform != "linux":  # there, start() waits for it
            own_postgres.start()
        assert is_gone(backend)


def test_postgres_stops_although_sessions_are_open(own_postgres: EmbeddedPostgres) -> None:
    with psycopg.connect(own_postgres.dsn):
        own_postgres.stop()
        assert not own_postgres.alive
    own_postgres.start()


def test_postgres_that_ends_while_starting_shows_the_end_of_its_log(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match='parameter "no_such_setting"'):
        EmbeddedPostgres(tmp_path, settings={"no_such_setting": "1"}).start()


def test_a_registry_that_keeps_its_schemas_knows_them_after_a_kill(tmp_path: Path) -> None:
    schema = Schema('{"type": "record", "name": "A", "fields": []}', "AVRO")
    with EmbeddedRegistry(tmp_path / "r", jar=registry_jar(STATE), keep=True) as server:
        client = SchemaRegistryClient({"url": server.url})
        number = client.register_schema("a-value", schema)
        server.kill()
        server.start()
        assert SchemaRegistryClient({"url": server.url}).get_schema(number).schema_type == "AVRO"
        assert client.register_schema("a-value", schema) == number


def test_a_server_that_runs_is_not_started_twice(own_postgres: EmbeddedPostgres) -> None:
    pid = own_postgres.pid
    assert own_postgres.start().pid == pid


def test_a_second_server_on_the_same_folder_is_refused(own_postgres: EmbeddedPostgres) -> None:
    class Impatient(EmbeddedPostgres):
        FOLDER_WAIT_S = 0.2

    with pytest.raises(SetupError, match="Another PostgreSQL is running"):
        Impatient(own_postgres.folder).start()


def test_a_port_that_somebody_took_meanwhile_is_an_error_that_names_it(
    tmp_path: Path,
) -> None:
    server = EmbeddedPostgres(tmp_path)
    port = int(psycopg.conninfo.conninfo_to_dict(server.dsn)["port"] or 0)
    with socket.create_server((HOST, port)), pytest.raises(SetupError, match=f"{port}: another"):
        server.start()


KAFKA_OWNER = """
from eo_pipeline.embedded.jars import kafka_broker_jars
from eo_pipeline.embedded.kafka import EmbeddedKafka
server = EmbeddedKafka(folder, jars=kafka_broker_jars(state))
"""
POSTGRES_OWNER = """
from eo_pipeline.embedded.postgres import EmbeddedPostgres
server = EmbeddedPostgres(folder)
"""


REGISTRY_OWNER = """
from eo_pipeline.embedded.jars import registry_jar
from eo_pipeline.embedded.registry import EmbeddedRegistry
server = EmbeddedRegistry(folder, jar=registry_jar(state))
"""


@pytest.mark.parametrize(
    "owner",
    [KAFKA_OWNER, POSTGRES_OWNER, REGISTRY_OWNER],
    ids=["kafka", "postgres", "registry"],
)
def test_a_server_is_gone_within_seconds_of_its_owners_sigkill(owner: str, tmp_path: Path) -> None:
    script = (
        "import sys, time\nfrom pathlib import Path\nfolder, state = map(Path, sys.argv[1:])\n"
        f"{owner}\nprint(server.start().pid, flush=True)\ntime.sleep(300)"
    )
    command = [sys.executable, "-c", script, str(tmp_path / "server"), str(STATE)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        process.kill()
    wait_until(lambda: is_gone(pid))


OpenServer = Callable[[Path], EmbeddedKafka | EmbeddedPostgres]


@pytest.mark.parametrize("open_server", [EmbeddedKafka, EmbeddedPostgres])
def test_the_pid_of_a_server_never_started_is_an_error(
    open_server: OpenServer, tmp_path: Path
) -> None:
    with pytest.raises(SetupError, match=r"call start\(\)"):
        _ = open_server(tmp_path).pid
