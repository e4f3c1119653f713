"""The configuration of a Kafka topic that follows other Kafka topics."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from pydantic import (
    Field,
    PositiveFloat,
    PositiveInt,
    PrivateAttr,
    ValidationInfo,
    field_validator,
    model_validator,
)

from eo_pipeline.config.settings import ClientSettings
from eo_pipeline.formats.parts import KEY, VALUE, Part
from eo_pipeline.formats.registry import Registry
from eo_pipeline.sinks.columns import ColumnLimits, JsonRows, Unfit, column, reason
from eo_pipeline.sinks.config import Guarantee, Sink
from eo_pipeline.sinks.kafka.encoding import Schemas
from eo_pipeline.sinks.kafka.records import Layout, Partitioner, check_origin, project

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

#: A topic's name, short enough for ``<topic>._eo_ledger.<pipeline>`` to be one too (249).
_Topic = Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,170}$")]
_LongTopic = Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,249}$")]


class WritersRegistry(Registry):
    """The schema registry that has the schemas records are written with.

    Args:
        auto_register: register the schema of the columns; if not, the subject's latest schema is
            what records are written with, and must take the columns.
    """

    auto_register: bool = True


#: Settings the guarantee rests on.
FORBIDDEN_CLIENT_SETTINGS = frozenset(
    {
        "acks",
        "auto.offset.reset",
        "bootstrap.servers",
        "delivery.report.only.error",
        "enable.auto.commit",
        "enable.gapless.guarantee",
        "enable.idempotence",
        "enable.partition.eof",
        "group.id",
        "isolation.level",
        "request.required.acks",
        "transaction.timeout.ms",
        "transactional.id",
    }
)


class KafkaSink(Sink):
    """A Kafka topic, with the ledger in a topic of its own beside it.

    Args:
        bootstrap_servers: ``host:port,host:port``.
        topic: where rows go. Must exist.
        semantics: ``exactly_once``: rows, ledger record and offsets in one Kafka transaction.
            ``at_least_once``: rows by an idempotent producer, visible at once, the ledger after
            them; a run killed in between writes them again. ``none``: rows without waiting
            for an answer. The ledger itself is exact under all three.
        key: column that becomes the record's key: text, binary or an integer.
        value: column that is the record's value as it is; null is a tombstone. Without it the
            value is an object of all columns without another role.
        value_format: ``json``; or ``avro`` or ``protobuf``, in Confluent's wire format, with a
            schema that the ``registry`` holds: one record of all columns without another role, or
            the column ``value``.
        key_format: ``text`` (as its text), or ``avro`` or ``protobuf`` in the same manner.
        message, key_message: Protobuf message types of values and keys, if another program
            registered the schema; default: the first of the file.
        registry: where the schemas are; see :class:`WritersRegistry`.
        headers: a column of ``array<struct<key string, value binary>>``, or column by header name.
        timestamp: column that becomes the record's timestamp (milliseconds).
        partitioning: ``key``, ``source`` or ``assigner``, see :class:`Partitioner`.
        shards: how many producers publish a checkpoint that was staged in files. With more than
            one, each has a transaction of its own: atomic per shard, see
            :mod:`eo_pipeline.sinks.kafka.transactions`. Needs the pipeline's lineage.
        offsets_group: a consumer group whose offsets for the source topics move in the same
            transaction, for lag tools only. Source and sink must be the same cluster.
        ledger_topic: default ``<topic>._eo_ledger.<pipeline>``, created if absent.
        dead_letter_topic: default ``<topic>._dead_letters``, created by the first dead letter.
        replication: replicas of topics made here; -1 is the cluster's default.
        transaction_timeout: seconds after which the broker ends a transaction on its own, at most
            its ``transaction.max.timeout.ms``.
        request_timeout: seconds to wait for an answer.
        client: librdkafka settings for authentication, transport and batching.
    """

    type: Literal["kafka"] = "kafka"
    bootstrap_servers: str = Field(min_length=1)
    topic: _Topic
    semantics: Guarantee = Guarantee.EXACTLY_ONCE
    key: str | None = None
    value: str | None = None
    value_format: Literal["json", "avro", "protobuf"] = "json"
    key_format: Literal["text", "avro", "protobuf"] = "text"
    message: str = ""
    key_message: str = ""
    registry: WritersRegistry | None = None
    headers: str | Mapping[str, str] | None = None
    timestamp: str | None = None
    partitioning: Partitioner = Partitioner.KEY
    shards: PositiveInt = 1
    offsets_group: str | None = Field(default=None, min_length=1)
    ledger_topic: _LongTopic | None = None
    dead_letter_topic: _LongTopic | None = None
    replication: Annotated[int, Field(ge=-1)] = -1
    transaction_timeout: Annotated[PositiveFloat, Field(ge=1.0)] = 300.0
    request_timeout: PositiveFloat = 30.0
    client: ClientSettings = Field(default_factory=dict, repr=False)

    session_class: ClassVar[str] = "eo_pipeline.sinks.kafka.session:KafkaSession"
    tables_session_class: ClassVar[str | None] = "eo_pipeline.sinks.kafka.tables:KafkaTablesSession"
    table_field: ClassVar[str] = "topic"
    not_in_names: ClassVar[re.Pattern[str]] = re.compile(r"[^A-Za-z0-9._-]")
    of_one_table: ClassVar[frozenset[str]] = frozenset(
        {
            *("key", "value", "headers", "timestamp", "partitioning", "value_format", "key_format"),
            *("message", "key_message", "registry", "dead_letter_topic"),
        }
    )

    _schemas: Schemas = PrivateAttr(default_factory=Schemas)
    _is_one_of_several: bool = PrivateAttr(default=False)
    _has_rows: bool = PrivateAttr(default=True)

    @model_validator(mode="after")
    def _has_what_schemas_need(self) -> Self:
        if self.needs_agreement != (self.registry is not None):
            raise ValueError(
                "registry belongs to value_format or key_format avro or protobuf, which need one"
            )
        if "key" in self._encoded and self.key is None:
            raise ValueError(f"key_format: {self.key_format} needs key, the column that is the key")
        if self.registry and self.registry.key_subject and "key" not in self._encoded:
            raise ValueError("registry.key_subject belongs to key_format: avro or protobuf")
        for part in (VALUE, KEY):
            if self.message_of(part) and self.format_of(part) != "protobuf":
                name = "key_message" if part == KEY else "message"
                raise ValueError(f"{name} belongs to {part.name}_format protobuf")
        return self

    @field_validator("client")
    @classmethod
    def _leaves_the_guarantee_alone(cls, client: ClientSettings) -> ClientSettings:
        clash = FORBIDDEN_CLIENT_SETTINGS & client.keys()
        if clash:
            raise ValueError(f"these settings are decided by the sink: {', '.join(sorted(clash))}")
        return client

    @field_validator("ledger_topic", "dead_letter_topic")
    @classmethod
    def _is_another_topic(cls, name: str | None, info: ValidationInfo) -> str | None:
        if name is not None and name in (info.data.get("topic"), info.data.get("ledger_topic")):
            raise ValueError("needs a topic of its own")
        return name

    @field_validator("offsets_group")
    @classmethod
    def _needs_a_transaction(cls, group: str | None, info: ValidationInfo) -> str | None:
        if group is not None and info.data.get("semantics") is not Guarantee.EXACTLY_ONCE:
            raise ValueError("only with semantics: exactly_once")
        return group

    @field_validator("shards")
    @classmethod
    def _need_transactions(cls, shards: int, info: ValidationInfo) -> int:
        if shards > 1 and info.data.get("semantics") is not Guarantee.EXACTLY_ONCE:
            raise ValueError("more than one only with semantics: exactly_once")
        return shards

    @property
    def guarantee(self) -> Guarantee:  # type: ignore[override]  # the configuration decides here
        return self.semantics

    @property
    def layout(self) -> Layout:
        """Parts of a record and the columns that they are made of."""
        return Layout(
            *(self.key, self.value, self.headers, self.timestamp, self.partitioning),
            encoded=self._encoded,
            schemas=self._schemas,
        )

    @property
    def _encoded(self) -> frozenset[str]:
        """The parts of a record that have a schema."""
        with_schemas = ("avro", "protobuf")
        return frozenset(p.name for p in (VALUE, KEY) if self.format_of(p) in with_schemas)

    def format_of(self, part: Part) -> str:
        """Return the format of a part of each record."""
        return self.key_format if part == KEY else self.value_format

    def message_of(self, part: Part) -> str:
        """Return the name of the Protobuf message of a part; empty: the first."""
        return self.key_message if part == KEY else self.message

    @property
    def needs_agreement(self) -> bool:
        return bool(self._encoded)

    def agreed(self, agreement: Schemas) -> KafkaSink:
        """Return the sink with the schemas its records are written with."""
        copied = self.model_copy()
        copied._schemas = agreement
        return copied

    @classmethod
    def table_fields(cls, fields: Mapping[str, Any], pipeline: str, name: str) -> dict[str, Any]:
        shared = {"ledger_topic": f"{pipeline}._eo_ledger", **fields}
        return super().table_fields(shared, pipeline, name)

    def one_of_several(self) -> Self:
        """Refuse what is no single transaction; see ``Sink``."""
        if self.semantics is not Guarantee.EXACTLY_ONCE or self.shards > 1:
            raise ValueError(
                "several topics need one transaction: semantics: exactly_once and shards: 1"
            )
        copied = self.model_copy()
        copied._is_one_of_several = True
        return copied

    def without_rows(self) -> Self:
        """See ``Sink``; the topic need not exist."""
        copied = self.model_copy()
        copied._has_rows = False
        return copied

    @property
    def has_rows(self) -> bool:
        """False for the one of several topics that has dead letters alone."""
        return self._has_rows

    @property
    def table_name(self) -> str:
        return self.topic

    @property
    def tables_written(self) -> tuple[str, ...]:
        return self.topic, self.dead_letters

    def ledger_of(self, pipeline: str) -> str:
        """The topic with the ledger of ``pipeline``."""
        return self.ledger_topic or f"{self.topic}._eo_ledger.{pipeline}"

    def kafka_topics(self, pipeline: str) -> tuple[str, frozenset[str]]:
        """Rows', ledger's and dead letters' topic."""
        topics = frozenset({self.topic, self.ledger_of(pipeline), self.dead_letters})
        return self.bootstrap_servers, topics

    @property
    def dead_letters(self) -> str:
        """The topic for records that could not be read."""
        return self.dead_letter_topic or f"{self.topic}._dead_letters"

    def transactional_id(self, pipeline: str, shard: int) -> str:
        """Return the transactional id, equal in every run, so that a run fences an earlier one;
        no other pipeline has it, since neither name may hold a slash. Of several topics any may
        leave the pipeline, and the ledger's stays.
        """
        topic = self.ledger_of(pipeline) if self._is_one_of_several else self.topic
        return f"eo-{pipeline}/{topic}/{shard}"

    def earlier_transactional_id(self, pipeline: str, shard: int) -> str:
        """Return the id of earlier releases, where ``a-b`` into ``c`` was the same as ``a`` into
        ``b-c``.
        """
        return f"eo-{pipeline}-{self.topic}-{shard}"

    def describe(self) -> dict[str, str]:
        """``kind``, ``bootstrap_servers``, ``table`` and ``guarantee``."""
        return {
            "kind": "kafka",
            "bootstrap_servers": self.bootstrap_servers,
            "table": self.topic,
            "guarantee": self.semantics.value,
        }

    def column_limits(self) -> ColumnLimits | None:
        """None for records with more than a key and a JSON object: not every time can be a record's
        timestamp, and a registered schema refuses values.
        """
        return ColumnLimits() if self.layout.is_document else None

    def row_form(self, schema: StructType) -> JsonRows | None:
        return self.layout.json_rows(schema.names) if self.layout.is_document else None

    def project(self, df: DataFrame) -> DataFrame:
        """Key, value and headers; see :mod:`eo_pipeline.sinks.kafka.records`.

        Raises:
            ConfigError: a column the configuration names is not there.
            SchemaChangeError: ... or has a type a record has no place for.
        """
        if self.shards > 1:
            check_origin(df.columns, "sink.shards: more than one need")
        return project(df, self.layout)

    def unfit(self, schema: StructType, never_null: Collection[str] = ()) -> Column | None:
        """Conditions that the registered schemas refuse; and a timestamp that no record can
        carry: the client takes it for "now", or for "none".
        """
        from pyspark.sql import functions as F

        conditions = list(self.layout.unfit())
        named = [field for field in schema if field.name == self.timestamp]
        # project refuses what is no time
        if named and named[0].dataType.typeName().startswith("timestamp"):
            millis = F.unix_millis(column(named[0].name).cast("timestamp_ltz"))
            early = Unfit(millis <= 0, "a time that is not after 1970-01-01T00:00:00Z")
            conditions.append((named[0].name, early))
        return reason(schema, ColumnLimits(never_null=never_null), *conditions)
