"""Several tables of one pipeline: the settings of each, and what they are read from and go into."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BeforeValidator,
    Field,
    PositiveInt,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic.json_schema import SkipJsonSchema
from pydantic_core import InitErrorDetails, PydanticCustomError

from eo_pipeline.config.documents import load_transform
from eo_pipeline.config.settings import Settings, one_or_more, problems
from eo_pipeline.errors import some_of
from eo_pipeline.kafka.source import KafkaSource, SchemaText
from eo_pipeline.sinks.config import Sink
from eo_pipeline.sinks.registry import sink_class, sink_names, validate_sink
from eo_pipeline.sinks.tables import Appearing, TablesSink

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
#: Behind the pipeline's name: where tables appear, the table without rows whose ledger is theirs.
EACH_SUFFIX = "_each"
#: In the name of tables that appear: the value that a table is of.
VALUE = "{value}"
#: The value of ``each`` that stands for the topic itself, and needs no read.
TOPIC = "topic"
#: Values that a message names.
_VALUES_NAMED = 10
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
    key: str | tuple[str, ...] | None = None
    sequence_by: tuple[str, ...] | None = None
    dead_letter_table: str | None = None
    #: made of the pipeline's source by :func:`with_tables`
    source: SkipJsonSchema[KafkaSource | None] = Field(default=None, exclude=True, repr=False)
    #: true for the one that :func:`with_tables` adds for ``rest: dead_letter``
    takes_rest: SkipJsonSchema[bool] = Field(default=False, exclude=True, repr=False)

    def overrides(self, names: frozenset[str]) -> dict[str, Any]:
        """Return the fields ``names`` that are given."""
        return {name: value for name, value in self if name in names and value is not None}


class EachTable(Table):
    """Tables that appear: one for each value of ``each``, made when its first record comes.

    Args:
        each: ``topic``, or an SQL expression of the columns that ``where`` has. Where it is null,
            a record belongs to none of the tables.
        name: name of a table, with ``{value}``; default: the value. Of a value that is no name,
            other characters become ``_``.
        limit: maximum number of tables.

    The other fields are those of each table.
    """

    name: str = VALUE
    each: str = Field(min_length=1)
    limit: PositiveInt = 100
    #: those that have a table, or get one
    values: SkipJsonSchema[tuple[str, ...]] = Field(default=(), exclude=True, repr=False)

    @field_validator("name")
    @classmethod
    def _is_of_its_value(cls, name: str) -> str:
        if VALUE not in name:
            raise ValueError(f"tables that appear need different names: with {VALUE}")
        return name

    @model_validator(mode="after")
    def _has_few_values(self) -> Self:
        if len(self.values) > self.limit:
            raise ValueError(
                f"{len(self.values)} values of {self.each} need as many tables, and limit is "
                f"{self.limit}: {some_of(self.values, _VALUES_NAMED)}. Raise limit, let each be "
                "null for records that need no table, or leave them out by where"
            )
        return self

    @property
    def of_topics(self) -> bool:
        """True if each topic has a table: the ranges name them all."""
        return self.each.strip() == TOPIC

    def named(self, store: type[Sink]) -> dict[str, str]:
        """Return the values by the names of their tables in ``store``.

        Raises:
            ValueError: two of them have one name.
        """
        names: dict[str, str] = {}
        for value in self.values:
            name = self.name.replace(VALUE, store.not_in_names.sub("_", value))
            if (other := names.get(name)) is not None:
                raise ValueError(
                    f"the tables of {other!r} and {value!r}, values of {self.each}, are both named "
                    f"{name}. Let each give values that differ in letters or digits"
                )
            names[name] = value
        return names

    def table(self, name: str, value: str) -> Table:
        """Return the table ``name``, of ``value``."""
        fields = {n: getattr(self, n) for n in self.model_fields_set & Table.model_fields.keys()}
        if self.of_topics:
            return Table.model_validate({**fields, "name": name, "topics": (value,)})
        conditions = [f"{self._value} = {_literal(value)}", *self._conditions]
        return Table.model_validate({**fields, "name": name, "where": " AND ".join(conditions)})

    def appearing(self, ledger: Sink, names: Mapping[str, str]) -> Appearing:
        """Return what tells whether a table is missing; ``ledger`` is the sink of the ledger, and
        ``names`` are of :meth:`named`.
        """
        listed = ", ".join(map(_literal, self.values))
        new = [f"topic IN ({', '.join(map(_literal, self.topics))})"] if self.topics else []
        new += [*self._conditions, *([f"{self._value} NOT IN ({listed})"] if listed else [])]
        value = f"CASE WHEN {' AND '.join(new)} THEN {self._value} END" if new else self._value
        return Appearing(
            *(ledger, self.name, names, self.limit, self.topics),
            new=None if self.of_topics else value,
        )

    @property
    def takes(self) -> str:
        """The condition, SQL, on which a record is one of a table, perhaps of one to come."""
        return " AND ".join([f"{self._value} IS NOT NULL", *self._conditions])

    @property
    def _value(self) -> str:
        # a comment may end it
        return f"CAST(({self.each}\n) AS STRING)"

    @property
    def _conditions(self) -> list[str]:
        return [f"({self.where}\n)"] if self.where is not None else []


def _literal(text: str) -> str:
    """Return ``text`` as a literal of Spark's SQL."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


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
    with _located(errors, "tables"):
        template = each_of(config)
    if errors:
        raise ValidationError.from_exception_data("tables", errors)
    appeared: dict[str, str] = {}
    with _located(errors, "tables"):
        appeared = template.named(store) if template else {}
    tables, members = [], {}
    given_tables = config["tables"]
    if template:  # one that nobody needs yet shows what is wrong with all
        given_tables = [template.table(*of) for of in (appeared or {"value": "value"}).items()]
    for index, given in enumerate(given_tables):
        with _located(errors, "tables", *([] if template else [index])):
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
    if template and not appeared:
        tables, members = [], {}
    topics = source.get("topics") or (template.topics if template else _named(tables))
    common = {name: value for name, value in source.items() if name not in _DECODING}
    if "topic_pattern" not in source:
        common["topics"] = topics
    common |= {"value_format": "raw"}
    together: dict[str, Any] = {"members": members}
    if config.get("rest") == "dead_letter":
        with _located(errors, "rest"):
            limit = {k: v for k, v in source.items() if k == "dead_letter_limit"}
            taken = (
                [template.takes]
                if template
                else [t.source.takes(t.where) for t in tables if t.source]
            )
            rest = _rest(f"{config.get('name')}{REST_SUFFIX}", common | limit, taken)
            tables.append(rest)
            members[rest.name] = _without_rows(store, sink, config, rest.name)
            together["rest"] = rest.name
    with _located(errors, "tables"):
        # a table that appeared stays when its topic is read no more
        read_by = [template] if template else tables
        _refuse_topics(read_by, one_or_more(topics) if "topic_pattern" not in source else None)
        holder = f"{config.get('name')}{EACH_SUFFIX}"
        _refuse_names([*(table.name for table in tables), *([holder] if template else [])])
        if template:
            ledger = _without_rows(store, sink, config, holder)
            together["appearing"] = template.appearing(ledger, appeared)
        into = TablesSink.model_validate(together)
    if errors:
        raise ValidationError.from_exception_data("tables", errors)
    return {**config, "tables": tables, "source": common, "sink": into}


