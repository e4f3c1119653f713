"""Avro to columns. Lazy Spark expressions only, one branch for each writer's schema.

Avro's own rules resolve the schema that a record was written with into the reader's. Where the
reader's column cannot hold a value and the policy is to rescue it, the column gets what it can hold
and a column of JSON the rest.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.avro.functions import from_avro

from eo_pipeline.batch.decoder import PARSED, UNKNOWN, SchemaDecoder
from eo_pipeline.errors import SetupError
from eo_pipeline.formats import wire_format
from eo_pipeline.formats.avro import OK_FIELD, Avro, weightless, with_ok_field
from eo_pipeline.formats.schema_diff import Shape, rescaled, unreadable
from eo_pipeline.formats.wire_format import (
    UNKNOWN_COLUMN,
    WriterSchemas,
    are_scalars,
    as_json,
    exact_cast,
)
from eo_pipeline.ledger.schemas import is_made

_AVRO = Avro()


class AvroDecoder(SchemaDecoder):
    """Decodes Avro; the struct also has :data:`OK_FIELD`."""

    def _decoded(self, records: DataFrame) -> DataFrame:
        schemas = self.schemas
        # a column: otherwise the code of each branch would contain the whole expression
        body = schemas.part.column_name("body")
        values = wire_format.first_match(
            (
                wire_format.writer_index(schemas) == i,
                _safe_value(_Branch.of(schemas, key, F.col(body))),
            )
            for i, key in enumerate(schemas.writers)
        )
        with_body = records.withColumn(body, wire_format.body(schemas))
        with_values = with_body.withColumn(PARSED, values).drop(body)
        return with_values.withColumn(UNKNOWN, wire_format.left_out(schemas))

    def _errors(self) -> Iterator[tuple[Column, Column]]:
        """Yield the one error that Spark's decoder reports, with the differing fields."""
        schemas = self.schemas
        part, is_broken = schemas.part.name, F.col(PARSED).getField(OK_FIELD).isNull()
        if not schemas.has_keys:
            yield is_broken, F.lit(f"the {part} is cut off, or is not of the schema")
            return
        differ = wire_format.first_match(
            (
                wire_format.writer_index(schemas) == i,
                F.lit(f"; they differ: {', '.join(differences)}"),
            )
            for i, key in enumerate(schemas.writers)
            if (differences := _differences(schemas.texts[key], schemas.reader_text))
        )
        yield (
            is_broken,
            F.concat(
                F.lit(f"the {part} is cut off, or is not of the schema it names, or that one "),
                F.lit(f"cannot be read as schema {schemas.reader}: schema "),
                wire_format.key_text(schemas),
                F.coalesce(differ, F.lit("")),
            ),
        )


def ordinary_writers(schemas: WriterSchemas) -> list[dict[str, Any]]:
    """Return the plans of ``OrdinaryWritten.java`` for the records of each writer; without those
    that Avro's rules alone do not read into the columns.
    """
    writers = []
    for i, key in enumerate(schemas.writers):
        branch = _Branch.of(schemas, key, F.lit(None))
        is_more = branch.keeps or branch.cast or branch.rescued or weightless(branch.writer)
        if is_more or is_made(key) or wire_format.quarantined_changes(schemas, key):
            continue
        unknown = schemas.kind.left_out(branch.writer, branch.reader)
        texts = {"writer": branch.writer, "reader": branch.reader, "unknown": unknown}
        writers.append({"index": i, "key": wire_format.bytes_of(key).hex(), **texts})
    return writers


def _safe_value(branch: _Branch) -> Column:
    """Return the writer's records; null if its schema lets a few bytes take any time to decode."""
    value = branch.value()
    return F.when(F.lit(False), value) if weightless(branch.writer) else value


def _differences(writer: str, reader: str) -> list[str]:
    """Return the reasons why a record of ``writer`` may be no record of ``reader``."""
    if path := weightless(writer):
        return [f"array {path} whose items take no bytes"]
    changed = map(str, unreadable(_AVRO.shape_of(writer), _AVRO.shape_of(reader)))
    return [*changed, *(f"no field {path}" for path in _AVRO.left_out(reader, writer))]


@dataclass(frozen=True)
class _Branch:
    """The records of one writer.

    ``rescued``: the reader's columns that cannot hold all values of the writer; ``cast``: those
    that hold them in another form; ``unread``: the writer's fields that the reader lacks at least
    in part; ``keeps``: values outside of the columns are kept as JSON.
    """

    body: Column
    writer: str
    reader: str
    keeps: bool
    rescued: tuple[str, ...] = ()
    cast: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()

    @classmethod
    def of(cls, schemas: WriterSchemas, key: str, body: Column) -> _Branch:
        writer, reader = schemas.texts[key], schemas.reader_text
        if writer == reader:
            return cls(body, writer, reader, schemas.keeps)
        shapes = _AVRO.shape_of(writer), _AVRO.shape_of(reader)
        rescued = schemas.policy.decide(unreadable(*shapes)).rescued
        cast = tuple(c for c, can in rescaled(*shapes).items() if can and c not in rescued)
        unread = dict.fromkeys(path.partition(".")[0] for path in _AVRO.left_out(writer, reader))
        return cls(body, writer, reader, schemas.keeps, rescued, cast, tuple(unread))

    def value(self) -> Column:
        """Return a struct of the reader's fields, of one type in all branches."""
        if not (self.keeps or self.cast):
            return self._decoded(self.reader)
        columns, written = _fields(self.reader), _fields(self.writer)
        scalars = [name for name in self.rescued if are_scalars(columns[name], written[name])]
        direct = [*scalars, *self.cast]
        reader = _AVRO.without(self.reader, {*self.rescued} - {*scalars})
        # in the writer's form, to test whether it fits
        struct = self._decoded(_AVRO.evolve_except(self.writer, reader, direct))
        fits = {
            name: exact_cast(struct.getField(name), written[name], columns[name]) for name in direct
        }
        nulls = {name: F.lit(None).cast(str(columns[name])) for name in self.rescued}
        values = nulls | fits
        fields = [values.get(name, struct.getField(name)).alias(name) for name in columns]
        if self.keeps:
            fields.append(self._kept(fits).alias(UNKNOWN_COLUMN))
        ok = struct.getField(OK_FIELD)
        for name in self.cast:  # a value that does not fit makes the record a bad one
            ok = F.when(struct.getField(name).isNull() | fits[name].isNotNull(), ok)
        return F.when(ok.isNotNull(), F.struct(*fields, ok.alias(OK_FIELD)))

    def _kept(self, fits: dict[str, Column]) -> Column:
        """Return JSON of fields that columns lack or hold changed; null if there are none."""
        written = from_avro(self.body, self.writer, {"mode": "PERMISSIVE"})
        fields = []
        for name in dict.fromkeys((*self.unread, *self.rescued)):
            value = written.getField(name)
            is_lost = fits[name].isNull() if name in fits else F.lit(True)
            fields.append(F.when(is_lost, value).alias(name))
        return as_json(fields)

    def _decoded(self, reader: str) -> Column:
        options = {"avroSchema": with_ok_field(reader), "mode": "PERMISSIVE"}
        try:
            return from_avro(self.body, self.writer, options)
        except TypeError as error:  # pyspark's error for a missing Java class
            raise SetupError(
                "Spark has nothing that decodes Avro: put spark-avro, of the same release as the "
                "Kafka connector, into the folder that EO_SPARK_JARS names (`make setup` does)."
            ) from error


def _fields(text: str) -> dict[str, Shape]:
    return _AVRO.shape_of(text).fields
