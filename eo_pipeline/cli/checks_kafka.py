"""What the doctor asks Kafka: brokers, topics, what this user may do there."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from confluent_kafka import KafkaException, TopicCollection
from confluent_kafka.admin import AclOperation, AdminClient

from eo_pipeline.cli.checks import Check, State, examined, fail, ok, skipped, warn
from eo_pipeline.cli.output import counted
from eo_pipeline.errors import EoPipelineError, SourceUnavailableError
from eo_pipeline.source import certificates
from eo_pipeline.source.admin import KafkaAdmin
from eo_pipeline.source.client_options import silent_logger
from eo_pipeline.source.clients import librdkafka_settings
from eo_pipeline.source.config import KafkaSource
from eo_pipeline.source.discovery import NO_TOPIC_ID, Cluster
from eo_pipeline.source.kinds import kind_of
from eo_pipeline.source.logins import mechanism_of, token_endpoint
from eo_pipeline.source.parts import KEY, VALUE, Part
from eo_pipeline.source.registry import latest_reader

#: A topic's UUID is told since this version (KIP-516); the protocol tells no broker's own version.
_TOPIC_IDS_SINCE = "2.8"

#: What a pipeline does with a topic: reads it, asks for its offsets, and before going back for its
#: retention and compaction.
_NEEDED = {"READ": AclOperation.READ, "DESCRIBE": AclOperation.DESCRIBE}
_TO_GO_BACK = {"DESCRIBE_CONFIGS": AclOperation.DESCRIBE_CONFIGS}

#: A client's certificate that ends so soon is worth a word.
_SOON = timedelta(days=14)

_AWAY = "Start the brokers, or correct source.bootstrap_servers and source.client."


def kafka_checks(source: KafkaSource) -> list[Check]:
    """Broker, topics and permissions, in this order; the first that fails ends it."""
    try:
        cluster = KafkaAdmin(source).cluster()  # knows why nobody answers
        first = _broker(source)
    except EoPipelineError as error:
        because = "Kafka does not answer"
        return [
            fail("broker", str(error), _AWAY),
            skipped("topic", because),
            skipped("permissions", because),
        ]
    topics = _topics(source, cluster)
    if topics.state is State.FAIL:
        return [_with_version(first, cluster), topics, skipped("permissions", "there is no topic")]
    return [_with_version(first, cluster), topics, _permissions(source, cluster), *_login(source)]


def _login(source: KafkaSource) -> list[Check]:
    """As whom this client came in, if it had to say so; and until when its certificate is good."""
    client = {key: value.get_secret_value() for key, value in source.client.items()}
    said, mechanism = [], mechanism_of(client)
    if mechanism:
        endpoint = token_endpoint(client)
        said.append(mechanism + (f", tokens of {endpoint}" if endpoint else ""))
    shown = certificates.identity(client)
    if shown is None:
        return [ok("login", "; ".join(said))] if said else []
    said.append(f"certificate {shown.name}, until {shown.ends:%Y-%m-%d}")
    if shown.ends - datetime.now(UTC) < _SOON:
        remedy = "Put a new one into ssl.certificate.location before then; runs take it from there."
        return [warn("login", "; ".join(said), remedy)]
    return [ok("login", "; ".join(said))]


def _client(source: KafkaSource) -> AdminClient:
    return AdminClient(librdkafka_settings(source), logger=silent_logger())


def _broker(source: KafkaSource) -> str:
    client = _client(source)  # its answers are lost with it
    future = client.describe_cluster(request_timeout=source.request_timeout)
    try:
        found = future.result(timeout=source.request_timeout + 5)
    except (KafkaException, TimeoutError) as error:
        raise _unavailable(source, error) from error
    nodes = ", ".join(f"{node.host}:{node.port}" for node in found.nodes or ())
    return f"{counted(len(found.nodes or ()), 'broker')} ({nodes}), cluster {found.cluster_id}"


def _with_version(said: str, cluster: Cluster) -> Check:
    if any(uuid == NO_TOPIC_ID for uuid in cluster.topic_ids.values()):
        return warn(
            "broker",
            f"{said}; gives topics no UUIDs, so it is older than Kafka {_TOPIC_IDS_SINCE}",
            "A topic that is deleted and created again cannot be told from the old one: upgrade.",
        )
    if not cluster.topic_ids:
        return ok("broker", f"{said}; version not told")
    return ok("broker", f"{said}; Kafka {_TOPIC_IDS_SINCE} or newer, its exact version is not told")


def _topics(source: KafkaSource, cluster: Cluster) -> Check:
    missing = sorted(set(source.topics) - cluster.topic_ids.keys())
    if missing or not cluster.topic_ids:
        named = ", ".join(missing) or f"no topic matches {source.topic_pattern!r}"
        remedy = "Create the topic, or correct source.topics or source.topic_pattern."
        return fail("topic", f"missing: {named}" if missing else named, remedy)
    offsets = sum(bounds.end - bounds.beginning for bounds in cluster.bounds.values())
    named = ", ".join(sorted(cluster.topic_ids))
    partitions = counted(len(cluster.bounds), "partition")
    return ok("topic", f"{named}: {partitions}, {counted(offsets, 'offset')}")


def _permissions(source: KafkaSource, cluster: Cluster) -> Check:
    client = _client(source)
    futures = client.describe_topics(
        TopicCollection(sorted(cluster.topic_ids)),
        include_authorized_operations=True,
        request_timeout=source.request_timeout,
    )
    allowed = {}
    for topic, future in futures.items():
        try:
            answer = future.result(timeout=source.request_timeout + 5)
        except (KafkaException, TimeoutError) as error:
            return fail("permissions", str(_unavailable(source, error)), _AWAY)
        allowed[topic] = answer.authorized_operations
    if any(operations is None for operations in allowed.values()):
        remedy = "Nothing, if runs work; the brokers are older than Kafka 2.3."
        return warn("permissions", "the brokers do not tell", remedy)
    return _judged(allowed)


def _judged(allowed: dict[str, list[AclOperation]]) -> Check:
    """By what the brokers say this user may do with each topic."""
    for operations, state in ((_NEEDED, State.FAIL), (_TO_GO_BACK, State.WARN)):
        lacking = [
            f"{name} on {topic}"
            for topic, granted in sorted(allowed.items())
            for name, operation in operations.items()
            if operation not in granted
        ]
        if lacking:
            use = "runs" if state is State.FAIL else "rewind, replay and fork"
            said = f"not allowed, and {use} need it: {', '.join(lacking)}"
            return Check("permissions", state, said, "Grant it to this user (kafka-acls --add).")
    return ok("permissions", "may read, describe and see the settings of every topic")


def _unavailable(source: KafkaSource, error: Exception) -> SourceUnavailableError:
    said = error.args[0].str() if isinstance(error, KafkaException) else "no answer in time"
    return SourceUnavailableError(f"Kafka at {source.bootstrap_servers} could not be asked: {said}")


def schema_registry(source: KafkaSource, timeout: float) -> Check:
    """Whether the registry has schemas whose fields can become columns."""
    registry = source.registry
    assert registry is not None
    waiting = registry.model_copy(update={"timeout": min(registry.timeout, timeout)})

    def look() -> Check:
        return ok(
            "registry", "; ".join(told(part) for part in (VALUE, KEY) if source.by_registry(part))
        )

    def told(part: Part) -> str:
        subject, schema_type = source.subject_of(part), source.schema_type_of(part)
        message = source.message_of(part)
        latest = latest_reader(waiting, subject, schema_type, message, part)
        fields = counted(len(kind_of(schema_type, message).field_names(latest.text)), "field")
        return f"{subject}: schema {latest.keys[0]}, {fields}"

    return examined("registry", look, "Correct source.registry, or start the registry.")
