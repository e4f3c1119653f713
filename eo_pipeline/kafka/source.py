"""Settings for reading Kafka, and their translation for librdkafka and Spark. No I/O."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Mapping
from enum import StrEnum
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import (
    AwareDatetime,
    BeforeValidator,
    Discriminator,
    Field,
    PositiveInt,
    Tag,
    ValidationInfo,
    field_validator,
    model_validator,
)

from eo_pipeline.config.settings import ClientSettings, Settings, one_or_more
from eo_pipeline.formats import ddl, json_schema
from eo_pipeline.formats.base import SchemaKind
from eo_pipeline.formats.kinds import key_as_record, kind_of, type_of_format
from eo_pipeline.formats.parts import KEY, VALUE, Part
from eo_pipeline.formats.registry import Registry
from eo_pipeline.formats.schema_diff import SchemaChanges, SchemaChangesField
from eo_pipeline.kafka import auth
from eo_pipeline.kafka.auth import MSK_IAM
from eo_pipeline.kafka.client import connection_settings, refuse_spark_options
from eo_pipeline.kafka.partitions import reads_its_own
from eo_pipeline.kafka.planner import BatchLimits
from eo_pipeline.ledger.schemas import AVRO, JSON_SCHEMA, PROTOBUF

if TYPE_CHECKING:
    from typing import Self


class StartAtTimestamp(Settings):
    """The first record whose timestamp is not before ``timestamp``; per partition.

    ``or_else`` says what a partition without such a record does: ``error`` or ``latest``.
    """

    timestamp: AwareDatetime
    or_else: Literal["error", "latest"] = "error"


class StartAtGroup(Settings):
    """The offsets a consumer group committed to Kafka; read once, never again.

    ``or_else`` says where a partition without a committed offset starts.
    """

    group: str = Field(min_length=1)
    or_else: Literal["error", "earliest", "latest"] = "error"


class StartAtOffsets(Settings):
    """Exact offsets, ``{topic: {partition: next offset}}``.

    ``or_else`` says where a partition that is not listed starts.
    """

    offsets: Mapping[str, Mapping[int, Annotated[int, Field(ge=0)]]]
    or_else: Literal["error", "earliest", "latest"] = "error"


def _start_kind(value: Any) -> str:
    """Pick the one start mode a document means, so that an error names its field and no other."""
    for mode in ("timestamp", "group", "offsets"):
        if (mode in value) if isinstance(value, Mapping) else hasattr(value, mode):
            return mode
    return "named"


Start = Annotated[
    Annotated[Literal["earliest", "latest"], Tag("named")]
    | Annotated[StartAtTimestamp, Tag("timestamp")]
    | Annotated[StartAtGroup, Tag("group")]
    | Annotated[StartAtOffsets, Tag("offsets")],
    Discriminator(_start_kind),
]


class SchemaFile(Settings):
    """A schema in a separate file.

    Args:
        file: path of the file, relative to the YAML document.
    """

    file: str = Field(min_length=1)


#: What an object has that is a schema itself: a StructType, one of Avro, a JSON Schema.
_OF_A_SCHEMA = frozenset({"fields", "type", "properties", "$ref", "allOf", "$schema"})


def _schema_text(value: Any) -> Any:
    """Accept a pyspark ``StructType`` by its JSON form, and ``{file: PATH}`` by what is in it."""
    if isinstance(value, Mapping) and value.keys() & _OF_A_SCHEMA:
        return json.dumps(value)  # what Dagster makes of JSON in a document
    if isinstance(value, Mapping):
        value = SchemaFile.model_validate(value)
    if isinstance(value, SchemaFile):
        try:
            return Path(value.file).read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ValueError(f"{value.file} cannot be read: {error}") from None
    to_json = getattr(value, "json", None)
    return to_json() if callable(to_json) else value


SchemaText = Annotated[
    str | None,
    BeforeValidator(_schema_text, json_schema_input_type=str | SchemaFile | None),
]


class LossKind(StrEnum):
    """Reason for a missing record; each has its own policy in the source."""

    RETENTION = "retention"  # the broker deleted records before they were read
    TRUNCATED = "truncated"  # the log ends before the ledger's offset, or is another below it
    RECREATED = "recreated"  # the topic has another UUID (KIP-516)
    WENT_BACK = "went_back"  # ... one that it had before: no policy can know whom to believe
    VANISHED = "vanished"  # the topic or partition is gone


LossPolicy = Literal["fail", "continue"]

#: A schema of each kind, as a document has it.
_WHAT = {
    AVRO: "an Avro schema as JSON",
    JSON_SCHEMA: "a JSON Schema",
    PROTOBUF: "a .proto file",
}

#: Settings that would let a client move offsets on its own, or change what bytes mean.
FORBIDDEN_CLIENT_SETTINGS = frozenset(
    {
        "auto.offset.reset",
        "bootstrap.servers",
        "enable.auto.commit",
        "enable.auto.offset.store",
        "group.id",
        "group.instance.id",
        "isolation.level",
        "key.deserializer",
        "value.deserializer",
    }
)


class KafkaSource(Settings):
    """Kafka topics and how their records are read.

    Args:
        bootstrap_servers: ``host:port,host:port``.
        topics: one or several topic names; alternative to ``topic_pattern``.
        topic_pattern: a regular expression that must match a whole topic name.
        value_schema: schema of the values: for JSON a Spark DDL string or a JSON Schema, or
            an Avro or Protobuf schema; or ``{file: PATH}`` of a file with one of these.
        value_format: ``json`` (with ``value_schema``, a Spark DDL string or ``StructType``, of
            which a field declared ``NOT NULL`` must be present, or a JSON Schema as JSON; or with
            ``registry``), ``avro`` (with
            ``registry``, or with ``value_schema``, an Avro schema as JSON, which all values are
            written with), ``protobuf`` (with ``registry``, or with ``value_schema``, a .proto
            file's text) or ``raw`` (one binary column ``value``). With ``registry`` its latest
            schema gives the columns.
        message: Protobuf message type of the values; default: the first message of the
            file. ``Outer.Inner`` names a nested message.
        key_format: ``raw`` (bytes, in ``_kafka.key`` only), ``text`` (a column ``key``), ``json``
            (with ``key_schema``, as for values, or with ``registry``), ``avro`` (with
            ``key_schema``, an Avro schema, or with ``registry``) or ``protobuf`` (with
            ``key_schema``, a .proto file's text, or with ``registry``).
            A key that is a record becomes a column for each field, any other the column ``key``.
        key_schema: of a key, as ``value_schema`` is of a value.
        key_message: of a key, as ``message`` is of a value.
        key_prefix: before the names of a key's fields, where they become columns.
        registry: the schema registry that knows the values' schemas.
        unknown_fields: fields of a record that the columns' schema does not name: ``ignore``
            leaves them out (counted, and named, in the checkpoint's counts), ``keep`` puts them
            into one column ``_unknown_fields``, ``fail`` makes the record a bad one.
        schema_changes: what a change of the registry's latest schema does: ``evolve``, ``freeze``,
            ``quarantine`` or ``rescue``, one word or one for each kind of change.
        start: where the very first checkpoint begins. Resolved once to numbers and stored.
        isolation: ``read_committed`` stops at the last stable offset and skips aborted records.
        max_records: maximum number of offsets per checkpoint, shared fairly by the partitions.
        max_bytes: the same limit in bytes of values, estimated from earlier checkpoints.
        on_bad_record: ``fail`` stops the run; ``dead_letter`` writes bad records aside, and fails
            when one checkpoint holds more than ``dead_letter_limit``.
        dead_letter_limit: maximum number of dead letters per checkpoint; more fail the run.
        tombstones: a record without a value is a bad record (``bad``) or left out and counted
            (``skip``).
        on_retention, on_recreated, on_vanished: ``fail`` raises DataLossError; ``continue``
            records the hole as a ledger version of its own and goes on. A truncated log follows
            ``on_recreated``, and is read on when it reaches the ledger's offset. A topic that has
            an earlier topic's UUID again is always an error. After the first run, ``on_vanished``
            also decides whether a topic of ``topics`` that does not exist fails the run.
        commit_group: consumer group to which each commit also writes its offsets in Kafka, for
            lag tools only; the pipeline itself never reads them.
        client: librdkafka settings for authentication and transport (``security.protocol``,
            ``sasl.*``, ``ssl.*`` ...), used by the admin client and, translated, by Spark.
        spark_options: options for Spark alone: ``kafka.`` and a consumer's setting for connecting,
            logging in, fetching or waiting; or ``minPartitions`` and the like. None that decides
            which records are read.
        request_timeout: seconds to wait for the cluster's answer.
    """

    type: Literal["kafka"] = "kafka"
    bootstrap_servers: str = Field(min_length=1)
    topics: Annotated[
        tuple[Annotated[str, Field(min_length=1)], ...],
        BeforeValidator(one_or_more, json_schema_input_type=str | tuple[str, ...]),
    ] = ()
    topic_pattern: str | None = None
    value_format: Literal["json", "avro", "protobuf", "raw"] = "json"
    value_schema: SchemaText = None
    key_format: Literal["raw", "text", "json", "avro", "protobuf"] = "raw"
    key_schema: SchemaText = None
    key_message: str = ""
    key_prefix: str = "key_"
    message: str = ""
    registry: Registry | None = None
    unknown_fields: Literal["ignore", "keep", "fail"] = "ignore"
    schema_changes: SchemaChangesField = SchemaChanges()
    start: Start = "earliest"
    isolation: Literal["read_committed", "read_uncommitted"] = "read_committed"
    max_records: PositiveInt | None = 1_000_000
    max_bytes: PositiveInt | None = None
    on_bad_record: Literal["fail", "dead_letter"] = "fail"
    dead_letter_limit: PositiveInt = 1_000
    tombstones: Literal["bad", "skip"] = "bad"
    on_retention: LossPolicy = "fail"
    on_recreated: LossPolicy = "fail"
    on_vanished: LossPolicy = "fail"
    commit_group: str | None = None
    request_timeout: float = Field(default=30.0, gt=0)
    client: ClientSettings = Field(default_factory=dict, repr=False)
    spark_options: ClientSettings = Field(default_factory=dict, repr=False)

    @field_validator("value_schema", "key_schema")
    @classmethod
    def _names_types_of_spark(cls, text: str | None, info: ValidationInfo) -> str | None:
        kind = info.data.get(str(info.field_name).replace("schema", "format"))
        if text and cls._is_ddl(str(kind), text) and (fault := ddl.fault_of(text)):
            raise ValueError(fault)
        return text

    @model_validator(mode="after")
    def _check(self) -> Self:
        if bool(self.topics) == bool(self.topic_pattern):
            raise ValueError("give either topics or topic_pattern")
        if len(set(self.topics)) != len(self.topics):
            raise ValueError("topics names one topic twice")
        if self.topic_pattern is not None:
            _compile(self.topic_pattern)
        self._check_format()
        self._check_key()
        refuse_spark_options(self.spark_options)
        clash = FORBIDDEN_CLIENT_SETTINGS & self.client.keys()
        if clash:
            raise ValueError(
                f"these settings are decided by the pipeline: {', '.join(sorted(clash))}"
            )
        return self

    def _check_format(self) -> None:
        registry = None if self.by_registry(KEY) else self.registry
        if self.value_format == "raw":
            if registry or self.value_schema:
                raise ValueError("registry and value_schema do not belong to value_format raw")
            if self.unknown_fields != "ignore":
                raise ValueError("unknown_fields does not belong to value_format raw")
            return
        if self.message and self.value_format != "protobuf":
            raise ValueError("message belongs to value_format protobuf")
        if (registry and self.value_schema) or not (self.registry or self.value_schema):
            raise ValueError(
                f"value_format {self.value_format} needs either registry or value_schema"
            )
        if self.by_registry(VALUE) and len(self.topics) != 1 and not self._registry.subject:
            raise ValueError(
                "registry.subject is required to select the schema of the columns, since "
                "more than one topic may be read"
            )
        self._check_schema()
        self._check_changes()

    def _check_changes(self) -> None:
        changes = self.schema_changes
        if self.registry is None and changes != SchemaChanges():
            raise ValueError(
                "schema_changes needs a registry; without one, unknown_fields decides about "
                "fields that value_schema does not name"
            )
        if self.value_format == "protobuf" and self.keeps_unknown and self.value_schema:
            raise ValueError(
                "unknown_fields: keep needs a registry for value_format protobuf: without one a "
                "field that the message does not have is a number, with no name and no type"
            )

    def _check_schema(self) -> None:
        if self.value_schema is None or self._is_ddl(self.value_format, self.value_schema):
            return
        if fault := self._kind_of(VALUE).fault_of(self.schema_text):
            raise ValueError(f"value_schema, {_WHAT[self.schema_type]}, {fault}")

    @staticmethod
    def _is_ddl(kind: str, text: str) -> bool:
        """Return whether Spark must judge the schema."""
        return kind == "json" and not json_schema.is_one(text)

    @property
    def schema_text(self) -> str:
        """``value_schema`` as the kind of it takes it."""
        return self.schema_text_of(VALUE)

    def schema_text_of(self, part: Part) -> str:
        """Return the schema's text of a part."""
        schema_type, text = self.schema_type_of(part), self.value_schema or ""
        if part == KEY:
            text = key_as_record(schema_type, self.key_schema or "")
        return self._kind_of(part).self_contained(text, {}) if schema_type == PROTOBUF else text

    def _kind_of(self, part: Part) -> SchemaKind:
        return kind_of(self.schema_type_of(part), self.message_of(part))

    def _check_key(self) -> None:
        by_registry = self.by_registry(KEY)
        needs_one = self.key_format not in ("raw", "text") and not by_registry
        if needs_one != (self.key_schema is not None):
            raise ValueError("key_schema belongs to key_format json, avro and protobuf")
        if self.key_message and self.key_format != "protobuf":
            raise ValueError("key_message belongs to key_format protobuf")
        named = self.registry.key_subject if self.registry else None
        if by_registry and len(self.topics) != 1 and not named:
            raise ValueError(
                "registry.key_subject must say whose latest schema gives the key's columns, since "
                "more than one topic may be read"
            )
        if named and not by_registry:
            raise ValueError("registry.key_subject belongs to a key_format without key_schema")
        text = self.key_schema
        if text is None or self._is_ddl(self.key_format, text):
            return
        if fault := self._kind_of(KEY).fault_of(self.schema_text_of(KEY)):
            raise ValueError(f"key_schema, {_WHAT[self.schema_type_of(KEY)]}, {fault}")

    def by_registry(self, part: Part) -> bool:
        """Return whether the registry has the schemas of this part of a record."""
        if self.registry is None:
            return False
        if part == KEY:
            return self.key_format not in ("raw", "text") and self.key_schema is None
        return self.value_format != "raw" and self.value_schema is None

    @property
    def _registry(self) -> Registry:
        assert self.registry is not None
        return self.registry

    @property
    def subject(self) -> str:
        """Under which the registry has the schemas of the values: the topic's, if none is named."""
        return self.subject_of(VALUE)

    def subject_of(self, part: Part) -> str:
        """Return the registry's subject of a part."""
        named = self._registry.key_subject if part == KEY else self._registry.subject
        return named or part.subject(self.topics[0])

    @property
    def schema_type(self) -> str:
        """The registry's name for the type of the values' schemas."""
        return self.schema_type_of(VALUE)

    def schema_type_of(self, part: Part) -> str:
        """Return the registry's name for the type of a part's schemas."""
        return type_of_format(self.key_format if part == KEY else self.value_format)

    def message_of(self, part: Part) -> str:
        """Return the name of the Protobuf message of a part; empty: the first, or there is none."""
        return self.key_message if part == KEY else self.message

    @property
    def keeps_unknown(self) -> bool:
        """True if there is a column for what the columns' schema does not name or hold."""
        return self.unknown_fields == "keep" or self.schema_changes.rescues

    @property
    def limits(self) -> BatchLimits:
        return BatchLimits(records=self.max_records, bytes=self.max_bytes)

    def matches(self, topic: str) -> bool:
        """True if the subscription asks for ``topic``. A pattern never matches internal topics."""
        if self.topic_pattern is None:
            return topic in self.topics
        return not topic.startswith("__") and bool(_compile(self.topic_pattern).fullmatch(topic))

    def takes(self, where: str | None) -> str:
        """Return the condition, SQL that is never null, on which one of several tables takes a
        record: it is of these topics, and fulfils ``where``.
        """
        topics = ", ".join(f"'{topic}'" for topic in self.topics)
        conditions = [f"topic IN ({topics})"] if topics else []
        # a comment may end it
        conditions += [f"({where}\n)"] if where is not None else []
        return f"coalesce({' AND '.join(conditions) or 'true'}, false)"

    def refuse_own_topics(self, brokers: str, written: Collection[str]) -> None:
        """Return if none of the topics ``written`` on ``brokers`` is one that is read, as far as
        addresses show; a run compares the topics' UUIDs, too.

        Raises:
            ValueError: one is.
        """
        topics = [topic for topic in sorted(written) if self.matches(topic)]
        if topics and {*brokers.split(",")} & {*self.bootstrap_servers.split(",")}:
            raise ValueError(reads_its_own(topics))

    def policy(self, kind: LossKind) -> LossPolicy:
        """Return the configured policy for one kind of loss."""
        policies: dict[LossKind, LossPolicy] = {
            LossKind.RETENTION: self.on_retention,
            LossKind.TRUNCATED: self.on_recreated,
            LossKind.RECREATED: self.on_recreated,
            LossKind.WENT_BACK: "fail",
            LossKind.VANISHED: self.on_vanished,
        }
        return policies[kind]

    def consumer_group(
        self, pipeline: str, topic_ids: Mapping[str, str], settings: Mapping[str, str]
    ) -> str:
        """The ``group.id`` Spark's executors read with, under these consumer ``settings``.

        Fixed per pipeline, because Spark caches one consumer per group, and a new group for every
        query grows that cache without bound. It holds the topics' UUIDs, because the cache would
        otherwise serve records of a deleted topic of the same name; and the settings, because the
        cache refuses a consumer of others under the same group for as long as it lives, and shows
        both sets.
        """
        ids = ",".join(f"{topic}={uuid}" for topic, uuid in sorted(topic_ids.items()))
        return f"eo-{pipeline}-{_fingerprint(ids, tuple(sorted(settings.items())))}"


#: Rounds of a hash that everybody sees in Kafka's logs and in which there is a password: guesses
#: cost time. It is made once a process.
_ROUNDS = 100_000


@lru_cache(maxsize=16)
def _fingerprint(ids: str, settings: tuple[tuple[str, str], ...]) -> str:
    return hashlib.pbkdf2_hmac("sha256", repr(settings).encode(), ids.encode(), _ROUNDS, 8).hex()


def _compile(pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except re.error as error:
        raise ValueError(f"topic_pattern is not a regular expression: {error}") from None


_TRANSLATED = auth.SASL_TRANSLATED | auth.TLS_TRANSLATED


def librdkafka_settings(source: KafkaSource) -> dict[str, Any]:
    """Settings of confluent-kafka's clients. Holds secrets: never log it.

    Raises:
        ConfigError: a certificate cannot be read or is not valid now, or a login is incomplete; for
            Spark, too, so that a run need not begin to find out.
        SetupError: a package is missing that the login takes.
    """
    spark_settings(source)
    return connection_settings(source.bootstrap_servers, source.client)


def spark_settings(source: KafkaSource) -> dict[str, str]:
    """Connector options for Spark, each Java client setting prefixed by ``kafka.``.

    Holds secrets: never log it.

    Raises:
        ConfigError: a certificate cannot be read or is not valid now, or a login is incomplete.
    """
    client = {key: value.get_secret_value() for key, value in source.client.items()}
    java = {
        key: value
        for key, value in client.items()
        if key not in _TRANSLATED and not auth.is_foreign(key)
    }
    java |= auth.tls_for_java(client)
    java |= auth.sasl_for_java(source.bootstrap_servers, client, source.spark_options)
    options = {f"kafka.{key}": value for key, value in java.items()}
    options["kafka.bootstrap.servers"] = source.bootstrap_servers
    options["kafka.isolation.level"] = source.isolation
    return options | {k: v.get_secret_value() for k, v in source.spark_options.items()}


def logs_in_by_iam(source: KafkaSource) -> bool:
    """Return whether it is Amazon MSK's login, for which Spark needs a jar."""
    client = {key: value.get_secret_value() for key, value in source.client.items()}
    return auth.mechanism_of(client) == MSK_IAM
