"""What each Avro type becomes: the table in docs/formats.md, row by row, against fastavro."""

from __future__ import annotations

import io
import json
import re
import uuid
from collections.abc import Sequence
from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any

import fastavro
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from eo_pipeline.batch.decode import Decoded, decode
from eo_pipeline.embedded.spark import EmbeddedSpark
from eo_pipeline.errors import ConfigError, SetupError
from eo_pipeline.formats.wire_format import ReadSchemas, WriterSchemas
from eo_pipeline.kafka.source import KafkaSource
from eo_pipeline.spark import SparkSettings, job_error
from eo_pipeline.spark.connector import spark_connector_jars
from tests.batch.frames import kafka_frame
from tests.support.registry import record, serialized
from tests.support.servers import STATE

PAGE = (Path(__file__).parents[2] / "docs" / "formats.md").read_text()
SECTION = PAGE.partition("## What each Avro type becomes")[2].partition("\n## ")[0]

#: Avro types that the page has, as JSON, and what stands beside each.
TABLE = dict(re.findall(r"(?m)^\| `([\[{\"].*?)` \| `(.+?)` \|", SECTION))

BEFORE = datetime(1969, 12, 31, 23, 59, 59, 999000, tzinfo=UTC)
AFTER = datetime(2026, 2, 3, 4, 5, 6, 789000, tzinfo=UTC)

#: Values of the rows' types, as a producer has them.
VALUES: dict[str, list[Any]] = {
    "boolean": [True, False],
    "int": [-(2**31), 2**31 - 1],
    "long": [-(2**63), 2**63 - 1],
    "float": [0.5, -1.25],
    "double": [0.1, -1e300],
    "string": ["", "naïve \U0001f600"],
    "bytes": [b"", b"\x00\xff"],
    "fixed": [b"abcd", b"\x00\x01\x02\x03"],
    "enum": ["S", "L"],
    "decimal(10,2)": [Decimal("-12345678.90"), Decimal("0.01")],
    "decimal(20,4)": [Decimal("-1234567890123456.7891"), Decimal("0.0000")],
    "date": [date(1, 1, 1), date(9999, 12, 31)],
    "timestamp-millis": [BEFORE, AFTER],
    "timestamp-micros": [BEFORE.replace(microsecond=999999), AFTER],
    "timestamp-nanos": [-1, 1234567890123456789],
    "local-timestamp-millis": [BEFORE.replace(tzinfo=None), AFTER.replace(tzinfo=None)],
    "local-timestamp-micros": [BEFORE.replace(tzinfo=None), AFTER.replace(tzinfo=None)],
    "time-millis": [time(0, 0), time(23, 59, 59, 999000)],
    "time-micros": [time(0, 0), time(23, 59, 59, 999999)],
    "uuid": [str(uuid.UUID(int=1)), str(uuid.UUID(int=2**128 - 1))],
    "record": [{"lat": 0.5}, {"lat": -90.0}],
    "array": [[], [1, 2]],
    "map": [{}, {"a": 1}],
    '["null", "string"]': [None, "x"],
    '["int", "long"]': [1, 2**40],
    '["null", "int", "string"]': [None, "x"],
}


def name_of(row: str) -> str:
    """A row's name in :data:`VALUES`."""
    kind = json.loads(row)
    if isinstance(kind, list):
        return row
    if isinstance(kind, str):
        return kind
    if kind.get("logicalType") == "decimal":
        return f"decimal({kind['precision']},{kind['scale']})"
    return str(kind.get("logicalType", kind["type"]))


@pytest.fixture(scope="module")
def spark(spark_server: EmbeddedSpark) -> SparkSession:
    return SparkSettings(config={"spark.sql.session.timeZone": "UTC"}).session()


def decoded(
    spark: SparkSession,
    schema: str,
    values: Sequence[bytes | None],
    schemas: WriterSchemas | None = None,
) -> Decoded:
    source = KafkaSource(
        bootstrap_servers="h:1", topics=("t",), value_format="avro", value_schema=schema
    )
    return decode(kafka_frame(spark, values), source, ReadSchemas(schemas))


def plain(value: Any) -> Any:
    """Return fastavro's value in Spark's form, by the page's remarks."""
    if isinstance(value, time):
        return ((value.hour * 60 + value.minute) * 60 + value.second) * 10**6 + value.microsecond
    if isinstance(value, uuid.UUID):
        return str(value)
    return value


