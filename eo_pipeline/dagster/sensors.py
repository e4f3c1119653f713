"""Sensors of a pipeline: lag, partitions, reconciler. They only start runs and report; the ledger
decides which offsets are read, so a missed tick delays data but cannot lose any.

An unreachable broker or store fails the tick with its error; a skipped tick would look healthy.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import dagster as dg

from eo_pipeline.dagster import mirror
from eo_pipeline.dagster.mirror import (
    Progress,
    compare,
    key_requests,
    live_checkpoints_event,
    live_keys,
)
from eo_pipeline.dagster.naming import DagsterPipeline
from eo_pipeline.dagster.runs import pause_after_failures, unfinished_run, working_run
from eo_pipeline.dagster.topics import (
    KnownPartitions,
    LagCursor,
    Topic,
    is_reported_unreachable,
    state_metadata,
    topic_events,
    topics_of,
    unreachable_events,
    with_outage_cache,
)
from eo_pipeline.errors import SourceUnavailableError, some_of
from eo_pipeline.kafka.logs import said_of
from eo_pipeline.kafka.partitions import Cluster
from eo_pipeline.ledger.entry import LedgerEntry
from eo_pipeline.ledger.offsets import TopicPartition
from eo_pipeline.operations.status import Status

Tick = dg.SensorResult | dg.SkipReason | dg.RunRequest
Evaluate = Callable[[dg.SensorEvaluationContext], Tick]

#: Ledger entries reported and events read per tick: a tick stays well below its time limit.
ENTRIES_A_TICK = 200
EVENTS_A_TICK = 1_000

#: Seconds between the polls of one tick that waits.
POLL_INTERVAL_S = 0.5

#: Partitions named in a message; further ones are counted.
NAMED_MAX = 20


def build_sensors(declared: DagsterPipeline) -> list[dg.SensorDefinition]:
    """Build the sensors that the declaration asks for."""
    lag = [_lag_sensor(declared)] if declared.automation.lag_threshold else []
    return [*lag, _partition_sensor(declared), _reconciler(declared)]


def _sensor(
    declared: DagsterPipeline,
    name: str,
    evaluate: Evaluate,
    *,
    description: str,
    seconds: int,
    job: str | None,
) -> dg.SensorDefinition:
    return dg.SensorDefinition(
        name=f"{declared.identifier}_{name}",
        evaluation_fn=evaluate,
        description=description,
        job_name=job,
        minimum_interval_seconds=seconds,
        default_status=declared.automation.sensor_status,
    )


def _lag_sensor(declared: DagsterPipeline) -> dg.SensorDefinition:
    return _sensor(
        declared,
        "lag",
        lambda context: check_lag(declared, context.instance, context.cursor),
        description="Starts a run when Kafka has new records; reports the lag on the topic.",
        seconds=declared.automation.lag_interval_seconds,
        job=declared.job,
    )


def check_lag(
    declared: DagsterPipeline, instance: dg.DagsterInstance, cursor: str | None = None
) -> dg.SensorResult:
    """Poll Kafka on every tick, also during a run, because the topic's asset shows the result.

    Raises:
        SourceUnavailableError: Kafka is unreachable; the topic's check fails as well.
    """
    reported = LagCursor.from_cursor(cursor)
    unreachable = is_reported_unreachable(declared, instance)
    try:
        status, decision = _poll_until_run(declared, instance)
    except SourceUnavailableError as error:
        for event in [] if unreachable else unreachable_events(declared, error):
            instance.report_runless_asset_event(event)  # Dagster drops the events of a failed tick
        raise
    events, reported = topic_events(declared, status, reported, time.time(), anew=unreachable)
    return dg.SensorResult(
        run_requests=[decision] if isinstance(decision, dg.RunRequest) else [],
        skip_reason=decision if isinstance(decision, dg.SkipReason) else None,
        asset_events=events,
        cursor=reported.to_cursor(),
    )


def _poll_until_run(
    declared: DagsterPipeline, instance: dg.DagsterInstance
) -> tuple[Status, dg.RunRequest | dg.SkipReason]:
    """Poll until a run is due or the wait ends; return the last status and the decision."""
    until = time.monotonic() + declared.automation.lag_wait_seconds
    while True:
        status = with_outage_cache(declared.pipeline.source, declared.pipeline.status)
        decision = run_for_lag(declared, instance, status)
        if isinstance(decision, dg.RunRequest) or time.monotonic() + POLL_INTERVAL_S > until:
            return status, decision
        time.sleep(POLL_INTERVAL_S)


def run_for_lag(
    declared: DagsterPipeline, instance: dg.DagsterInstance, status: Status
) -> dg.RunRequest | dg.SkipReason:
    """Decide by level, not by edge: records that arrive during a run are seen after it. No run key,
    because Dagster would never start a key again whose run failed.
    """
    run = unfinished_run(instance, declared)
    if run is not None:
        return dg.SkipReason(f"Skipped: run {run.run_id[:8]} is {_status(run)}.")
    pause = pause_after_failures(instance, declared, now=time.time())
    if pause is not None:
        return dg.SkipReason(
            f"Skipped: the last run failed; the next one starts in {pause} at the earliest."
        )
    return wanted_run(declared, status)


def _status(run: dg.DagsterRun) -> str:
    """Return the status of an unfinished run, as part of a skip reason."""
    status = run.status.value.lower()
    return {"queued": "already queued", "started": "in progress"}.get(status, status)


def wanted_run(declared: DagsterPipeline, status: Status) -> dg.RunRequest | dg.SkipReason:
    """Decide by Kafka's lag alone, once no run works and none failed."""
    threshold = declared.automation.lag_threshold or 1
    if status.head is None and not status.cluster.bounds:
        return dg.SkipReason("no subscribed topic exists yet")
    # without a ledger even an empty topic needs a run, which records the start offsets
    if status.head is not None and status.lag < threshold:
        return dg.SkipReason(
            f"lag {status.lag:,}, below {threshold:,}{_waiting(status)}; ledger at version "
            f"{status.head.version}"
        )
    return dg.RunRequest(tags=declared.run_tags | {"eo/lag": str(status.lag)})


