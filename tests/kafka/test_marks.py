"""A log that was truncated and has grown again is told from the one that was read. Pure."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, cast

import pytest

from eo_pipeline.errors import OpenTransactionError, RangesGoneError, SourceUnavailableError
from eo_pipeline.kafka.logs import LastRecord, digest
from eo_pipeline.kafka.losses import losses_of, refuse_lost_ranges
from eo_pipeline.kafka.marks import altered_ranges, marked, start_marks, validated
from eo_pipeline.kafka.partitions import Bounds, Cluster
from eo_pipeline.kafka.planner import Batch
from eo_pipeline.kafka.source import KafkaSource, LossKind
from eo_pipeline.ledger.entry import EntryId, Identity, LedgerEntry, Operation
from eo_pipeline.ledger.history import Checkpoint, checkpoints
from eo_pipeline.ledger.marks import Mark, marks_from_json, marks_to_json
from eo_pipeline.ledger.offsets import OffsetRange, TopicPartition
from eo_pipeline.operations.change_plan import Rereading
from eo_pipeline.runs.runner import entry_of_batch, entry_past_losses

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
SOURCE = KafkaSource(bootstrap_servers="nowhere:1", topics=("t",), value_format="raw")


class Record(NamedTuple):
    """A record's contents, and the epoch of the leader that wrote it; no contents: a marker."""

    text: str
    epoch: int


@dataclass
class Logs:
    """Logs in memory, which count what they are asked."""

    logs: dict[TopicPartition, list[Record]] = field(default_factory=dict)
    epoch: int = 0
    beginning: int = 0
    asked: list[Sequence[TopicPartition]] = field(default_factory=list)
    silent: bool = False
    topic_id: str = "uuid-1"

    def write(self, text: str, count: int, tp: TopicPartition = T0) -> Logs:
        log = self.logs.setdefault(tp, [])
        log += [Record(f"{text}-{len(log) + n}" if text else "", self.epoch) for n in range(count)]
        return self

    def truncate(self, end: int, tp: TopicPartition = T0) -> Logs:
        """An unclean election: what is beyond ``end`` is gone, another leader begins there."""
        del self.logs[tp][end:]
        self.epoch += 1
        return self

    def look(self) -> Cluster:
        bounds = {
            tp: Bounds(self.beginning, len(log), len(log), self.epoch)
            for tp, log in self.logs.items()
        }
        return Cluster(bounds, {"t": self.topic_id})

    def last_records(self, ranges: Sequence[OffsetRange]) -> Mapping[TopicPartition, LastRecord]:
        self.asked.append([r.topic_partition for r in ranges])
        if self.silent:
            raise SourceUnavailableError("no answer")
        found = {}
        for r in ranges:
            log = self.logs[r.topic_partition]
            assert self.beginning <= r.start < r.end <= len(log), "that would never be answered"
            for offset in range(r.start, r.end):
                if log[offset].text:
                    found[r.topic_partition] = LastRecord(offset, log[offset].text)
        return found

    def truncated(self, below: Mapping[TopicPartition, tuple[int, int]]) -> set[TopicPartition]:
        """OffsetsForLeaderEpoch: where the newest epoch up to the one that is asked for ends."""
        self.asked.append(list(below))
        return {
            tp
            for tp, (offset, epoch) in below.items()
            if sum(each.epoch <= epoch for each in self.logs[tp]) < offset
        }


def run(head: LedgerEntry, logs: Logs) -> LedgerEntry:
    """A run that reads all there is."""
    cluster = validated(logs.look(), head, logs)
    assert not losses_of(head, cluster, SOURCE)
    ranges = tuple(
        OffsetRange(*tp, head.offsets.get(tp, 0), bounds.end)
        for tp, bounds in cluster.bounds.items()
        if bounds.end > head.offsets.get(tp, 0)
    )
    return marked(entry_of_batch(head, Batch(ranges), cluster, "run"), cluster, logs)


def start(logs: Logs, at: int = 0) -> LedgerEntry:
    offsets = dict.fromkeys(logs.logs, at)
    return LedgerEntry(
        pipeline="p",
        ledger_id="l",
        version=0,
        transaction_id="x0",
        parent=None,
        operation=Operation.START,
        offsets=offsets,
        topic_ids={"t": "uuid-1"},
        identity=Identity(marks=start_marks(offsets, logs.look())),
    )


def kinds(head: LedgerEntry, logs: Logs) -> dict[TopicPartition, LossKind]:
    cluster = validated(logs.look(), head, logs)
    return {tp: kind for tp, (kind, _) in losses_of(head, cluster, SOURCE).items()}