def test_every_row_of_the_page_is_what_another_decoder_reads(spark: SparkSession) -> None:
    rows = {name_of(row): (json.loads(row), column) for row, column in TABLE.items()}
    assert rows.keys() == VALUES.keys()
    fields = {f"f{i}": name for i, name in enumerate(rows)}
    schema = record(*((field, rows[name][0]) for field, name in fields.items()))
    records = [{field: VALUES[name][i] for field, name in fields.items()} for i in (0, 1)]
    values = [serialized(schema, value) for value in records]
    both = decoded(spark, schema, values)
    frame = both.good(both.all).orderBy("_kafka.offset").drop("_kafka")
    types = {fields[f.name]: f.dataType.simpleString() for f in frame.schema}
    assert types == {name: column for name, (_, column) in rows.items()}
    parsed = fastavro.parse_schema(json.loads(schema))
    for written, read in zip(values, frame.toArrow().to_pylist(), strict=True):
        other = fastavro.schemaless_reader(io.BytesIO(written), parsed, None)
        assert isinstance(other, dict)
        for field, name in fields.items():
            actual = dict(read[field]) if name == "map" else read[field]  # Arrow has pairs
            assert as_spark_has_it(name, other[field]) == actual, name


def as_spark_has_it(name: str, value: Any) -> Any:
    """By the remarks of the page."""
    if name == "time-millis":
        return plain(value) // 1000
    if name == '["null", "int", "string"]':
        return None if value is None else {"member0": None, "member1": value}
    return plain(value)


def test_a_record_of_nulls_is_good_and_one_that_is_cut_off_is_not(spark: SparkSession) -> None:
    schema = record(("id", ["null", "long"]), ("name", ["null", "string"]))
    nulls = serialized(schema, {"id": None, "name": None})
    full = serialized(schema, {"id": 1, "name": "abc"})
    both = decoded(spark, schema, [nulls, full, full[:-1], b"", None])
    good = both.good(both.all).orderBy("_kafka.offset").drop("_kafka").toArrow().to_pylist()
    assert good == [{"id": None, "name": None}, {"id": 1, "name": "abc"}]
    letters = both.dead_letters(1).orderBy("offset").toArrow().to_pylist()
    assert [(letter["offset"], letter["error"]) for letter in letters] == [
        (2, "the value is cut off, or is not of the schema"),
        (3, "the value is cut off, or is not of the schema"),
        (4, "the value is null (a tombstone)"),
    ]


OLD = record(("id", "int"), ("name", "string"), ("gone", "long"))
NEW = record(
    ("id", "long"),
    ("name", ["null", "string"], None),
    ("size", {"type": "enum", "name": "Size", "symbols": ["S", "L"]}, "L"),
)
STRICT = record(("id", "long"), ("must", "string"))


def test_each_writer_is_resolved_into_the_readers_columns(spark: SparkSession) -> None:
    schemas = WriterSchemas("2", ("2", "1", "3"), {"1": OLD, "2": NEW, "3": STRICT})
    values = [
        b"\0\0\0\0\1" + serialized(OLD, {"id": 1, "name": "one", "gone": 1}),
        b"\0\0\0\0\2" + serialized(NEW, {"id": 2**40, "name": None, "size": "S"}),
        b"\0\0\0\0\3" + serialized(STRICT, {"id": 3, "must": "be"}),
        b"\0\0\0\0\4junk",
    ]
    both = decoded(spark, NEW, values, schemas)
    good = both.good(both.all).orderBy("_kafka.offset").drop("_kafka").toArrow().to_pylist()
    assert good == [
        {"id": 1, "name": "one", "size": "L"},
        {"id": 2**40, "name": None, "size": "S"},
        {"id": 3, "name": None, "size": "L"},
    ]
    seen = both.trimmed.agg(*both.metrics()).toArrow().to_pylist()[0]
    assert seen["unknown"] == 2
    read = schemas.read_with(seen, {"1": None})
    assert read is not None
    assert set(read.writers) == {"1", "2", "3"}
    assert read.texts == {"2": NEW, "3": STRICT}
    backwards = WriterSchemas("3", ("3", "1"), {"1": OLD, "3": STRICT})
    letters = decoded(spark, STRICT, values[:1], backwards).dead_letters(1).toArrow().to_pylist()
    reason = "cannot be read as schema 3: schema 1; they differ: no field must"
    assert letters[0]["error"].endswith(reason)


def test_ten_bytes_do_not_hold_any_number_of_items(spark: SparkSession) -> None:
    """Items that take no bytes: a count of 2**62 alone would be read for years."""
    nothings = {"type": "array", "items": "null"}
    empty = {"type": "map", "values": {"type": "array", "items": json.loads(record(name="E"))}}
    bombs = {"1": record(("id", "long"), ("nothings", nothings)), "2": record(("id", "long"))}
    bombs["3"] = record(("id", "long"), ("m", empty))
    values = [
        b"\0\0\0\0\1\x0e" + b"\xfe" * 8 + b"\x7f\0",
        b"\0\0\0\0\2\x0e",
        b"\0\0\0\0\3\x0e\2\0" + b"\xfe" * 8 + b"\x7f\0\0",
    ]
    both = decoded(spark, bombs["2"], values, WriterSchemas("2", tuple(bombs), bombs))
    letters = {row["offset"]: row["error"] for row in both.dead_letters(1).toArrow().to_pylist()}
    assert letters.keys() == {0, 2}
    assert letters[0].endswith("schema 1; they differ: array nothings whose items take no bytes")
    assert both.good(both.all).count() == 1
    with pytest.raises(ConfigError, match="an array m whose items take no bytes"):
        KafkaSource(
            bootstrap_servers="h:1", topics=("t",), value_format="avro", value_schema=bombs["3"]
        )


