"""``make run``: flights and aircraft to Kafka, Dagster brings them to PostgreSQL, into two tables,
and a check from outside.

With Avro a schema registry stands beside Kafka, and the pipeline is a document that is run as
``eo run`` does it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from demo.flights import TOPIC
from demo.materialize import DagsterRun, RunProcess, Watch, follow
from demo.observe import Checkpoint, Observer
from demo.planes import PLANES
from demo.preflight import archive_if_none_fits, prepare
from demo.publishing import Publishing
from demo.run_result import RunResult
from demo.screen import Screen
from demo.servers import Servers, running
from demo.state import State, claimed
from demo.summary import Summary, show
from demo.verify import Check, check_all

_LOOK_S = 0.1


def run(state: State, total: int, screen: Screen, *, avro: bool = False) -> bool:
    """Everything, from an empty machine or from wherever an earlier run ended.

    Returns whether the check from outside passed.

    Raises:
        EoPipelineError: something is missing, or the run failed.
    """
    started = time.monotonic()
    with claimed(state, "run", screen.waiting_for) as lock:
        jars = prepare(state.base, screen, registry=avro)
        servers = Servers(state, jars)
        # Dagster takes a while to load: it does so while the flights are published. Named twice,
        # so that an interrupted run ends before the servers do, and in any case
        process = (
            RunProcess(state, lock, servers, "demo.eo_run")
            if avro
            else DagsterRun(state, lock, servers)
        )
        with process, running(servers, screen), process:
            observer = Observer(servers.postgres.dsn)
            if not avro:
                observer.refuse_one_table()
            publish(state, lock, servers, total, screen)
            watch = Watch(observer)
            result = materialize(process, watch, servers, total, screen)
            checks = check(servers, observer, total, screen)
            seconds = time.monotonic() - started
            show(screen, Summary(state, servers, observer, result, watch, checks, seconds))
    if result.spark_started:  # behind a pull, say, that changed our own jar
        archive_if_none_fits(jars, screen)
    return all(each.passed for each in checks)


def publish(state: State, lock: int, servers: Servers, total: int, screen: Screen) -> None:
    """Bring the topic to ``total`` flights.

    Raises:
        SourceUnavailableError: it did not work, time and again.
    """
    started = time.monotonic()
    what = ["--total", str(total)]
    if servers.registry:
        what += ["--registry", servers.registry.url]
    with (
        Publishing(state, lock, servers, *what) as publishing,
        screen.counting("Publishing", total, "flights") as count,
    ):
        while not publishing.done:
            time.sleep(_LOOK_S)
            keep_alive(servers, publishing, screen)
            publishing.look()
            count(publishing.flights)
    holds = f"{publishing.flights:,} flights" if publishing.flights else "its flights already"
    screen.ok(f"Topic {TOPIC} holds {holds}", time.monotonic() - started)


def keep_alive(servers: Servers, publishing: Publishing | None, screen: Screen) -> None:
    """Start again what has died."""
    revived = servers.revive()
    for name in revived:
        screen.note(f"{name} had died and was started again")
    if publishing is not None and servers.kafka.NAME in revived:
        publishing.restart()


def materialize(
    process: RunProcess, watch: Watch, servers: Servers, total: int, screen: Screen
) -> RunResult:
    """Let the pipeline run, and show the checkpoints as they are committed.

    Raises:
        RunFailedError: the run failed.
    """
    started = time.monotonic()
    rows = total if servers.registry else total + PLANES
    with screen.counting("Materializing", rows, "rows") as count:
        count(watch.rows)
        process.go()
        for fresh in follow(process, watch):
            for checkpoint in fresh:
                screen.note(in_words(checkpoint))
            count(watch.rows)
            keep_alive(servers, None, screen)
    result = process.result()
    screen.ok(f"{process.WHAT} {result.run_id} succeeded", time.monotonic() - started)
    return result


def in_words(checkpoint: Checkpoint) -> str:
    """One line, as soon as the commit can be seen."""
    if not checkpoint.records:
        return f"version {checkpoint.version}: {checkpoint.operation}"
    how = (
        "staged by a run that was killed" if checkpoint.recovered else f"{checkpoint.seconds:.1f} s"
    )
    return (
        f"version {checkpoint.version}: {checkpoint.rows:,} rows, {how}; "
        f"{checkpoint.rows_total:,} in all"
    )


def check(servers: Servers, observer: Observer, total: int, screen: Screen) -> Sequence[Check]:
    """Compare what Kafka and the tables hold."""
    with screen.step("Comparing the tables with Kafka") as done:
        checks = check_all(servers.kafka.bootstrap_servers, observer, total)
        done("Compared the tables with Kafka")
    return checks
