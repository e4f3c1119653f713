"""The judge of the killing program sees what is lost, doubled or wrong, and nothing else."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.kills.judge import Fault, Finding, Judge, NewestByKey, Record, Row, Topic

PARTITIONS = 2


def topic(records: int) -> Topic:
    return Topic({place(n): record(n) for n in range(records)})


def place(number: int) -> tuple[int, int]:
    return number % PARTITIONS, number // PARTITIONS


def record(number: int) -> Record:
    return Record(number, f"{number % PARTITIONS}:{number // PARTITIONS % 3}", f"record {number}")


def row(number: int, *, checkpoint: int | None = None, rev: int = 0) -> Row:
    """Ten records a checkpoint, unless it is said."""
    partition, offset = place(number)
    made = number // 10 + 1 if checkpoint is None else checkpoint
    return Row(made, partition, offset, *record(number), rev)


def rows(numbers: range) -> list[Row]:
    return [row(number) for number in numbers]


def faults(findings: Sequence[Finding]) -> dict[Fault, int]:
    return {finding.fault: finding.times for finding in findings}


def test_a_table_that_grows_by_whole_checkpoints_is_as_it_should_be() -> None:
    judge = Judge(topic(40))
    for end in (0, 10, 30, 40):
        assert judge.look(rows(range(end))) == []
    assert judge.exact(rows(range(40))) == []


@pytest.mark.parametrize(
    ("seen", "found"),
    [
        (rows(range(38)), {Fault.LOST: 2, Fault.WRONG: 1}),
        (rows(range(6)) + rows(range(8, 40)), {Fault.LOST: 2, Fault.WRONG: 1}),
        ([*rows(range(40)), row(3)], {Fault.DOUBLED: 1, Fault.WRONG: 1}),
        ([*rows(range(39)), row(39)._replace(name="else")], {Fault.WRONG: 1}),
        ([*rows(range(40)), row(40)], {Fault.WRONG: 1}),
        ([*rows(range(39)), row(39, rev=2)], {Fault.WRONG: 1}),
    ],
    ids=["short", "a hole", "twice", "another value", "of no record", "half replayed"],
)
def test_what_is_not_as_it_should_be_is_seen(seen: list[Row], found: dict[Fault, int]) -> None:
    judge = Judge(topic(40))
    judge.look(rows(range(40)))
    assert faults(judge.exact(seen)) == found


def test_what_was_there_stays_unless_somebody_asked_to_go_back() -> None:
    judge = Judge(topic(40))
    judge.look(rows(range(30)))
    judge.may_fall(2)
    assert judge.look(rows(range(20))) == []
    assert faults(judge.look(rows(range(10)))) == {Fault.LOST: 10}
    judge.settled()
    assert judge.look(rows(range(10))) == []


def test_a_rewind_that_never_came_may_not_come_once_a_run_moved_on() -> None:
    judge = Judge(topic(40))
    judge.look(rows(range(30)))
    judge.may_fall(2)
    judge.look(rows(range(40)))
    judge.settled()
    assert faults(judge.look(rows(range(20)))) == {Fault.LOST: 20}


def test_a_rewind_takes_the_later_rows_and_no_others() -> None:
    judge = Judge(topic(40))
    judge.look(rows(range(40)))
    before = judge.rows
    judge.may_fall(2)
    judge.look(rows(range(20)))
    assert judge.rewound(before, 2) == []
    assert faults(judge.rewound(before, 1)) == {Fault.WRONG: 10}
    judge.rows = rows(range(15))
    assert faults(judge.rewound(before, 2)) == {Fault.LOST: 5}


def test_replayed_rows_are_of_the_new_revision() -> None:
    judge = Judge(topic(20))
    judge.look([*rows(range(10)), *(row(n, rev=2) for n in range(10, 20))])
    assert judge.replayed([2], 2) == []
    assert faults(judge.replayed([1, 2], 2)) == {Fault.WRONG: 10}


def test_a_fork_holds_everything_since_and_nothing_before() -> None:
    judge = Judge(topic(40), {0: 10, 1: 10})
    assert judge.exact(rows(range(20, 40))) == []
    assert faults(judge.exact(rows(range(18, 40)))) == {Fault.WRONG: 2} | {}
    assert faults(judge.exact(rows(range(22, 40))))[Fault.LOST] == 2


def test_a_table_of_the_newest_rows_never_goes_back_to_older_ones() -> None:
    newest = [row(number) for number in range(34, 40)]
    judge = NewestByKey(topic(40))
    assert judge.exact(newest) == []
    older = [row(34 - 6), *newest[1:]]
    assert Fault.LOST in faults(judge.look(older))
    assert faults(judge.look([*newest, newest[0]])) == {Fault.DOUBLED: 1}
    assert faults(judge.look(newest[1:])) == {Fault.LOST: 1}
    wrong = [newest[0]._replace(name="else"), *newest[1:]]
    assert faults(judge.look(wrong)) == {Fault.WRONG: 1}
