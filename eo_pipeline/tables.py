"""Several tables of one pipeline: the settings of each, and what they are read from and go into."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, PositiveInt, ValidationError
from pydantic.json_schema import SkipJsonSchema
from pydantic_core import InitErrorDetails, PydanticCustomError

from eo_pipeline.config.documents import load_transform
from eo_pipeline.config.settings import Settings, one_or_more, problems
from eo_pipeline.kafka.source import KafkaSource, SchemaText
from eo_pipeline.sinks.config import Sink
from eo_pipeline.sinks.registry import sink_class, sink_names, validate_sink
from eo_pipeline.sinks.tables import TablesSink

#: Fields of a table that override those of the pipeline's source, and of its sink.
_OF_SOURCE = frozenset(
    {
        *("value_format", "value_schema", "message", "key_format", "key_schema", "key_message"),
        *("key_prefix", "unknown_fields", "tombstones", "on_bad_record", "dead_letter_limit"),
    }
)
_OF_SINK = frozenset({"mode", "key", "sequence_by", "dead_letter_table"})
#: Behind the pipeline's name: the table that has the records which no table takes as dead letters.
REST_SUFFIX = "_rest"
#: Fields of a source that say how records are decoded; each table has its own.
_DECODING = _OF_SOURCE | {"registry", "schema_changes"}


class Table(Settings):
    """One of the tables that a pipeline fills.

    Args:
        name: the table, in the schema that ``sink.schema`` names if that is given.
        topics: topics whose records go into the table; default: all of the source.
        where: an SQL expression that selects its records. Its columns are ``topic``, ``partition``,
            ``offset``, ``timestamp``, the texts ``key`` and ``value``, and ``headers``, a map of
            texts (of two headers of one name the last).
        transform: as a pipeline's.
        sink: fields of the sink that this table has otherwise than the others.

    The other fields override those of the source and the sink; see there.
    """

    name: str = Field(min_length=1)
    topics: Annotated[
        tuple[Annotated[str, Field(min_length=1)], ...],
        BeforeValidator(one_or_more, json_schema_input_type=str | tuple[str, ...]),
    ] = ()
    where: str | None = None
    transform: Annotated[Callable[..., Any] | None, BeforeValidator(load_transform)] = None
    sink: Mapping[str, Any] = Field(default_factory=dict)
    value_format: Literal["json", "avro", "protobuf", "raw"] | None = None
    value_schema: SchemaText = None
    message: str | None = None
    key_format: Literal["raw", "text", "json", "avro", "protobuf"] | None = None
    key_schema: SchemaText = None
    key_message: str | None = None
    key_prefix: str | None = None
    unknown_fields: Literal["ignore", "keep", "fail"] | None = None
    tombstones: Literal["bad", "skip"] | None = None
    on_bad_record: Literal["fail", "dead_letter"] | None = None
    dead_letter_limit: PositiveInt | None = None
    mode: Literal["append", "upsert"] | None = None
    key: tuple[str, ...] | None = None
    sequence_by: tuple[str, ...] | None = None
    dead_letter_table: str | None = None
    #: made of the pipeline's source by :func:`with_tables`
    source: SkipJsonSchema[KafkaSource | None] = Field(default=None, exclude=True, repr=False)
    #: true for the one that :func:`with_tables` adds for ``rest: dead_letter``
    takes_rest: SkipJsonSchema[bool] = Field(default=False, exclude=True, repr=False)

    def overrides(self, names: frozenset[str]) -> dict[str, Any]:
        """Return the fields ``names`` that are given."""
        return {name: value for name, value in self if name in names and value is not None}


def with_tables(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a pipeline with the sink of all its tables as its sink, the source of
    all as its source, and each table with a source of its own.

    Raises:
        ValidationError: a table, or the source or sink with what a table overrides, is wrong.
    """
    source, sink = _fields(config.get("source")), _fields(config.get("sink"))
    errors: list[InitErrorDetails] = []
    with _located(errors, "sink"):
        store = _store(sink)
    if errors:
        raise ValidationError.from_exception_data("tables", errors)
    tables, members = [], {}
    for index, given in enumerate(config["tables"]):
        with _located(errors, "tables", index):
            table = Table.model_validate(given)
            own = table.overrides(_OF_SINK) | dict(_allowed(store, table.sink))
            fields = store.table_fields(sink | own, str(config.get("name")), table.name)
            members[table.name] = validate_sink(fields).one_of_several()
            read = source | table.overrides(_OF_SOURCE)
            if table.topics:
                read |= {"topics": table.topics}
                read.pop("topic_pattern", None)
            tables.append(table.model_copy(update={"source": KafkaSource.model_validate(read)}))
    if errors:
        raise ValidationError.from_exception_data("tables", errors)
    topics = source.get("topics") or _named(tables)
    common = {name: value for name, value in source.items() if name not in _DECODING}
    if "topic_pattern" not in source:
        common["topics"] = topics
    common |= {"value_format": "raw"}
    if config.get("rest") == "dead_letter":
        with _located(errors, "rest"):
            name = f"{config.get('name')}{REST_SUFFIX}"
            limit = {k: v for k, v in source.items() if k == "dead_letter_limit"}
            tables.append(_rest(name, common | limit, tables))
            shared = {k: v for k, v in sink.items() if k not in store.of_one_table}
            fields = store.table_fields(shared, str(config.get("name")), name)
            members[name] = validate_sink(fields).one_of_several().without_rows()
    with _located(errors, "tables"):
        _refuse_names(tables, one_or_more(topics) if "topic_pattern" not in source else None)
        together = TablesSink.model_validate({"members": members})
    if errors:
        raise ValidationError.from_exception_data("tables", errors)
    return {**config, "tables": tables, "source": common, "sink": together}


