"""The check from outside: Kafka read by a plain consumer, table and ledger by plain SQL.

Nothing here uses the pipeline's own code, so that an error in it cannot hide itself.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from confluent_kafka import Consumer, IsolationLevel, Message, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from demo import planes
from demo.flights import PARTITIONS, TOPIC
from demo.observe import PIPELINE, PLANES, TABLE, Observer
from eo_pipeline.errors import SourceUnavailableError

#: Offsets by partition.
Offsets = Mapping[int, Sequence[int]]

_READ_TIMEOUT_S = 30.0
_READ_AT_ONCE = 10_000
#: A reader waits this long for so many records, even when it has seen all ends meanwhile.
_LOOK_S = 0.1


@dataclass(frozen=True)
class Check:
    """One thing that must be so."""

    passed: bool
    text: str


def check_all(bootstrap_servers: str, observer: Observer, flights_min: int) -> list[Check]:
    """Every check; Kafka is read to its end for it."""
    aircraft = Counter[bytes]()
    in_kafka = read_offsets(bootstrap_servers, keys=aircraft)
    held = sum(map(len, in_kafka.values()))
    published = Check(
        held >= flights_min, f"Kafka holds {held:,} flights, counted by a read_committed consumer"
    )
    return [
        published,
        *check_rows(observer, held),
        check_coordinates(in_kafka, table_offsets(observer)),
        *(_check_planes(bootstrap_servers, observer, aircraft) if observer.exists(PLANES) else ()),
        check_versions(observer),
        check_ranges(observer),
        check_counts(observer),
        check_lag(bootstrap_servers, observer),
    ]


def read_offsets(
    bootstrap_servers: str,
    topic: str = TOPIC,
    partitions: int = PARTITIONS,
    keys: Counter[bytes] | None = None,
) -> Offsets:
    """The offset of every committed record of ``topic``; ``keys`` counts their keys."""
    offsets: dict[int, list[int]] = {partition: [] for partition in range(partitions)}
    for message in _messages(bootstrap_servers, topic, partitions):
        offsets[_known(message.partition())].append(_known(message.offset()))
        if keys is not None:
            key = message.key()
            keys[key.encode() if isinstance(key, str) else key or b""] += 1
    return offsets


def _check_planes(
    bootstrap_servers: str, observer: Observer, aircraft: Mapping[bytes, int]
) -> Iterable[Check]:
    """The second table, and its join with the first; ``aircraft`` counts the flights of each."""
    known = Counter[bytes]()
    in_kafka = read_offsets(bootstrap_servers, planes.TOPIC, planes.PARTITIONS, known)
    what = f"each record of the {len(known):,} {PLANES} is in their table once"
    yield check_coordinates(in_kafka, table_offsets(observer, PLANES), what)
    unknown = sum(count for tailnum, count in aircraft.items() if tailnum not in known)
    yield check_join(observer, sum(aircraft.values()), unknown)


_JOINED = f"""
select count(*), count(*) filter (where {PLANES}.tailnum is null)
from {TABLE} left join {PLANES} using (tailnum)
"""


def check_join(observer: Observer, flights: int, unknown: int) -> Check:
    """As many flights have no aircraft in the other table as by the keys in Kafka."""
    [(joined, without)] = observer.query(_JOINED)
    letters = _count(observer, f"{TABLE}_dead_letters")
    return Check(
        joined + letters == flights and unknown - letters <= without <= unknown,
        f"{TABLE} left join {PLANES}: {joined:,} rows, {without:,} of them without an aircraft, "
        f"as in Kafka ({unknown:,})",
    )


def _messages(bootstrap_servers: str, topic: str, partitions: int) -> Iterator[Message]:
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
            "group.id": "outside-check",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "fetch.queue.backoff.ms": 10,  # the default makes a reader this fast wait a second
            "log_level": 0,
        }
    )
    consumer.assign([TopicPartition(topic, p, 0) for p in range(partitions)])
    try:
        yield from _until_the_ends(consumer, partitions)
    finally:
        consumer.close()


def _until_the_ends(consumer: Consumer, partitions: int) -> Iterator[Message]:
    unfinished = partitions
    deadline = time.monotonic() + _READ_TIMEOUT_S
    while unfinished:
        for message in consumer.consume(_READ_AT_ONCE, _LOOK_S):
            deadline = time.monotonic() + _READ_TIMEOUT_S
            if message.error() is None:
                yield message
            else:  # the end of a partition
                unfinished -= 1
        if time.monotonic() > deadline:
            raise SourceUnavailableError(f"Kafka sent nothing for {_READ_TIMEOUT_S:.0f} s.")


def _known(number: int | None) -> int:
    if number is None:
        raise AssertionError("a record that was read has a partition and an offset")
    return number


def table_offsets(observer: Observer, table: str = TABLE) -> Offsets:
    """The offset of every row, and of every record in the dead letters."""
    parts = [f"select _eo_partition as p, _eo_offset as o from {table}"]
    if observer.exists(f"{table}_dead_letters"):
        parts.append(f'select partition, "offset" from {table}_dead_letters')
    union = " union all ".join(parts)
    return dict(observer.query(f"select p, array_agg(o order by o) from ({union}) r group by p"))


def check_coordinates(
    in_kafka: Offsets,
    in_table: Offsets,
    what: str = "each (topic, partition, offset) of Kafka is in the table once",
) -> Check:
    """Every record exactly once."""
    missing = foreign = twice = 0
    for partition in in_kafka.keys() | in_table.keys():
        expected = set(in_kafka.get(partition, ()))
        found = Counter(in_table.get(partition, ()))
        missing += len(expected - found.keys())
        foreign += len(found.keys() - expected)
        twice += sum(count > 1 for count in found.values())
    wrong = f"{missing:,} missing, {twice:,} double, {foreign:,} foreign"
    return Check(missing == foreign == twice == 0, f"{what}: {wrong}")


def check_rows(observer: Observer, held: int) -> Iterable[Check]:
    """As many rows as flights, no flight twice."""
    [(rows, ids)] = observer.query(f"select count(*), count(distinct flight_id) from {TABLE}")
    letters = _count(observer, f"{TABLE}_dead_letters")
    and_letters = f" and {letters:,} dead letters" if letters else ""
    yield Check(rows + letters == held, f"the table holds {rows:,} rows{and_letters}")
    yield Check(ids == rows, f"flight_id is unique: {ids:,} distinct values")


def _count(observer: Observer, table: str) -> int:
    if not observer.exists(table):
        return 0
    [(count,)] = observer.query(f"select count(*) from {table}")
    return int(count)


_BROKEN_CHAIN = """
select count(*) filter (where l.version > 0
                        and p.transaction_id is distinct from l.parent_transaction_id),
       count(*), min(l.version), max(l.version)
