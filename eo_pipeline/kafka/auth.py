"""TLS certificates, AWS tokens and SASL logins of Kafka clients, for librdkafka and for Java.

Certificates are PEM, as files or texts. librdkafka reads the files. Java takes the texts since
KIP-651, so that an executor needs no file. It accepts the key in one form only (PKCS#8, encrypted
by few algorithms or not at all), to which the key is converted.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from eo_pipeline.errors import ConfigError, SetupError, SourceUnavailableError

_PARTS = ("ca", "certificate", "key")

#: Settings that Java has under another name, or that are folded into one.
TLS_TRANSLATED = frozenset(
    {
        *(f"ssl.{part}.{kind}" for part in _PARTS for kind in ("location", "pem")),
        "ssl.key.password",
        "ssl.endpoint.identification.algorithm",
        "enable.ssl.certificate.verification",
    }
)

#: What librdkafka takes for "look where systems have them".
_PROBE = "probe"


class Identity(NamedTuple):
    """Identity of a client: its certificate, and the key as PKCS#8 without a password; whose it is,
    and until when.
    """

    chain: str
    key: str
    name: str
    ends: datetime


def text_of(client: Mapping[str, str], location: str, pem: str = "") -> str | None:
    """Read the file that the setting ``location`` names, or return the setting ``pem``.

    Raises:
        ConfigError: there is no such file, or it may not be read.
    """
    path = client.get(location)
    if path is None or path == _PROBE:
        return client.get(pem)
    try:
        return Path(path).read_text()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text (PEM)"
        raise ConfigError(f"client: {location} cannot be read: {reason} ({path})") from error


def authorities(client: Mapping[str, str]) -> str | None:
    """Certificates that the client trusts, as PEM; None: those of the system.

    Raises:
        ConfigError: the file cannot be read, or has no certificate.
    """
    text = text_of(client, "ssl.ca.location", "ssl.ca.pem")
    if text is not None and "-----BEGIN CERTIFICATE-----" not in text:
        raise ConfigError("client: ssl.ca.location (or ssl.ca.pem) holds no certificate as PEM")
    return text


def identity(client: Mapping[str, str]) -> Identity | None:
    """Certificate and key of the client, if there are any.

    Raises:
        ConfigError: it cannot be read, its parts do not belong together, or its time is over.
    """
    chain, key = (
        text_of(client, f"ssl.{part}.location", f"ssl.{part}.pem")
        for part in ("certificate", "key")
    )
    if chain is None and key is None:
        return None
    if chain is None or key is None:
        lacking = "certificate" if chain is None else "key"
        raise ConfigError(
            f"client: a client's certificate also needs ssl.{lacking}.location or .pem"
        )
    return _checked(chain, key, client.get("ssl.key.password"))


def tls_for_java(client: Mapping[str, str]) -> dict[str, str]:
    """Java client's settings in place of :data:`TLS_TRANSLATED`. Holds secrets.

    Raises:
        ConfigError: something cannot be read, is over, or Java has no such setting.
    """
    if client.get("enable.ssl.certificate.verification", "true").lower() != "true":
        raise ConfigError(
            "client: enable.ssl.certificate.verification: Spark's Kafka client always verifies. "
            "Name the authority of the brokers' certificate in ssl.ca.location."
        )
    java: dict[str, str] = {}
    algorithm = client.get("ssl.endpoint.identification.algorithm")
    if algorithm is not None:
        java["ssl.endpoint.identification.algorithm"] = "" if algorithm == "none" else algorithm
    if trusted := authorities(client):
        java |= {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": trusted}
    if shown := identity(client):
        java |= {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.certificate.chain": shown.chain,
            "ssl.keystore.key": shown.key,
        }
    elif "ssl.keystore.location" in client:
        java["ssl.keystore.type"] = "PKCS12"  # the one kind that librdkafka reads
        if "ssl.key.password" in client:
            java["ssl.key.password"] = client["ssl.key.password"]
    return java


def _checked(chain: str, key: str, password: str | None) -> Identity:
    # here, because few pipelines need it
    from cryptography import x509
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import serialization as form

    try:
        certificate = x509.load_pem_x509_certificate(chain.encode())
    except ValueError as error:
        raise ConfigError(
            "client: ssl.certificate.location (or .pem) holds no certificate as PEM"
        ) from error
    try:
        private_key = form.load_pem_private_key(key.encode(), _password(key, password))
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise ConfigError(
            "client: the key in ssl.key.location (or .pem) cannot be read: it is no key as PEM, or "
            "ssl.key.password is wrong or missing"
        ) from error
    public = form.Encoding.DER, form.PublicFormat.SubjectPublicKeyInfo
    if private_key.public_key().public_bytes(*public) != certificate.public_key().public_bytes(
        *public
    ):
        raise ConfigError(
            "client: the key in ssl.key.location is not that of the certificate in "
            "ssl.certificate.location"
        )
    name, begins, ends = (
        certificate.subject.rfc4514_string(),
        certificate.not_valid_before_utc,
        certificate.not_valid_after_utc,
    )
    if not begins <= datetime.now(UTC) <= ends:
        raise ConfigError(
            f"client: the client's certificate ({name}) is valid from {begins:%Y-%m-%d %H:%M} to "
            f"{ends:%Y-%m-%d %H:%M} UTC, and not now. Put a new one into ssl.certificate.location."
        )
    plain = private_key.private_bytes(
        form.Encoding.PEM, form.PrivateFormat.PKCS8, form.NoEncryption()
    )
    return Identity(chain, plain.decode(), name, ends)


def _password(key: str, password: str | None) -> bytes | None:
    """One that nothing asks for is no mistake to librdkafka."""
    return password.encode() if password and "ENCRYPTED" in key else None


#: As Java's library calls it; librdkafka knows it as OAUTHBEARER.
MSK_IAM = "AWS_MSK_IAM"

#: What may be said of it. Without a profile or a role: whoever AWS's default chain finds.
AWS_SETTINGS = frozenset({"aws.region", "aws.profile", "aws.role.arn", "aws.role.session.name"})

#: Brokers of MSK, provisioned or serverless, have their region in their names.
_BROKER = re.compile(r"\.kafka(?:-serverless)?\.([a-z0-9-]+)\.amazonaws\.com")
_VARIABLES = ("AWS_REGION", "AWS_DEFAULT_REGION")

#: Seconds that a token still lasts which is shown once more; librdkafka asks for the next one when
#: a fifth of its quarter of an hour is left.
_FRESH_S = 450.0

#: A token, and the time it ends at: seconds since 1970.
Token = tuple[str, float]


class TokenSource:
    """Called by librdkafka whenever it needs a token: well before the last one ends. The clients of
    one source or sink share it, and its tokens.
    """

    def __init__(self, sign: Callable[[], tuple[str, int]]) -> None:
        self._sign = sign
        self._token: Token = ("", 0.0)
        #: why there was none the last time it was asked; empty if there was one
        self.failure = ""

    def __call__(self, _config: str = "") -> Token:
        if self._token[1] - time.time() > _FRESH_S:
            return self._token
        # whatever a chain of credentials may come to; librdkafka asks again in ten seconds
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            token, milliseconds = self._sign()
        except AttributeError as error:  # what it makes of credentials that are None
            self.failure = "its default chain finds no credentials"
            raise ValueError(self.failure) from error
        except (BotoCoreError, ClientError, ValueError) as error:
            self.failure = str(error)
            raise
        self.failure, self._token = "", (token, milliseconds / 1000)
        return self._token

    def refuse_nobody(self) -> None:
        """Return if there is a token. A client that is made without would wait ten seconds for one.

        Raises:
            ConfigError: there are no credentials, or they are not as they were told.
            SourceUnavailableError: AWS did not give any just now.
        """
        from botocore.exceptions import BotoCoreError, ClientError, HTTPClientError

        try:
            self()
        except (ClientError, HTTPClientError) as error:
            raise SourceUnavailableError(
                f"Could not log in to Kafka: AWS gave no token: {self.failure}. Nothing was read. "
                "See that AWS can be reached and lets this process take the role; run again."
            ) from error
        except (BotoCoreError, ValueError) as error:
            raise ConfigError(
                f"client: AWS gave no token: {self.failure}. Give this process credentials of AWS, "
                "or correct aws.profile or aws.role.arn."
            ) from error


def region_of(bootstrap_servers: str, client: Mapping[str, str]) -> str:
    """``aws.region``, or the one in the brokers' names, or that of the environment.

    Raises:
        ConfigError: there is none, or the role or profile are told in parts.
    """
    if "aws.profile" in client and "aws.role.arn" in client:
        raise ConfigError("client: give aws.profile or aws.role.arn; a profile may name a role")
    if "aws.role.session.name" in client and "aws.role.arn" not in client:
        raise ConfigError("client: aws.role.session.name belongs to aws.role.arn")
    named = _BROKER.search(bootstrap_servers)
    of_brokers = named[1] if named else None
    candidates = [client.get("aws.region"), of_brokers, *map(os.environ.get, _VARIABLES)]
    region_name = next((region for region in candidates if region), None)
    if region_name is None:
        raise ConfigError(
            f"client: {MSK_IAM} needs aws.region: it is not in the brokers' names "
            f"(....kafka.REGION.amazonaws.com) nor in {' or '.join(_VARIABLES)}."
        )
    return region_name


def signer(bootstrap_servers: str, client: Mapping[str, str]) -> TokenSource:
    """Callback that librdkafka asks for tokens.

    Raises:
        ConfigError: there is no region.
        SetupError: Amazon's library is not installed.
    """
    region = region_of(bootstrap_servers, client)
    try:
        from aws_msk_iam_sasl_signer import MSKAuthTokenProvider as Provider
    except ModuleNotFoundError as error:
        raise SetupError(
            f"sasl.mechanism: {MSK_IAM} needs Amazon's library: pip install 'eo-pipeline[msk]'"
        ) from error
    if role := client.get("aws.role.arn"):
        named = client.get("aws.role.session.name")
        name = {"sts_session_name": named} if named else {}
        return TokenSource(lambda: Provider.generate_auth_token_from_role_arn(region, role, **name))
    if profile := client.get("aws.profile"):
        return TokenSource(lambda: Provider.generate_auth_token_from_profile(region, profile))
    return TokenSource(lambda: Provider.generate_auth_token(region))


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
SASL_TRANSLATED = frozenset(
    {
        *("sasl.mechanism", "sasl.mechanisms", "sasl.username", "sasl.password"),
        *("https.ca.location", "https.ca.pem", "enable.sasl.oauthbearer.unsecure.jwt"),
        *(*_SAME, *_NEEDED, f"{_O}method", f"{_O}scope", f"{_O}extensions"),
        *AWS_SETTINGS,
    }
)

_EXTENSION = re.compile(r"\s*([A-Za-z]+)=([^,]*)")


def mechanism_of(client: Mapping[str, str]) -> str | None:
    """Return the SASL mechanism, by either of librdkafka's two names for it."""
    return client.get("sasl.mechanism", client.get("sasl.mechanisms"))


