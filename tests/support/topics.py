"""What happens to Kafka topics while a pipeline follows them."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)

from eo_pipeline.embedded.kafka import EmbeddedKafka
from tests.support.engine import Topic
from tests.support.servers import is_led, wait_until


def add_partitions(admin: AdminClient, topic: str, total: int) -> None:
    admin.create_partitions([NewPartitions(topic, total)])[topic].result()
    wait_until(lambda: is_led(admin, topic, total))


def recreate(admin: AdminClient, topic: str, partitions: int = 4) -> None:
    admin.delete_topics([topic])[topic].result()
    wait_until(lambda: topic not in admin.list_topics(timeout=60).topics)
    admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result()
    # the answer means that the controller knows it; clients ask the broker
    wait_until(lambda: is_led(admin, topic, partitions))


def delete_records(admin: AdminClient, topic: str, partition: int, before: int) -> None:
    """What retention does, at once: the partition begins at ``before`` afterwards."""
    asked = TopicPartition(topic, partition, before)
    for deleted in admin.delete_records([asked]).values():
        deleted.result()


def stand_at(topic: Topic, group: str, offset: int) -> None:
    """A consumer group has read the first partition of ``topic`` up to ``offset``."""
    consumer = Consumer({"bootstrap.servers": topic.bootstrap_servers, "group.id": group})
    try:
        consumer.commit(offsets=[TopicPartition(topic.name, 0, offset)], asynchronous=False)
    finally:
        consumer.close()


@contextmanager
def hidden(admin: AdminClient, *topics: str) -> Iterator[None]:
    """Nobody sees ``topics`` inside: an access control entry denies it. They lose nothing. For a
    broker that has an authorizer.
    """
    denials = [
        AclBinding(
            ResourceType.TOPIC,
            topic,
            ResourcePatternType.LITERAL,
            "User:ANONYMOUS",
            "*",
            AclOperation.ALL,
            AclPermissionType.DENY,
        )
        for topic in topics
    ]
    for done in admin.create_acls(denials).values():
        done.result()
    wait_until(lambda: not {*topics} & admin.list_topics(timeout=60).topics.keys())
    yield
    for removed in admin.delete_acls([_filter(denial) for denial in denials]).values():
        removed.result()
    wait_until(lambda: {*topics} <= admin.list_topics(timeout=60).topics.keys())


def _filter(binding: AclBinding) -> AclBindingFilter:
    return AclBindingFilter(
        binding.restype,
        binding.name,
        binding.resource_pattern_type,
        binding.principal,
        binding.host,
        binding.operation,
        binding.permission_type,
    )


def delete(admin: AdminClient, topic: str) -> None:
    """Delete ``topic``, and wait until the broker shows it to nobody."""
    admin.delete_topics([topic])[topic].result()
    wait_until(lambda: topic not in admin.list_topics(timeout=60).topics)


def alter_topic(admin: AdminClient, topic: str, settings: Mapping[str, str]) -> None:
    """Change settings of a topic."""
    entries = [
        ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
        for name, value in settings.items()
    ]
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
    for altered in admin.incremental_alter_configs([resource]).values():
        altered.result()


def copied(kafka: EmbeddedKafka, topic: str, into: Path) -> None:
    """The folders of ``topic`` as they are now, while the broker stands still: a backup."""
    kafka.stop()
    for folder in (kafka.folder / "data").glob(f"{topic}-*"):
        shutil.copytree(folder, into / folder.name)
    kafka.start()


def put_back(kafka: EmbeddedKafka, topic: str, copy: Path) -> None:
    """What was :func:`copied`: the broker comes back with an older disk, its log is truncated."""
    kafka.stop()
    for folder in (kafka.folder / "data").glob(f"{topic}-*"):
        shutil.rmtree(folder)
        shutil.copytree(copy / folder.name, folder)
    kafka.start()
