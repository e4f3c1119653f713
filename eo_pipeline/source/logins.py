"""The ways to log in to Kafka: said once, in librdkafka's names, and told to two clients.

librdkafka gets tokens by itself (``sasl.oauthbearer.method: oidc``, KIP-768), and so does Java, by
a handler and an entry of JAAS. For Amazon MSK each has a library of Amazon's; librdkafka then logs
in by OAUTHBEARER with a token that :mod:`eo_pipeline.source.msk` signs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from eo_pipeline.errors import ConfigError
from eo_pipeline.source.certificates import text_of
from eo_pipeline.source.msk import AWS_SETTINGS, MSK_IAM, region_of, signer

_SECURITY = "org.apache.kafka.common.security"
_BY_PASSWORD = {
    "PLAIN": f"{_SECURITY}.plain.PlainLoginModule",
    "SCRAM-SHA-256": f"{_SECURITY}.scram.ScramLoginModule",
    "SCRAM-SHA-512": f"{_SECURITY}.scram.ScramLoginModule",
}
_BEARER = "OAUTHBEARER"
_BEARER_MODULE = f"{_SECURITY}.oauthbearer.OAuthBearerLoginModule"
#: Gets a token and renews it before it ends.
_BEARER_HANDLER = f"{_SECURITY}.oauthbearer.OAuthBearerLoginCallbackHandler"

_MSK_MODULE = "software.amazon.msk.auth.iam.IAMLoginModule"
_MSK_HANDLER = "software.amazon.msk.auth.iam.IAMClientCallbackHandler"

_O = "sasl.oauthbearer."
#: Two names of librdkafka for one thing (KIP-1139).
_SAME = {
    f"{_O}client.credentials.client.id": f"{_O}client.id",
    f"{_O}client.credentials.client.secret": f"{_O}client.secret",
}
_ENDPOINT = f"{_O}token.endpoint.url"
_NEEDED = (f"{_O}client.id", f"{_O}client.secret", _ENDPOINT)

#: Other tokens than those of client credentials: Java's client of Spark 4.0 knows none of them.
_FOREIGN = (f"{_O}assertion.", f"{_O}metadata.", f"{_O}grant.type", f"{_O}config")

#: ... and by whom its JAAS entry can be given instead.
_BY_HAND = "kafka.sasl.jaas.config"

#: Settings of a login that Java has by other names, or not at all.
TRANSLATED = frozenset(
    {
        *("sasl.mechanism", "sasl.mechanisms", "sasl.username", "sasl.password"),
        *("https.ca.location", "https.ca.pem", "enable.sasl.oauthbearer.unsecure.jwt"),
        *(*_SAME, *_NEEDED, f"{_O}method", f"{_O}scope", f"{_O}extensions"),
        *AWS_SETTINGS,
    }
)

_EXTENSION = re.compile(r"\s*([A-Za-z]+)=([^,]*)")


def mechanism_of(client: Mapping[str, str]) -> str | None:
    """What SASL is to use, by either of librdkafka's two names for it."""
    return client.get("sasl.mechanism", client.get("sasl.mechanisms"))


def token_endpoint(client: Mapping[str, Any]) -> str | None:
    """Where librdkafka asks for tokens, if it does."""
    return client.get(_ENDPOINT) if client.get(f"{_O}method") == "oidc" else None


def is_foreign(name: str) -> bool:
    """Whether it is of a token that librdkafka alone can get."""
    return name.startswith(_FOREIGN)


def for_librdkafka(bootstrap_servers: str, client: Mapping[str, str]) -> dict[str, Any]:
    """``client`` as librdkafka takes it. Holds secrets.

    Raises:
        ConfigError: a login lacks something.
        SetupError: a package is missing that it takes.
    """
    mechanism = mechanism_of(client)
    if mechanism != MSK_IAM and (strays := sorted(AWS_SETTINGS & client.keys())):
        raise ConfigError(f"client: {', '.join(strays)} belong to sasl.mechanism: {MSK_IAM}")
    if mechanism == MSK_IAM:
        others = {k: v for k, v in client.items() if k not in AWS_SETTINGS}
        del others["sasl.mechanism" if "sasl.mechanism" in others else "sasl.mechanisms"]
        login = {"sasl.mechanism": _BEARER, "oauth_cb": signer(bootstrap_servers, client)}
        return {"security.protocol": "SASL_SSL", **others, **login}
    if mechanism == _BEARER:
        _refuse_half_a_bearer(client)
        # left to itself it looks for the system's authorities where only some systems have them
        trusts = {"https.ca.location", "https.ca.pem"} & client.keys()
        return {**client} if trusts else {**client, "https.ca.location": "probe"}
    _refuse_without(mechanism, client, _passwords_of(mechanism))
    return {**client}


