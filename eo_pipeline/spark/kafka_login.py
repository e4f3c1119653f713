"""What it means that Spark's Kafka client did not come in, where this process's did."""

from __future__ import annotations

import re

from eo_pipeline.errors import EoPipelineError, SetupError, SparkJobError

#: What Amazon's login to MSK takes, and how Kafka's client says that Java lacks it.
_MSK_LOGIN = "software.amazon.msk:aws-msk-iam-auth"
_NO_MSK = re.compile(r"software\.amazon\.msk\.\S+ could not be found|No LoginModule found for sof")

#: Kafka's client takes a token from nowhere that its Java was not told (KIP-1139).
_NOT_ALLOWED = re.compile(r"org\.apache\.kafka\.sasl\.oauthbearer\.allowed\.urls")

#: How it says that it did not come in; and why, at the end of the stack.
_NO_LOGIN = re.compile(
    r"(?:Ssl|Sasl)AuthenticationException|UnsupportedSaslMechanismException"
    r"|new KafkaAdminClient|construct kafka consumer"
    r"|LoginException"
)
_CAUSE = re.compile(r"^Caused by: (?:[\w.$]+\.)?(\w+: .*)$", re.MULTILINE)


def login_error(job: str, text: str) -> EoPipelineError | None:
    """The error of ours, if the ``text`` of the one that ``job`` ended with says so: the planner
    asked the same brokers before.
    """
    if _NO_MSK.search(text):
        return SetupError(
            f"{job} could not begin: Spark has nothing that logs in to Amazon MSK. Put "
            f"{_MSK_LOGIN}, with what it needs, on the class path of Spark, executors too; "
            "docs/kafka-logins.md shows how."
        )
    if _NOT_ALLOWED.search(text):
        return SetupError(
            f"{job} could not begin: Spark's Kafka client may not ask the token endpoint. Start "
            "Spark's driver and executors with "
            "-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls=URL (spark.driver.extraJavaOptions, "
            "spark.executor.extraJavaOptions)."
        )
    if not _NO_LOGIN.search(text):
        return None
    why = [text.splitlines()[0], *_CAUSE.findall(text)][-1]
    return SparkJobError(
        f"{job} failed: Spark's Kafka client could not log in, which this process could with the "
        f"same settings: {why}. Nothing was committed. See that Spark's machines reach brokers and "
        "token endpoint and trust their certificates, and what source.spark_options says."
    )
