"""A benchmark's output counts only if it holds every record exactly once: so this must be seen."""

from __future__ import annotations

import polars as pl
import pytest

from benchmarks.suite.records import COLUMNS, RECORD_BYTES, frames, values
from benchmarks.suite.target import parsed
from benchmarks.suite.verify import Verdict, compare, expected
from benchmarks.suite.workloads.plain import PLAIN

RECORDS = 60_000


@pytest.fixture(scope="module")
def output() -> pl.DataFrame:
    """As a faithful peer would leave it, though in another order."""
    return pl.concat(list(frames(0, RECORDS))).sample(fraction=1.0, shuffle=True, seed=3)


def verdict(output: pl.DataFrame) -> Verdict:
    return compare(output, expected(PLAIN, RECORDS), PLAIN)


def test_every_record_once_with_its_values_is_exact(output: pl.DataFrame) -> None:
    assert verdict(output) == Verdict(RECORDS, RECORDS, 0, 0, 0, 0)
    assert verdict(output).exact


def test_one_lost_record_is_seen(output: pl.DataFrame) -> None:
    found = verdict(output.slice(1))
    assert (found.lost, found.exact) == (1, False)


def test_one_doubled_record_is_seen(output: pl.DataFrame) -> None:
    found = verdict(pl.concat([output, output.slice(17, 1)]))
    assert (found.doubled, found.lost, found.exact) == (1, 0, False)


def test_one_lost_and_another_doubled_is_seen_though_the_count_is_right(
    output: pl.DataFrame,
) -> None:
    found = verdict(pl.concat([output.slice(1), output.slice(17, 1)]))
    assert (found.rows, found.lost, found.doubled, found.exact) == (RECORDS, 1, 1, False)


@pytest.mark.parametrize("column", [name for name in COLUMNS if name != "id"])
def test_one_changed_value_is_seen_in_whatever_column(output: pl.DataFrame, column: str) -> None:
    """The first row gets the value of another one."""
    values_of = output[column].to_list()
    values_of[0] = next(value for value in values_of if value != values_of[0])
    found = verdict(output.with_columns(pl.Series(column, values_of, dtype=COLUMNS[column])))
    assert (found.changed, found.exact) == (1, False)


def test_a_value_that_became_null_is_seen(output: pl.DataFrame) -> None:
    note = [None, *output["note"].to_list()[1:]]
    assert verdict(output.with_columns(note=pl.Series(note))).changed == 1


def test_a_row_of_no_record_is_seen(output: pl.DataFrame) -> None:
    for stranger in (RECORDS, -1, None):
        other = output.slice(0, 1).with_columns(id=pl.lit(stranger, pl.Int64))
        found = verdict(pl.concat([output, other]))
        assert (found.unknown, found.exact) == (1, False), stranger


def test_nothing_at_all_is_not_exact() -> None:
    found = verdict(pl.DataFrame(schema=COLUMNS))
    assert (found.lost, found.exact) == (RECORDS, False)


def test_what_was_sent_as_json_comes_back_as_it_was() -> None:
    """A part that begins and ends in the middle of a chunk, as a topic's end does."""
    [frame, rest] = frames(49_990, 50_007)
    sent = values(frame) + values(rest)
    assert {len(value) for value in sent} == {RECORD_BYTES}
    assert parsed(sent, COLUMNS).equals(pl.concat([frame, rest]))