def sizes(*symbols: str, **more: str) -> dict[str, Any]:
    return {"type": "enum", "name": "Size", "symbols": list(symbols), **more}


def renamed(schema: str, field: str, alias: str) -> str:
    """``schema`` in which ``field`` was called ``alias`` before."""
    fields = json.loads(schema)
    next(f for f in fields["fields"] if f["name"] == field)["aliases"] = [alias]
    return json.dumps(fields)


def test_avros_own_rules_hold(spark: SparkSession) -> None:
    """Renamed by an alias, widened, made optional; a symbol that the reader's enum lacks."""
    writer = record(("id", "int"), ("old", "string"), ("size", sizes("S", "L", "XL")))
    fields = ("id", "double"), ("new", ["null", "string"])
    lenient = renamed(record(*fields, ("size", sizes("S", "L", default="L"))), "new", "old")
    strict = renamed(record(*fields, ("size", sizes("S", "L"))), "new", "old")
    values = [
        b"\0\0\0\0\1" + serialized(writer, {"id": n, "old": size, "size": size})
        for n, size in enumerate(("S", "XL"))
    ]
    good, bad = [], []
    for reader in (lenient, strict):
        schemas = WriterSchemas("2", ("2", "1"), {"1": writer, "2": reader})
        both = decoded(spark, reader, values, schemas)
        rows = both.good(both.all).orderBy("_kafka.offset").drop("_kafka").toArrow().to_pylist()
        good.append([tuple(row.values()) for row in rows])
        seen = both.trimmed.agg(*both.metrics()).toArrow().to_pylist()[0]
        assert seen["unknown"] == 0
        bad.append(seen["bad"])
    assert good == [[(0.0, "S", "S"), (1.0, "XL", "L")], [(0.0, "S", "S")]]
    assert bad == [0, 1]


def test_seventy_writers_are_told_apart(spark: SparkSession) -> None:
    texts = {str(n): record(("id", "long"), (f"f{n}", "long", n)) for n in range(70)}
    schemas = WriterSchemas("0", tuple(texts), texts)
    values = [
        bytes([0, 0, 0, 0, n]) + serialized(texts[str(n)], {"id": n, f"f{n}": n})
        for n in (1, 59, 60, 69)
    ]
    both = decoded(spark, texts["0"], values, schemas)
    seen = both.trimmed.agg(*both.metrics()).toArrow().to_pylist()[0]
    read = schemas.read_with(seen, {})
    assert read is not None
    assert read.writers == ("1", "59", "60", "69")
    assert seen["good"] == 4


def test_of_twenty_writers_whole_steps_are_compiled(spark: SparkSession) -> None:
    """In a step that is not, each task reads Hadoop's settings for each writer; and Java compiles
    no method of more bytes.
    """
    fields: list[Any] = [("id", "long"), *((f"f{n}", "long", n) for n in range(20))]
    texts = {str(n): record(*fields[: n + 1]) for n in range(1, 21)}
    frame = spark.range(2).selectExpr(
        "CAST(CAST(id AS STRING) AS BINARY) AS key",
        "CAST(CAST(id AS STRING) AS BINARY) AS value",
        *("'t' AS topic", "0 AS partition", "id AS offset", "TIMESTAMP_SECONDS(id) AS timestamp"),
        "0 AS timestampType",
        "IF(id > 0, ARRAY(STRUCT('a' AS key, X'00' AS value)), NULL) AS headers",
    )
    source = KafkaSource(
        bootstrap_servers="b:1", topics=["t"], value_format="avro", value_schema=texts["20"]
    )
    both = decode(frame, source, ReadSchemas(WriterSchemas("20", tuple(texts), texts)))
    plans = {
        how: str(spark.sql(f"EXPLAIN {how} SELECT * FROM {{rows}}", rows=both.trimmed).collect())
        for how in ("", "CODEGEN")
    }
    steps = re.findall(r"(\*\(\d+\) )?Project \[", plans[""])
    assert steps
    assert all(steps), plans[""]
    sizes = [int(size) for size in re.findall(r"maxMethodCodeSize:(\d+)", plans["CODEGEN"])]
    assert sizes
    assert max(sizes) < 8000


def test_a_spark_without_spark_avro_is_said(tmp_path: Path) -> None:
    jars = [jar for jar in spark_connector_jars(STATE) if "avro" not in jar.name]
    with EmbeddedSpark(tmp_path / "spark", jars=jars) as server:
        session = SparkSettings(remote=server.remote).session()
        both = decoded(session, NEW, [b"x"])
        with pytest.raises(PySparkException) as raised:
            both.all.toArrow()
        error = job_error(session, raised.value, "The job")
    assert isinstance(error, SetupError)
    assert "spark-avro" in str(error)
