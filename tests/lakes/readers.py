"""Who reads the tables, by which way, and what each cannot do.

An inability is a fact of a release: of each there is a test that notices when it is gone
(tests/lakes/test_readers.py), and a line in docs/sinks.md.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import polars as pl
import pyarrow as pa
from deltalake import QueryBuilder

from tests.lakes.columns import plain_values
from tests.lakes.duck import Duck
from tests.lakes.lakes import Delta, Iceberg, Lake
from tests.lakes.model import Model, Rows

Read = Callable[[Any], pa.Table]


class Spark(Protocol):
    """What is used of a session."""

    def sql(self, query: str) -> Any: ...


@dataclass(frozen=True)
class Reader:
    name: str
    read: Read


def in_process(store: str) -> list[Reader]:
    """Those that are asked after each step."""
    if store == "delta":
        return [
            Reader("Polars", _polars_delta),
            Reader("delta-rs, pyarrow", lambda lake: lake.open().to_pyarrow_table()),
            Reader("delta-rs, DataFusion", _datafusion),
        ]
    return [
        Reader("Polars", _polars_iceberg),
        Reader("PyIceberg", lambda lake: lake.open().scan().to_arrow()),
    ]


def duckdb(duck: Duck) -> Reader:
    return Reader("DuckDB", lambda lake: duck.read(_query(lake)))


def spark(session: Spark) -> Reader:
    return Reader("Spark", lambda lake: session.sql(f"SELECT * FROM {lake.in_spark}").toArrow())


def _polars_delta(lake: Delta) -> pa.Table:
    return pl.read_delta(str(lake.path)).to_arrow()


def _polars_iceberg(lake: Iceberg) -> pa.Table:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that a further package would plan the scan sooner
        return pl.scan_iceberg(lake.open()).collect().to_arrow()


def _datafusion(lake: Delta) -> pa.Table:
    found = QueryBuilder().register("held", lake.open()).execute("SELECT * FROM held")
    return pa.RecordBatchReader.from_stream(found).read_all()


def _query(lake: Lake) -> str:
    if isinstance(lake, Delta):
        return f"SELECT * FROM delta_scan('file://{lake.path}')"
    return f"SELECT * FROM iceberg_scan('{lake.open().metadata_location}')"


@dataclass(frozen=True)
class Inability:
    """``columns`` of a table that the reader does not read right; None: it reads nothing of it."""

    reader: str
    store: str
    why: str
    columns: Callable[[Model], frozenset[str] | None]


def _with(*leaves: str, nested: bool | None = None, partition: bool | None = None) -> Any:
    """Columns with one of the types ``leaves`` in them."""

    def columns(model: Model) -> frozenset[str]:
        return frozenset(
            name
            for name, kind in (model.columns or {}).items()
            if (not leaves or kind.leaves() & {*leaves})
            and nested in (None, kind.is_nested)
            and partition in (None, name in model.partition_by)
        )

    return columns


def _when(trait: str, columns: Any) -> Any:
    """Once a table has that trait."""

    def within(model: Model) -> frozenset[str] | None:
        found: frozenset[str] | None = columns(model) if trait in model.traits else frozenset()
        return found

    return within


def _whole(columns: Any) -> Any:
    """The table, where one of ``columns`` is in it."""
    return lambda model: None if columns(model) else frozenset()


def lists_of_structs(model: Model) -> frozenset[str]:
    return frozenset(
        name
        for name, kind in (model.columns or {}).items()
        if kind.name == "array" and kind.inner["item"].name == "struct"
    )


_OLD_TIMES = _when("INT96", _with("timestamp"))
INABILITIES: list[Inability] = [
    Inability(
        "Polars",
        "delta",
        "times before 1677 and after 2262 in files that Spark wrote (INT96) come back as others",
        _OLD_TIMES,
    ),
    Inability(
        "delta-rs, DataFusion",
        "delta",
        "so do they here, as yet others",
        _OLD_TIMES,
    ),
    Inability(
        "delta-rs, pyarrow",
        "delta",
        "a table with such times in such files cannot be read",
        _whole(_OLD_TIMES),
    ),
    Inability(
        "PyIceberg",
        "iceberg",
        "an array of structs that is null comes back as an empty one",
        lists_of_structs,
    ),
]


def unseen(reader: str, store: str, model: Model) -> frozenset[str] | None:
    """The columns that ``reader`` cannot read; None: it cannot read the table."""
    found: frozenset[str] = frozenset()
    for each in INABILITIES:
        if each.reader == reader and each.store == store:
            columns = each.columns(model)
            if columns is None:
                return None
            found |= columns
    return found


def rows_of(table: pa.Table, without: frozenset[str]) -> Rows:
    """In the form of :meth:`tests.lakes.model.Model.expected`."""
    names = sorted(name for name in table.column_names if name not in without)
    columns = [plain_values(table[name]) for name in names]
    return Counter(tuple(zip(names, row, strict=True)) for row in zip(*columns, strict=True))


def difference(expected: Rows, found: Rows) -> str | None:
    """What is wrong, in a line or a few; None: nothing."""
    if expected == found:
        return None
    missing, foreign = expected - found, found - expected
    told = [f"{missing.total()} rows missing, {foreign.total()} not expected"]
    one, other = next(iter(missing), None), next(iter(foreign), None)
    if one is not None and (near := _nearest(one, foreign)):
        is_, was = dict(near), dict(one)
        told += [
            f"{name}: {was.get(name, 'no column')!r:.200} expected, "
            f"{is_.get(name, 'no column')!r:.200} found"
            for name in sorted({*is_, *was})
            if name not in is_ or name not in was or is_[name] != was[name]
        ]
    elif one is not None:
        told.append(f"missing: {dict(one)}"[:400])
    elif other is not None:
        told.append(f"not expected: {dict(other)}"[:400])
    return "; ".join(told)


def _nearest(row: tuple[tuple[str, Any], ...], among: Rows) -> tuple[tuple[str, Any], ...] | None:
    """The one that has most in common with it."""
    wanted = set(map(repr, row))
    return max(among, key=lambda each: len(wanted & set(map(repr, each))), default=None)


def versions(duck: str | None, spark_version: str | None) -> Mapping[str, str]:
    """Of each reader, as it is read in docs."""
    from importlib.metadata import version

    told = {name: version(name) for name in ("polars", "deltalake", "pyiceberg", "pyarrow")}
    return told | {"duckdb": duck or "none", "spark": spark_version or "none"}
