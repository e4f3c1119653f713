"""Logins in librdkafka's names, and what each client is told of them. No server takes part."""

from __future__ import annotations

import base64
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from eo_pipeline import ConsoleSink
from eo_pipeline.cli.checks import State
from eo_pipeline.cli.checks_spark import spark_checks
from eo_pipeline.errors import ConfigError, SetupError, SparkJobError
from eo_pipeline.kafka.admin import KafkaAdmin
from eo_pipeline.kafka.auth import TokenSource
from eo_pipeline.kafka.source import KafkaSource, librdkafka_settings, spark_settings
from eo_pipeline.pipeline import Pipeline
from eo_pipeline.spark import JARS_VARIABLE
from eo_pipeline.spark.errors import login_error
from tests.support.certificates import PASSWORD, Authority, Signed

BEARER = {
    "sasl.mechanism": "OAUTHBEARER",
    "sasl.oauthbearer.method": "oidc",
    "sasl.oauthbearer.client.id": "me",
    "sasl.oauthbearer.client.secret": 'hunter2 "quoted"',
    "sasl.oauthbearer.token.endpoint.url": "https://login.test/token",
}
MSK = "b-1.orders.kafka.eu-west-1.amazonaws.com:9098"


def source(client: dict[str, Any], servers: str = "kafka:9092", **more: Any) -> KafkaSource:
    return KafkaSource(
        bootstrap_servers=servers, topics=["orders"], value_format="raw", client=client, **more
    )


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def mine(authority: Authority) -> Signed:
    return authority.signed("mine")


def shown(signed: Signed, key: Path) -> dict[str, str]:
    return {
        "security.protocol": "SSL",
        "ssl.certificate.location": str(signed.certificate),
        "ssl.key.location": str(key),
    }


def test_certificates_reach_java_as_texts_that_need_no_file(
    authority: Authority, mine: Signed
) -> None:
    client = shown(mine, mine.key) | {"ssl.ca.location": str(authority.certificate)}
    spark = spark_settings(source(client))
    assert spark["kafka.ssl.truststore.type"] == spark["kafka.ssl.keystore.type"] == "PEM"
    assert spark["kafka.ssl.truststore.certificates"] == authority.certificate.read_text()
    assert spark["kafka.ssl.keystore.certificate.chain"] == mine.certificate.read_text()
    assert spark["kafka.ssl.keystore.key"] == mine.key.read_text()
    assert not {name for name in spark if "location" in name or "pem" in name}


@pytest.mark.parametrize("kind", ["locked", "old"])
def test_java_gets_the_key_in_the_one_form_it_reads(mine: Signed, kind: str) -> None:
    """Trap: Java takes neither OpenSSL's older form nor most keys with a password."""
    client = shown(mine, getattr(mine, kind)) | {"ssl.key.password": PASSWORD}
    spark = spark_settings(source(client))
    assert spark["kafka.ssl.keystore.key"] == mine.key.read_text()
    assert "kafka.ssl.key.password" not in spark


@pytest.mark.parametrize(("told", "java"), [("none", ""), ("https", "https")])
def test_java_has_another_word_for_not_looking_at_the_name(told: str, java: str) -> None:
    spark = spark_settings(source({"ssl.endpoint.identification.algorithm": told}))
    assert spark["kafka.ssl.endpoint.identification.algorithm"] == java


def test_a_certificate_that_cannot_work_is_refused_before_anything_is_asked(
    authority: Authority, mine: Signed, tmp_path: Path
) -> None:
    over = authority.signed("over", ends=timedelta(days=-1))
    text = tmp_path / "text"
    text.write_text("no certificate")
    refused = {
        r"CN=over\) is valid from .* and not now": shown(over, over.key),
        "is not that of the certificate": shown(mine, over.key),
        "ssl.key.password is wrong": shown(mine, mine.locked) | {"ssl.key.password": "no"},
        "password is wrong or missing": shown(mine, mine.locked),
        r"cannot be read: No such file or directory \(/nowhere\)": shown(mine, Path("/nowhere")),
        "it is no key as PEM": shown(mine, text),
        "holds no certificate as PEM": {"ssl.ca.location": str(text)},
        "also needs ssl.key.location": {"ssl.certificate.location": str(mine.certificate)},
        "always verifies": {"enable.ssl.certificate.verification": "false"},
    }
    for told, client in refused.items():
        with pytest.raises(ConfigError, match=told):
            librdkafka_settings(source(client))