def accepted(head: LedgerEntry, logs: Logs) -> LedgerEntry:
    cluster = validated(logs.look(), head, logs)
    return entry_past_losses(head, losses_of(head, cluster, SOURCE), cluster, "run", {})


def read_twenty() -> tuple[LedgerEntry, LedgerEntry, Logs]:
    """Two checkpoints of ten records."""
    logs = Logs().write("a", 10)
    first = run(start(logs), logs)
    return first, run(first, logs.write("b", 10)), logs


@pytest.mark.parametrize("more", [10, 11, 15])
def test_a_log_that_has_grown_again_to_the_ledgers_offset_or_past_it_was_truncated(
    more: int,
) -> None:
    _, head, logs = read_twenty()
    logs.truncate(10).write("other", more)
    cluster = validated(logs.look(), head, logs)
    ((kind, loss),) = losses_of(head, cluster, SOURCE).values()
    assert kind is LossKind.TRUNCATED
    assert (loss.expected, loss.beginning, loss.end) == (20, 0, 10 + more)
    assert "truncated and has grown again" in str(loss)


def test_a_cluster_that_was_restored_as_a_whole_has_the_same_epochs_and_other_records() -> None:
    _, head, logs = read_twenty()
    logs.truncate(10).write("other", 15)
    logs.epoch = 0
    assert kinds(head, logs) == {T0: LossKind.TRUNCATED}


def test_records_lost_beyond_the_ledgers_offset_are_no_loss() -> None:
    _, head, logs = read_twenty()
    logs.write("unread", 5).truncate(20).write("other", 7)
    assert kinds(head, logs) == {}


def test_a_copy_that_has_other_epochs_and_the_same_records_is_read_on() -> None:
    _, head, logs = read_twenty()
    logs.epoch = 9
    logs.logs[T0] = [record._replace(epoch=9) for record in logs.logs[T0]]
    assert kinds(head, logs.write("c", 1)) == {}


@pytest.mark.parametrize("gone", ["compacted", "expired"])
def test_where_the_record_is_gone_the_epoch_decides(gone: str) -> None:
    _, head, logs = read_twenty()

    def lose() -> None:
        if gone == "compacted":
            logs.logs[T0][19] = Record("", logs.logs[T0][19].epoch)
        else:
            logs.beginning = 20

    lose()
    logs.epoch = 1
    assert kinds(head, logs.write("c", 5)) == {}
    logs.truncate(10).write("other", 15)
    lose()
    assert kinds(head, logs) == {T0: LossKind.TRUNCATED}


def test_nothing_is_asked_of_logs_that_stand_where_they_stood() -> None:
    _, head, logs = read_twenty()
    logs.asked.clear()
    assert kinds(head, logs) == {}
    assert not any(logs.asked)
    logs.epoch += 1
    assert kinds(head, logs) == {}
    assert [T0] in logs.asked


def test_an_epoch_that_was_validated_is_not_asked_for_again_once_anything_is_committed() -> None:
    logs = Logs().write("a", 10).write("a", 10, T1)
    head = run(start(logs), logs)
    logs.epoch += 1
    logs.write("b", 1, T1)
    head = run(head, logs)
    logs.asked.clear()
    assert kinds(head, logs) == {}
    assert not any(logs.asked)


def test_a_range_that_ends_in_markers_is_known_by_the_record_before_them() -> None:
    logs = Logs().write("a", 8).write("", 2)
    head = run(start(logs), logs)
    assert head.identity.marks == {T0: Mark(0, 7, "a-7")}
    # ... and one of markers alone by that of the range before
    head = run(head, logs.write("", 3))
    assert head.identity.marks == {T0: Mark(0, 7, "a-7")}
    logs.truncate(5).write("other", 20)
    assert kinds(head, logs) == {T0: LossKind.TRUNCATED}


def test_a_pipeline_that_began_in_the_middle_knows_the_log_by_its_epoch() -> None:
    logs = Logs().write("a", 20)
    head = start(logs, at=20)
    assert head.identity.marks == {T0: Mark(0)}
    assert kinds(head, logs.write("b", 5)) == {}
    assert kinds(head, logs.truncate(10).write("other", 15)) == {T0: LossKind.TRUNCATED}


