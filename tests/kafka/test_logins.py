"""Certificates, tokens and passwords, given once: both clients come in, or are told why not."""

from __future__ import annotations

import base64
import re
import uuid
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import DataFrame

from eo_pipeline.cli.checks import State, kafka_checks
from eo_pipeline.cli.sampling import sample
from eo_pipeline.embedded.jars import spark_msk_jars
from eo_pipeline.embedded.spark import EmbeddedSpark
from eo_pipeline.errors import EoPipelineError, SetupError, SourceUnavailableError, SparkJobError
from eo_pipeline.kafka.admin import KafkaAdmin
from eo_pipeline.kafka.source import KafkaSource
from eo_pipeline.pipeline import Pipeline
from eo_pipeline.spark import SparkSettings
from eo_pipeline.spark.connector import spark_connector_jars
from tests.sinks.kafka.kafka_world import read
from tests.support.certificates import PASSWORD, Authority
from tests.support.chaos import rest_is_chaos
from tests.support.engine import Bench, Topic
from tests.support.proxy import Proxy
from tests.support.secured import CLIENTS, TOKEN_S, USERS, Secured
from tests.support.servers import STATE, wait_until

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


#: How to come in, and by which listener.
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


@pytest.mark.parametrize("way", rest_is_chaos(WAYS, but=["certificates as texts", "tokens"]))
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


REFUSED: dict[str, tuple[str, Client, str]] = {
    "no certificate": (
        "MTLS",
        lambda s: {k: s.mtls[k] for k in ("security.protocol", "ssl.ca.location")},
        "wants a client's certificate, and none is given. Nothing was read. Set "
        "ssl.certificate.location",
    ),
    "a certificate of somebody else": (
        "MTLS",
        lambda s: s.mtls | files(foreign(s)),
        "does not take the client's certificate .*Use one signed by a CA",
    ),
    "brokers of somebody else": (
        "MTLS",
        lambda s: s.mtls | {"ssl.ca.location": str(foreign(s).certificate)},
        "the certificate of the broker 127.0.0.1:.* is not accepted: .*Name the authority that "
        "signed it in ssl.ca.location",
    ),
    "an expired broker": (
        "EXPIRED",
        lambda s: s.mtls,
        "is not accepted: certificate has expired.*Have a new certificate put there",
    ),
    "another secret": (
        "OAUTH",
        lambda s: s.bearer | {"sasl.oauthbearer.client.secret": "hunter2"},
        "/token gave no token: .*invalid_client.* Correct sasl.oauthbearer.client.id",
    ),
    "another scope": (
        "OAUTH",
        lambda s: s.bearer | {"sasl.oauthbearer.scope": "other"},
        "invalid_token.*correct sasl.oauthbearer.scope",
    ),
    "no token endpoint": (
        "OAUTH",
        lambda s: s.bearer | {"sasl.oauthbearer.token.endpoint.url": "https://127.0.0.1:1/t"},
        "no token can be had at https://127.0.0.1:1/t: Connection refused",
    ),
    "a token endpoint of somebody else": (
        "OAUTH",
        lambda s: {k: v for k, v in s.bearer.items() if k != "https.ca.location"},
        "the certificate of the token endpoint .*Name the authority .* in https.ca.location",
    ),
    "another password": (
        "SCRAM",
        lambda s: scram(s) | {"sasl.password": "hunter2"},
        "Authentication failed .* Correct the user or password",
    ),
    "another mechanism": (
        "SCRAM",
        lambda s: scram(s) | {"sasl.mechanism": "PLAIN"},
        "supported mechanisms: SCRAM-SHA-512.* Correct sasl.mechanism",
    ),
}


def foreign(secured: Secured) -> Authority:
    """An authority that the broker knows nothing of."""
    return Authority(secured.authority.certificate.parent / "foreign")


def files(authority: Authority) -> dict[str, str]:
    signed = authority.signed("stranger")
    return {
        "ssl.certificate.location": str(signed.certificate),
        "ssl.key.location": str(signed.key),
    }


