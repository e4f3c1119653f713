"""When the schema of the columns changed, and how: told from the ledger alone."""

from __future__ import annotations

from dataclasses import replace

from eo_pipeline.formats.history import reader_changes, written_changes
from eo_pipeline.ledger.entry import Counts, LedgerEntry, Operation
from eo_pipeline.ledger.offsets import OffsetRange
from eo_pipeline.ledger.schemas import ReadWith, written_with
from tests.support.registry import record

OLD = record(("id", "long"), ("name", "string"))
NEW = record(("id", "long"), ("size", "int"))


def entry(version: int, schemas: ReadWith | None, **changes: object) -> LedgerEntry:
    base = LedgerEntry(
        pipeline="p",
        ledger_id="l",
        version=0,
        transaction_id=f"t{version}",
        parent=None,
        operation=Operation.FORWARD,
        offsets={},
        ranges=(OffsetRange("t", 0, version, version + 1),),
        counts=Counts(schemas=schemas),
    )
    return replace(base, **changes)  # type: ignore[arg-type]


def test_only_changes_are_told_and_a_replay_that_reads_as_then_is_none() -> None:
    history = [
        entry(0, None, ranges=()),
        entry(1, ReadWith("1", ("1",), (), {"1": OLD})),
        entry(2, ReadWith("1", ("1",))),
        entry(3, ReadWith("2", ("1", "2"), (), {"2": NEW})),
        entry(4, ReadWith("1", ("1",)), operation=Operation.REPLAY, target=1),
        entry(5, ReadWith("2", ("2",))),
        entry(6, ReadWith("1", ("2",))),
    ]
    shown = [(c.entry.transaction_id, c.schema, str(c)) for c in reader_changes(history)]
    assert shown == [
        ("t1", "1", ""),
        ("t3", "2", "new: size; no longer: name"),
        ("t6", "1", "new: name; no longer: size"),
    ]


def test_what_came_along_with_a_fork_was_not_read() -> None:
    start = entry(0, ReadWith("1", ("1",), (), {"1": OLD}), ranges=())
    [change] = reader_changes([start, entry(1, ReadWith("1", ("1",)))])
    assert (change.entry.transaction_id, change.text) == ("t1", OLD)


def test_what_rows_were_written_as_is_told_where_it_changed() -> None:
    """By the entries alone; one that says nothing changes nothing."""
    head = LedgerEntry("p", "l", 0, "t0", None, Operation.START, {})
    entries = [head]
    for columns, registered in (
        ({"id": "bigint"}, {}),
        ({"id": "bigint"}, {}),
        (None, {}),
        ({"id": "numeric", "name": "text"}, {}),
        ({"id": "numeric", "name": "text"}, {"value": "7"}),
        ({"name": "text"}, {"value": "7"}),
    ):
        head = head.child(Operation.FORWARD, "run", {})
        if columns is not None:
            held = written_with(head.identity.written, head.version, columns, registered)
            head = head.with_counts(Counts(rows=1, written=held))
        entries.append(head)
    shown = [
        (change.entry.version, change.schema, str(change)) for change in written_changes(entries)
    ]
    assert shown == [
        (1, "", ""),
        (4, "", "new: name; id from bigint to numeric"),
        (5, "value 7", "the same columns"),
        (6, "value 7", "no longer: id"),
    ]