def test_an_entry_without_marks_is_read_as_before_and_that_is_said(
    caplog: pytest.LogCaptureFixture,
) -> None:
    _, head, logs = read_twenty()
    old = replace(head, identity=Identity())
    with caplog.at_level(logging.INFO, "eo_pipeline.kafka.marks"):
        assert kinds(old, logs.truncate(10).write("other", 15)) == {}
    assert "by an earlier release" in caplog.text
    # the next checkpoint has marks
    assert run(old, logs).identity.marks == {T0: Mark(1, 24, "other-24")}


def test_logs_that_cannot_be_read_stop_a_run_before_and_not_after_they_were_compared() -> None:
    _, head, logs = read_twenty()
    cluster = validated(logs.look(), head, logs)
    logs.write("c", 5).silent = True
    with pytest.raises(SourceUnavailableError):
        validated(logs.look(), head, logs)
    entry = entry_of_batch(head, Batch((OffsetRange("t", 0, 20, 25),)), cluster, "run")
    assert marked(entry, cluster, logs).identity.marks == {T0: Mark(0, 19, "b-19")}


def test_once_the_loss_is_accepted_the_other_log_is_read_on_and_known() -> None:
    _, head, logs = read_twenty()
    logs.truncate(10).write("other", 15)
    past = accepted(head, logs)
    assert past.offsets == {T0: 20}
    assert past.identity.marks == {T0: Mark(1, since=20)}
    assert kinds(past, logs) == {}
    after = run(past, logs)
    assert after.identity.marks == {T0: Mark(1, 24, "other-24", 20)}
    assert kinds(after, logs.truncate(15).write("third", 20)) == {T0: LossKind.TRUNCATED}


def test_a_log_that_was_put_aside_while_it_was_short_is_read_on_once_it_has_grown() -> None:
    _, head, logs = read_twenty()
    past = accepted(head, logs.truncate(10))
    assert past.offsets == {}
    assert past.identity.marks == {T0: Mark(since=20)}
    logs.epoch += 1
    assert kinds(past, logs.write("other", 15)) == {}


def test_a_partition_that_vanished_and_came_back_is_compared_with_what_was_read_of_it() -> None:
    _, head, logs = read_twenty()
    hidden = Cluster({}, {})
    past = entry_past_losses(head, losses_of(head, hidden, SOURCE), hidden, "run", {})
    assert kinds(past, logs.write("c", 5)) == {}
    assert kinds(past, logs.truncate(10).write("other", 15)) == {T0: LossKind.TRUNCATED}


def test_another_topic_of_the_same_name_has_no_marks() -> None:
    _, head, _logs = read_twenty()
    other = Logs(topic_id="uuid-2").write("new", 30)
    assert kinds(head, other) == {T0: LossKind.RECREATED}
    assert accepted(head, other).identity.marks == {}


def test_every_operation_hands_the_marks_on() -> None:
    first, head, _ = read_twenty()
    for operation in (Operation.ADOPT, Operation.PRUNE, Operation.REPLAY):
        child = head.child(operation, "run", head.offsets)
        assert child.identity.marks == head.identity.marks
    assert first.identity.marks == {T0: Mark(0, 9, "a-9")}


# What was read before, and would be read again.


class Admin:
    """Nothing is compacted, nothing expires."""

    def __init__(self, logs: Logs) -> None:
        self.logs = logs

    def offsets_kept_for(self, *_: object) -> dict[TopicPartition, int]:
        return {}

    def compacted(self, _: object) -> set[str]:
        return set()


def reread(
    logs: Logs, found: Sequence[Checkpoint], *ranges: OffsetRange, now: Cluster | None = None
) -> None:
    look = Rereading("p", SOURCE, cast(Any, Admin(logs)), now or logs.look())
    look.check("the replay of 2", ranges, {"t": "uuid-1"}, found, accept_compacted=False)


def test_what_would_be_read_again_must_be_what_was_read() -> None:
    first, second, logs = read_twenty()
    found = checkpoints([first, second])
    reread(logs, found, OffsetRange("t", 0, 0, 20))
    logs.truncate(10).write("other", 15)
    reread(logs, found[:1], OffsetRange("t", 0, 0, 10))
    with pytest.raises(RangesGoneError, match="has grown again"):
        reread(logs, found[1:], OffsetRange("t", 0, 10, 20))
    with pytest.raises(RangesGoneError, match="has grown again"):
        reread(logs, found, OffsetRange("t", 0, 0, 20))


