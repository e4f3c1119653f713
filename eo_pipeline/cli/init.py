"""`eo init`: a pipeline document from what is in a topic."""

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
from eo_pipeline.config.documents import begun_here, expanded
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
    from eo_pipeline.formats.protobuf import Protobuf, messages_named

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


_WIDTH = 98


class _Block(str):
    """A text of several lines, written below each other."""


class _Dumper(yaml.SafeDumper):
    pass


def _block(dumper: yaml.SafeDumper, text: _Block) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", str(text), style="|")


_Dumper.add_representer(_Block, _block)


def document_text(values: Mapping[str, Any], remarks: Iterable[str]) -> str:
    """``values`` as YAML, the schema one field a line, below ``remarks`` as comments."""
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

#: A text that names a variable instead of holding a secret.
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
    bootstrap = bootstrap or _asked(output, "--bootstrap", "Kafka's bootstrap servers (host:port)")
    topics = topics or [_asked(output, "--topic", "Topic")]
    kind = sink or _asked(output, "--sink", f"Sink ({', '.join(sink_names())})")
    name = name or _name_of(topics[0])
    path = out or Path("pipelines", f"{name}.yaml")
    _refuse_existing(path, force)
    source: dict[str, Any] = {"bootstrap_servers": bootstrap, "topics": topics}
    if client:
        source["client"] = pairs(client, "--client")
    target = _sink(output, kind, name, bootstrap, pairs(settings, "--set"))
    read = sample(KafkaSource(**expanded(source), value_format="raw"), records)
    inferred = infer_schema(read.values)
    if registry:
        login = pairs(registry_client, "--registry-client")
        found = registry_format(source, registry, subject, login, read.values)
        found |= registry_policies(inferred)
        of_keys, more = registry_keys(source | found, read.keys)
    else:
        found = _format(inferred, not_null=not_null)
        of_keys, more = json_keys(infer_schema(read.keys), inferred)
    values: dict[str, Any] = {
        "name": name,
        "source": source | found | of_keys,
        "sink": target,
    }
    unset = _unset_variables(values)
    if not unset:
        Pipeline.from_config(expanded(values))
    remarks = registry_remarks(inferred, values["source"]) if registry else _remarks(inferred, read)
    remarks += more
    values["sink"] = begun_here(values, path.parent)["sink"]
    text = document_text(_kept(values, inferred, schema_file, path, force, not_null), remarks)
    _write(path, text, target)
    _tell(output, path, values, inferred, read, unset, remarks)


def _asked(output: Output, option: str, question: str, *, secret: bool = False) -> str:
    if output.as_json or not sys.stdin.isatty():
        raise ConfigError(f"{option} is missing")
    return str(typer.prompt(question, hide_input=secret))


def _name_of(topic: str) -> str:
    name = re.sub(r"[^a-z0-9_-]", "_", topic.lower()).lstrip("_-")[:63]
    if not name:
        raise ConfigError(f"the topic {topic!r} makes no pipeline's name: give --name")
    return name


def _refuse_existing(path: Path, force: bool) -> None:
    if path.exists() and not force:
        raise ConfigError(f"{path} exists already; --force overwrites it, --out names another")


def _sink(
    output: Output, kind: str, name: str, bootstrap: str, given: Mapping[str, str]
) -> dict[str, Any]:
    """The sink's configuration: what was given, and every field it cannot do without."""
    defaults = {
        "table": re.sub(r"\W", "_", name),
        "path": f".eo/tables/{name}",
        "bootstrap_servers": bootstrap,
    }
    fields = sink_class(kind).model_fields
    settings: dict[str, Any] = {"type": kind, **given}
    for field, info in fields.items():
        if not info.is_required() or field in given:
            continue
        if _is_secret(info):
            settings[field] = f"${{EO_{re.sub(r'[^A-Z0-9]', '_', f'{name}_{field}'.upper())}}}"
        else:
            settings[field] = defaults.get(field) or _asked(
                output, f"--set {field}=...", f"The sink's {field}"
            )
    return settings


def _is_secret(info: FieldInfo) -> bool:
    return info.annotation is SecretStr


def _format(inferred: InferredSchema, *, not_null: bool) -> dict[str, Any]:
    """The source's fields that follow from the sample."""
    found: dict[str, Any] = {"value_format": "raw"}
    if inferred.columns():
        # a field may be called $ref, which must not become a variable
        schema = inferred.ddl(not_null=not_null).replace("$", r"\$")
        found = {"value_format": "json", "value_schema": schema}
    found["start"] = "earliest"
    if inferred.columns() and inferred.bad:
        found["on_bad_record"] = "dead_letter"
    if inferred.tombstones:
        found["tombstones"] = "skip"
    return found


def _kept(
    values: dict[str, Any],
    inferred: InferredSchema,
    file: Path | None,
    document: Path,
    force: bool,
    not_null: bool,
) -> dict[str, Any]:
    """``values`` with the schema in a ``file`` of its own, if one is asked for and there is one."""
    if file is None or "value_schema" not in values["source"]:
        return values
    _refuse_existing(file, force)
    _write_text(file, inferred.ddl(not_null=not_null) + "\n")
    named = {"file": os.path.relpath(file, document.parent)}
    return {**values, "source": {**values["source"], "value_schema": named}}


def _unset_variables(value: Any) -> list[str]:
    """Environment variables that the document needs and that are not set here."""
    named = sorted(set(_VARIABLE.findall(repr(value))))
    return [name for name in named if name not in os.environ]


def _remarks(inferred: InferredSchema, read: Sample) -> list[str]:
    """What the sample held, in sentences."""
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
            f"{number(inferred.framed)} values begin as a schema registry's do: they are read with "
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
    """Secrets that were given in so many words are for the owner's eyes."""
    fields = sink_class(sink["type"]).model_fields
    plain = [
        field
        for field, info in fields.items()
        if _is_secret(info) and not _VARIABLE.search(str(sink.get(field, "${")))
    ]
    _write_text(path, text, mode=0o600 if plain else 0o644)
    if plain:
        note(
            f"{path} now holds sink.{', sink.'.join(plain)} as it was given. To keep it out of the "
            "file, write ${NAME} there and set that variable."
        )


def _write_text(path: Path, text: str, mode: int = 0o644) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(mode=mode)
        path.write_text(text)
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}") from error


def _tell(
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