from eo_ledger l
left join eo_ledger p on p.pipeline = l.pipeline and p.version = l.version - 1
where l.pipeline = %s
"""


def check_versions(observer: Observer) -> Check:
    """No version missing, each the child of the one before."""
    [(broken, count, first, last)] = observer.query(_BROKEN_CHAIN, [PIPELINE])
    return Check(
        broken == 0 and first == 0 and count == last + 1,
        f"the ledger's versions {first} to {last} follow each other without a gap",
    )


#: The checkpoints that stand: not left behind by a rewind; with the rows of their latest replay.
_STANDING = """
with ledger as (
    select * from eo_ledger where pipeline = %s
), standing as (
    select version, ranges, coalesce(replayed.counts, forward.counts) as counts
    from ledger forward
    left join lateral (
        select counts from ledger replay
        where replay.operation = 'replay' and replay.target = forward.version
        order by replay.version desc limit 1
    ) replayed on true
    where operation = 'forward' and not exists (
        select from ledger rewind
        where rewind.operation = 'rewind' and rewind.version > forward.version
          and rewind.target < forward.version
    )
)
"""

_TORN_RANGES = f"""
{_STANDING}, spans as (
    select version, topic.key as topic, part.key as part,
           (part.value->>0)::bigint as first, (part.value->>1)::bigint as next
    from standing, jsonb_each(ranges) topic, jsonb_each(topic.value) part
    union all
    select version, topic.key, part.key, part.value::bigint, part.value::bigint
    from ledger, jsonb_each(offsets) topic, jsonb_each(topic.value) part
    where version = 0
), steps as (
    select first, lag(next) over (partition by topic, part order by version) as before from spans
)
select count(*) from steps where before is not null and first <> before
"""


def check_ranges(observer: Observer) -> Check:
    """Every partition read on from exactly where it stood, rewinds considered."""
    [(torn,)] = observer.query(_TORN_RANGES, [PIPELINE])
    return Check(
        torn == 0, f"every partition continues at its last end offset: {torn} gaps or overlaps"
    )


_WRONG_COUNTS = f"""
{_STANDING}
select count(*)
from (select version,
             coalesce(counts->'tables'->'{TABLE}'->>'rows', counts->>'rows')::bigint as rows
      from standing) l
full join (select _eo_checkpoint as version, count(*) as rows from {TABLE} group by 1) t
    on t.version = l.version
where coalesce(l.rows, 0) <> coalesce(t.rows, 0)
"""


def check_counts(observer: Observer) -> Check:
    """Every checkpoint has the rows its ledger entry says."""
    [(wrong,)] = observer.query(_WRONG_COUNTS, [PIPELINE])
    return Check(
        wrong == 0, f"every checkpoint has the rows its ledger entry counted: {wrong} differ"
    )


def check_lag(bootstrap_servers: str, observer: Observer) -> Check:
    """Nothing in Kafka is waiting."""
    waiting = lag(bootstrap_servers, observer)
    return Check(waiting == 0, f"lag {waiting:,} between the ledger and Kafka's end offsets")


_HEAD_OFFSETS = """
select topic.key, part.key::int, part.value::bigint
from (select offsets from eo_ledger where pipeline = %s order by version desc limit 1) head,
     jsonb_each(head.offsets) topic, jsonb_each(topic.value) part
"""


def lag(bootstrap_servers: str, observer: Observer) -> int:
    """Offsets between the ledger's head and the last stable offset of every partition."""
    admin = AdminClient({"bootstrap.servers": bootstrap_servers, "log_level": 0})
    rows = observer.query(_HEAD_OFFSETS, [PIPELINE])
    reached = {(topic, partition): offset for topic, partition, offset in rows}
    partitions = {(TOPIC, partition) for partition in range(PARTITIONS)} | reached.keys()
    ends = admin.list_offsets(
        {TopicPartition(*partition): OffsetSpec.latest() for partition in partitions},
        isolation_level=IsolationLevel.READ_COMMITTED,
        request_timeout=_READ_TIMEOUT_S,
    )
    ended = {(tp.topic, tp.partition): end.result().offset for tp, end in ends.items()}
    return sum(end - reached.get(partition, 0) for partition, end in ended.items())