def test_java_is_told_to_get_tokens_and_to_renew_them(authority: Authority) -> None:
    more = {
        "sasl.oauthbearer.scope": "read",
        "sasl.oauthbearer.extensions": "logicalCluster=lkc-1,identityPoolId=pool-2",
        "https.ca.location": str(authority.certificate),
    }
    spark = spark_settings(source(BEARER | more))
    handler = spark["kafka.sasl.login.callback.handler.class"]
    assert handler == (
        "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginCallbackHandler"
    )
    assert spark["kafka.sasl.oauthbearer.token.endpoint.url"] == "https://login.test/token"
    jaas = spark["kafka.sasl.jaas.config"]
    assert 'clientId="me" clientSecret="hunter2 \\"quoted\\"" scope="read"' in jaas
    assert 'extension_logicalCluster="lkc-1" extension_identityPoolId="pool-2"' in jaas
    assert 'ssl.truststore.certificates="-----BEGIN CERTIFICATE-----\\n' in jaas
    assert "\n" not in jaas
    assert [name for name, value in spark.items() if "hunter2" in value] == [
        "kafka.sasl.jaas.config"
    ]


def test_the_systems_authorities_are_looked_for_where_systems_have_them() -> None:
    """Trap: librdkafka's wheel knows one place, which Debian, for one, has nothing in."""
    assert librdkafka_settings(source(BEARER))["https.ca.location"] == "probe"
    named = librdkafka_settings(source(BEARER | {"https.ca.pem": "..."}))
    assert "https.ca.location" not in named


def test_the_newer_names_of_client_id_and_secret_are_the_same() -> None:
    newer = {
        name.replace("r.client.", "r.client.credentials.client."): value
        for name, value in BEARER.items()
    }
    assert newer.keys() != BEARER.keys()
    told = [spark_settings(source(each))["kafka.sasl.jaas.config"] for each in (BEARER, newer)]
    assert told[0] == told[1]


def test_tokens_that_spark_cannot_get_are_refused_unless_spark_is_told_how() -> None:
    other = BEARER | {"sasl.oauthbearer.grant.type": "urn:ietf:params:oauth:grant-type:jwt-bearer"}
    with pytest.raises(ConfigError, match=r"grant.type: .* in source.spark_options"):
        librdkafka_settings(source(other))
    by_hand = {"kafka.sasl.jaas.config": "a.Module required;"}
    spark = spark_settings(source(other, spark_options=by_hand))
    assert spark["kafka.sasl.mechanism"] == "OAUTHBEARER"
    assert spark["kafka.sasl.jaas.config"] == "a.Module required;"
    assert not {name for name in spark if "grant" in name}


@pytest.mark.parametrize("lacking", ["method", "client.id", "client.secret", "token.endpoint.url"])
def test_half_a_login_by_tokens_is_refused(lacking: str) -> None:
    """Without the method librdkafka would wait for a token for ever."""
    name = f"sasl.oauthbearer.{lacking}"
    half = {key: value for key, value in BEARER.items() if key != name}
    with pytest.raises(ConfigError, match=name):
        librdkafka_settings(source(half))