def token_endpoint(client: Mapping[str, Any]) -> str | None:
    """Return the URL where librdkafka asks for tokens, if it does."""
    return client.get(_ENDPOINT) if client.get(f"{_O}method") == "oidc" else None


def is_foreign(name: str) -> bool:
    """Return whether it concerns a token that librdkafka alone can get."""
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


def sasl_for_java(
    bootstrap_servers: str, client: Mapping[str, str], by_hand: Mapping[str, Any]
) -> dict[str, str]:
    """Java client's settings in place of :data:`SASL_TRANSLATED`. Holds secrets.

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
    names = {_SAME.get(name, name) for name in client}
    if missing := sorted(set(needed) - names):
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
            f"client: {', '.join(foreign)}: Spark's Kafka client supports only the "
            f"client-credentials grant. Configure it in source.spark_options ({_BY_HAND}, "
            "kafka.sasl.login.callback.handler.class)."
        )
    settings = {_SAME.get(name, name): value for name, value in client.items()}
    options = {
        "clientId": settings[f"{_O}client.id"],
        "clientSecret": settings[f"{_O}client.secret"],
    }
    if scope := settings.get(f"{_O}scope"):
        options["scope"] = scope
    for name, value in _EXTENSION.findall(settings.get(f"{_O}extensions", "")):
        options[f"extension_{name}"] = value
    if authorities := _authorities(settings):
        options |= {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": authorities}
    return {
        "sasl.login.callback.handler.class": _BEARER_HANDLER,
        _ENDPOINT: settings[_ENDPOINT],
        "sasl.jaas.config": _jaas(_BEARER_MODULE, options),
    }


def _authorities(client: Mapping[str, str]) -> str | None:
    """Signers of the token endpoint's certificate; None: those that Java knows."""
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
    options_text = "".join(f" {name}={_quoted(value)}" for name, value in options.items())
    return f"{module} required{options_text};"


def _quoted(value: str) -> str:
    """A JAAS string: double quotes, with what may not stand in it escaped."""
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + escaped.replace("\n", "\\n").replace("\r", "\\r") + '"'
