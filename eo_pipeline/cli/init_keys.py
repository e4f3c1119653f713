"""What `eo init` writes for a topic's keys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, get_args

from eo_pipeline.cli.init_registry import message_of
from eo_pipeline.cli.output import number
from eo_pipeline.cli.sampling import InferredSchema, infer_schema
from eo_pipeline.documents import expanded
from eo_pipeline.errors import ConfigError
from eo_pipeline.source.config import KafkaSource
from eo_pipeline.source.kinds import format_of_type, is_plain, kind_of
from eo_pipeline.source.parts import KEY, VALUE
from eo_pipeline.source.registry import RegistryClient, latest_reader, type_of_latest

#: The fields of a source, and sentences for people.
Found = tuple[dict[str, Any], list[str]]

NOTHING: Found = ({}, [])


def json_keys(keys: InferredSchema, values: InferredSchema) -> Found:
    """The fields for keys that are all JSON objects; none for others, which stay bytes."""
    columns = keys.columns()
    of_values = {name.lower() for name in values.columns()}
    taken = of_values.intersection(f"key_{name}".lower() for name in columns)
    if not columns or keys.bad or taken:
        return NOTHING
    schema = keys.ddl(not_null=False).replace("$", r"\$")
    said = f"All {number(keys.good)} keys are JSON objects: their fields are columns key_<name>."
    return {"key_format": "json", "key_schema": schema}, [said]


def registry_keys(source: Mapping[str, Any], sampled: Sequence[bytes | None]) -> Found:
    """The fields for ``sampled`` keys whose schemas the registry of ``source`` has; none if it has
    none.

    Raises:
        RegistryUnavailableError: the registry does not answer, or does not let us in.
        SetupError: the packages it takes are not installed.
    """
    asked, keys = KafkaSource(**expanded(dict(source))), infer_schema(sampled)
    if asked.registry is None or len(asked.topics) != 1:
        return NOTHING
    subject = KEY.subject(asked.topics[0])
    try:
        kind = type_of_latest(asked.registry, subject)
    except ConfigError:
        return NOTHING  # there is no such subject
    key_format = format_of_type(kind)
    if key_format not in get_args(KafkaSource.model_fields["key_format"].annotation):
        return {}, [f"The registry has {subject}, {kind}; keys of that kind stay bytes."]
    if not keys.framed:
        return {}, [
            f"The registry has {subject}, but of {number(keys.records)} keys none begins with the "
            "number of a schema: keys stay bytes."
        ]
    try:
        latest = RegistryClient(asked.registry, kind, part=KEY).latest(subject)
        message = message_of(kind, latest.text, sampled)
        taken = _names_of_both(asked, subject, kind, message)
    except ConfigError as error:
        return {}, [f"Keys stay bytes: {error}."]
    if taken:
        return {}, [f"Keys stay bytes: keys and values both have a column {', '.join(taken)}."]
    found = {"key_format": key_format} | ({"key_message": message} if message else {})
    return found, [f"The keys' columns are those of {subject}."]


def _names_of_both(source: KafkaSource, subject: str, kind: str, message: str) -> list[str]:
    """Columns that keys and values would both have."""
    assert source.registry is not None
    key = latest_reader(source.registry, subject, kind, message, part=KEY)
    value = latest_reader(
        source.registry, source.subject_of(VALUE), source.schema_type, source.message
    )
    names = kind_of(kind, message).field_names(key.text)
    plain = is_plain(kind, key.text)
    columns = {(name if plain else f"{source.key_prefix}{name}").lower() for name in names}
    of_value = kind_of(source.schema_type, source.message).field_names(value.text)
    return [name for name in of_value if name.lower() in columns]
