"""`eo init`: a pipeline document inferred from the records of a topic."""

from __future__ import annotations

import os
import re
import sys
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, get_args

import typer
import yaml
from pydantic import SecretStr
from pydantic.fields import FieldInfo

from eo_pipeline.cli.options import AsJson, pairs
from eo_pipeline.cli.output import Output, note, number
from eo_pipeline.cli.sampling import InferredSchema, Sample, infer_schema, sample
from eo_pipeline.config.documents import expanded, rebased_paths
from eo_pipeline.errors import ConfigError
from eo_pipeline.formats.kinds import format_of_type, is_plain, kind_of
from eo_pipeline.formats.parts import KEY, VALUE
from eo_pipeline.formats.registry import RegistryClient, latest_reader, type_of_latest
from eo_pipeline.kafka.source import KafkaSource
from eo_pipeline.ledger.schemas import PROTOBUF
from eo_pipeline.pipeline import Pipeline
from eo_pipeline.sinks.registry import sink_class, sink_names


def registry_format(
    source: Mapping[str, Any],
    url: str,
    subject: str | None,
    client: Mapping[str, str],
    values: Sequence[bytes | None],
) -> dict[str, Any]:
    """Return the source fields of a topic with a schema registry, in the format of the subject's
    latest schema; with the message that the sampled ``values`` name, if it is only one and not the
    first.

    Raises:
        RegistryUnavailableError: the registry does not answer, or denies access.
        ConfigError: it has no schema whose fields can become columns.
        SetupError: the required packages are not installed.
    """
    registry: dict[str, Any] = {"url": url}
    if subject:
        registry["subject"] = subject
    if client:
        registry["client"] = dict(client)
    probe = KafkaSource(**expanded({**source, "value_format": "json", "registry": registry}))
    assert probe.registry is not None
    schema_type = type_of_latest(probe.registry, probe.subject)
    value_format = format_of_type(schema_type)
    if value_format is None:
        raise ConfigError(
            f"the latest schema of {probe.subject} is {schema_type}, which is unknown"
        )
    fields = {"value_format": value_format, "registry": registry}
    latest = RegistryClient(probe.registry, schema_type).latest(probe.subject)
    if message := message_of(schema_type, latest.text, values):
        fields["message"] = message
    latest_reader(probe.registry, probe.subject, schema_type, message)
    return fields


def message_of(schema_type: str, text: str, values: Sequence[bytes | None]) -> str:
    """Return the ``message`` field: the only message that ``values`` name, unless it is the first
    of the schema ``text``; empty for none.
    """
    if schema_type != PROTOBUF:
        return ""
    from eo_pipeline.formats.protobuf import Protobuf, messages_named

    messages = messages_named(text, values)
    return messages[0] if len(messages) == 1 and Protobuf(messages[0]).indexes(text) != (0,) else ""


def registry_policies(sample: InferredSchema) -> dict[str, Any]:
    """Return the source fields that follow from the sample."""
    fields: dict[str, Any] = {"start": "earliest"}
    if _unframed(sample):
        fields["on_bad_record"] = "dead_letter"
    if sample.tombstones:
        fields["tombstones"] = "skip"
    return fields


def registry_remarks(sample: InferredSchema, source: Mapping[str, Any]) -> list[str]:
    """Return the remarks about the sample."""
    subject = KafkaSource.model_validate(source).subject
    sentences = [
        f"{number(sample.records)} records were sampled: {number(sample.framed)} start with a "
        f"schema id, {number(_unframed(sample))} do not, {number(sample.tombstones)} "
        "are without a value.",
        f"The columns are those of the latest schema of {subject}.",
    ]
    if _unframed(sample):
        sentences.append("What cannot be read goes to the dead-letter table.")
    if sample.tombstones:
        sentences.append("Records without a value are skipped and counted.")
    return sentences


def _unframed(sample: InferredSchema) -> int:
    """Return the number of values without a leading schema id; producers may put it into a
    header.
    """
    return sample.records - sample.tombstones - sample.framed


#: Source fields, and remarks about them.
KeyFields = tuple[dict[str, Any], list[str]]

NOTHING: KeyFields = ({}, [])


def json_keys(keys: InferredSchema, values: InferredSchema) -> KeyFields:
    """Return the fields of keys that are all JSON objects; none otherwise, so that keys
    stay bytes.
    """
    columns = keys.columns()
    value_columns = {name.lower() for name in values.columns()}
    taken = value_columns.intersection(f"key_{name}".lower() for name in columns)
    if not columns or keys.bad or taken:
        return NOTHING
    schema = keys.ddl(not_null=False).replace("$", r"\$")
    remark = f"All {number(keys.good)} keys are JSON objects: their fields are columns key_<name>."
    return {"key_format": "json", "key_schema": schema}, [remark]