def test_nothing_goes_on_from_an_offset_below_which_the_log_is_another() -> None:
    _, head, logs = read_twenty()
    logs.truncate(10).write("other", 15)
    now = validated(logs.look(), head, logs)
    with pytest.raises(RangesGoneError, match="has grown again"):
        reread(logs, (), OffsetRange("t", 0, 20, 20), now=now)


def test_ranges_that_were_decided_are_lost_if_the_log_became_another_meanwhile() -> None:
    _, entry, logs = read_twenty()
    refuse_lost_ranges(entry, validated(logs.look(), entry, logs))
    logs.truncate(15).write("other", 15)
    with pytest.raises(Exception, match="has grown again"):
        refuse_lost_ranges(entry, validated(logs.look(), entry, logs))


def test_what_an_open_transaction_holds_back_is_no_loss_and_can_be_tried_again() -> None:
    now = Cluster({T0: Bounds(0, 12, 20)}, {"t": "uuid-1"})
    with pytest.raises(
        OpenTransactionError, match=r"t\[0\] up to offset 20.*open .* offset 12"
    ) as e:
        reread(Logs(), (), OffsetRange("t", 0, 10, 20), now=now)
    assert e.value.retryable
    reread(Logs(), (), OffsetRange("t", 0, 10, 12), now=now)


def test_the_newest_intact_range_proves_those_below_it_with_one_look() -> None:
    logs = Logs().write("n", 1)
    entries = [start(logs)]
    for n in range(50):
        entries.append(run(entries[-1], logs.write(f"{n}", 2)))
    found = checkpoints(entries)
    logs.asked.clear()
    assert altered_ranges(found, logs.look(), logs) == []
    assert len([asked for asked in logs.asked if asked]) == 1
    logs.truncate(91).write("other", 40)
    altered = altered_ranges(found, logs.look(), logs)
    assert [(version, r.end) for version, r in altered] == [
        (each.version, each.entry.offsets[T0]) for each in found if each.entry.offsets[T0] > 91
    ]


def test_what_was_read_of_a_log_before_an_accepted_truncation_is_looked_at_by_itself() -> None:
    first, second, logs = read_twenty()
    logs.truncate(10).write("other", 15)
    past = accepted(second, logs)
    third = run(past, logs)
    found = checkpoints([first, second, past, third])
    assert altered_ranges(found, logs.look(), logs) == [(2, OffsetRange("t", 0, 10, 20))]


# How they are stored.


def test_marks_are_stored_in_few_words_and_read_back() -> None:
    marks = {
        T0: Mark(3, 19, "00ff00ff00ff00ff"),
        T1: Mark(None, 4, "12ff00ff00ff00ff", 7),
        TopicPartition("u", 2): Mark(5),
        TopicPartition("u", 3): Mark(),
    }
    stored = marks_to_json(marks)
    assert stored == {
        "t": {"0": [3, 19, "00ff00ff00ff00ff"], "1": [None, 4, "12ff00ff00ff00ff", 7]},
        "u": {"2": [5], "3": []},
    }
    assert marks_from_json(stored) == marks
    assert marks_from_json({"t": {"0": [1, 2, "a", 3, "of a later release"]}}) == {
        T0: Mark(1, 2, "a", 3)
    }


def test_an_entry_keeps_its_marks_and_its_hash_through_a_store() -> None:
    first, head, _ = read_twenty()
    head = replace(head, parent=EntryId(first.version, first.transaction_id))
    read = LedgerEntry.from_json(head.to_json())
    assert read == head
    assert not read.is_altered
    altered = head.to_json()
    altered["identity"]["marks"]["t"]["0"][2] = "b-18"
    assert LedgerEntry.from_json(altered).is_altered


class Message:
    """As confluent-kafka has it."""

    def __init__(self, **changes: Any) -> None:
        said = {"partition": 0, "offset": 5, "timestamp": (1, 10), "key": b"k", "value": b"v"}
        for name, value in (said | changes).items():
            setattr(self, name, lambda value=value: value)


def test_a_digest_is_another_where_anything_of_a_record_is() -> None:
    others: list[dict[str, Any]] = [
        {},
        {"partition": 1},
        {"offset": 6},
        {"timestamp": (1, 11)},
        {"timestamp": (2, 10)},
        {"key": None},
        {"key": b""},
        {"value": None},
        {"value": b""},
        {"key": b"kv", "value": b""},
        {"key": b"k2:v", "value": b""},
    ]
    digests = [digest(cast(Any, Message(**changes))) for changes in others]
    assert len({*digests}) == len(others)
    assert digest(cast(Any, Message())) == digests[0] == "f742fd5ca93c8244"
