"""The check that ends `make run` is worth something: it sees what is wrong."""

from __future__ import annotations

import json
from collections.abc import Callable

import psycopg
import pytest

from demo.observe import Observer
from demo.verify import (
    Check,
    check_counts,
    check_join,
    check_ranges,
    check_rows,
    check_versions,
)

#: Two checkpoints of one partition: offsets 0 to 2, then 2 to 5 (3 is a transaction's marker).
_RANGES = {0: {}, 1: {"flights": {"0": [0, 2]}}, 2: {"flights": {"0": [2, 5]}}}
_ROWS = [(1, 0, "a"), (1, 1, "b"), (2, 2, "c"), (2, 4, "d")]


@pytest.fixture
def observer(database: str) -> Observer:
    """A table and its ledger as they should be."""
    with psycopg.connect(database) as connection:
        connection.execute("""
            create table eo_ledger (pipeline text, version bigint, operation text, target bigint,
                transaction_id text, parent_transaction_id text, offsets jsonb, ranges jsonb,
                counts jsonb);
            create table flights (_eo_checkpoint bigint, _eo_offset bigint, flight_id text);
        """)
        for version, ranges in _RANGES.items():
            rows = sum(row[0] == version for row in _ROWS)
            connection.execute(
                "insert into eo_ledger values ('flights', %s, %s, %s, %s, %s, %s, %s, %s)",
                [
                    version,
                    "forward" if version else "start",
                    None,
                    f"transaction {version}",
                    f"transaction {version - 1}" if version else None,
                    json.dumps({"flights": {"0": 0}}),
                    json.dumps(ranges),
                    json.dumps({"rows": rows}),
                ],
            )
        connection.cursor().executemany("insert into flights values (%s, %s, %s)", _ROWS)
    return Observer(database)


def rows(observer: Observer) -> Check:
    number, ids = check_rows(observer, held=len(_ROWS))
    return Check(number.passed and ids.passed, f"{number.text}; {ids.text}")


CHECKS = (rows, check_versions, check_ranges, check_counts)


def test_a_table_as_it_should_be_passes(observer: Observer) -> None:
    assert [check(observer).passed for check in CHECKS] == [True] * len(CHECKS)


_REWOUND = """
insert into eo_ledger values ('flights', 3, 'rewind', 1, 'transaction 3', 'transaction 2',
                              '{"flights": {"0": 2}}', '{}', '{"rows": 0}')
"""
_READ_AGAIN = """
insert into eo_ledger values ('flights', 4, 'forward', null, 'transaction 4', 'transaction 3',
                              '{"flights": {"0": 5}}', '{"flights": {"0": [2, 5]}}', '{"rows": 2}')
"""
_REPLAYED = """
insert into eo_ledger values ('flights', 3, 'replay', 1, 'transaction 3', 'transaction 2',
                              '{"flights": {"0": 5}}', '{"flights": {"0": [0, 2]}}', '{"rows": 1}')
"""


@pytest.mark.parametrize(
    ("steps", "seen_by"),
    [
        (
            [
                _REWOUND,
                _READ_AGAIN,
                "update flights set _eo_checkpoint = 4 where _eo_checkpoint = 2",
            ],
            set(),
        ),
        ([_REWOUND, _READ_AGAIN], {check_counts}),
        ([_REWOUND], {check_counts}),
        ([_REPLAYED], {check_counts}),
        ([_REPLAYED, "delete from flights where flight_id = 'b'"], {rows}),
    ],
)
def test_what_was_rewound_and_replayed_counts_as_it_stands(
    observer: Observer, database: str, steps: list[str], seen_by: set[Callable[[Observer], Check]]
) -> None:
    with psycopg.connect(database) as connection:
        for step in steps:
            connection.execute(step.encode())
    assert {check for check in CHECKS if not check(observer).passed} == seen_by


@pytest.mark.parametrize(
    ("damage", "seen_by"),
    [
        ("delete from flights where flight_id = 'a'", {rows, check_counts}),
        ("insert into flights values (2, 4, 'd')", {rows, check_counts}),
        ("update flights set flight_id = 'a' where flight_id = 'b'", {rows}),
        ("update flights set _eo_checkpoint = 1 where flight_id = 'c'", {check_counts}),
        ("update flights set _eo_checkpoint = 3 where flight_id = 'c'", {check_counts}),
        ("delete from eo_ledger where version = 1", {check_versions, check_ranges, check_counts}),
        ("delete from eo_ledger where version = 0", {check_versions}),
        ("update eo_ledger set transaction_id = 'x' where version = 1", {check_versions}),
        (
            """update eo_ledger set ranges = '{"flights": {"0": [1, 5]}}' where version = 2""",
            {check_ranges},
        ),
        (
            """update eo_ledger set ranges = '{"flights": {"0": [3, 5]}}' where version = 2""",
            {check_ranges},
        ),
    ],
)
def test_what_is_wrong_is_seen(
    observer: Observer, database: str, damage: str, seen_by: set[Callable[[Observer], Check]]
) -> None:
    with psycopg.connect(database) as connection:
        connection.execute(damage.encode())
    assert {check for check in CHECKS if not check(observer).passed} == seen_by


@pytest.mark.parametrize(
    ("damage", "passes"),
    [
        ("", True),
        ("delete from planes where tailnum = 'N1'", False),
        ("insert into planes values ('N1')", False),
        ("update flights set tailnum = 'N2' where flight_id = 'a'", False),
        ("delete from flights where flight_id = 'c'", False),
    ],
)
def test_a_join_that_differs_from_kafka_is_seen(
    observer: Observer, database: str, damage: str, passes: bool
) -> None:
    with psycopg.connect(database) as connection:
        connection.execute("create table planes (tailnum text); insert into planes values ('N1')")
        connection.execute("alter table flights add column tailnum text")
        connection.execute("update flights set tailnum = 'N1' where flight_id in ('a', 'b')")
        connection.execute(damage.encode() or b"select 1")
    assert check_join(observer, flights=4, unknown=2).passed == passes