def registry_keys(source: Mapping[str, Any], sampled: Sequence[bytes | None]) -> KeyFields:
    """Return the fields of ``sampled`` keys whose schemas the registry of ``source`` has; none if
    it has none.

    Raises:
        RegistryUnavailableError: the registry does not answer, or denies access.
        SetupError: the required packages are not installed.
    """
    probe, keys = KafkaSource(**expanded(dict(source))), infer_schema(sampled)
    if probe.registry is None or len(probe.topics) != 1:
        return NOTHING
    subject = KEY.subject(probe.topics[0])
    try:
        schema_type = type_of_latest(probe.registry, subject)
    except ConfigError:
        return NOTHING  # there is no such subject
    key_format = format_of_type(schema_type)
    if key_format not in get_args(KafkaSource.model_fields["key_format"].annotation):
        return {}, [f"The registry has {subject}, {schema_type}; keys of that kind stay bytes."]
    if not keys.framed:
        return {}, [
            f"The registry has {subject}, but none of {number(keys.records)} keys starts with a "
            "schema id: keys stay bytes."
        ]
    try:
        latest = RegistryClient(probe.registry, schema_type, part=KEY).latest(subject)
        message = message_of(schema_type, latest.text, sampled)
        taken = _shared_columns(probe, subject, schema_type, message)
    except ConfigError as error:
        return {}, [f"Keys stay bytes: {error}."]
    if taken:
        return {}, [f"Keys stay bytes: keys and values both have a column {', '.join(taken)}."]
    fields = {"key_format": key_format} | ({"key_message": message} if message else {})
    return fields, [f"The keys' columns are those of {subject}."]


def _shared_columns(source: KafkaSource, subject: str, kind: str, message: str) -> list[str]:
    """Return the columns that keys and values would share."""
    assert source.registry is not None
    key = latest_reader(source.registry, subject, kind, message, part=KEY)
    value = latest_reader(
        source.registry, source.subject_of(VALUE), source.schema_type, source.message
    )
    names = kind_of(kind, message).field_names(key.text)
    plain = is_plain(kind, key.text)
    columns = {(name if plain else f"{source.key_prefix}{name}").lower() for name in names}
    value_columns = kind_of(source.schema_type, source.message).field_names(value.text)
    return [name for name in value_columns if name.lower() in columns]


_WIDTH = 98


class _Block(str):
    """A text of several lines, written as a YAML block."""


class _Dumper(yaml.SafeDumper):
    pass


def _block(dumper: yaml.SafeDumper, text: _Block) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", str(text), style="|")


_Dumper.add_representer(_Block, _block)


def document_text(values: Mapping[str, Any], remarks: Iterable[str]) -> str:
    """Return ``values`` as YAML, with one schema field per line, below ``remarks`` as comments."""
    source = dict(values["source"])
    for name in ("value_schema", "key_schema"):
        if isinstance(source.get(name), str):
            source[name] = _Block(source[name])
    comments = [
        line
        for remark in ("Written by `eo init`.", *remarks)
        for line in textwrap.wrap(remark, _WIDTH, initial_indent="# ", subsequent_indent="# ")
    ]
    body = yaml.dump(
        {**values, "source": source},
        Dumper=_Dumper,
        sort_keys=False,
        allow_unicode=True,
        width=_WIDTH,
    )
    return "\n".join(comments) + "\n" + body


_Bootstrap = Annotated[str | None, typer.Option("--bootstrap", help="host:port,host:port")]
_Topics = Annotated[list[str] | None, typer.Option("--topic", help="A topic; may be repeated.")]
_Sink = Annotated[
    str | None, typer.Option("--sink", help=f"Where rows go: {', '.join(sink_names())}.")
]
_Set = Annotated[
    list[str] | None,
    typer.Option("--set", help="key=value of the sink: table=orders, 'dsn=${EO_PG_DSN}' ..."),
]
_Client = Annotated[
    list[str] | None,
    typer.Option("--client", help="key=value of librdkafka: security.protocol=SASL_SSL ..."),
]
_Registry = Annotated[
    str | None, typer.Option("--registry", help="URL of the registry that has the schemas.")
]
_Subject = Annotated[
    str | None, typer.Option("--subject", help="In the registry. Default: <topic>-value.")
]
_RegistryClient = Annotated[
    list[str] | None,
    typer.Option(
        "--registry-client", help="key=value: 'basic.auth.user.info=${EO_REGISTRY_LOGIN}' ..."
    ),
]
_NewName = Annotated[str | None, typer.Option("--name", help="Default: from the topic's.")]
_Out = Annotated[
    Path | None, typer.Option("--out", "-o", help="The file. Default: pipelines/<name>.yaml")
]
_Records = Annotated[int, typer.Option(min=1, help="The most records read of each partition.")]
_NotNull = Annotated[
    bool, typer.Option("--not-null", help="Declare NOT NULL what every sampled record has.")
]
_SchemaFile = Annotated[
    Path | None,
    typer.Option("--schema-file", help="Keep the columns of JSON in this file, not inline."),
]
_Force = Annotated[bool, typer.Option("--force", help="Overwrite the file.")]