def _store(sink: Mapping[str, Any]) -> type[Sink]:
    """Return the class of ``sink``.

    Raises:
        ValueError: no transaction of the store fills several tables, or a table is named.
    """
    kind = sink.get("type")
    store = sink_class(kind) if kind in sink_names() else Sink
    if store is not Sink and store.tables_session_class is None:
        raise ValueError(f"{kind} cannot fill several tables: {store.no_tables_reason}.")
    if store.table_field in sink:
        raise ValueError(f"{store.table_field}: not allowed with tables, each of which has a name")
    return store


def _rest(name: str, source: Mapping[str, Any], tables: Sequence[Table]) -> Table:
    """Return the table of the records of ``source`` that none of ``tables`` takes."""
    conditions = [table.source.takes(table.where) for table in tables if table.source]
    read = KafkaSource.model_validate({**source, "on_bad_record": "dead_letter"})
    where = f"NOT ({' OR '.join(conditions)})"
    return Table(name=name, where=where, source=read, takes_rest=True)


def _allowed(store: type[Sink], fields: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return ``fields`` if one of several tables may have them otherwise than the others."""
    if others := sorted(fields.keys() - store.of_one_table):
        may = ", ".join(sorted(store.of_one_table))
        raise ValueError(f"sink: {', '.join(others)} is the same for all tables; not so are {may}")
    return fields


def _fields(given: Any) -> dict[str, Any]:
    """Return the fields of settings that are a mapping, or that were made already."""
    if isinstance(given, Settings):
        return {name: getattr(given, name) for name in given.model_fields_set}
    return dict(given) if isinstance(given, Mapping) else {}


def _named(tables: Sequence[Table]) -> tuple[str, ...]:
    """Return the topics of all tables, each once."""
    return tuple(dict.fromkeys(topic for table in tables for topic in table.topics))


def _refuse_names(tables: Sequence[Table], topics: Sequence[str] | None) -> None:
    """Return if no two tables have one name, and the source reads the topics of each."""
    names = [table.name for table in tables]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"two tables have the name {', '.join(twice)}")
    for table in tables:
        if topics is not None and (others := sorted({*table.topics} - {*topics})):
            raise ValueError(
                f"table {table.name} takes {', '.join(others)}, which source.topics does not name"
            )


@contextmanager
def _located(errors: list[InitErrorDetails], *location: str | int) -> Iterator[None]:
    """Add validation errors of the block to ``errors``, below ``location``."""
    try:
        yield
    except ValidationError as error:
        found = [(problem.location, problem.text) for problem in problems(error)]
    except ValueError as error:
        found = [((), str(error))]
    else:
        return
    for place, text in found:
        kind = PydanticCustomError("table", "{text}", {"text": text})
        errors.append(InitErrorDetails(type=kind, loc=(*location, *place), input=None))
