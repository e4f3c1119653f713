"""Runs, rewinds, replays and crashes in any order, on real Kafka, Spark and PostgreSQL.

After every step the table must be exactly what the ledger says, row by row; and after the last
one, once a run has gone through, every record is there once.
"""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from eo_pipeline.crashpoints import CrashPoint, Reach, keep_going, reaching
from eo_pipeline.errors import NothingToDoError
from eo_pipeline.ledger.history import live_branch
from eo_pipeline.pipeline import Pipeline
from eo_pipeline.testing import raise_at
from eo_pipeline.testing.faults import CrashRequested
from tests.support.chaos import rest_is_chaos
from tests.support.engine import Bench, Coordinates, Table, Topic
from tests.support.servers import MakeDatabase, MakeTopic

#: Import path of a transform, and what it makes of a name.
TRANSFORMS = {
    "plain": (None, "record"),
    "shouting": ("tests.runs.transforms:shouting", "RECORD"),
}

#: Twelve lives are enough to catch, nearly always, a rewind that leaves a row or takes one too
#: many, offsets that move where they must not, and a replay that adds instead of replacing.
LIVES, STEPS = [4, 12, 60], 10

transforms = st.sampled_from(sorted(TRANSFORMS))
files = st.booleans()
crashes = st.none() | st.tuples(st.sampled_from(list(CrashPoint)), st.integers(1, 2))
choices = st.integers(0, 99)

#: Method of a life and its arguments. One rule for all: of several, Hypothesis would leave some out
#: of each example, and it is the mixture that matters here.
steps = st.one_of(
    st.tuples(st.just("records_arrive"), st.tuples(st.integers(1, 30))),
    st.tuples(st.just("run"), st.tuples(transforms, files, crashes)),
    st.tuples(st.just("rewind"), st.tuples(choices, crashes)),
    st.tuples(st.just("replay"), st.tuples(choices, transforms, files, crashes)),
)


class Life(RuleBasedStateMachine):
    """One pipeline's life. ``run_id`` tells in the ledger which transform wrote a checkpoint."""

    bench: Bench

    @initialize(count=st.integers(21, 60))
    def there_is_something_to_go_back_to(self, count: int) -> None:
        """Two checkpoints or three, of at most 20 offsets."""
        self.records_arrive(count)
        self.run("plain", through_files=False, crash=None)

    @rule(step=steps)
    def step(self, step: tuple[str, tuple[Any, ...]]) -> None:
        name, arguments = step
        getattr(self, name)(*arguments)

    def records_arrive(self, count: int) -> None:
        self.bench.topic.write(count, partitions=range(2))

    def run(self, by: str, through_files: bool, crash: Any) -> None:
        pipeline = self.pipeline(by, through_files)
        with contextlib.suppress(CrashRequested), reaching(_hook(crash)):
            report = pipeline.run(run_id=by)
            assert report.lag == 0

    def rewind(self, choice: int, crash: Any) -> None:
        pipeline = self.pipeline("plain", False)
        *earlier, _ = live_branch(pipeline.history())
        if not earlier:
            return
        target = earlier[choice % len(earlier)]
        # rewinds and replays may be all that came after the target: nothing is taken back then
        with contextlib.suppress(CrashRequested, NothingToDoError), reaching(_hook(crash)):
            (done,) = pipeline.rewind(target.version).entries
            assert (done.target, done.offsets) == (target.version, target.offsets)

    def replay(self, choice: int, by: str, through_files: bool, crash: Any) -> None:
        standing = sorted(expected(self.bench.table))
        if not standing:
            return
        first = choice % len(standing)
        chosen = standing[first : first + 2]
        pipeline = self.pipeline(by, through_files)
        with contextlib.suppress(CrashRequested), reaching(_hook(crash)):
            pipeline.recover()
            report = pipeline.plan_replay(versions=chosen).apply(run_id=by)
            assert [entry.target for entry in report.entries] == chosen

    def pipeline(self, by: str, through_files: bool) -> Pipeline:
        inline = 0 if through_files else 10_000
        return self.bench.pipeline(transform=TRANSFORMS[by][0], inline_records=inline)

    @invariant()
    def the_table_is_what_the_ledger_says(self) -> None:
        if not self.bench.table.exists():
            return
        found: dict[int, dict[Coordinates, str]] = {}
        columns = "_eo_checkpoint, _eo_topic, _eo_partition, _eo_offset, name"
        rows = self.bench.table.query(f"select {columns} from events")
        for checkpoint, topic, partition, offset, name in rows:
            found.setdefault(checkpoint, {})[topic, partition, offset] = name.split()[0]
        assert found == expected(self.bench.table)
        assert len(rows) == sum(map(len, found.values())), "a record is there twice"

    def teardown(self) -> None:
        self.pipeline("plain", False).run(run_id="plain")
        self.bench.table.assert_holds_once(self.bench.topic.written)


def expected(table: Table) -> dict[int, dict[Coordinates, str]]:
    """By the ledger alone, told anew here: the records of every checkpoint, and how the transform
    that wrote them spells a name.
    """
    if not table.query("select to_regclass('eo_ledger') is not null")[0][0]:
        return {}
    columns = "version, operation, target, ranges, run_id"
    rows: dict[int, dict[Coordinates, str]] = {}
    for version, operation, target, ranges, by in table.query(
        f"select {columns} from eo_ledger order by version"
    ):
        if operation == "rewind":
            rows = {each: held for each, held in rows.items() if each <= target}
        elif operation in ("forward", "replay"):
            rows[version if target is None else target] = {
                (topic, int(partition), offset): TRANSFORMS[by][1]
                for topic, partitions in ranges.items()
                for partition, (start, end) in partitions.items()
                for offset in range(start, end)
            }
    return rows


def _hook(crash: tuple[CrashPoint, int] | None) -> Reach:
    return raise_at(*crash) if crash else keep_going


@pytest.mark.parametrize("count", rest_is_chaos(LIVES, but=[4]))
@pytest.mark.timeout(3600)
def test_in_any_order_the_table_follows_the_ledger(
    bench: Bench, make_topic: MakeTopic, make_database: MakeDatabase, count: int
) -> None:
    lives = iter(range(1000))

    class NewLife(Life):
        def __init__(self) -> None:
            super().__init__()
            topic = Topic(make_topic(partitions=2), bench.topic.bootstrap_servers)
            dsn = make_database()
            config = bench.config | {
                "source": {**bench.config["source"], "topics": [topic.name], "max_records": 20},
                "sink": {**bench.config["sink"], "dsn": dsn},
                "staging": f"{bench.config['staging']}-{next(lives)}",
            }
            self.bench = Bench(topic, Table(dsn), config)

    run_state_machine_as_test(
        NewLife,
        settings=settings(
            max_examples=count,
            stateful_step_count=STEPS,
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
