"""A broker with the locks that brokers have: certificates, OAuth tokens, SCRAM."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple

import pytest
from confluent_kafka.admin import (
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialAlteration,
    UserScramCredentialUpsertion,
)

from eo_pipeline.embedded.jars import kafka_broker_jars
from eo_pipeline.embedded.kafka import EmbeddedKafka, Listener
from tests.support.certificates import Authority, Signed
from tests.support.oauth import AUDIENCE, SCOPE, OAuthServer
from tests.support.servers import STATE

CLIENTS = {"pipeline": "of-the-client"}
USERS = {"writer": "of-the-writer"}

#: Seconds a token lasts: a connection that shows none after that is closed.
TOKEN_S = 6

_SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
_OAUTH = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required;"
_VALIDATOR = "org.apache.kafka.common.security.oauthbearer.OAuthBearerValidatorCallbackHandler"


class Secured(NamedTuple):
    """The broker, what gives tokens for it, and who signed its certificate."""

    kafka: EmbeddedKafka
    oauth: OAuthServer
    authority: Authority
    mine: Signed

    @property
    def mtls(self) -> dict[str, str]:
        """How a client shows its certificate to the listener MTLS."""
        return {
            "security.protocol": "SSL",
            "ssl.ca.location": str(self.authority.certificate),
            "ssl.certificate.location": str(self.mine.certificate),
            "ssl.key.location": str(self.mine.key),
        }

    @property
    def bearer(self) -> dict[str, str]:
        """How a client gets the tokens that the listener OAUTH wants."""
        return {
            "security.protocol": "SASL_SSL",
            "ssl.ca.location": str(self.authority.certificate),
            "sasl.mechanism": "OAUTHBEARER",
            "sasl.oauthbearer.method": "oidc",
            "sasl.oauthbearer.client.id": "pipeline",
            "sasl.oauthbearer.client.secret": CLIENTS["pipeline"],
            "sasl.oauthbearer.token.endpoint.url": self.oauth.url,
            "sasl.oauthbearer.scope": SCOPE,
            "https.ca.location": str(self.authority.certificate),
        }


def _listeners(authority: Authority, jwks: Path) -> Mapping[str, Listener]:
    def tls(name: str, ends: timedelta = timedelta(days=30)) -> dict[str, str]:
        signed = authority.signed(name, ends=ends)
        return {"ssl.keystore.type": "PEM", "ssl.keystore.location": str(signed.both)}

    trust = {"ssl.truststore.type": "PEM", "ssl.truststore.location": str(authority.certificate)}
    tokens = {
        "sasl.enabled.mechanisms": "OAUTHBEARER",
        "oauthbearer.sasl.jaas.config": _OAUTH,
        "oauthbearer.sasl.server.callback.handler.class": _VALIDATOR,
        "oauthbearer.connections.max.reauth.ms": "3600000",
        "sasl.oauthbearer.jwks.endpoint.url": jwks.as_uri(),
        "sasl.oauthbearer.expected.audience": AUDIENCE,
        "sasl.oauthbearer.clock.skew.seconds": "0",
    }
    scram = {"sasl.enabled.mechanisms": "SCRAM-SHA-512", "scram-sha-512.sasl.jaas.config": _SCRAM}
    return {
        "MTLS": Listener("SSL", {**tls("broker"), **trust, "ssl.client.auth": "required"}),
        "EXPIRED": Listener("SSL", tls("expired-broker", timedelta(days=-1))),
        "OAUTH": Listener("SASL_SSL", {**tls("broker-oauth"), **tokens}),
        "BARE": Listener("SASL_PLAINTEXT", tokens),
        "SCRAM": Listener("SASL_PLAINTEXT", scram),
    }


@pytest.fixture(scope="session")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    """For a file or two: it is started by the first test that asks."""
    authority = Authority(tmp_path_factory.mktemp("certificates"))
    oauth = OAuthServer(tmp_path_factory.mktemp("oauth"), authority, CLIENTS, TOKEN_S)
    # Kafka reads keys from nowhere that it was not told (KIP-1139)
    allowed = f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={oauth.jwks().as_uri()}"
    broker = EmbeddedKafka(
        tmp_path_factory.mktemp("secured-kafka"),
        jars=kafka_broker_jars(STATE),
        listeners=_listeners(authority, oauth.jwks()),
        java_options=["-XX:TieredStopAtLevel=1", allowed],
    )
    with oauth, broker:
        _add_users(broker)
        yield Secured(broker, oauth, authority, authority.signed("mine"))


def _add_users(kafka: EmbeddedKafka) -> None:
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers, "log_level": 0})
    info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
    wanted: list[UserScramCredentialAlteration] = [
        UserScramCredentialUpsertion(n, info, p.encode()) for n, p in USERS.items()
    ]
    for future in admin.alter_user_scram_credentials(wanted).values():
        future.result()
