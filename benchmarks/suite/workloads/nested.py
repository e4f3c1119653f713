"""Thirty fields of which ten are structs, arrays and maps."""

from __future__ import annotations

import polars as pl

from benchmarks.suite.records import COLUMNS
from benchmarks.suite.stores import Store
from benchmarks.suite.workloads.plain import parsed
from benchmarks.suite.workloads.workload import FlinkJob, StreamingQuery, Workload, as_json

#: Of a record, about.
_BYTES = 1_140
_PLACE = pl.Struct({"lat": pl.Float64(), "lon": pl.Float64(), "name": pl.String()})
_ITEM = pl.Struct({"sku": pl.String(), "count": pl.Int64()})
_LABELS = pl.Struct({"source": pl.String(), "team": pl.String()})
_SCORES = pl.Struct({"a": pl.Int64(), "b": pl.Int64()})
_DEEP = pl.Struct({"name": pl.String(), "place": _PLACE, "items": pl.List(_ITEM)})

#: The ten; maps are structs here, whose names are the keys.
_NESTED: dict[str, pl.DataType] = {
    "origin": _PLACE,
    "destination": _PLACE,
    "tags": pl.List(pl.String()),
    "codes": pl.List(pl.Int64()),
    "amounts": pl.List(pl.Float64()),
    "items": pl.List(_ITEM),
    "returned": pl.List(_ITEM),
    "labels": _LABELS,
    "scores": _SCORES,
    "deep": _DEEP,
}
_MAPS = {"labels": "STRING", "scores": "BIGINT"}
_FLAT: dict[str, pl.DataType] = {
    **COLUMNS,
    **{f"text_{n}": pl.String() for n in range(5)},
    **{f"number_{n}": pl.Int64() for n in range(5)},
    **{f"share_{n}": pl.Float64() for n in range(4)},
}
_COLUMNS = _FLAT | _NESTED


def _records(frame: pl.DataFrame) -> pl.DataFrame:
    number, note = pl.col("id"), pl.col("note")
    text = note.str.slice
    place = {
        name: pl.struct(
            lat=(number * 7 % 720) / 4 - 90,
            lon=(number * 11 % 1440) / 4 - 180,
            name=pl.format("place-{}", number * k % 1000),
        ).alias(name)
        for k, name in enumerate(("origin", "destination", "place"), 3)
    }
    items = {
        name: pl.concat_list(
            *(
                pl.struct(sku=pl.format("sku-{}", number * k % 5000), count=number % k)
                for k in range(first, first + 3)
            )
        ).alias(name)
        for first, name in ((2, "items"), (7, "returned"))
    }
    return frame.with_columns(
        *(pl.format("{}-{}", text(5 * n, 16), number % 97).alias(f"text_{n}") for n in range(5)),
        *((number * (n + 3) % 1_000_003).alias(f"number_{n}") for n in range(5)),
        *(((number * (n + 1) % 4000) / 8).alias(f"share_{n}") for n in range(4)),
        place["origin"],
        place["destination"],
        pl.concat_list(text(0, 6), text(6, 6), pl.col("country")).alias("tags"),
        pl.concat_list(*(number % k for k in (7, 11, 13, 17))).alias("codes"),
        pl.concat_list(*((number % k) / 4 for k in (9, 19, 29))).alias("amounts"),
        items["items"],
        items["returned"],
        pl.struct(source=text(12, 8), team=pl.format("team-{}", number % 20)).alias("labels"),
        pl.struct(a=number % 100, b=number % 1000).alias("scores"),
        pl.struct(text(20, 10).alias("name"), place["place"], items["items"]).alias("deep"),
    ).select(*_COLUMNS)


def _spark(kind: pl.DataType) -> str:
    """The type in Spark's DDL."""
    if isinstance(kind, pl.Struct):
        return f"STRUCT<{', '.join(f'{f.name}: {_spark(_plain(f.dtype))}' for f in kind.fields)}>"
    if isinstance(kind, pl.List):
        return f"ARRAY<{_spark(_plain(kind.inner))}>"
    return "BIGINT" if kind == pl.Int64() else "DOUBLE" if kind == pl.Float64() else "STRING"


def _flink(kind: pl.DataType) -> str:
    """The type in Flink's."""
    if isinstance(kind, pl.Struct):
        return f"ROW<{', '.join(f'`{f.name}` {_flink(_plain(f.dtype))}' for f in kind.fields)}>"
    if isinstance(kind, pl.List):
        return f"ARRAY<{_flink(_plain(kind.inner))}>"
    return _spark(kind)


def _is_json(kind: pl.DataType) -> bool:
    """Whether PostgreSQL holds it as JSON: arrays of numbers and texts are arrays there."""
    return isinstance(kind, pl.Struct) or kind == pl.List(_ITEM)


def _postgres(kind: pl.DataType) -> str:
    if _is_json(kind):
        return "jsonb"
    if isinstance(kind, pl.List):
        return f"{_postgres(_plain(kind.inner))}[]"
    return {"BIGINT": "bigint", "DOUBLE": "double precision"}.get(_spark(kind), "text")


def _plain(kind: object) -> pl.DataType:
    assert isinstance(kind, pl.DataType)
    return kind


def _ddl(of: str) -> str:
    """All columns, in ``spark``'s or ``flink``'s words."""
    types, quote = (_spark, "") if of == "spark" else (_flink, "`")
    maps = {name: f"MAP<STRING, {value}>" for name, value in _MAPS.items()}
    return ", ".join(
        f"{quote}{name}{quote} {maps.get(name) or types(kind)}" for name, kind in _COLUMNS.items()
    )


_SCHEMA = _ddl("spark").replace("id BIGINT", "id BIGINT NOT NULL", 1)
_AS_JSON = ", ".join(
    f"to_json({name}) AS {name}" if _is_json(kind) else name for name, kind in _COLUMNS.items()
)

NESTED = Workload(
    key="nested",
    title="Thirty fields, ten of them nested, 8 partitions",
    text=(
        f"Structs, arrays and maps, records of {_BYTES:,} bytes: as many bytes as in the other "
        "topics, so fewer records. Into PostgreSQL as `jsonb` and arrays; Flink's JDBC connector "
        "writes no `jsonb`."
    ),
    columns=_COLUMNS,
    postgres=", ".join(f"{name} {_postgres(kind)}" for name, kind in _COLUMNS.items()),
    topic="nested",
    record_bytes=_BYTES,
    records=_records,
    values=as_json,
    source={"value_schema": _SCHEMA},
    flink=FlinkJob(_ddl("flink"), _ddl("flink"), stores=(Store.PARQUET, Store.KAFKA)),
    streaming=StreamingQuery(
        parsed(_SCHEMA), into_database=f"SELECT {_AS_JSON} FROM ({parsed(_SCHEMA)})"
    ),
)
