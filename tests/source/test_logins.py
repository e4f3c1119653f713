"""Certificates, tokens and passwords, given once: both clients come in, or are told why not."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import DataFrame

from eo_pipeline.source.admin import KafkaAdmin
from eo_pipeline.source.config import KafkaSource
from tests.certificates import PASSWORD
from tests.engine import Bench, Topic
from tests.secured import CLIENTS, TOKEN_S, USERS, Secured
from tests.servers import wait_until

Client = Callable[[Secured], dict[str, str]]


def texts(secured: Secured) -> dict[str, str]:
    """The same as ``secured.mtls``, as texts, with a key that has a password."""
    return {
        "security.protocol": "SSL",
        "ssl.ca.pem": secured.authority.certificate.read_text(),
        "ssl.certificate.pem": secured.mine.certificate.read_text(),
        "ssl.key.pem": secured.mine.locked.read_text(),
        "ssl.key.password": PASSWORD,
    }


def scram(_secured: Secured) -> dict[str, str]:
    user, password = next(iter(USERS.items()))
    return {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": user,
        "sasl.password": password,
    }


WAYS: dict[str, tuple[str, Client]] = {
    "certificates in files": ("MTLS", lambda secured: secured.mtls),
    "certificates as texts": ("MTLS", texts),
    "an old key": ("MTLS", lambda s: s.mtls | {"ssl.key.location": str(s.mine.old)}),
    "tokens": ("OAUTH", lambda secured: secured.bearer),
    "SCRAM": ("SCRAM", scram),
}


@pytest.fixture
def locked(bench: Bench, secured: Secured) -> Bench:
    """The bench, its topic on the broker with locks; what ``source`` says opens one."""
    name = f"topic-{uuid.uuid4().hex[:12]}"
    admin = AdminClient({"bootstrap.servers": secured.kafka.bootstrap_servers, "log_level": 0})
    admin.create_topics([NewTopic(name, 2, 1)])[name].result()
    topic = Topic(name, secured.kafka.bootstrap_servers)
    source = {**bench.config["source"], "topics": [name]}
    return Bench(topic, bench.table, {**bench.config, "source": source})


def by(secured: Secured, listener: str, client: dict[str, str]) -> dict[str, Any]:
    """What a source says to come in there."""
    return {"bootstrap_servers": secured.kafka.listening(listener), "client": client}


@pytest.mark.parametrize("way", WAYS)
def test_a_login_given_once_serves_the_planner_and_spark(
    locked: Bench, secured: Secured, way: str
) -> None:
    listener, client = WAYS[way]
    locked.topic.write(20, partitions=[0, 1])
    pipeline = locked.pipeline(source=by(secured, listener, client(secured)))
    pipeline.run()
    locked.table.assert_holds_once(locked.topic.written)
    ledger = str(locked.table.query("select row_to_json(l)::text from eo_ledger l"))
    for secret in (*CLIENTS.values(), *USERS.values(), PASSWORD, "PRIVATE KEY"):
        assert secret not in repr(pipeline) + ledger


def test_a_run_that_lasts_longer_than_its_tokens_goes_on_with_new_ones(
    locked: Bench, secured: Secured
) -> None:
    """The broker closes a connection whose token is over (KIP-368), Spark's and the planner's."""
    locked.topic.write(250, partitions=[0, 1])
    source = by(secured, "OAUTH", secured.bearer)
    admin = KafkaAdmin(KafkaSource(**{**locked.config["source"], **source}))
    admin.cluster()
    seen: list[int] = []

    def slow(df: DataFrame) -> DataFrame:
        before = {agent: len(secured.oauth.issued(agent)) for agent in ("", "Java")}
        # in the first checkpoint Spark has not logged in yet
        agent = "Java" if seen else ""
        wait_until(lambda: len(secured.oauth.issued(agent)) >= before[agent] + 2, timeout_s=120)
        seen.append(len(secured.oauth.issued()))
        return df

    began = len(secured.oauth.issued())
    locked.pipeline(source=source, transform=slow).run()
    assert len(seen) == 3
    admin.cluster()  # by the connection that it has had all the time
    answers = secured.oauth.issued()[began:]
    assert answers[-1]["at"] - answers[0]["at"] > 2 * TOKEN_S
    assert {answer["status"] for answer in answers} == {200}
    locked.table.assert_holds_once(locked.topic.written)
