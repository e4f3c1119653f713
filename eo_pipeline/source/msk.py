"""A login to Amazon MSK by IAM, for librdkafka: tokens that Amazon's own library signs."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Mapping

from eo_pipeline.errors import ConfigError, SetupError, SourceUnavailableError

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
                f"Kafka could not be asked: AWS gave no token: {self.failure}. Nothing was read. "
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
    told = [client.get("aws.region"), of_brokers, *map(os.environ.get, _VARIABLES)]
    found = next((each for each in told if each), None)
    if found is None:
        raise ConfigError(
            f"client: {MSK_IAM} needs aws.region: neither do the brokers' names tell it "
            f"(....kafka.REGION.amazonaws.com), nor {' or '.join(_VARIABLES)}."
        )
    return found


def signer(bootstrap_servers: str, client: Mapping[str, str]) -> TokenSource:
    """What librdkafka is to ask for tokens.

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
