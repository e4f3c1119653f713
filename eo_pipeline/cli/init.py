"""`eo init`: a pipeline document from what is in a topic."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import SecretStr
from pydantic.fields import FieldInfo

from eo_pipeline.cli.document_text import document_text
from eo_pipeline.cli.init_keys import json_keys, registry_keys
from eo_pipeline.cli.init_registry import (
    registry_format,
    registry_policies,
    registry_remarks,
)
from eo_pipeline.cli.options import AsJson, pairs
from eo_pipeline.cli.output import Output, number
from eo_pipeline.cli.sampling import InferredSchema, infer_schema
from eo_pipeline.cli.telling import note
from eo_pipeline.cli.topic import Sample, sample
from eo_pipeline.documents import begun_here, expanded
from eo_pipeline.errors import ConfigError
from eo_pipeline.pipeline import Pipeline
from eo_pipeline.sinks.registry import sink_class, sink_names
from eo_pipeline.source.config import KafkaSource

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
    """Write a working pipeline document by asking the topic what is in it.

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
        sentences.append(f"Never seen but null, taken for STRING: {', '.join(inferred.unknown())}.")
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
