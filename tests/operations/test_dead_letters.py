"""Records that were set aside: after the mend they are read again, and land once."""

from __future__ import annotations

import json
import signal

import pytest

from eo_pipeline.crashpoints import CrashPoint
from eo_pipeline.errors import NothingToDoError
from eo_pipeline.ledger.entry import Operation
from tests.support.engine import Bench, Watcher

#: A field that nobody told of makes a bad record; the mend is to let it be.
STRICT = {"source": {"on_bad_record": "dead_letter", "unknown_fields": "fail"}}
MENDED = {"source": {"on_bad_record": "dead_letter", "unknown_fields": "ignore"}}

IN_THE_TABLE = "select count(*) from events_dead_letters"


@pytest.fixture
def half_read(bench: Bench) -> Bench:
    """Three checkpoints of 20 good records; the first and the last set 5 and 3 others aside, one of
    which can never be read.
    """
    for version, bad in ((1, 5), (2, 0), (3, 2)):
        bench.topic.write(20, partitions=range(4))
        odd(bench, bad)
        if version == 3:
            bench.topic.write_value(b"no JSON")
        bench.pipeline(**STRICT).run()
    return bench


def odd(bench: Bench, count: int) -> None:
    """Records with a field more, which are good ones once that is allowed."""
    producer = bench.topic.producer()
    for n in range(count):
        value = {"id": 1_000 + n, "name": "odd", "more": n}
        bench.topic.send(producer, json.dumps(value).encode(), n % 4)
    assert producer.flush(120) == 0


@pytest.mark.core
def test_which_checkpoints_set_records_aside_and_what_they_are(half_read: Bench) -> None:
    pipeline = half_read.pipeline(**STRICT)
    assert {c.version: c.counts.dead_letters for c in pipeline.dead_letters()} == {1: 5, 3: 3}
    rows = list(pipeline.dead_letter_rows())
    assert sorted(row.checkpoint for row in rows) == [1] * 5 + [3] * 3
    assert {row.topic for row in rows} == {half_read.topic.name}
    assert {row.value for row in pipeline.dead_letter_rows(3)} >= {"no JSON"}
    assert all("more" in row.error for row in rows if row.value != "no JSON")


@pytest.mark.parametrize(
    "point", [None, CrashPoint.STAGED, CrashPoint.PRE_COMMITTED, CrashPoint.ENTRY_SENT]
)
def test_after_the_mend_they_land_once_whenever_the_redrive_is_killed(
    half_read: Bench, point: CrashPoint | None
) -> None:
    with Watcher(half_read.table):
        if point:
            process = half_read.run_in_a_process("--redrive", "--crash-at", point, "1", **MENDED)
            assert process.wait(240) == -signal.SIGKILL
            half_read.pipeline(**MENDED).run()
        report = half_read.pipeline(**MENDED).plan_redrive().apply(reason="fields may come")
    half_read.table.assert_holds_once(half_read.topic.written)
    assert half_read.table.query(IN_THE_TABLE) == [(1,)]
    assert {entry.operation for entry in report.entries} == {Operation.REPLAY}
    # the checkpoint without any is left alone; one that is done before the kill is not done twice
    promised = point not in (None, CrashPoint.STAGED)
    assert [entry.target for entry in report.entries] == ([3] if promised else [1, 3])
    assert report.entries[-1].counts.dead_letters == 1
    assert half_read.pipeline(**MENDED).run().records == 0


def test_where_none_is_set_aside_there_is_nothing_to_do(half_read: Bench) -> None:
    pipeline = half_read.pipeline(**MENDED)
    with pytest.raises(NothingToDoError, match="version 2 has no dead letters"):
        pipeline.plan_redrive([1, 2])
    pipeline.rewind(0)
    assert pipeline.dead_letters() == []
    with pytest.raises(NothingToDoError, match="no dead letters to redrive"):
        pipeline.plan_redrive()
