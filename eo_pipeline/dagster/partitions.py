"""Which checkpoints can be picked in Dagster: the keys of one dynamic partition a pipeline.

Keys are a convenience of the UI. Taking one away takes nothing from the ledger or the table.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from itertools import takewhile

import dagster as dg

from eo_pipeline.dagster.names import DagsterPipeline
from eo_pipeline.ledger.entry import LedgerEntry, Operation

KeyRequest = dg.AddDynamicPartitionsRequest | dg.DeleteDynamicPartitionsRequest


def checkpoint_partitions(declared: DagsterPipeline) -> dg.DynamicPartitionsDefinition:
    """One partition for each live checkpoint; the key is its version."""
    return dg.DynamicPartitionsDefinition(name=declared.partitions)


def is_checkpoint(entry: LedgerEntry) -> bool:
    """Whether rows carry this entry's number, so that there is something to replay."""
    return entry.operation is Operation.FORWARD and bool(entry.ranges)


def update_keys(
    declared: DagsterPipeline, instance: dg.DagsterInstance, entry: LedgerEntry
) -> None:
    """Do to the keys what ``entry`` did to the checkpoints.

    The cost of a checkpoint does not depend on how many keys there are; that of a rewind or a floor
    does.
    """
    if is_checkpoint(entry):
        instance.add_dynamic_partitions(declared.partitions, [str(entry.version)])
    elif entry.operation in (Operation.REWIND, Operation.PRUNE):
        known = _versions(instance.get_dynamic_partitions(declared.partitions))
        for version in sorted(known - live_after(known, [entry])):
            instance.delete_dynamic_partition(declared.partitions, str(version))


def live_after(known: Collection[int], entries: Iterable[LedgerEntry]) -> set[int]:
    """The live checkpoints of ``known`` and of ``entries``, once these have happened, in order."""
    live = set(known)
    for entry in entries:
        if is_checkpoint(entry):
            live.add(entry.version)
        elif entry.operation is Operation.REWIND and entry.target is not None:
            live -= {v for v in live if entry.target < v < entry.version}
        elif entry.operation is Operation.PRUNE:
            live -= {v for v in live if v < entry.floor}  # nobody replays them any more
    return live


def key_requests(
    declared: DagsterPipeline,
    keys: Sequence[str],
    entries: Iterable[LedgerEntry],
    *,
    anew: bool = False,
) -> list[KeyRequest]:
    """What makes ``keys`` those of the newest live checkpoints, in ascending order.

    Args:
        keys: as Dagster holds them, in its order.
        entries: ledger entries whose effect may be missing there, oldest first.
        anew: ``keys`` are those of a ledger that was replaced.
    """
    live = live_after(set() if anew else _versions(keys), entries)
    wanted = [str(v) for v in sorted(live)[-declared.automation.checkpoint_partitions :]]
    removed, added = rearranged(keys, wanted)
    name = declared.partitions
    deletion: list[KeyRequest] = (
        [dg.DeleteDynamicPartitionsRequest(name, removed)] if removed else []
    )
    addition: list[KeyRequest] = [dg.AddDynamicPartitionsRequest(name, added)] if added else []
    return deletion + addition


def rearranged(keys: Sequence[str], wanted: Sequence[str]) -> tuple[list[str], list[str]]:
    """What to take from ``keys`` and then to add at their end, so that they read ``wanted``.

    Dagster keeps keys in the order in which they came, and a range of them goes by that order. So
    a key that comes late makes those after it come once more.
    """
    chosen = set(wanted)
    held = [key for key in keys if key in chosen]
    same = takewhile(lambda pair: pair[0] == pair[1], zip(held, wanted, strict=False))
    kept = len(list(same))
    staying = set(held[:kept])
    return [key for key in keys if key not in staying], list(wanted[kept:])


def _versions(keys: Iterable[str]) -> set[int]:
    """Keys somebody else added by hand are left out, and so go with the next clean-up."""
    return {int(key) for key in keys if key.isdigit()}
