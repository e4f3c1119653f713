"""What `eo init` writes for a topic whose values have their schemas in a registry."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from eo_pipeline.cli.output import number
from eo_pipeline.cli.sampling import InferredSchema
from eo_pipeline.documents import expanded
from eo_pipeline.errors import ConfigError
from eo_pipeline.ledger.schemas import PROTOBUF
from eo_pipeline.source.config import KafkaSource
from eo_pipeline.source.kinds import format_of_type
from eo_pipeline.source.registry import RegistryClient, latest_reader, type_of_latest


def registry_format(
    source: Mapping[str, Any],
    url: str,
    subject: str | None,
    client: Mapping[str, str],
    values: Sequence[bytes | None],
) -> dict[str, Any]:
    """The fields by which ``source`` reads so, in the format of the subject's latest schema; with
    the message that the sampled ``values`` name, if that is one and not the first.

    Raises:
        RegistryUnavailableError: the registry does not answer, or does not let us in.
        ConfigError: it has no schema whose fields can become columns.
        SetupError: the packages it takes are not installed.
    """
    registry: dict[str, Any] = {"url": url}
    if subject:
        registry["subject"] = subject
    if client:
        registry["client"] = dict(client)
    asked = KafkaSource(**expanded({**source, "value_format": "json", "registry": registry}))
    assert asked.registry is not None
    schema_type = type_of_latest(asked.registry, asked.subject)
    value_format = format_of_type(schema_type)
    if value_format is None:
        raise ConfigError(
            f"the latest schema of {asked.subject} is {schema_type}, which is unknown"
        )
    found = {"value_format": value_format, "registry": registry}
    latest = RegistryClient(asked.registry, schema_type).latest(asked.subject)
    if message := message_of(schema_type, latest.text, values):
        found["message"] = message
    latest_reader(asked.registry, asked.subject, schema_type, message)
    return found


def message_of(schema_type: str, text: str, values: Sequence[bytes | None]) -> str:
    """What ``message`` has to say where all that ``values`` name is one, and not the first of the
    schema ``text``; empty: nothing.
    """
    if schema_type != PROTOBUF:
        return ""
    from eo_pipeline.source.protobuf_schema import Protobuf, messages_named

    named = messages_named(text, values)
    return named[0] if len(named) == 1 and Protobuf(named[0]).indexes(text) != (0,) else ""


def registry_policies(sample: InferredSchema) -> dict[str, Any]:
    """The source's fields that follow from the sample."""
    found: dict[str, Any] = {"start": "earliest"}
    if _others(sample):
        found["on_bad_record"] = "dead_letter"
    if sample.tombstones:
        found["tombstones"] = "skip"
    return found


def registry_remarks(sample: InferredSchema, source: Mapping[str, Any]) -> list[str]:
    """What the sample held, in sentences."""
    subject = KafkaSource.model_validate(source).subject
    sentences = [
        f"{number(sample.records)} records were looked at: {number(sample.framed)} begin as a "
        f"schema registry's do, {number(_others(sample))} do not, {number(sample.tombstones)} are "
        "without a value.",
        f"The columns are those of the latest schema of {subject}.",
    ]
    if _others(sample):
        sentences.append("What cannot be read goes to the dead-letter table.")
    if sample.tombstones:
        sentences.append("Records without a value are skipped and counted.")
    return sentences


def _others(sample: InferredSchema) -> int:
    """Values without the number of a schema in front; producers may put that into a header."""
    return sample.records - sample.tombstones - sample.framed