@pytest.mark.parametrize(
    "case",
    rest_is_chaos(REFUSED, but=["no certificate", "an expired broker", "another secret"]),
)
def test_who_may_not_come_in_is_told_why_within_seconds(secured: Secured, case: str) -> None:
    listener, client, told = REFUSED[case]
    given = by(secured, listener, client(secured))
    # nobody waits that long: a test would run into its own time limit
    source = KafkaSource(topics=["t"], value_format="raw", request_timeout=3_000, **given)
    broker, *_ = kafka_checks(source)
    assert broker.state is State.FAIL
    assert re.search(told, broker.message), broker.message
    assert "hunter2" not in broker.message


def test_the_doctor_says_how_this_client_came_in(secured: Secured) -> None:
    topic = f"topic-{uuid.uuid4().hex[:12]}"
    admin = AdminClient({"bootstrap.servers": secured.kafka.bootstrap_servers, "log_level": 0})
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result()
    soon = secured.authority.signed("soon", ends=timedelta(days=3))
    ending = {
        "ssl.certificate.location": str(soon.certificate),
        "ssl.key.location": str(soon.key),
    }
    told = {
        ("OAUTH", State.OK, "OAUTHBEARER, tokens of https://"): secured.bearer,
        ("MTLS", State.OK, "certificate CN=mine, until 20"): secured.mtls,
        ("MTLS", State.WARN, "certificate CN=soon, until 20"): secured.mtls | ending,
    }
    for (listener, state, said), client in told.items():
        given = by(secured, listener, client)
        login = kafka_checks(KafkaSource(topics=[topic], value_format="raw", **given))[-1]
        assert (login.name, login.state) == ("login", state)
        assert login.message.startswith(said)


def test_another_name_than_the_certificates_is_told(secured: Secured) -> None:
    given = by(secured, "MTLS", secured.mtls)
    named = given["bootstrap_servers"].replace("127.0.0.1", "localhost")
    source = KafkaSource(topics=["t"], value_format="raw", **given | {"bootstrap_servers": named})
    with pytest.raises(SourceUnavailableError, match=r"not valid for 'localhost'.*subjectAltName"):
        KafkaAdmin(source).cluster()


def test_a_look_at_a_topic_tells_why_as_a_run_does(secured: Secured) -> None:
    given = by(secured, "OAUTH", secured.bearer | {"sasl.oauthbearer.client.secret": "hunter2"})
    with pytest.raises(SourceUnavailableError, match="gave no token"):
        sample(KafkaSource(topics=["t"], value_format="raw", **given), 10)


def test_a_kafka_sink_logs_in_by_the_same_settings(locked: Bench, secured: Secured) -> None:
    """Rows and ledger in one transaction, by tokens; the source by certificates."""
    locked.topic.write(20, partitions=[0, 1])
    to = f"{locked.topic.name}-out"
    admin = AdminClient({"bootstrap.servers": secured.kafka.bootstrap_servers, "log_level": 0})
    admin.create_topics([NewTopic(to, 1, 1)])[to].result()
    sink = {"type": "kafka", "topic": to, **by(secured, "OAUTH", secured.bearer)}
    config = {**locked.config, "sink": sink}
    config["source"] = {**config["source"], **by(secured, "MTLS", secured.mtls)}
    Pipeline.from_config(config).run()
    assert len(read(secured.kafka.bootstrap_servers, to)) == 20
    sink["client"] = secured.bearer | {"sasl.oauthbearer.client.secret": "hunter2"}
    with pytest.raises(EoPipelineError, match="gave no token"):
        Pipeline.from_config(config).run()


@pytest.fixture(scope="module")
def telling_spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[EmbeddedSpark, Path]]:
    """A Spark with Amazon's login, and the folder where it writes down all that happens."""
    events = tmp_path_factory.mktemp("events")
    settings = {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": str(events),
        "spark.eventLog.compress": "false",
        "spark.sql.redaction.string.regex": "hidden-before",
    }
    jars = (*spark_connector_jars(STATE), *spark_msk_jars(STATE))
    folder = tmp_path_factory.mktemp("telling-spark")
    with EmbeddedSpark(folder, jars=jars, settings=settings) as server:
        yield server, events


