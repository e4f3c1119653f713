"""The small table that records are joined with."""

from __future__ import annotations

#: Code, name and region of each country that records name.
COUNTRIES = (
    ("AT", "Austria", "Europe"),
    ("BR", "Brazil", "America"),
    ("DE", "Germany", "Europe"),
    ("FR", "France", "Europe"),
    ("IN", "India", "Asia"),
    ("JP", "Japan", "Asia"),
    ("US", "United States", "America"),
    ("ZA", "South Africa", "Africa"),
)


def in_sql() -> str:
    """The table's rows after SQL's VALUES."""
    return ", ".join(f"('{code}', '{name}', '{region}')" for code, name, region in COUNTRIES)
