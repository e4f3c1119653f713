"""Whatever Kafka shows, each record is read at most once, and each that is skipped is told.

``docs/protocol-explorer.md`` explains. Here the code itself is explored, not a model of it: a test
weakens one rule of it and must see a violation. ``EO_EXPLORER_WALKS`` and ``EO_EXPLORER_SEED`` as
in ``test_protocol_explorer.py``.
"""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from eo_pipeline.kafka import losses, marks, partitions
from eo_pipeline.kafka.partitions import Bounds, Cluster, PastTopics
from eo_pipeline.kafka.source import LossKind
from eo_pipeline.ledger.entry import LedgerEntry
from eo_pipeline.ledger.offsets import OffsetRange, Offsets, TopicPartition
from eo_pipeline.operations import accept_loss, change_plan
from eo_pipeline.operations.rewind import RewindPlan
from eo_pipeline.runs import runner
from tests.explorer.kafka_pipeline import ViolationError, walk
from tests.explorer.kafka_world import World

pytestmark = pytest.mark.slow

log = logging.getLogger(__name__)

WALKS = int(os.environ.get("EO_EXPLORER_WALKS", "800"))
FIRST_SEED = int(os.environ.get("EO_EXPLORER_SEED", "1"))


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Thousands of runs have nothing to say to anybody; the tests after them have."""
    for name in ("losses", "marks", "config"):
        monkeypatch.setattr(logging.getLogger(f"eo_pipeline.kafka.{name}"), "disabled", True)


def test_every_record_is_read_at_most_once_and_every_hole_is_told() -> None:
    seen: Counter[str] = Counter()
    for seed in range(FIRST_SEED, FIRST_SEED + WALKS):
        explored = walk(seed)
        seen.update(entry.operation.value for entry in explored.ledger)
        seen.update(
            hole["cause"].partition(" (")[0]
            for entry in explored.ledger
            for hole in entry.details.get("holes", [])
        )
    log.info("%d walks: %s", WALKS, dict(seen))
    # all of it happened, or the walks prove nothing
    assert {*seen} >= {"forward", "accept_loss", "rewind"}
    assert seen["the log was truncated and has grown again"]
    assert len({*seen} & {cause.partition(" (")[0] for cause in losses._CAUSES.values()}) == 5


Patch = Callable[[pytest.MonkeyPatch], None]
WEAKENED: dict[str, Patch] = {}


def weakened(patch: Patch) -> Patch:
    """Adds to the rules that are broken on purpose, by the function's name."""
    WEAKENED[patch.__name__] = patch
    return patch


def _everywhere(monkeypatch: pytest.MonkeyPatch, name: str, function: Any) -> None:
    """Swap a function wherever it was imported."""
    for module in (partitions, losses, accept_loss, runner, change_plan):
        if hasattr(module, name):
            monkeypatch.setattr(module, name, function)


@weakened
def positions_put_aside_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    _everywhere(monkeypatch, "kept_position", lambda *_: None)


@weakened
def positions_are_kept_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def by_name(past: PastTopics, _: Mapping[str, str], tp: TopicPartition) -> int | None:
        return max((positions[tp] for positions in past.values() if tp in positions), default=None)

    _everywhere(monkeypatch, "kept_position", by_name)


@weakened
def a_log_that_ends_earlier_is_read_again_from_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    real = losses.move_past_losses

    def reset(
        head: LedgerEntry, kinds: Mapping[TopicPartition, LossKind], cluster: Cluster
    ) -> losses.Moved:
        moved = real(head, kinds, cluster)
        ends = {tp: cluster.bounds[tp].end for tp, k in kinds.items() if k is LossKind.TRUNCATED}
        return replace(moved, offsets={**moved.offsets, **ends})

    _everywhere(monkeypatch, "move_past_losses", reset)


