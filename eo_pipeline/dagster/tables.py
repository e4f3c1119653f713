"""Tables among Dagster's metadata."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import dagster as dg

#: By a column's name its type, or its type and what is said about it.
Columns = Mapping[str, str | tuple[str, str]]


def table(columns: Columns, rows: Iterable[Mapping[str, Any]]) -> dg.TableMetadataValue:
    """``rows`` by the names of the ``columns``."""
    shown = [
        dg.TableColumn(name, kind)
        if isinstance(kind, str)
        else dg.TableColumn(name, kind[0], description=kind[1])
        for name, kind in columns.items()
    ]
    records = [dg.TableRecord(dict(row)) for row in rows]
    return dg.MetadataValue.table(records, schema=dg.TableSchema(columns=shown))


def table_of(columns: Columns, found: Iterable[object]) -> dg.TableMetadataValue:
    """A row for each of ``found``, which has an attribute for each of the ``columns``."""
    return table(columns, ({name: getattr(each, name) for name in columns} for each in found))
