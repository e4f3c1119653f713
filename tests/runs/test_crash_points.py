"""SIGKILL at every named point of a checkpoint's life, then a run; compared from outside."""

from __future__ import annotations

import random
import signal

import pytest

from eo_pipeline.crashpoints import CrashPoint
from tests.support.chaos import rest_is_chaos
from tests.support.engine import Bench, Watcher, left_over, staged_attempts

#: Which points leave a promise behind that the next run keeps without reading again.
PROMISED = {
    CrashPoint.PRE_COMMITTED,
    CrashPoint.ROWS_SENT,
    CrashPoint.ENTRY_SENT,
}


#: Rows through files at every point; small batches without files where that makes a difference.
EVERYWHERE = [(point, 0) for point in CrashPoint] + [(point, 10_000) for point in CrashPoint]
TELLING = [*EVERYWHERE[: len(CrashPoint)], (CrashPoint.ENTRY_SENT, 10_000)]


@pytest.mark.core(only=["pre_committed-0", "entry_sent-10000"])
@pytest.mark.parametrize(("point", "inline_records"), rest_is_chaos(EVERYWHERE, but=TELLING))
def test_killed_at_a_named_point_the_next_run_leaves_every_record_there_once(
    bench: Bench, point: CrashPoint, inline_records: int
) -> None:
    bench.topic.write(300, partitions=range(4))
    # the start entry and recovery pass some points too: aim at the middle of the second batch
    nth = {"recovered": 1, "committed": 3, "planned": 2, "staging": 2, "reported": 2}.get(point, 2)
    nth = 3 if point is CrashPoint.ENTRY_SENT else nth
    killed = bench.run_in_a_process("--crash-at", point, str(nth), inline_records=inline_records)
    out, err = killed.communicate(timeout=240)
    assert killed.returncode == -signal.SIGKILL, err
    assert "done" not in out
    bench.table.assert_consistent()

    report = bench.pipeline(inline_records=inline_records).run()

    bench.table.assert_holds_once(bench.topic.written)
    assert bench.table.versions() == list(range(report.head.version + 1))
    assert report.lag == 0
    assert staged_attempts(bench) == []
    assert left_over(bench) == []
    kept = [r for r in report.checkpoints if r.recovered]
    assert bool(kept) == (point in PROMISED and inline_records == 0)


@pytest.mark.core(only=["fetched"])
@pytest.mark.parametrize("inline_records", [0, 10_000], ids=["read by Spark", "fetched"])
def test_a_promised_checkpoint_is_committed_without_kafka_records_and_without_spark(
    bench: Bench, inline_records: int
) -> None:
    bench.topic.write(80, partitions=range(4))
    killed = bench.run_in_a_process(
        "--crash-at", CrashPoint.PRE_COMMITTED, "1", inline_records=inline_records
    )
    assert killed.wait(240) == -signal.SIGKILL

    def no_spark() -> None:
        pytest.fail("Spark was started although everything was staged already")

    report = bench.pipeline().run(spark=no_spark)  # type: ignore[arg-type]

    assert [(r.entry.version, r.recovered) for r in report.checkpoints] == [(1, True)]
    bench.table.assert_holds_once(bench.topic.written)


@pytest.mark.parametrize("times", rest_is_chaos([4, 40], but=[4]))
@pytest.mark.timeout(1800)
def test_killed_at_random_moments_again_and_again_while_records_arrive(
    bench: Bench, times: int
) -> None:
    """Scenario: SIGKILL after a seeded random delay, again and again, the topic growing, a reader
    polling. Outcome: no snapshot shows part of a checkpoint; at the end, exact sets.
    """
    seed = random.SystemRandom().randrange(10**6)
    chance = random.Random(seed)
    print(f"seed {seed}")  # noqa: T201
    kills = 0
    with Watcher(bench.table):
        while kills < times:  # a run that was faster is none of them
            bench.topic.write(150, partitions=range(4))
            # a run of two checkpoints takes about three seconds, one of them Python's start
            kills += bench.killed_after(chance.uniform(0.5, 3.0))
        bench.pipeline().run()
    bench.table.assert_holds_once(bench.topic.written)