def _waiting(status: Status) -> str:
    if status.transactions:
        return f"; {said_of(status.transactions)}"
    return f"; {status.unstable:,} offsets wait behind open transactions" * bool(status.unstable)


def _partition_sensor(declared: DagsterPipeline) -> dg.SensorDefinition:
    return _sensor(
        declared,
        "partitions",
        lambda context: check_partitions(declared, context.cursor),
        description="Reports new Kafka partitions and topics, and starts a run for them.",
        seconds=declared.automation.partition_interval_seconds,
        job=declared.job,
    )


def check_partitions(declared: DagsterPipeline, cursor: str | None) -> Tick:
    """Report partitions that are in Kafka but not in the cursor or, without a cursor, in the
    ledger.

    Before the first run there is no ledger to compare with: that run reads every partition.
    """
    status = with_outage_cache(declared.pipeline.source, declared.pipeline.status)
    if status.head is None:
        return dg.SkipReason("No ledger yet: the first run reads all existing partitions.")
    stored = KnownPartitions.from_cursor(cursor)
    previous = stored or KnownPartitions.of_ledger(status.head)
    new = previous.new_in(status.cluster)
    # without a cursor the sensor also reports the number of partitions once
    to_report = new if stored else sorted(status.cluster.bounds)
    partitions = len(status.cluster.bounds)
    return dg.SensorResult(
        run_requests=[_run_for_partitions(declared, new, status.cluster)] if new else [],
        skip_reason=None if new else f"no new partition; {partitions:,} known",
        asset_events=_observations(declared, status, to_report, new),
        cursor=previous.including(status.cluster).to_cursor(),
    )


def _run_for_partitions(
    declared: DagsterPipeline, new: Sequence[TopicPartition], cluster: Cluster
) -> dg.RunRequest:
    """Return one run for these partitions, however often the daemon repeats the tick after a crash.
    If it fails, the lag sensor or the schedule starts the next: the planner finds new partitions
    itself.
    """
    topics = sorted({tp.topic for tp in new})
    ids = ",".join(f"{topic}={cluster.topic_ids.get(topic)}" for topic in topics)
    first, last = new[0].partition, new[-1].partition
    return dg.RunRequest(
        run_key=f"{declared.pipeline.name}:{ids}:{first}-{last}:{len(new)}",
        tags=declared.run_tags | {"eo/new_partitions": some_of(new, NAMED_MAX)},
    )


def _observations(
    declared: DagsterPipeline,
    status: Status,
    to_report: Sequence[TopicPartition],
    new: Sequence[TopicPartition],
) -> list[dg.AssetObservation]:
    """Return an observation for each topic asset of the ``to_report`` partitions."""
    topics = topics_of(declared, status)
    return [
        _observation(
            declared, key, topics[key], [tp for tp in new if declared.topic(tp.topic) == key]
        )
        for key in sorted({declared.topic(tp.topic) for tp in to_report})
    ]