#: Spark's half of a login to MSK, in place of tokens that the planner gets in.
MSK_BY_HAND = {
    "kafka.sasl.mechanism": "AWS_MSK_IAM",
    "kafka.sasl.jaas.config": "software.amazon.msk.auth.iam.IAMLoginModule required;",
    "kafka.sasl.client.callback.handler.class": (
        "software.amazon.msk.auth.iam.IAMClientCallbackHandler"
    ),
}


def test_spark_writes_no_secret_down(
    locked: Bench, secured: Secured, telling_spark: tuple[EmbeddedSpark, Path]
) -> None:
    """Trap: a Spark Connect server keeps plans as text, with all options, in its event log."""
    server, events = telling_spark
    spark = {"remote": server.remote}
    for listener, client in (WAYS["SCRAM"], WAYS["tokens"], WAYS["certificates as texts"]):
        locked.topic.write(20)
        locked.pipeline(source=by(secured, listener, client(secured)), spark=spark).run()
    # Amazon's class is found and logs in, where nobody but Amazon would let it in
    source = {**by(secured, "OAUTH", secured.bearer), "spark_options": MSK_BY_HAND}
    locked.topic.write(20)
    with pytest.raises(SparkJobError, match="'AWS_MSK_IAM' not enabled in the server"):
        locked.pipeline(source=source, spark=spark).run()
    session = SparkSettings(remote=server.remote).session()
    hidden = session.conf.get("spark.sql.redaction.string.regex") or ""
    assert hidden.endswith("|hidden-before")
    server.stop()
    written = "".join(file.read_text() for file in events.rglob("*") if file.is_file())
    key = secured.mine.key.read_text().splitlines()[1]
    assert "redacted" in written
    for secret in (CLIENTS["pipeline"], USERS["writer"], key):
        assert secret not in written


@pytest.mark.parametrize(
    ("options", "kind", "told"),
    [
        (MSK_BY_HAND, SetupError, "and its dependencies on Spark's class path"),
        ({"kafka.ssl.truststore.certificates": ""}, SparkJobError, "could not log in, but this"),
    ],
)
def test_a_spark_that_cannot_log_in_where_the_planner_can_is_told(
    locked: Bench, secured: Secured, options: dict[str, str], kind: type[Exception], told: str
) -> None:
    locked.topic.write(20)
    options = {k: v or foreign(secured).certificate.read_text() for k, v in options.items()}
    source = {**by(secured, "OAUTH", secured.bearer), "spark_options": options}
    with pytest.raises(kind, match=told) as failed:
        locked.pipeline(source=source).run()
    assert CLIENTS["pipeline"] not in str(failed.value)


def test_a_token_for_msk_is_signed_by_aws_key_and_reaches_the_broker(
    secured: Secured, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker is not Amazon's, and refuses it: what was sent is looked at on its way."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hunter2")
    host, port = secured.kafka.listening("BARE").split(":")
    proxy = Proxy(host, int(port))
    proxy.recorded = bytearray()
    client = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "AWS_MSK_IAM",
        "aws.region": "eu-west-1",
    }
    source = KafkaSource(
        bootstrap_servers=f"127.0.0.1:{proxy.port}",
        topics=["t"],
        value_format="raw",
        client=client,
    )
    with pytest.raises(SourceUnavailableError, match="invalid_token"):
        KafkaAdmin(source).cluster()
    proxy.close()
    sent = re.search(rb"auth=Bearer ([\w-]+)", proxy.recorded)
    assert sent is not None
    signed = base64.urlsafe_b64decode(sent[1] + b"==").decode()
    assert signed.startswith(
        "https://kafka.eu-west-1.amazonaws.com/?Action=kafka-cluster%3AConnect"
    )
    assert re.search("X-Amz-Credential=AKIDEXAMPLE.*&X-Amz-Signature=[0-9a-f]{64}", signed)
