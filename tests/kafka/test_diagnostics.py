"""A cluster that does not answer: why, in librdkafka's words, and long before the time is out."""

from __future__ import annotations

import gc
import socket
import threading
from collections.abc import Iterator
from typing import Any

import psutil
import pytest

from eo_pipeline.embedded.kafka import EmbeddedKafka
from eo_pipeline.embedded.ports import free_port
from eo_pipeline.errors import SourceUnavailableError
from eo_pipeline.kafka.admin import KafkaAdmin
from eo_pipeline.kafka.source import KafkaSource
from eo_pipeline.progress import phase

#: Nobody waits that long: a test would run into its own time limit.
NEVER_S = 3_000.0


def told(servers: str, **changes: Any) -> str:
    """What is said of the cluster at ``servers``."""
    asked: dict[str, Any] = {"topics": ["orders"], "value_format": "raw", **changes}
    source = KafkaSource(bootstrap_servers=servers, request_timeout=NEVER_S, **asked)
    with pytest.raises(SourceUnavailableError) as away:
        KafkaAdmin(source).cluster()
    return str(away.value)


@pytest.fixture
def somebody_else() -> Iterator[str]:
    """The address of a server that speaks no Kafka, and hangs up at once."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def hang_up() -> None:
            while True:
                try:
                    server.accept()[0].close()
                except OSError:
                    return

        threading.Thread(target=hang_up, daemon=True).start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize("asked", [{"topics": ["orders"]}, {"topics": (), "topic_pattern": "o.*"}])
def test_nobody_listens(asked: dict[str, Any]) -> None:
    address = f"127.0.0.1:{free_port()}"
    said = told(address, **asked)
    assert said.startswith(f"Could not reach Kafka at {address}: {address}: Connect to ")
    assert "failed: Connection refused. Nothing was read. Check that the brokers run" in said
    assert "after" not in said


def test_the_name_is_unknown() -> None:
    said = told("kafka.invalid:9092")
    assert "Failed to resolve 'kafka.invalid:9092'" in said
    assert "Correct the name in bootstrap_servers" in said


@pytest.mark.slow
def test_somebody_else_listens(somebody_else: str) -> None:
    assert "closes them at once" in told(somebody_else)


def test_the_broker_is_frozen(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its machine takes the connection, and nobody there reads it. Meanwhile progress says who is
    waited for; found before: "reading 1,000 offsets: 4 of 4 Spark tasks done, 50 s".
    """
    monkeypatch.setattr("eo_pipeline.progress.QUIET_SECONDS_MAX", 0.1)
    caplog.set_level("INFO", "eo_pipeline.progress")
    with socket.create_server(("127.0.0.1", 0)) as frozen, phase("reading"):
        address = f"127.0.0.1:{frozen.getsockname()[1]}"
        said = told(address)
    assert f"asking Kafka at {address}: " in caplog.text
    assert "reading: " not in caplog.text
    assert "accepts connections and does not respond. Nothing was read. Check whether the" in said


@pytest.mark.slow
def test_the_broker_speaks_no_tls(kafka: EmbeddedKafka) -> None:
    said = told(kafka.bootstrap_servers, client={"security.protocol": "SSL"})
    assert "SSL" in said
    assert "Correct the ssl settings" in said


@pytest.mark.slow
def test_a_client_is_gone_with_its_threads_when_nobody_has_it(kafka: EmbeddedKafka) -> None:
    """Sensors and `eo watch` make one for each look."""
    source = KafkaSource(
        bootstrap_servers=kafka.bootstrap_servers, topic_pattern="nothing.*", value_format="raw"
    )
    gc.collect()
    gc.disable()
    try:
        threads = [_threads_after_a_look(source) for _ in range(8)]
    finally:
        gc.enable()
    assert threads[-1] <= threads[0]


def _threads_after_a_look(source: KafkaSource) -> int:
    KafkaAdmin(source).cluster()
    return psutil.Process().num_threads()


@pytest.mark.slow
def test_one_of_several_addresses_that_is_dead_holds_up_nothing(
    kafka: EmbeddedKafka, make_topic: Any
) -> None:
    topic = make_topic(partitions=1)
    servers = f"127.0.0.1:{free_port()},{kafka.bootstrap_servers}"
    source = KafkaSource(bootstrap_servers=servers, topics=[topic], value_format="raw")
    assert KafkaAdmin(source).cluster().topic_ids.keys() == {topic}
