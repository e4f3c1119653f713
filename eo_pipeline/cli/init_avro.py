"""What `eo init` writes for a topic whose values are Avro behind a schema registry."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from eo_pipeline.cli.output import number
from eo_pipeline.cli.sampling import InferredSchema
from eo_pipeline.source.config import KafkaSource
from eo_pipeline.source.registry import latest_reader


def avro_format(url: str, subject: str | None, client: Mapping[str, str]) -> dict[str, Any]:
    """The source's fields that say so."""
    registry: dict[str, Any] = {"url": url}
    if subject:
        registry["subject"] = subject
    if client:
        registry["client"] = dict(client)
    return {"value_format": "avro", "registry": registry}


def refuse_what_is_not_there(source: KafkaSource) -> None:
    """Return if the registry has a schema whose fields can become columns.

    Raises:
        RegistryUnavailableError: it does not answer, or does not let us in.
        ConfigError: it has none.
        SetupError: the packages it takes are not installed.
    """
    assert source.registry is not None
    latest_reader(source.registry, source.subject, source.schema_type)


def avro_policies(sample: InferredSchema) -> dict[str, Any]:
    """The source's fields that follow from the sample."""
    found: dict[str, Any] = {"start": "earliest"}
    if _others(sample):
        found["on_bad_record"] = "dead_letter"
    if sample.tombstones:
        found["tombstones"] = "skip"
    return found


def avro_remarks(sample: InferredSchema, source: Mapping[str, Any]) -> list[str]:
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