#: Reference to a variable.
_VARIABLE = re.compile(r"\$\{(\w+)")


def init(
    bootstrap: _Bootstrap = None,
    topics: _Topics = None,
    sink: _Sink = None,
    settings: _Set = None,
    client: _Client = None,
    registry: _Registry = None,
    subject: _Subject = None,
    registry_client: _RegistryClient = None,
    name: _NewName = None,
    out: _Out = None,
    records: _Records = 200,
    not_null: _NotNull = False,
    schema_file: _SchemaFile = None,
    force: _Force = False,
    as_json: AsJson = False,
) -> None:
    """Write a working pipeline document from a sample of the topic.

    Reads the oldest and newest records of every partition, commits nothing, and asks on a terminal
    for what was not given. With --registry the columns follow the latest schema there.
    """
    output = Output(as_json)
    bootstrap = bootstrap or _prompt(output, "--bootstrap", "Kafka's bootstrap servers (host:port)")
    topics = topics or [_prompt(output, "--topic", "Topic")]
    kind = sink or _prompt(output, "--sink", f"Sink ({', '.join(sink_names())})")
    name = name or _default_name(topics[0])
    path = out or Path("pipelines", f"{name}.yaml")
    _refuse_existing(path, force)
    source: dict[str, Any] = {"bootstrap_servers": bootstrap, "topics": topics}
    if client:
        source["client"] = pairs(client, "--client")
    target = _sink(output, kind, name, bootstrap, pairs(settings, "--set"))
    sampled = sample(KafkaSource(**expanded(source), value_format="raw"), records)
    inferred = infer_schema(sampled.values)
    if registry:
        login = pairs(registry_client, "--registry-client")
        fields = registry_format(source, registry, subject, login, sampled.values)
        fields |= registry_policies(inferred)
        key_fields, key_remarks = registry_keys(source | fields, sampled.keys)
    else:
        fields = _format(inferred, not_null=not_null)
        key_fields, key_remarks = json_keys(infer_schema(sampled.keys), inferred)
    values: dict[str, Any] = {
        "name": name,
        "source": source | fields | key_fields,
        "sink": target,
    }
    unset = _unset_variables(values)
    if not unset:
        Pipeline.from_config(expanded(values))
    remarks = (
        registry_remarks(inferred, values["source"]) if registry else _remarks(inferred, sampled)
    )
    remarks += key_remarks
    if len(topics) > 1:
        remarks.append("Records of all topics go into one table; docs/tables.md has one for each.")
    values["sink"] = rebased_paths(values, path.parent)["sink"]
    text = document_text(
        _with_schema_file(values, inferred, schema_file, path, force, not_null), remarks
    )
    _write(path, text, target)
    _show_result(output, path, values, inferred, sampled, unset, remarks)


def _prompt(output: Output, option: str, question: str, *, secret: bool = False) -> str:
    if output.as_json or not sys.stdin.isatty():
        raise ConfigError(f"{option} is missing")
    return str(typer.prompt(question, hide_input=secret))


def _default_name(topic: str) -> str:
    name = re.sub(r"[^a-z0-9_-]", "_", topic.lower()).lstrip("_-")[:63]
    if not name:
        raise ConfigError(f"no pipeline name can be made of topic {topic!r}: give --name")
    return name


def _refuse_existing(path: Path, force: bool) -> None:
    if path.exists() and not force:
        raise ConfigError(f"{path} exists already; --force overwrites it, --out names another")


def _sink(
    output: Output, kind: str, name: str, bootstrap: str, options: Mapping[str, str]
) -> dict[str, Any]:
    """Return the sink's configuration: the given settings, and all required fields."""
    defaults = {
        "table": re.sub(r"\W", "_", name),
        "path": f".eo/tables/{name}",
        "bootstrap_servers": bootstrap,
    }
    fields = sink_class(kind).model_fields
    settings: dict[str, Any] = {"type": kind, **options}
    for field, info in fields.items():
        if not info.is_required() or field in options:
            continue
        if _is_secret(info):
            settings[field] = f"${{EO_{re.sub(r'[^A-Z0-9]', '_', f'{name}_{field}'.upper())}}}"
        else:
            settings[field] = defaults.get(field) or _prompt(
                output, f"--set {field}=...", f"The sink's {field}"
            )
    return settings


