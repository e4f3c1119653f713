"""Who is measured in what."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from benchmarks.suite.peers.dlt_loader import Dlt
from benchmarks.suite.peers.flink import Flink
from benchmarks.suite.peers.hand_written import HandWritten
from benchmarks.suite.peers.limits import CopyAlone, ReadAlone
from benchmarks.suite.peers.ours import Ours
from benchmarks.suite.peers.peer import Mode, Peer
from benchmarks.suite.peers.structured_streaming import StructuredStreaming
from benchmarks.suite.room import END, Room
from benchmarks.suite.scenarios import AtTheEnd, Bulk, Record, Scenario
from benchmarks.suite.stores import Store
from benchmarks.suite.topic import Topic
from benchmarks.suite.workloads.all import WORKLOADS
from benchmarks.suite.workloads.plain import PLAIN, RAW
from benchmarks.suite.workloads.workload import Workload

#: Records that arrive between two runs, and what was there before.
NEW = 8_000
BEFORE = 10_000

#: Whom each kind of store has, ours first.
_LAKE = ((Ours, Store.DELTA), (StructuredStreaming, Store.DELTA), (Flink, Store.PARQUET))
_DATABASE = ((Ours, Store.POSTGRES), (StructuredStreaming, Store.POSTGRES))
_KAFKA = ((Ours, Store.KAFKA), (StructuredStreaming, Store.KAFKA), (Flink, Store.KAFKA))
_BY_HAND = (HandWritten, Store.POSTGRES)
_ICEBERG = ((Ours, Store.ICEBERG), (StructuredStreaming, Store.ICEBERG))
_BULK = (*_LAKE, *_ICEBERG, *_DATABASE, (Flink, Store.POSTGRES), _BY_HAND, *_KAFKA)
_DLT = (Dlt, Store.POSTGRES)
_SMALL = (*_LAKE[:2], *_DATABASE, _BY_HAND, _DLT)

TITLES = {
    "cold": ("A whole topic, 8 partitions, cold", "A process from its start to its end."),
    "warm": (
        "A whole topic, 8 partitions, warm",
        "The next job of a process that has done the same job once: the steady rate.",
    ),
    "small": (
        f"{NEW:,} new records at the end, 8 partitions, warm",
        "From the start of a run to what it committed.",
    ),
    "idle": ("Nothing new, warm", "What it costs to find that out."),
    "small-cold": (
        f"{NEW:,} new records at the end, 8 partitions, a new process",
        "*Server*: the process is new, Spark is not.",
    ),
    "idle-cold": ("Nothing new, a new process", ""),
    "small-200": (f"{NEW:,} new records at the end, 200 partitions, warm", ""),
    "idle-200": ("Nothing new, 200 partitions, warm", ""),
    "cold-200": ("A whole topic, 200 partitions, cold", ""),
    "raw": (
        "A whole topic as it is, 8 partitions, cold",
        "The value's bytes in one column, not parsed.",
    ),
    **{
        f"{workload.key}-{mode}": (f"{workload.title}, {mode}", workload.text)
        for workload in WORKLOADS
        for mode in ("cold", "warm")
    },
}


def who(peer: Peer) -> Mapping[str, str]:
    """What the page says of a peer."""
    versions = ", ".join(f"{name} {version}" for name, version in peer.versions().items())
    return {
        "program": peer.PROGRAM,
        "promise": peer.PROMISE,
        "settings": peer.SETTINGS,
        "versions": versions,
    }


def scenarios(room: Room, records: int, steps: int, record: Record) -> Sequence[Scenario]:
    """All of them, in the order in which a round takes them."""
    bootstrap = room.kafka.bootstrap_servers
    eight = Topic(bootstrap, f"bulk-{records}-8", records, 8)
    two_hundred = Topic(bootstrap, f"bulk-{records}-200", records, 200)
    few = Topic(bootstrap, f"{END}8", BEFORE, 8)
    few_in_many = Topic(bootstrap, f"{END}200", BEFORE, 200)

    def peers(
        mode: Mode, *those: tuple[type[Peer], Store], workload: Workload = PLAIN
    ) -> list[Peer]:
        return [
            kind(room, store, mode, workload)
            for kind, store in those
            if kind.takes(workload, store)
        ]

    ours = _LAKE[0], _DATABASE[0]
    cold = [*peers(Mode.COLD, *_BULK, _DLT), ReadAlone(room), CopyAlone(room)]
    small_cold = [*peers(Mode.COLD, *_SMALL), *peers(Mode.SERVER, *ours)]
    small_200 = peers(Mode.WARM, *_LAKE[:2], _DATABASE[0], _BY_HAND)
    lake = peers(Mode.COLD, *_LAKE)
    raw = peers(Mode.COLD, *_LAKE, workload=RAW)
    plain = [
        Bulk("cold", room, cold, record, 40, eight),
        Bulk("warm", room, peers(Mode.WARM, *_BULK), record, 80, eight, warmups=1),
        AtTheEnd("small", room, peers(Mode.WARM, *_SMALL), record, 60, few, "idle", NEW, steps, 3),
        AtTheEnd("small-cold", room, small_cold, record, 170, few, "idle-cold", NEW, 1),
        AtTheEnd("small-200", room, small_200, record, 60, few_in_many, "idle-200", NEW, steps, 1),
        Bulk("cold-200", room, lake, record, 60, two_hundred),
        Bulk("raw", room, raw, record, 40, Topic(bootstrap, eight.name, records, 8, RAW)),
    ]

    def of(workload: Workload) -> Iterator[Scenario]:
        key, number = workload.key, workload.records_of(records)
        name = "-".join(filter(None, ["bulk", workload.topic, str(number), "8"]))
        topic = Topic(bootstrap, name, number, 8, workload)
        cold = peers(Mode.COLD, *_BULK, workload=workload)
        warm = peers(Mode.WARM, *_BULK, workload=workload)
        yield Bulk(f"{key}-cold", room, cold, record, 40, topic, group=key)
        yield Bulk(f"{key}-warm", room, warm, record, 80, topic, warmups=1, group=key)

    return [*plain, *(scenario for workload in WORKLOADS for scenario in of(workload))]