def test_one_setting_is_a_login_to_msk_for_both(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hunter2")
    iam = source({"sasl.mechanism": "AWS_MSK_IAM"}, MSK)
    admin, spark = librdkafka_settings(iam), spark_settings(iam)
    assert (admin["sasl.mechanism"], admin["security.protocol"]) == ("OAUTHBEARER", "SASL_SSL")
    token, ends = admin["oauth_cb"]("")
    signed = base64.urlsafe_b64decode(token + "==").decode()
    assert signed.startswith(
        "https://kafka.eu-west-1.amazonaws.com/?Action=kafka-cluster%3AConnect"
    )
    assert "X-Amz-Credential=AKIDEXAMPLE" in signed
    assert "X-Amz-Expires=900" in signed
    assert ends > 0
    assert spark["kafka.sasl.mechanism"] == "AWS_MSK_IAM"
    assert spark["kafka.security.protocol"] == "SASL_SSL"
    assert (
        spark["kafka.sasl.jaas.config"] == "software.amazon.msk.auth.iam.IAMLoginModule required;"
    )
    assert spark["kafka.sasl.client.callback.handler.class"].endswith(".IAMClientCallbackHandler")


def test_a_role_or_a_profile_of_aws_is_told_to_both_and_is_nobody_else() -> None:
    role = {"aws.role.arn": "arn:aws:iam::1:role/reader", "aws.role.session.name": "orders"}
    spark = spark_settings(source({"sasl.mechanism": "AWS_MSK_IAM", **role}, MSK))
    assert spark["kafka.sasl.jaas.config"].endswith(
        'awsRoleArn="arn:aws:iam::1:role/reader" awsRoleSessionName="orders" '
        'awsAddDefaultProviders="false";'
    )
    profile = source({"sasl.mechanism": "AWS_MSK_IAM", "aws.profile": "reader"}, MSK)
    assert 'awsProfileName="reader"' in spark_settings(profile)["kafka.sasl.jaas.config"]
    assert not {name for name in spark_settings(profile) if name.startswith("kafka.aws")}


def test_half_a_login_to_msk_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(variable, raising=False)
    iam = {"sasl.mechanism": "AWS_MSK_IAM"}
    refused = {
        "needs aws.region": source(iam),
        "belongs to aws.role.arn": source(iam | {"aws.role.session.name": "x"}, MSK),
        "aws.profile or aws.role.arn": source(iam | {"aws.profile": "x", "aws.role.arn": "y"}, MSK),
        "aws.region belong to sasl.mechanism": source({"aws.region": "eu-west-1"}),
    }
    for told, wrong in refused.items():
        with pytest.raises(ConfigError, match=told):
            librdkafka_settings(wrong)
    assert "oauth_cb" in librdkafka_settings(source(iam | {"aws.region": "eu-west-1"}))


def test_a_login_without_credentials_of_aws_is_refused_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Trap: a client that is made without a token waits ten seconds for one."""
    for variable in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for variable in ("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE"):
        monkeypatch.setenv(variable, "/nowhere")
    client = {"sasl.mechanism": "AWS_MSK_IAM"}
    with pytest.raises(ConfigError, match="AWS gave no token: its default chain finds no cred"):
        KafkaAdmin(source(client, MSK))
    with pytest.raises(ConfigError, match=r"AWS gave no token: .*profile \(gone\).* aws.profile"):
        KafkaAdmin(source(client | {"aws.profile": "gone"}, MSK))


def test_a_token_of_aws_is_shown_again_while_it_is_fresh() -> None:
    signed: list[int] = []

    def sign() -> tuple[str, int]:
        signed.append(len(signed))
        lasts = 900 if len(signed) == 1 else 100
        return f"token {len(signed)}", int(time.time() + lasts) * 1000

    tokens = TokenSource(sign)
    assert [tokens()[0], tokens()[0]] == ["token 1", "token 1"]
    tokens = TokenSource(sign)  # one that is not fresh
    assert [tokens()[0], tokens()[0]] == ["token 2", "token 3"]


@pytest.mark.parametrize(
    ("jar", "state"), [("aws-msk-iam-auth-2.3.6.jar", State.OK), ("another.jar", State.FAIL)]
)
def test_the_doctor_tells_whether_a_spark_of_ours_can_log_in_to_msk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, jar: str, state: State
) -> None:
    monkeypatch.delenv("SPARK_REMOTE", raising=False)
    monkeypatch.setenv(JARS_VARIABLE, str(tmp_path))
    for name in (jar, "spark-sql-kafka-0-10_2.13-4.0.0.jar"):
        (tmp_path / name).touch()
    pipeline = Pipeline(
        name="p", source=source({"sasl.mechanism": "AWS_MSK_IAM"}, MSK), sink=ConsoleSink()
    )
    checks = {check.name: check for check in spark_checks(pipeline, 1)}
    assert checks["spark msk"].state is state


def test_what_sparks_client_says_of_a_login_is_told_in_words() -> None:
    refused = "ConfigException: ... Update system property 'org.apache.kafka.sasl.oauthbearer."
    kinds = {
        f"{refused}allowed.urls' to allow ...": (SetupError, "with -Dorg.apache.kafka.sasl.oauth"),
        "Class software.amazon.msk.auth.iam.X could not be found.": (SetupError, "msk-iam-auth"),
        "KafkaException\nCaused by: java.io.IOException: first\n\tat x.LoginException\n"
        "Caused by: java.net.ConnectException: Connection refused": (
            SparkJobError,
            "same settings: ConnectException: Connection refused. Nothing was committed",
        ),
    }
    for said, (kind, told) in kinds.items():
        error = login_error("the job", said)
        assert isinstance(error, kind)
        assert told in str(error)
    assert login_error("the job", "Division by zero") is None