def _is_secret(info: FieldInfo) -> bool:
    return info.annotation is SecretStr


def _format(inferred: InferredSchema, *, not_null: bool) -> dict[str, Any]:
    """Return the source fields that follow from the sample."""
    fields: dict[str, Any] = {"value_format": "raw"}
    if inferred.columns():
        # a field may be called $ref, which must not become a variable
        schema = inferred.ddl(not_null=not_null).replace("$", r"\$")
        fields = {"value_format": "json", "value_schema": schema}
    fields["start"] = "earliest"
    if inferred.columns() and inferred.bad:
        fields["on_bad_record"] = "dead_letter"
    if inferred.tombstones:
        fields["tombstones"] = "skip"
    return fields


def _with_schema_file(
    values: dict[str, Any],
    inferred: InferredSchema,
    file: Path | None,
    document: Path,
    force: bool,
    not_null: bool,
) -> dict[str, Any]:
    """Return ``values`` with the schema in the separate ``file``, if requested and if there is a
    schema.
    """
    if file is None or "value_schema" not in values["source"]:
        return values
    _refuse_existing(file, force)
    _write_text(file, inferred.ddl(not_null=not_null) + "\n")
    reference = {"file": os.path.relpath(file, document.parent)}
    return {**values, "source": {**values["source"], "value_schema": reference}}


def _unset_variables(value: Any) -> list[str]:
    """Return the environment variables that the document needs and that are not set."""
    variables = sorted(set(_VARIABLE.findall(repr(value))))
    return [name for name in variables if name not in os.environ]


def _remarks(inferred: InferredSchema, read: Sample) -> list[str]:
    """Return the remarks about the sample."""
    partitions = len(read.cluster.bounds)
    sentences = [
        f"{number(inferred.records)} records of {partitions} partitions were looked at: "
        f"{number(inferred.good)} JSON objects, {number(inferred.bad)} other values, "
        f"{number(inferred.tombstones)} without a value."
    ]
    if not inferred.records:
        sentences.append("The topic is empty, so nothing is known of its values: they stay bytes.")
    elif not inferred.columns():
        sentences.append("No value is a JSON object with fields: values stay bytes.")
    elif inferred.bad:
        sentences.append("Values that do not fit go to the dead-letter table.")
    if inferred.framed:
        sentences.append(
            f"{number(inferred.framed)} values start with a schema id: to decode them, give "
            "--registry URL."
        )
    if inferred.tombstones:
        sentences.append("Records without a value are skipped and counted.")
    if inferred.unknown():
        sentences.append(
            f"Only nulls were seen in {', '.join(inferred.unknown())}; assuming STRING."
        )
    sentences += [f"Left out: {field!r} {why}." for field, why in inferred.left_out().items()]
    return sentences


def _write(path: Path, text: str, sink: Mapping[str, Any]) -> None:
    """Write the document; clear-text secrets make it readable by its owner only."""
    fields = sink_class(sink["type"]).model_fields
    secrets = [
        field
        for field, info in fields.items()
        if _is_secret(info) and not _VARIABLE.search(str(sink.get(field, "${")))
    ]
    _write_text(path, text, mode=0o600 if secrets else 0o644)
    if secrets:
        note(
            f"{path} now holds sink.{', sink.'.join(secrets)} as it was given. To keep it out of "
            "the file, write ${NAME} there and set that variable."
        )


def _write_text(path: Path, text: str, mode: int = 0o644) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(mode=mode)
        path.write_text(text)
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}") from error


def _show_result(
    output: Output,
    path: Path,
    values: Mapping[str, Any],
    inferred: InferredSchema,
    read: Sample,
    unset: list[str],
    remarks: list[str],
) -> None:
    if output.as_json:
        output.document(
            {
                "document": str(path),
                "pipeline": values["name"],
                "records": inferred.records,
                "json_objects": inferred.good,
                "bad": inferred.bad,
                "tombstones": inferred.tombstones,
                "kafka_partitions": len(read.cluster.bounds),
                "value_format": values["source"]["value_format"],
                "value_schema": values["source"].get("value_schema"),
                "left_out": inferred.left_out(),
                "unset_variables": unset,
            }
        )
    for sentence in remarks:
        output.say(sentence)
    output.say(f"Wrote {path}")
    if unset:
        output.say(f"Set {', '.join(unset)} before it runs.", "yellow")
    output.say(f"Next: eo doctor -f {path}; eo plan -f {path}; eo run -f {path}")