def each_of(config: Mapping[str, Any]) -> EachTable | None:
    """Return the tables that appear of a pipeline's fields; None if its tables are listed.

    Raises:
        ValidationError: they are wrong.
    """
    given = config.get("tables")
    return EachTable.model_validate(given) if isinstance(given, Mapping | EachTable) else None


def _without_rows(
    store: type[Sink], sink: Mapping[str, Any], config: Mapping[str, Any], name: str
) -> Sink:
    """Return the sink of a table ``name`` beside the others, which has no rows."""
    shared = {k: v for k, v in sink.items() if k not in store.of_one_table}
    needed = {**shared, **store.needed_without_rows}
    fields = store.table_fields(needed, str(config.get("name")), name)
    return validate_sink(fields).one_of_several().without_rows()


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


def _rest(name: str, source: Mapping[str, Any], taken: Sequence[str]) -> Table:
    """Return the table of the records of ``source`` for which none of ``taken`` is true."""
    read = KafkaSource.model_validate({**source, "on_bad_record": "dead_letter"})
    conditions = (f"coalesce({condition}, false)" for condition in taken)
    return Table(name=name, where=f"NOT ({' OR '.join(conditions)})", source=read, takes_rest=True)


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


def _refuse_names(names: Sequence[str]) -> None:
    """Return if no two tables have one name; also not that of the rest, or of the ledger."""
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(
            f"two tables have the name {', '.join(twice)}; the pipeline's name with {REST_SUFFIX} "
            f"is that of rest: dead_letter, with {EACH_SUFFIX} that of each's ledger"
        )


def _refuse_topics(tables: Sequence[Table], topics: Sequence[str] | None) -> None:
    """Return if the source reads the topics of each table."""
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