def for_java(
    bootstrap_servers: str, client: Mapping[str, str], by_hand: Mapping[str, Any]
) -> dict[str, str]:
    """What Java's client takes in the place of :data:`TRANSLATED`. Holds secrets.

    Args:
        bootstrap_servers: where the brokers are.
        client: the settings, in librdkafka's names.
        by_hand: what Spark alone is told.

    Raises:
        ConfigError: a login lacks something, or Java has no way for it.
    """
    mechanism = mechanism_of(client)
    if mechanism is None:
        return {}
    if mechanism == MSK_IAM:
        region_of(bootstrap_servers, client)
        protocol = client.get("security.protocol", "SASL_SSL")
        return {"security.protocol": protocol, "sasl.mechanism": MSK_IAM, **_msk(client)}
    if mechanism == _BEARER and _BY_HAND not in by_hand:
        return {"sasl.mechanism": mechanism, **_bearer(client)}
    if mechanism not in _BY_PASSWORD:  # GSSAPI, for example: told to Spark by spark_options
        return {"sasl.mechanism": mechanism}
    _refuse_without(mechanism, client, _passwords_of(mechanism))
    login = {"username": client["sasl.username"], "password": client["sasl.password"]}
    return {"sasl.mechanism": mechanism, "sasl.jaas.config": _jaas(_BY_PASSWORD[mechanism], login)}


def _passwords_of(mechanism: str | None) -> tuple[str, ...]:
    return ("sasl.username", "sasl.password") if mechanism in _BY_PASSWORD else ()


def _refuse_without(
    mechanism: str | None, client: Mapping[str, str], needed: tuple[str, ...]
) -> None:
    told = {_SAME.get(name, name) for name in client}
    if missing := sorted(set(needed) - told):
        raise ConfigError(f"client: {mechanism} also needs {', '.join(missing)}")


def _refuse_half_a_bearer(client: Mapping[str, str]) -> None:
    if client.get(f"{_O}method") != "oidc":
        raise ConfigError(
            f"client: {_BEARER} needs {_O}method: oidc, with {', '.join(_NEEDED)}: tokens are got "
            "from a server and renewed. A broker of Amazon MSK takes sasl.mechanism: AWS_MSK_IAM."
        )
    if not any(map(is_foreign, client)):
        _refuse_without(_BEARER, client, _NEEDED)


def _bearer(client: Mapping[str, str]) -> dict[str, str]:
    _refuse_half_a_bearer(client)
    if foreign := sorted(filter(is_foreign, client)):
        raise ConfigError(
            f"client: {', '.join(foreign)}: Spark's Kafka client gets tokens by client credentials "
            f"alone. Say under source.spark_options how it logs in ({_BY_HAND}, "
            "kafka.sasl.login.callback.handler.class)."
        )
    told = {_SAME.get(name, name): value for name, value in client.items()}
    options = {"clientId": told[f"{_O}client.id"], "clientSecret": told[f"{_O}client.secret"]}
    if scope := told.get(f"{_O}scope"):
        options["scope"] = scope
    for name, value in _EXTENSION.findall(told.get(f"{_O}extensions", "")):
        options[f"extension_{name}"] = value
    if authorities := _authorities(told):
        options |= {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": authorities}
    return {
        "sasl.login.callback.handler.class": _BEARER_HANDLER,
        _ENDPOINT: told[_ENDPOINT],
        "sasl.jaas.config": _jaas(_BEARER_MODULE, options),
    }


def _authorities(client: Mapping[str, str]) -> str | None:
    """Who signed the token endpoint's certificate; None: one of those that Java knows."""
    return text_of(client, "https.ca.location", "https.ca.pem")


def _msk(client: Mapping[str, str]) -> dict[str, str]:
    names = {
        "aws.profile": "awsProfileName",
        "aws.role.arn": "awsRoleArn",
        "aws.role.session.name": "awsRoleSessionName",
    }
    options = {java: client[name] for name, java in names.items() if name in client}
    if options:
        # as librdkafka's does: never as somebody else than was said
        options["awsAddDefaultProviders"] = "false"
    if "aws.role.arn" in client and "aws.region" in client:
        options["awsStsRegion"] = client["aws.region"]
    return {
        "sasl.client.callback.handler.class": _MSK_HANDLER,
        "sasl.jaas.config": _jaas(_MSK_MODULE, options),
    }


def _jaas(module: str, options: Mapping[str, str]) -> str:
    told = "".join(f" {name}={_quoted(value)}" for name, value in options.items())
    return f"{module} required{told};"


def _quoted(value: str) -> str:
    """A JAAS string: double quotes, with what may not stand in it escaped."""
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + escaped.replace("\n", "\\n").replace("\r", "\\r") + '"'