@weakened
def a_log_that_ends_earlier_is_read_again_from_its_beginning(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def resumed(tp: TopicPartition, _: int | None, __: PastTopics, cluster: Cluster) -> int | None:
        bounds = cluster.bounds.get(tp)
        return None if bounds is None else bounds.beginning

    monkeypatch.setattr(losses, "_resumed_at", resumed)


@weakened
def what_waits_is_read_from_the_beginning(monkeypatch: pytest.MonkeyPatch) -> None:
    real = partitions.positions_of

    def eager(head: LedgerEntry | None, cluster: Cluster) -> Offsets:
        return {**cluster.beginnings(), **real(head, cluster)}

    _everywhere(monkeypatch, "positions_of", eager)


@weakened
def a_new_partition_starts_wherever_its_log_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    real = partitions.discover

    def late(offsets: Offsets, past: PastTopics, cluster: Cluster, asked: Any) -> Any:
        found = real(offsets, past, cluster, asked)
        begun = {tp: cluster.bounds[tp].beginning for tp in found.fresh}
        return replace(found, positions={**found.positions, **begun})

    _everywhere(monkeypatch, "discover", late)


@weakened
def a_topic_is_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(losses, "_replaced", lambda *_: False)


@weakened
def records_below_the_beginning_are_not_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    real = losses.kind_of_loss

    def blind(*arguments: Any) -> LossKind | None:
        kind = real(*arguments)
        return None if kind is LossKind.RETENTION else kind

    monkeypatch.setattr(losses, "kind_of_loss", blind)


@weakened
def accepted_losses_take_the_ids_of_the_topics_shown_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = losses.move_past_losses

    def shown(head: LedgerEntry, kinds: Any, cluster: Cluster) -> losses.Moved:
        moved = real(head, kinds, cluster)
        topics = {tp.topic for tp in moved.offsets} & cluster.topic_ids.keys()
        return replace(moved, topic_ids={name: cluster.topic_ids[name] for name in topics})

    _everywhere(monkeypatch, "move_past_losses", shown)


@weakened
def a_checkpoint_keeps_the_ids_of_its_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    real = runner.entry_of_batch

    def forgetful(head: LedgerEntry, *rest: Any) -> LedgerEntry:
        return replace(real(head, *rest), topic_ids={**rest[1].topic_ids, **head.topic_ids})

    monkeypatch.setattr(runner, "entry_of_batch", forgetful)


@weakened
def only_what_vanished_is_put_aside(monkeypatch: pytest.MonkeyPatch) -> None:
    real = losses.move_past_losses

    def careless(head: LedgerEntry, kinds: Any, cluster: Cluster) -> losses.Moved:
        moved = real(head, kinds, cluster)
        shown = {tp.topic for tp in kinds} & cluster.topic_ids.keys()
        past = {
            uuid: {tp: at for tp, at in positions.items() if tp.topic not in shown}
            for uuid, positions in moved.past_topics.items()
        }
        return replace(moved, past_topics={uuid: kept for uuid, kept in past.items() if kept})

    _everywhere(monkeypatch, "move_past_losses", careless)


@weakened
def nobody_looks_whether_the_topic_was_replaced_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(losses, "refuse_lost_ranges", lambda *_: None)


@weakened
def a_rewind_leaves_the_past_topics_where_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    real = RewindPlan._entry

    def absent_minded(plan: RewindPlan, run_id: str, remarks: Mapping[str, str]) -> LedgerEntry:
        entry = real(plan, run_id, remarks)
        past = plan.head.identity.past_topics
        return replace(entry, identity=replace(entry.identity, past_topics=past))

    monkeypatch.setattr(RewindPlan, "_entry", absent_minded)


@weakened
def a_rewind_checks_only_where_reading_would_start(monkeypatch: pytest.MonkeyPatch) -> None:
    real = losses.lost_ranges

    def starts(ranges: Sequence[OffsetRange], *rest: Any) -> Any:
        return real([replace(r, end=r.start) for r in ranges], *rest)

    monkeypatch.setattr(change_plan, "lost_ranges", starts)
    # what lies beyond a log's end is not taken for what waits behind a transaction, either
    monkeypatch.setattr(change_plan.Rereading, "_refuse_unstable", lambda *_: None)


@weakened
def a_rewind_does_not_ask_what_retention_will_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(change_plan.Rereading, "_soon_gone", lambda *_: [])


@weakened
def a_rewind_asks_of_no_topic_that_was_put_aside(monkeypatch: pytest.MonkeyPatch) -> None:
    real = change_plan.ranges_since

    def seen(target: LedgerEntry, *rest: Any) -> tuple[OffsetRange, ...]:
        return tuple(r for r in real(target, *rest) if r.topic_partition in rest[0].offsets)

    monkeypatch.setattr(change_plan, "ranges_since", seen)


@weakened
def open_transactions_make_an_end_and_the_position_follows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Bounds, "written", property(lambda bounds: bounds.end))
    a_log_that_ends_earlier_is_read_again_from_its_end(monkeypatch)


@weakened
def logs_are_known_by_their_bounds_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(marks, "validated", lambda cluster, *_: cluster)


@weakened
def logs_are_known_by_their_leaders_epochs_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(World, "last_records", lambda *_: {})


@weakened
def logs_are_compared_only_where_the_leaders_epoch_is_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    changed = marks._has_other_epoch
    monkeypatch.setattr(marks, "_is_changed", lambda _, mark, bounds: changed(mark, bounds))


@weakened
def a_rewind_compares_no_logs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(change_plan, "altered_ranges", lambda *_: [])


@weakened
def a_log_is_taken_for_one_although_its_truncation_was_accepted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = losses._mark_past
    monkeypatch.setattr(losses, "_mark_past", lambda *given: real(*given)._replace(since=0))


@pytest.mark.parametrize("rule", WEAKENED)
def test_without_any_one_rule_a_violation_is_found(
    rule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    WEAKENED[rule](monkeypatch)
    for seed in range(FIRST_SEED, FIRST_SEED + 5 * WALKS):
        try:
            walk(seed)
        except ViolationError as found:
            log.info("%s: found by walk %d\n%s", rule, seed - FIRST_SEED + 1, found)
            return
    pytest.fail(f"no violation in {5 * WALKS} walks without the rule: {rule}")
