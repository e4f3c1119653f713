"""Asset checks. They run after and outside the commit: they ask the sink, they gate nothing."""

# no `from __future__ import annotations`: Dagster reads the annotation of `context` as it is

from collections.abc import Iterator

import dagster as dg

from eo_pipeline.dagster.failures import failing
from eo_pipeline.dagster.looks import away_result, lag_check, lag_result, topics_of
from eo_pipeline.dagster.mirror import reported_id
from eo_pipeline.dagster.names import DagsterPipeline
from eo_pipeline.errors import SourceUnavailableError
from eo_pipeline.ledger.contiguity import contiguity_errors
from eo_pipeline.ledger.entry import EntryId, LedgerEntry

#: Entries a check reads, so that its cost does not grow with the ledger.
ENTRIES_CHECKED = 1_000

#: Breaks named in a check's description before they are only counted.
BREAKS_NAMED = 10


def build_checks(declared: DagsterPipeline) -> list[dg.AssetChecksDefinition]:
    """Both checks of the offset asset; that of the table is the audit."""
    return [_contiguous(declared), _agrees(declared)]


def _contiguous(declared: DagsterPipeline) -> dg.AssetChecksDefinition:
    @dg.asset_check(
        asset=declared.offsets,
        name="ledger_contiguous",
        description=(
            f"The last {ENTRIES_CHECKED:,} ledger entries follow each other: versions and parents "
            "without a gap, and every Kafka partition read on from exactly where it stood."
        ),
    )
    def ledger_contiguous() -> dg.AssetCheckResult:
        return contiguity_result(declared.pipeline.newest(ENTRIES_CHECKED))

    return ledger_contiguous


def contiguity_result(entries: list[LedgerEntry]) -> dg.AssetCheckResult:
    """Pass, or fail with the breaks in words."""
    found = contiguity_errors(entries)
    named = "; ".join(found[:BREAKS_NAMED])
    more = len(found) - BREAKS_NAMED
    span = f"versions {entries[0].version} to {entries[-1].version}" if entries else "no entries"
    return dg.AssetCheckResult(
        passed=not found,
        description=f"{named}; and {more} more" if more > 0 else named or f"{span}: no gap",
        metadata={"entries": len(entries), "breaks": len(found)},
    )


def _agrees(declared: DagsterPipeline) -> dg.AssetChecksDefinition:
    @dg.asset_check(
        asset=declared.offsets,
        name="agrees_with_sink",
        description="The newest version Dagster shows is the head of the ledger in the sink.",
    )
    def agrees_with_sink(context: dg.AssetCheckExecutionContext) -> dg.AssetCheckResult:
        event = context.instance.get_latest_materialization_event(declared.offsets)
        shown = event.asset_materialization if event else None
        head = declared.pipeline.head()
        return agreement_result(reported_id(shown) if shown else None, head.id if head else None)

    return agrees_with_sink


def agreement_result(shown: EntryId | None, head: EntryId | None) -> dg.AssetCheckResult:
    """Behind is a warning, since the reconciler mends it; anything else needs a person."""
    behind = head is not None and (shown is None or shown.version < head.version)
    return dg.AssetCheckResult(
        passed=shown == head,
        severity=dg.AssetCheckSeverity.WARN if behind else dg.AssetCheckSeverity.ERROR,
        description=_agreement(shown, head),
        metadata={
            "version_in_dagster": shown.version if shown else -1,
            "version_in_sink": head.version if head else -1,
        },
    )


def _agreement(shown: EntryId | None, head: EntryId | None) -> str:
    if shown == head:
        return f"both at version {head.version}" if head else "both are empty"
    if head is None:
        return "Dagster shows versions and the ledger in the sink is empty: was the sink emptied?"
    if shown is None or shown.version < head.version:
        now = f"version {shown.version}" if shown else "nothing"
        return f"Dagster shows {now}, the sink holds version {head.version}; the reconciler is due"
    return (
        f"Dagster shows version {shown.version}, which the ledger (at version {head.version}) does "
        "not hold: the sink was restored from an older state, or replaced"
    )


def build_lag_checks(declared: DagsterPipeline) -> dg.AssetChecksDefinition:
    """Of each topic: whether Kafka answers, and how much waits. The lag sensor evaluates it."""
    keys = {topic: lag_check(declared, topic) for topic in declared.topics}
    limit = declared.automation.lag_limit
    below = "" if limit is None else f", and fewer than {limit:,} offsets wait"
    specs = [
        dg.AssetCheckSpec(
            key.name,
            asset=topic,
            description=f"Kafka answers {declared.pipeline.name!r}{below}. Each tick of the sensor "
            f"{declared.lag_sensor} looks.",
        )
        for topic, key in keys.items()
    ]

    @dg.multi_asset_check(name=f"{declared.op}_follows", specs=specs, can_subset=True)
    def follows(context: dg.AssetCheckExecutionContext) -> Iterator[dg.AssetCheckResult]:
        with failing(context, declared):
            try:
                found = topics_of(declared, declared.pipeline.status())
            except SourceUnavailableError as error:
                results = dict.fromkeys(keys, away_result(declared, error))
            else:
                results = {topic: lag_result(declared, each) for topic, each in found.items()}
        for topic, key in keys.items():
            if key in context.selected_asset_check_keys:
                result = results.get(topic, _MISSING)
                yield result._replace(asset_key=key.asset_key, check_name=key.name)

    return follows


_MISSING = dg.AssetCheckResult(passed=False, description="Kafka has no such topic")