def _observation(
    declared: DagsterPipeline, key: dg.AssetKey, topic: Topic, new: Sequence[TopicPartition]
) -> dg.AssetObservation:
    return dg.AssetObservation(
        key,
        description=f"new: {some_of(new, NAMED_MAX)}"
        if new
        else f"{topic.partitions:,} partitions",
        metadata={
            "new_partitions": dg.MetadataValue.text(some_of(new, NAMED_MAX) if new else "none"),
            **state_metadata(declared, key, topic),
        },
    )


def _reconciler(declared: DagsterPipeline) -> dg.SensorDefinition:
    return _sensor(
        declared,
        "reconciler",
        lambda context: reconcile(declared, context.instance, context.cursor),
        description="Reports ledger versions that killed or external runs left unreported.",
        seconds=declared.automation.reconcile_interval_seconds,
        job=None,
    )


def reconcile(declared: DagsterPipeline, instance: dg.DagsterInstance, cursor: str | None) -> Tick:
    """Compare the ledger with the event log, and report the missing entries.

    The order matters: ledger, then runs, then events. Once the run of an entry that was read is
    over, its event has been written or never will be; so no event is written twice.
    """
    progress = Progress.from_cursor(cursor)
    entries = declared.pipeline.following(progress.entry, ENTRIES_A_TICK)
    keys = instance.get_dynamic_partitions(declared.partitions)
    # the ledger was replaced, or somebody deleted keys: what is wanted is told by all its entries
    anew = entries is None or progress.lacks_keys(keys, entries)
    if anew or entries is None:
        progress = Progress()
        entries = declared.pipeline.following(None, ENTRIES_A_TICK) or []
    run = working_run(instance, declared)
    if run is not None:
        return dg.SkipReason(
            f"Skipped: run {run.run_id[:8]} is {_status(run)} and reports its own commits."
        )
    missing, after = _compare(declared, instance, progress, entries)
    at = f"version {after.entry.version}" if after.entry else "now: the ledger is empty"
    shown = _live_table(declared, instance, entries, progress, after)
    after = replace(after, shown=after.entry if shown else progress.shown)
    message = f"reported {len(missing)} missing versions " if missing else "event log is complete "
    settled = [e for e in entries if after.entry and e.version <= after.entry.version]
    wanted = live_keys(declared, keys, settled, anew=anew)
    after = replace(after, keys=len(wanted))
    return dg.SensorResult(
        skip_reason=f"{message}up to {at}",
        asset_events=[*_repairs(declared, instance, missing), *shown],
        # every entry passes here once, so the key of a run that was killed is added now
        dynamic_partitions_requests=key_requests(declared, keys, wanted),
        cursor=after.to_cursor(),
    )


def _live_table(
    declared: DagsterPipeline,
    instance: dg.DagsterInstance,
    entries: Sequence[LedgerEntry],
    progress: Progress,
    after: Progress,
) -> list[dg.AssetMaterialization]:
    """Return the table of live checkpoints if it changed, once the whole ledger was compared."""
    if after.entry == progress.shown or len(entries) == ENTRIES_A_TICK:
        return []
    event = live_checkpoints_event(declared, instance)
    return [event] if event else []


def _repairs(
    declared: DagsterPipeline, instance: dg.DagsterInstance, missing: Sequence[LedgerEntry]
) -> list[dg.AssetMaterialization | dg.AssetObservation]:
    """Return the events of ``missing``. A newer version that was already reported is reported
    again, because Dagster takes the last event for the state of the asset.
    """
    repairs = [event.event() for entry in missing for event in mirror.of_entry(declared, entry)]
    for key in (*declared.members.values(), declared.table, declared.offsets) if missing else ():
        event = instance.get_latest_materialization_event(key)
        latest = event.asset_materialization if event else None
        shown = mirror.reported_id(latest) if latest else None
        if latest and shown and shown.version > missing[-1].version:
            repairs.append(mirror.EntryEvent(key, shown, latest.metadata).materialization())
    return repairs


def _compare(
    declared: DagsterPipeline,
    instance: dg.DagsterInstance,
    progress: Progress,
    entries: Sequence[LedgerEntry],
) -> tuple[list[LedgerEntry], Progress]:
    page = instance.fetch_materializations(
        dg.AssetRecordsFilter(declared.offsets, after_storage_id=progress.event),
        limit=EVENTS_A_TICK,
        ascending=True,
    )
    events = [record.asset_materialization for record in page.records]
    return compare(
        progress,
        entries,
        reported={id_ for event in events if event and (id_ := mirror.reported_id(event))},
        event=page.records[-1].storage_id if page.records else progress.event,
        caught_up=len(page.records) < EVENTS_A_TICK,
    )
